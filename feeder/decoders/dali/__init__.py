"""The DALI backend."""
