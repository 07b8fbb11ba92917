"""Step 1 of the road: from tokens to feature keys. The specification language, the user's own families, extraction."""
