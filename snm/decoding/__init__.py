"""CTC beam search with any model that scores word by word, in the place of pyctcdecode.

from snm.decoding import build_ctcdecoder  # instead of: from pyctcdecode import build_ctcdecoder

decoder = build_ctcdecoder(labels, "my.model")
decoder.decode(logits)
"""

from snm.decoding.decoder import Decoder, build_ctcdecoder
from snm.decoding.results import Beam, Partial, confidences
from snm.decoding.streaming import Stream

__all__ = ["Beam", "Decoder", "Partial", "Stream", "build_ctcdecoder", "confidences"]
