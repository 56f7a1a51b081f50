"""A backend's pixels beside the Pillow reference."""
