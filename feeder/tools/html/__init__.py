"""HTML pages with charts."""
