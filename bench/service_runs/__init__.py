"""Processes that bench.service runs, each of which may join a Ray cluster."""
