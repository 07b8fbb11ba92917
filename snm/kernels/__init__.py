"""The only Numba code: free functions over arrays, single-threaded, that release the GIL.

Callers make the threads (`snm.parallel`). Every kernel has a slow twin in `snm.reference` and a test that compares the
two.
"""
