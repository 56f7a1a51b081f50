"""The files of a shard set."""
