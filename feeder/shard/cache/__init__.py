"""The cache of remote shard sets: a process that fetches their bytes into a folder, and its clients."""
