"""The order of samples and every random number: pure functions of (seed, epoch, position or sample id)."""
