"""Shared memory for batches."""
