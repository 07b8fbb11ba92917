"""The GPU engine's counterparts of `snm.kernels`, over PyTorch tensors.

Plain PyTorch runs on any device; tests compare it with the kernels and the reference on the CPU. The modules `triton_*`
replace the slow parts by Triton kernels on GPUs.
"""
