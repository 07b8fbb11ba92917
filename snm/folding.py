"""A gate learned from all of the training text: from each part of it, under a model of the other parts.

A slice of the text gives the gate a few events, and takes them from the counts. Here every event is held out once: the
text is cut into folds, and the rows of a fold's events are those of a model of the others, with weights of its own. So
neither the counts nor the weights of a fold's rows have seen it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from snm.gate.fitting import GateEvents
from snm.loading import load
from snm.preparing import Job, without_new_words
from snm.progress import Notify, Progress, ignore, silent
from snm.scoring.model import SnmModel
from snm.settings import CLUSTER, MIN_MEMORY, Settings
from snm.storage import remove_folder
from snm.text.encoding import Text
from snm.text.sampling import folds_of, sample_sentences
from snm.text.vocabulary import Vocabulary

MAX_EVENTS = 1_000_000  # that the gate is learned from
EVENTS_SHARE = 0.25  # of the memory, for them
FOLDER = "fold"  # in that of the model, while it is trained

TrainFold = Callable[[Text, Vocabulary, np.ndarray | None, Path, Settings, Progress, Notify], None]
"""`snm.pipeline.train_source`: writes the SNM of a text."""


def fold_events(job: Job, text: Text, vocabulary: Vocabulary, folds: int, train: TrainFold) -> GateEvents:
    """The rows of the text's events, each under a model of the other folds, with word classes of its own."""
    s = job.settings
    memory = max(MIN_MEMORY, int((1 - EVENTS_SHARE) * s.memory))
    engine = "auto" if s.engine in CLUSTER else s.engine
    settings = replace(s, gate=0, folds=None, resume=False, size=None, tuning=None, memory=memory, engine=engine)
    folder, found = job.writer.folder / FOLDER, list[GateEvents]()
    with job.progress("folds", folds) as advance:
        for rest, held_out in folds_of(text, folds, job.writer.spool):
            train(rest, vocabulary, None, folder, settings, silent, ignore)
            with load(folder) as model:
                assert isinstance(model, SnmModel)
                rows = model.extractor.n_templates + len(model.extractor.spec.caches)
                most = EVENTS_SHARE * s.memory / GateEvents.bytes_needed(rows)
                sample = sample_sentences(held_out, int(min(most, MAX_EVENTS)) // folds, s.seed)
                found.append(model.gate_events(without_new_words(job, sample, rest, vocabulary)))
            remove_folder(folder)
            advance(1)
    return GateEvents.joined(found)
