"""Sources of samples: folders, tables, WebDataset tars, iterables."""
