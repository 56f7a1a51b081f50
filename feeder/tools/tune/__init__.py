"""``feeder tune``: finds a loader's setting by measurement."""
