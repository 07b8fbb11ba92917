"""Any model as n-grams: a backoff model, for programs that read nothing else.

own.py             the n-grams of an SNM
texts.py           the n-grams of a text, with means of a model's probabilities where they occur
continuations.py   rows of how many contexts a word follows
sampling.py        text that an SNM generates
gates.py           a gate for each length of context, such that backing off is right
rows.py            the probabilities of an SNM's n-grams
mixtures.py        the n-grams of several backoff models, mixed
ngrams.py          n-grams as arrays, and writing them
"""
