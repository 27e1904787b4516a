"""The network as one would write it without the row rule: natural shapes, library reductions, sums where they fall."""
