"""The rivals of each task of bench.tasks, a module for each task."""
