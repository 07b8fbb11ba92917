"""What a process holds, and that training is given no more than it may."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from snm.adjustment.settings import MAX_DEFAULT_SLOTS, TrainingSettings
from snm.engines import cpu
from snm.memory import Peak, resident_bytes
from snm.progress import silent
from snm.settings import MIN_MEMORY, Settings

MB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_arrays_count_and_mapped_files_do_not(tmp_path: Path) -> None:
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
def test_the_parts_of_the_memory_are_no_more_than_the_whole(memory: int, how: dict[str, object]) -> None:
    training = TrainingSettings(**how)  # type: ignore[arg-type]
    engine = cpu.CpuEngine(Settings(memory=memory, training=training), silent, lambda message: None)
    events, table = cpu.EVENTS_SHARE * engine.room, engine.max_slots * training.bytes_a_slot
    assert cpu.PROGRAM + engine.on_their_way + events + cpu.MIN_ROOM <= memory, "while it counts"
    assert cpu.PROGRAM + events + table <= memory, "while it learns"
    assert engine.max_slots % 8 == 0
    if memory >= Settings().memory and not how:
        assert engine.max_slots == MAX_DEFAULT_SLOTS
