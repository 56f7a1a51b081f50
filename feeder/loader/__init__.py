"""The DataLoader."""
