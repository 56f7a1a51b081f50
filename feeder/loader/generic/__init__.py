"""The generic path: batches of any dataset."""
