"""Runs of :mod:`bench.remote`, each in a process of its own, so that its CPU time is its own."""
