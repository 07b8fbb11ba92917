"""The memory of a process, and the shares of it that training uses."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from snm.adjustment.settings import MAX_DEFAULT_SLOTS, TrainingSettings
from snm.engines import cpu
from snm.errors import SettingsError
from snm.memory import Peak
from snm.pipeline import train
from snm.progress import ignore, silent
from snm.settings import MIN_MEMORY, Settings
from snm.system import resident_bytes

MB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_resident_bytes_include_arrays_but_not_mapped_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(256 * MB))
    before = resident_bytes()
    with Peak() as peak, open(path, "rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        assert not mapped.any()
        array = np.ones(128 * MB, np.uint8)
    assert 120 * MB < peak.bytes - before < 200 * MB
    del array
    assert resident_bytes() < peak.bytes - 100 * MB


@pytest.mark.parametrize("memory", [MIN_MEMORY, 1 << 30, 4 << 30, 8 << 30, 100 << 30])
@pytest.mark.parametrize("how", [{}, {"optimiser": "sgd"}, {"passes": 3}, {"loss": "multinomial"}])
def test_the_memory_shares_sum_to_at_most_one(memory: int, how: dict[str, object]) -> None:
    training = TrainingSettings(**how)  # type: ignore[arg-type]
    engine = cpu.CpuEngine(Settings(memory=memory, training=training), silent, ignore)
    events, table = cpu.EVENTS_SHARE * engine.array_bytes, engine.max_slots * training.bytes_per_slot
    assert cpu.PROGRAM_BYTES + engine.pending_bytes + events + cpu.MIN_PARTITION_BYTES <= memory, "while it counts"
    assert cpu.PROGRAM_BYTES + events + table <= memory, "while it learns"
    assert engine.max_slots % 8 == 0
    if memory >= Settings().memory and not how:
        assert engine.max_slots == MAX_DEFAULT_SLOTS


def test_a_feature_with_more_links_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "MIN_PARTITION_BYTES", 1000)
    monkeypatch.setattr(cpu, "resident_bytes", lambda: MIN_MEMORY)
    with pytest.raises(SettingsError, match="a feature is so frequent"):
        train(iter(["a a a a"] * 1000), tmp_path / "m", Settings(memory=MIN_MEMORY))
    assert not list(tmp_path.iterdir())
