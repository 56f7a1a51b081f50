"""Ops that run on a device."""
