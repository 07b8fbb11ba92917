"""A word language model for torchaudio's CTC decoder.

    from torchaudio.models.decoder import ctc_decoder
    from snm.integrations.torchaudio import SnmLM

    words = open("words.txt").read().split()
    ctc_decoder(lexicon, tokens, lm=SnmLM("my.model", words), lm_dict="words.txt", ...)

`lm_dict` is a file with one word a line, in the order of `words`: the decoder passes indices into it.
"""

from __future__ import annotations

from snm.errors import MissingExtra
from snm.integrations.flashlight import WordScores

try:
    from torchaudio.models.decoder import CTCDecoderLM
except (ImportError, OSError, RuntimeError):  # a build for another release of PyTorch raises an OSError
    raise MissingExtra("torchaudio", "torchaudio", "decoding with torchaudio") from None


class SnmLM(WordScores, CTCDecoderLM):
    """A language model for torchaudio's decoder."""
