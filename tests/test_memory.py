"""What a process holds, and that training is given no more than it may."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from snm.engines import cpu
from snm.memory import Peak, own_memory
from snm.pipeline import LEAST_MEMORY, Settings
from snm.progress import silent
from snm.training import MOST_BY_DEFAULT, TrainingSettings

MB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_arrays_count_and_mapped_files_do_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(256 * MB))
    before = own_memory()
    with Peak() as peak, open(path, "rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        assert not mapped.any()
        array = np.ones(128 * MB, np.uint8)
    assert 120 * MB < peak.bytes - before < 200 * MB
    del array
    assert own_memory() < peak.bytes - 100 * MB


@pytest.mark.parametrize("memory", [LEAST_MEMORY, 1 << 30, 4 << 30, 8 << 30, 100 << 30])
@pytest.mark.parametrize("how", [{}, {"optimiser": "sgd"}, {"passes": 3}, {"loss": "multinomial"}])
def test_the_parts_of_the_memory_are_no_more_than_the_whole(memory: int, how: dict[str, object]) -> None:
    training = TrainingSettings(**how)  # type: ignore[arg-type]
    engine = cpu.CpuEngine(Settings(memory=memory, training=training), silent, lambda message: None)
    events, table = cpu.EVENTS_SHARE * engine.room, engine.most_slots * training.bytes_a_slot
    assert cpu.PROGRAM + engine.on_their_way + events + cpu.LEAST_ROOM <= memory, "while it counts"
    assert cpu.PROGRAM + events + table <= memory, "while it learns"
    assert engine.most_slots % 8 == 0
    if memory >= Settings().memory and not how:
        assert engine.most_slots == MOST_BY_DEFAULT
