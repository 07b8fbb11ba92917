"""What `snm.kernels` does, over PyTorch tensors: the GPU engine's side of every step.

Plain PyTorch, so that it runs on any device, the CPU among them, where the tests compare it with the kernels and with
the oracle. `triton_keys` and `triton_steps` hold what is in Triton, for GPUs.
"""
