"""The paper's tables on any corpus: their rows, a workspace that trains and keeps results, plots."""
