"""Turns samples into pre-shuffled WebDataset shards and their index."""
