"""Smaller models: links and rows leave by what they bring."""
