"""The GPU, for engines and neural models, and Ray. PyTorch is imported only where there may be a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from snm.errors import MissingExtra, SettingsError
from snm.system import has_cuda_driver


def device_of(engine: str) -> str:
    """The name of an engine's PyTorch device."""
    if engine == "gpu" or (engine == "auto" and has_gpu()):
        return str(find_gpu())
    return "cpu"


def has_gpu() -> bool:
    """Whether PyTorch can use a GPU. Without a GPU driver PyTorch is not imported, which would take seconds."""
    if not has_cuda_driver() or find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def require_ray() -> None:
    if find_spec("ray") is None:
        raise MissingExtra("ray", "ray", "the Ray engine")


@contextmanager
def gpu_memory_errors() -> Iterator[None]:
    """Turn PyTorch's error about GPU memory into a one-line SettingsError."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError":  # by name, because PyTorch may not be installed
            raise
        raise SettingsError(
            "the GPU's memory is used up; take more --partitions, fewer --events or --slots, or --engine cpu"
        ) from error


def find_gpu() -> Any:
    """The GPU as a `torch.device`; raises an error that says what is missing."""
    if find_spec("torch") is None:
        raise MissingExtra("torch", "gpu", "the GPU engine")
    import torch

    if not torch.cuda.is_available():
        raise SettingsError("engine gpu: PyTorch finds no GPU here; take --engine cpu, or leave it out")
    return torch.device("cuda")
