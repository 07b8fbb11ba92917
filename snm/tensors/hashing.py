"""The hashes of `snm.kernels.hashing` over int64 tensors.

PyTorch has no arithmetic on uint64. Products of int64 wrap around to the same bits; a mask makes right shifts logical.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from snm.layouts import keys

SMALLEST = -(1 << 63)


def signed(number: int) -> int:
    """The int64 with the bits of a uint64."""
    return number - (1 << 64) if number >= 1 << 63 else number


MULTIPLIER, REMOTE_MULTIPLIER = signed(keys.MULTIPLIER), signed(keys.REMOTE_MULTIPLIER)
FEATURE_SALT, TARGET_SALT = signed(int(keys.FEATURE_SALT)), signed(int(keys.TARGET_SALT))
_M1, _M2 = map(signed, keys.MIX_MULTIPLIERS)


def tensor_of(array: np.ndarray, device: torch.device) -> Tensor:
    """An array of unsigned integers as a tensor of signed integers with the same bits."""
    return torch.from_numpy(np.array(array).view(f"<i{array.dtype.itemsize}")).to(device)


def widened(array: np.ndarray, device: torch.device) -> Tensor:
    """A uint32 or int64 array as an int64 tensor."""
    return tensor_of(array, device) if array.dtype.itemsize == 8 else tensor_of(array, device).long() & 0xFFFFFFFF


def array_of(tensor: Tensor, dtype: str) -> np.ndarray:
    """A tensor as an array of the given dtype, with the same bits."""
    if tensor.device.type == "cuda":  # copying to pinned memory is several times as fast
        tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
    array: np.ndarray = tensor.numpy().view(dtype)
    return array


def shift_right(x: Tensor, n: int) -> Tensor:
    return (x >> n) & ((1 << (64 - n)) - 1) if n else x


def mix64(x: Tensor) -> Tensor:
    x = (x ^ shift_right(x, 30)) * _M1
    x = (x ^ shift_right(x, 27)) * _M2
    return x ^ shift_right(x, 31)


def extend(chain: Tensor, word: Tensor) -> Tensor:
    chain = (chain ^ word) * MULTIPLIER
    return chain ^ shift_right(chain, 32)


def target_hash(targets: Tensor) -> Tensor:
    return mix64(targets ^ TARGET_SALT)


def slot_of(x: Tensor, slots: int) -> Tensor:
    return shift_right(shift_right(x, 32) * slots, 32)
