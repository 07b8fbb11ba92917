"""Run all benchmarks of speed, memory and size, and write their tables to docs/benchmarks.md.

    python benchmarks/all.py CORPUS [--kenlm DIR] [--work DIR] [--only read score ...]

Results in the work folder are used again; delete the folder to measure anew. Sections of the page without a new result,
such as the GPU's on a machine without one, are kept.
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
    "read": "Vocabulary and encoding. The reference is our goal, 60 MB/s.",
    "count": "Counting alone. The reference is the whole of `lmplz -o 5`.",
    "adjust": "Leave-one-out training: weights looked up a second, all threads together. The reference is the rate at "
    "which the machine adds to random slots of a table of the same size. From one run to the next, either row may "
    "fall to two thirds of its rate.",
    "score": "Scoring text, one thread, from a file to its perplexity. The reference is `query` on KenLM's probing "
    "model.",
    "size": "Size. The reference is KenLM's trie with 8-bit quantisation; then the same model with weights of 16 bits.",
    "beam": "One more word after a state, from Python. The reference is `kenlm.Model.BaseScore`.",
    "opening": "Opening a model, and the help. The reference is our goal.",
    "growth": "How cost grows with the text, with a `--memory` that limits from 10 million tokens on. GB are the peak "
    "of the process's private memory; `mapped GB` includes the files that it maps. Held-out text is given.",
    "gpu": "The GPU engine, in absolute times.",
}
HEAD = """# Benchmarks

Speed, memory and size beside KenLM's, and beside the machine's limits. `make bench CORPUS=folder [KENLM=folder]`
writes this page. The machine is shared, so absolute times vary; the ratios of figures measured in one run count.
*asked* is the ratio that is our goal.
"""


def section(name: str, found: dict[str, Any]) -> str:
    rows = [{k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()} for row in found["rows"]]
    picture = "\n![growth](benchmarks.png)\n" if name == "growth" else ""
    source = f"`python benchmarks/{name}.py`, commit {found['commit']}"
    return f"\n## {name}\n\n{SCRIPTS[name]}\n\n{markdown_table(rows)}\n{picture}\n{source}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--work", type=Path, default=ROOT / "bench")
    parser.add_argument("--kenlm", type=Path)
    parser.add_argument("--only", nargs="*", default=list(SCRIPTS), choices=list(SCRIPTS))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        if name == "gpu" and not has_gpu():
            continue
        command = [sys.executable, Path(__file__).parent / f"{name}.py", options.corpus, "--work", options.work]
        command += [
            "--json",
            options.work / f"{name}.result.json",
            *(["--kenlm", options.kenlm] if options.kenlm else []),
        ]
        subprocess.run(command, check=True)
    results = {name: options.work / f"{name}.result.json" for name in SCRIPTS}
    found = {name: json.loads(path.read_text()) for name, path in results.items() if path.exists()}
    facts = next(iter(found.values()))
    where = "\n".join(f"- {key}: {facts[key]}" for key in ("cpu", "memory", "python", "corpus"))
    page = ROOT / "docs" / "benchmarks.md"
    sections = {part.split("\n", 1)[0]: f"\n## {part}" for part in page.read_text().split("\n## ")[1:]}
    sections |= {name: section(name, result) for name, result in found.items()}
    page.write_text(HEAD + "\n" + where + "\n" + "".join(sections[name] for name in SCRIPTS if name in sections))


if __name__ == "__main__":
    main()
