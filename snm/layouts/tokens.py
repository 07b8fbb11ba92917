"""The ids of the special words; all other words follow."""

SPECIAL = ("<S>", "</S>", "<UNK>")
BEGIN, END, UNKNOWN = range(3)
