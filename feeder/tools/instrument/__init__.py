"""Meters inside a script that runs under ``feeder profile`` or ``feeder doctor --run``."""
