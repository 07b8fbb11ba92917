"""What a field of every line brings: the section that a paragraph of WikiText stands in.

    python benchmarks/fields.py CORPUS [PRESET ...] [--json FILE]

CORPUS is a folder with train, valid and test text of WikiText, whose headings are lines such as ` = = Reception = = `.
Headings are left out; each paragraph gets the field `section=`, which the models without fields do not see.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common import report, text_of

import snm
from snm.text.encoding import as_lines, encode_files

HEADING = re.compile(r"\s*((?:= )+)(.*?)((?: =)+)\s*")


def paragraphs(path: Path, with_field: bool) -> Iterator[str]:
    section = "none"
    for line in as_lines(path):
        if match := HEADING.fullmatch(line):
            title = "_".join(match.group(2).split())
            section = "none" if len(match.group(1)) == 2 else title.lower()
        elif line.strip():
            yield f"section={section} {line}" if with_field else line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("presets", nargs="*", default=["small", "medium"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for preset in options.presets:
            for fields in ("", "section"):
                texts = {}
                for part in ("train", "valid", "test"):
                    texts[part] = Path(name) / part
                    lines = paragraphs(text_of(options.corpus, part), bool(fields))
                    texts[part].write_text("\n".join(lines) + "\n")
                settings = snm.Settings(features=preset, fields=fields or (), engine="cpu")
                with snm.train(texts["train"], Path(name) / "model", settings, force=True) as model:
                    found = {
                        part: model.perplexity(encode_files(texts[part], model.vocabulary)).ppl
                        for part in ("valid", "test")
                    }
                rows.append({"preset": preset, "fields": fields or "none", **found})
                print(rows[-1], flush=True)
    report("fields", options.corpus.name, rows, options.json)


if __name__ == "__main__":
    main()
