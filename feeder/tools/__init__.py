"""The commands, and the measurements behind them."""
