"""Neural models: HSME and RNN. PyTorch trains them; NumPy and Numba score them on a CPU."""
