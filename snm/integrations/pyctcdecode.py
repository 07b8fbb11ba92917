"""A language model for pyctcdecode.

    from pyctcdecode import Alphabet, BeamSearchDecoderCTC
    from snm.integrations.pyctcdecode import SnmLanguageModel

    decoder = BeamSearchDecoderCTC(Alphabet.build_alphabet(labels), SnmLanguageModel("my.model"))

Words of the vocabulary are the known ones; no list of unigrams is needed. `SnmLanguageModel.save_to_dir` writes a
folder that pyctcdecode opens after `snm.kenlm.install()`, as `Wav2Vec2ProcessorWithLM.from_pretrained` does.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from snm.arguments import flag, real_number
from snm.errors import MissingExtra, SettingsError
from snm.integrations.words import Prefixes, engine_for
from snm.layouts.tokens import SPECIAL
from snm.model import LanguageModel

try:
    from pyctcdecode import constants
    from pyctcdecode.language_model import AbstractLanguageModel
except ImportError:
    raise MissingExtra("pyctcdecode", "pyctcdecode", "decoding with pyctcdecode") from None

LN10 = math.log(10)


class SnmLanguageModel(AbstractLanguageModel):
    """Scores hypotheses as pyctcdecode's own `LanguageModel` does: the same parameters, the same totals."""

    def __init__(
        self, model: str | Path | LanguageModel, unigrams: Collection[str] | None = None, *,
        alpha: float = constants.DEFAULT_ALPHA, beta: float = constants.DEFAULT_BETA,
        unk_score_offset: float = constants.DEFAULT_UNK_LOGP_OFFSET,
        score_boundary: bool = constants.DEFAULT_SCORE_LM_BOUNDARY,
    ) -> None:  # fmt: skip
        """`alpha`: weight of the model; `beta`: added for each word; `unk_score_offset`: for each unknown word.

        `unigrams`: the words that count as known, if these are not all words of the model. `score_boundary`: whether
        texts are whole sentences.
        """
        self._engine = engine_for(model)
        inner = self._engine.model
        assert inner is not None
        if inner.vocabulary.tokenizer is not None:
            raise SettingsError(
                f"{inner.path} has a tokenizer, and pyctcdecode asks for whole words; decode "
                f"with a model of words, or with flashlight, where words may be pieces"
            )
        self.model: LanguageModel = inner
        words = set(self.model.vocabulary.words).difference(SPECIAL)
        self._known = words if unigrams is None else words.intersection(unigrams)
        self._prefixes = Prefixes(self._known)
        self.alpha = self.beta = self.unk_score_offset = 0.0
        self.score_boundary = True
        self.reset_params(alpha=alpha, beta=beta, unk_score_offset=unk_score_offset, score_boundary=score_boundary)

    def reset_params(self, **params: Any) -> None:
        """Change alpha, beta, unk_score_offset or score_boundary; None leaves one as it is."""
        for name, value in params.items():
            if name not in ("alpha", "beta", "unk_score_offset", "score_boundary"):
                raise SettingsError(f"{name} is no parameter; expected alpha, beta, unk_score_offset or score_boundary")
            if value is not None:
                setattr(self, name, flag(name, value) if name == "score_boundary" else real_number(name, value))

    @property
    def order(self) -> int:
        """Words that a feature spans: beams that differ only further back may be merged."""
        return self._engine.order

    def get_start_state(self) -> Any:
        return self._engine.begin if self.score_boundary else self._engine.null

    def score_partial_token(self, partial_token: str) -> float:
        """The penalty of an unfinished word that is the beginning of no known word."""
        if partial_token in self._prefixes:
            return 0.0
        return self.unk_score_offset * max(1.0, len(partial_token) / float(constants.AVG_TOKEN_LEN))

    def score(self, prev_state: Any, word: str, is_last_word: bool = False) -> tuple[float, Any]:
        """The weighted natural logarithm of P(word | state), and the state after it."""
        engine = self._engine
        score, state = engine.score(prev_state, engine.ids.get(word, engine.unknown))
        if word not in self._known:
            score += self.unk_score_offset
        if is_last_word and self.score_boundary:
            score += engine.score(state, engine.ids["</s>"])[0]
        return self.alpha * score * LN10 + self.beta, state

    def save_to_dir(self, filepath: str) -> None:
        """Write parameters, known words and a copy of the model to a folder."""
        folder, source = Path(filepath), self.model.path
        attributes = {name: getattr(self, name) for name in ("alpha", "beta", "unk_score_offset", "score_boundary")}
        (folder / "attrs.json").write_text(json.dumps(attributes), encoding="utf-8")
        (folder / "unigrams.txt").write_text("".join(f"{word}\n" for word in sorted(self._known)), encoding="utf8")
        if source.is_dir():
            shutil.copytree(source, folder / "model.bin")  # pyctcdecode wants this ending
        else:
            shutil.copy2(source, folder / "model.arpa")

    @classmethod
    def load_from_dir(cls, filepath: str) -> SnmLanguageModel:
        """Open what `save_to_dir` wrote."""
        folder = Path(filepath)
        attributes = json.loads((folder / "attrs.json").read_text(encoding="utf-8"))
        unigrams = (folder / "unigrams.txt").read_text(encoding="utf8").split("\n")
        model = folder / "model.bin"
        return cls(model if model.is_dir() else folder / "model.arpa", unigrams, **attributes)
