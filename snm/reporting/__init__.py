"""Reports on models: what they do on a text, with intervals, and how they compare.

    texts -> scores -> basis, bootstrap -> words, contributions, sizes, curves -> report -> charts, page

A report reads all of a text and keeps an even sample of it, so memory and time have a bound.
"""
