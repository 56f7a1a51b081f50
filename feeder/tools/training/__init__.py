"""Helpers for training loops."""
