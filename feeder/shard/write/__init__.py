"""Writing a shard set."""
