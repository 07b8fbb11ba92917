"""What arrays, keys and records look like: constants and tuples that kernels, tensors, writers and readers share.

One definition each of a key, of the matrix format, of the table of weights and of what a kernel is handed. Nothing
here computes more than a layout, and nothing here imports the rest of the package.
"""
