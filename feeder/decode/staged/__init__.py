"""Encoded images that workers stage for a decoder in the trainer."""
