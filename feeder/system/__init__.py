"""Facts about the machine, and helpers for files, processes and text. Needs no torch."""
