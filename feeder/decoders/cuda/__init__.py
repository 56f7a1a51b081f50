"""JPEGs decoded on a GPU by feeder's own kernels, see kernels/README.md."""
