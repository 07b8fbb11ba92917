"""Models of one text with different tokenizers, compared by bits a byte.

    python benchmarks/pieces.py CORPUS [--lines 80000] [--test-lines 4000] [--pieces 8000] [--unsegmented]
                                    [--features small snm10 large] [--threads 1] [--json FILE]

CORPUS is a folder with train and test text. SentencePiece (unigram) and byte-level BPE of Hugging Face are trained on
the first lines of the training text, with as many pieces; models of them, of characters, of bytes and, unless
--unsegmented, of words are trained on the same lines. --unsegmented removes all spaces, so that the text is like one
of a language that writes none: then the words of one are its lines. Seconds are CPU time, of all threads.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import subprocess
import sys
import tempfile
from itertools import chain, islice
from pathlib import Path
from typing import Any

from common import ROOT, report, text_of

from snm.text.files import read_lines


def lines_of(corpus: Path, part: str, lines: int, unsegmented: bool) -> list[str]:
    """The first lines of a text, whose words one space separates, or none."""
    found = islice(chain.from_iterable(read_lines(text_of(corpus, part))), lines)
    return [("" if unsegmented else " ").join(line.split()) for line in found]


def make_tokenizers(lines: list[str], pieces: int, folder: Path) -> dict[str, str]:
    """Names and files of tokenizers that are trained on these lines."""
    import sentencepiece
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=made, vocab_size=pieces, character_coverage=1.0, minloglevel=2
    )
    (folder / "unigram.model").write_bytes(made.getvalue())
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=pieces, show_progress=False, initial_alphabet=alphabet)
    bpe.train_from_iterator(lines, trainer)
    bpe.save(str(folder / "bpe.json"))
    return {
        "characters": "characters", "bytes": "bytes", "SentencePiece": str(folder / "unigram.model"),
        "byte-level BPE": str(folder / "bpe.json"),
    }  # fmt: skip


def measure(folder: Path, tokenizer: str, features: str, threads: int) -> dict[str, Any]:
    """Train a model, and score the test text."""
    command = [sys.executable, "-m", "snm"]
    model = folder / "model"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    train = ["train", folder / "train.txt", "-o", model, "--tokenizer", tokenizer, "--preset", features]
    subprocess.run(
        [*command, *map(str, train), "--threads", str(threads), "--force", "--quiet"], check=True, cwd=ROOT
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    scored = subprocess.run(
        [*command, "ppl", str(model), str(folder / "test.txt"), "--json"], check=True, stdout=subprocess.PIPE, cwd=ROOT
    )
    found = json.loads(scored.stdout)
    size = sum(path.stat().st_size for path in model.iterdir())
    return {
        "tokens": found["tokens"], "a token": found["ppl"], "a word": found["ppl_word"],
        "bits a byte": round(found["bits_per_byte"], 4), "seconds": after.ru_utime - before.ru_utime,
        "MB": size / 1e6,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--lines", type=int, default=80_000)
    parser.add_argument("--test-lines", type=int, default=4_000)
    parser.add_argument("--pieces", type=int, default=8_000)
    parser.add_argument("--unsegmented", action="store_true")
    parser.add_argument("--features", nargs="+", default=["small", "snm10", "large"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = lines_of(options.corpus, "train", options.lines, options.unsegmented)
        (folder / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        test = lines_of(options.corpus, "test", options.test_lines, options.unsegmented)
        (folder / "test.txt").write_text("\n".join(test) + "\n", encoding="utf-8")
        named = make_tokenizers(lines, options.pieces, folder)
        if not options.unsegmented:
            named = {"white space": "whitespace", **named}
        rows = [
            {"tokenizer": tokenizer, "features": features, **measure(folder, file, features, options.threads)}
            for tokenizer, file in named.items()
            for features in options.features
        ]
    what = f"{options.corpus.name}, {options.lines:,} lines{', no spaces' if options.unsegmented else ''}"
    report("pieces", what, rows, options.json)


if __name__ == "__main__":
    main()
