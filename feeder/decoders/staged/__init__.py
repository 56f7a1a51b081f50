"""Encoded images, staged by workers for a decoder in the trainer."""
