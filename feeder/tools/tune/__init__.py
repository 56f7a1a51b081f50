"""feeder tune: a loader's setting found by measurement."""
