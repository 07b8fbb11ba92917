"""Step 4 of the road: the matrix M, written once, then mapped."""
