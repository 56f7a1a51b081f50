"""A local web page that shows a set of images, and what training sees of it."""
