"""``feeder.headroom``: how much faster a training loop could go."""
