"""Step 0 of the road: from files to tokens. The vocabulary, samples of a text, word classes."""
