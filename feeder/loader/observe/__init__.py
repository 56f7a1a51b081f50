"""Measurements of a loader while it runs."""
