"""Step 2 of the road: the counts C of features and links, inside a memory budget."""
