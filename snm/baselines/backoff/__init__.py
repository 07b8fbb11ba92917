"""Backoff models: Kneser-Ney, Katz and stupid backoff, estimated from the counts of n-gram features, and ARPA files."""
