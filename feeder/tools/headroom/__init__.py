"""How much faster a training loop could go."""
