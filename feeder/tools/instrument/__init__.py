"""Meters inside of a script that runs under feeder profile."""
