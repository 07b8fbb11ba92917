"""The systems that the paper compares SNM with, on the same counts and behind the same protocol."""
