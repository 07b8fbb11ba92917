"""Step 0 of the road: files to sentences, words to ids, and word classes."""
