"""Hostile models: models and ARPA files are changed at random, opened and used.

    python -m tests.fuzz [--models 100000] [--arpa 20000] [--seed 1] [--output FILE]

Each must be refused by an `SnmError` of one line, or answer: no signal, no other error, no warning, no hang, and no
memory beyond twice its size. `seeds` makes models of every kind, `mutations` changes them, `uses` opens and asks them,
`workers` does that in processes that are watched.

With NUMBA_BOUNDSCHECK=1, an index outside of an array is an IndexError, also where it would do no harm by chance.
"""
