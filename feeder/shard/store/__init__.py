"""Places that hold shard sets: folders, and object stores with a folder that mirrors a part of them."""
