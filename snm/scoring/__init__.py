"""Step 6 of the road: probabilities of whole texts, and word by word for beam searches."""
