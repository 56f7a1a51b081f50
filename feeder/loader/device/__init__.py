"""Batches onto a device."""
