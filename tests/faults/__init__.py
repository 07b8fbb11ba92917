"""Faults: commands are killed, and their writes fail, at every moment; what is left is checked.

    python -m tests.faults [--seed 1] [--count 100] [--cases train,mix] [--kinds kill,...] [--output FILE]

`shim` makes the writes of a process fail, `cases` has the commands, `campaign` runs them and checks what is left.
"""
