"""The command demo: train models on the documentation that Python includes, and show what they can do.

The text is the language reference in `pydoc_data.topics` and the docstrings of the standard library. Nothing is
downloaded, and the repository contains none of it.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from snm.progress import Notify, Progress
from snm.scratch import scratch_folder

_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?|\d+|[.,;:?!()]")
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+|\n\s*\n")
_MIN_WORDS = 4  # of a sentence


def documents() -> Iterator[str]:
    """The documents of the built-in text, in a fixed order."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield topics[name]
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if not {"site-packages", "test", "tests", "idlelib", "lib2to3"} & set(path.parts):
            yield "\n\n".join(_docstrings(path))


def _docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def sentences(document: str) -> list[str]:
    """The sentences of a document, as lower-case words and punctuation; very short ones are left out."""
    split = (_WORD.findall(piece.lower()) for piece in _SENTENCE_END.split(document))
    return [" ".join(words) for words in split if len(words) >= _MIN_WORDS]


def write_corpus(folder: Path) -> tuple[Path, Path]:
    """Write training and test text, without repeated sentences; every tenth document is test text."""
    parts: tuple[list[str], list[str]] = ([], [])
    seen: set[str] = set()
    for number, document in enumerate(documents()):
        new = [s for s in sentences(document) if s not in seen]
        seen.update(new)
        parts[number % 10 == 9].extend(new)
    paths = folder / "train.txt", folder / "test.txt"
    for path, lines in zip(paths, parts, strict=True):
        path.write_bytes("".join(line + "\n" for line in lines).encode())
    return paths


def run(output: Path | None, threads: int, progress: Progress, echo: Notify) -> None:
    """Train three models on the built-in text, and print results and examples."""
    from snm.evaluation import check_sums
    from snm.pipeline import train
    from snm.settings import Settings
    from snm.text.encoding import encode_files

    with scratch_folder(echo) as scratch, ExitStack() as opened:
        folder = Path(output or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        train_text, test_text = write_corpus(scratch)
        echo("The text: Python's language reference and the docstrings of its standard library.\n")
        for name, how in (("Kneser-Ney", {"model": "kn"}), ("small", {}), ("medium", {"features": "medium"})):
            settings = Settings(threads=threads, folds=0, **how)  # type: ignore[arg-type]
            model = opened.enter_context(train([train_text], folder / name, settings, progress=progress))
            test = encode_files([test_text], model.vocabulary)
            report = model.perplexity(test, threads=threads)
            text = model.manifest["text"]
            if name == "Kneser-Ney":
                echo(f"  training text     {text['tokens']:,} tokens, {len(model.vocabulary):,} words")
                echo(f"  test text         {report.tokens:,} tokens of other documents\n")
            echo(f"  {name:<11} {model.manifest['links']:>12,} links    perplexity {report.ppl:7.2f}")
        sums = check_sums(model, test, 200)
        echo(f"\nIn {sums.contexts} contexts the probabilities of all words sum to 1 within {sums.worst:.0e}.")
        echo("\nThe most probable words after “the name of the”, by medium:")
        for word, p in model.next_words("the name of the", k=5):
            echo(f"  {p:.4f}  {word}")
        echo("\nWhy “value” after “return the default”:")
        explanation = model.explain("return the default value")[3]
        for part in explanation.parts[:6]:
            echo(f"  {part.share:.4f} of {explanation.probability:.4f}  {part.feature}")
        echo("\nThree sentences sampled from medium:")
        for seed in range(3):
            echo(f"  {model.generate(seed=seed, max_words=30, temperature=0.7)}")
        if output:
            echo(f"\nThe models are in {folder}; try: snm next {folder / 'medium'} 'the name of the'")
