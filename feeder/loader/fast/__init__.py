"""The fast path: batches of a feeder dataset."""
