"""TODO: docstring."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from snm.errors import MissingExtra, SettingsError


def device_of(engine: str) -> str:
    """The PyTorch device of an engine, for models that need PyTorch anyway."""
    if engine == "gpu" or (engine == "auto" and has_gpu()):
        return str(find_gpu())
    return "cpu"


def has_gpu() -> bool:
    """Whether PyTorch could use a GPU; it is not imported, which takes seconds, where there is no driver for one."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


@contextmanager
def gpu_memory_errors() -> Iterator[None]:
    """A GPU whose memory is used up is told in a line."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError":  # PyTorch's: it may not be there to be named
            raise
        raise SettingsError(
            "the GPU's memory is used up; take more --partitions, fewer --events or --slots, or --engine cpu"
        ) from error


def find_gpu() -> Any:
    """The GPU as a PyTorch device, or an error that says what is missing."""
    if find_spec("torch") is None:
        raise MissingExtra("torch", "gpu", "the GPU engine")
    import torch

    if not torch.cuda.is_available():
        raise SettingsError("engine gpu: PyTorch finds no GPU here; take --engine cpu, or leave it out")
    return torch.device("cuda")
