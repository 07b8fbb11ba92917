"""Hybrids: an SNM and models of any other kinds under one gate. `snm.hybrids` makes them."""

from __future__ import annotations

from pathlib import Path

from snm import manifest
from snm.errors import FormatError
from snm.model import LanguageModel
from snm.scoring.members import Member, Other
from snm.scoring.model import SnmModel
from snm.scoring.sources import SourcesModel
from snm.scoring.unions import Words, spelling_of


class HybridModel(SourcesModel):
    """SNMs, whose rows the gate weighs, and other models, each of which is one row: its distribution."""

    kind = "hybrid"

    def __init__(self, path: str | Path, members: list[LanguageModel]) -> None:
        super().__init__(path, members)
        self.spelling = manifest.read_spelling(self.path, self.manifest) or spelling_of(members, self.vocabulary)
        self.scores_in_parallel = all(member.scores_in_parallel for member in members)

    def _sort(self, given: list[tuple[LanguageModel, str, Words]]) -> tuple[list[Member], list[Other]]:
        members = [Member(model, name, words) for model, name, words in given if isinstance(model, SnmModel)]
        others = [Other(model, name, words) for model, name, words in given if not isinstance(model, SnmModel)]
        if not members:
            raise FormatError(f"{self.path} is damaged: no member is an SNM; restore or rebuild the model")
        return members, others
