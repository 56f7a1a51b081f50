"""``feeder parity``: compares a backend's pixels with the Pillow reference."""
