"""What a cache brings on text in documents.

    python benchmarks/cache.py CORPUS [FEATURES ...] [--lines N] [--words N] [--json FILE]

CORPUS is a folder with train, valid and test text, as for `quality.py`. A document begins at a title such as
` = Name = ` (WikiText) or, with --lines, every N lines; at --words tokens the training text ends. FEATURES are trained
as they are, and with caches.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import report, text_of

from snm.text.encoding import as_lines

CACHES = "", "cache(a=0)", "cache()"


def snm(*arguments: str | Path) -> Any:
    """Run a command; return what it prints as JSON."""
    command = [sys.executable, "-m", "snm", *arguments, "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def documents(path: Path, every: int | None, words: int | None) -> Iterator[str]:
    """The lines of a text, with a blank one before each document."""
    seen = 0
    for number, line in enumerate(as_lines(path)):
        if words is not None and seen >= words:
            break
        seen += len(line.split()) + 1
        begins = number % every == 0 if every else re.fullmatch(r"\s*= [^=].*[^=] =\s*", line)
        if begins:
            yield ""
        if line.strip():
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("features", nargs="*", default=["small"])
    parser.add_argument("--lines", type=int)
    parser.add_argument("--words", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("train", "valid", "test"):
            lines = documents(text_of(options.corpus, part), options.lines, options.words if part == "train" else None)
            (folder / part).write_text("\n".join(lines) + "\n")
        for features in options.features:
            for cache in CACHES:
                chosen = f"{features} + {cache}" if cache else features
                snm("train", folder / "train", "-o", folder / "model", "--features", chosen, "--document", "--force")
                found = {part: snm("ppl", folder / "model", folder / part)["ppl"] for part in ("valid", "test")}
                rows.append({"features": chosen, **found})
    report("cache", options.corpus.name, rows, options.json)


if __name__ == "__main__":
    main()
