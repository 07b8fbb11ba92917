"""`python -m snm.cluster`: run tasks of a training with `--engine tasks`, from a batch system or a shell.

    python -m snm.cluster all --work FOLDER --shard I --shards N      be worker I of N: every N-th task, till the end
    python -m snm.cluster count --work FOLDER/0 --shard I --shards N  do one task

See docs/cluster.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from snm.cluster.runners import LOOKS
from snm.cluster.tasks import TASKS, perform
from snm.cluster.work import PHASE, name_of
from snm.errors import SettingsError, SnmError
from snm.remote import Folder


def follow(where: str, worker: int, workers: int, wait: float) -> None:
    """Do every `workers`-th task of each phase, until the folder is removed. `wait`: seconds for it to be there."""
    name_of("worker", worker, workers)  # validates them
    folder, done, pause, deadline = Folder(where), 0, LOOKS[0], time.monotonic() + wait
    while True:
        try:
            phase = json.loads(folder.read(PHASE))
        except FileNotFoundError:
            if done:
                return
            if time.monotonic() > deadline:
                raise SettingsError(
                    f"{where} has no {PHASE} after {wait:,.0f} seconds; is snm train running?"
                ) from None
            phase = {"phase": done}
        if phase["phase"] == done:
            time.sleep(pause)
            pause = min(1.5 * pause, LOOKS[1])
            continue
        inside = f"{folder.where}/{phase['folder']}"
        for shard in range(worker, phase["shards"], workers):
            perform(phase["task"], shard, phase["shards"], inside, inside)
        done, pause = phase["phase"], LOOKS[0]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m snm.cluster", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("task", choices=[*TASKS, "all"])
    parser.add_argument("--work", required=True, help="folder or URL of --work")
    parser.add_argument("--shard", type=int, required=True, help="number of this part, from 0")
    parser.add_argument("--shards", type=int, required=True, help="number of parts")
    parser.add_argument("--wait", type=float, default=3600, help="seconds to wait for the folder to be there (3600)")
    given = parser.parse_args(arguments)
    try:
        if given.task == "all":
            follow(given.work, given.shard, given.shards, given.wait)
        else:
            perform(given.task, given.shard, given.shards, given.work, given.work)
    except SnmError as error:
        print(f"snm: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
