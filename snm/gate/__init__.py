"""Step 5 of the road: the gate, learned on held-out text, which weighs the rows of an event against each other."""
