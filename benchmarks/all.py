"""All benchmarks of speed, memory and size, one after another; the tables go to docs/benchmarks.md.

    python benchmarks/all.py CORPUS [--kenlm DIR] [--work DIR] [--only read score ...]

What was measured before and lies in the work folder is taken as it is: delete the folder to measure anew. A section of
the page that is neither there nor measured, such as the GPU's where there is none, stays as it is.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import ROOT, markdown_table

from snm.devices import has_gpu

SCRIPTS = {
    "train": "Training, from text to a finished model. The reference is `lmplz -o 5`, which stops at an ARPA file.",
    "read": "Vocabulary and encoding. The reference is the 60 MB/s that were asked for.",
    "count": "Counting alone. The reference is the whole of `lmplz -o 5`.",
    "adjust": "Leave-one-out training: weights looked up a second, all threads together. The reference is the rate at "
    "which the machine adds to random places of a table of the same size.",
    "score": "Scoring text, one thread, from a file to its perplexity. The reference is `query` on KenLM's probing "
    "model.",
    "size": "Size. The reference is KenLM's trie with 8-bit quantisation; then the same model with weights of 16 bits.",
    "beam": "One more word after a state, from Python. The reference is `kenlm.Model.BaseScore`.",
    "opening": "Opening a model, and the help. The reference is what was asked for.",
    "growth": "How cost grows with the text, inside a `--memory` that binds from 10 million tokens on. GB are of the "
    "process itself at its peak; `mapped GB` has the files that it maps too. Held-out text is given.",
    "gpu": "The GPU engine, in absolute times.",
}
HEAD = """# Benchmarks

Speed, memory and size beside KenLM's, and beside what the machine can do. `make bench CORPUS=folder [KENLM=folder]`
writes this page. The machine is shared and its clock is not to be trusted by itself: ratios of figures measured in one
run are what counts. *asked* is the ratio that we set out to reach.
"""


def section(name: str, found: dict[str, Any]) -> str:
    rows = [
        {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()} for row in found["rows"]
    ]  # fmt: skip
    picture = "\n![growth](benchmarks.png)\n" if name == "growth" else ""
    source = f"`python benchmarks/{name}.py`, commit {found['commit']}"
    return f"\n## {name}\n\n{SCRIPTS[name]}\n\n{markdown_table(rows)}\n{picture}\n{source}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--work", type=Path, default=ROOT / "bench")
    parser.add_argument("--kenlm", type=Path)
    parser.add_argument("--only", nargs="*", default=list(SCRIPTS), choices=list(SCRIPTS))
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    for name in asked.only:
        if name == "gpu" and not has_gpu():
            continue
        command = [sys.executable, Path(__file__).parent / f"{name}.py", asked.corpus, "--work", asked.work]
        command += ["--json", asked.work / f"{name}.result.json", *(["--kenlm", asked.kenlm] if asked.kenlm else [])]
        subprocess.run(command, check=True)
    results = {name: asked.work / f"{name}.result.json" for name in SCRIPTS}
    found = {name: json.loads(path.read_text()) for name, path in results.items() if path.exists()}
    facts = next(iter(found.values()))
    where = "\n".join(f"- {key}: {facts[key]}" for key in ("cpu", "memory", "python", "corpus"))
    page = ROOT / "docs" / "benchmarks.md"
    sections = {part.split("\n", 1)[0]: f"\n## {part}" for part in page.read_text().split("\n## ")[1:]}
    sections |= {name: section(name, result) for name, result in found.items()}
    page.write_text(HEAD + "\n" + where + "\n" + "".join(sections[name] for name in SCRIPTS if name in sections))


if __name__ == "__main__":
    main()
