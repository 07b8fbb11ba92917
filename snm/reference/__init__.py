"""Slow twins in plain Python, which tests compare kernels with.

    paper.py    the paper: features, counts, metafeatures, gradients, M, probabilities
    backoff.py  the backoff baselines
    format.py   models on disk: reading rows and scoring, from docs/format.md
    counts.py   the codes of stored counts
    decoding.py CTC beam search
    threads.py  the exchange of private weights between threads

Each is written from the paper or the specification, not from the kernels. Nothing else in the package imports them.
"""
