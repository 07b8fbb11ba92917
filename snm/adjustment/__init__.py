"""Step 3 of the road: the adjustment function A and its weights theta, learned from events and their counts."""
