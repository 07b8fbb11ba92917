"""Large texts: time, memory and disk of training, beside lmplz, as the text grows.

    python benchmarks/scale.py TEXT [--tokens 5e7 2e8 8e8] [--models lmplz kn snm5 small] [--memory 4G] [--verify]
        [--dev FILE] [--work DIR] [--kenlm DIR] [--json FILE]

TEXT is a plain file, such as one of 0.8 G tokens; shorter texts are its beginning. lmplz gets our vocabulary and as
much memory, leaves out the text's `<unk>`, and stops at an ARPA file. Memory is the peak of the process's private
memory (for lmplz, of its resident memory). Disk is the peak of all files in the work folder, those without a name
included; the text is not counted. Every result is kept in the work folder, and a later run uses it again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from common import ROOT, report

ORDER = "5"
TRAIN = {
    "kn": ["--model", "kn", "--order", ORDER],
    "snm5": ["--preset", "snm5"],
    "snm5, 2e8 events": ["--preset", "snm5", "--events", "200000000"],
    "small": ["--preset", "small"],
}


class DiskPeak:
    """The largest number of bytes in a folder, files without a name included, while a process works in it."""

    def __init__(self, process: int, folder: Path) -> None:
        self.bytes = 0
        self._process, self._folder, self._over = process, folder, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self.bytes = max(self.bytes, sum(self._files().values()))

    def _files(self) -> dict[tuple[int, int], int]:
        """Bytes of each file, by device and number."""
        paths = [p for p in self._folder.rglob("*") if not p.is_symlink()]
        paths += list(Path(f"/proc/{self._process}/fd").glob("*"))
        found = {}
        for path in paths:
            try:
                entry = path.stat()
                if os.path.isfile(path) and (path.parent.name != "fd" or "(deleted)" in os.readlink(path)):
                    found[entry.st_dev, entry.st_ino] = 512 * entry.st_blocks
            except OSError:  # it is gone
                continue
        return found

    def __enter__(self) -> DiskPeak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def measured(command: list[str], folder: Path, **more: Any) -> tuple[dict[str, Any], str]:
    """Run a command: seconds, and GB of memory and disk at the peak; and what it printed."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, **more) as child:
        assert child.stderr is not None
        assert child.stdout is not None
        errors: list[bytes] = []
        reading = threading.Thread(target=lambda stream: errors.append(stream.read()), args=(child.stderr,))
        reading.start()
        with DiskPeak(child.pid, folder) as disk:
            output = child.stdout.read()
            _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        reading.join()
    if child.returncode:
        raise SystemExit(f"{command} failed:\n{errors[0].decode()}")
    seconds = time.perf_counter() - begun
    cpu = usage.ru_utime + usage.ru_stime
    figures = {"seconds": seconds, "cpu s": cpu, "GB": usage.ru_maxrss / 1e6, "disk GB": disk.bytes / 1e9}
    return figures, output.decode()


class Scale:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.work = options, options.work
        self.folder = self.work / "run"
        self.work.mkdir(parents=True, exist_ok=True)

    def beginning(self, tokens: int) -> Path:
        """A file with the first lines of the text, about `tokens` words and sentence ends; or the text itself."""
        path, left = self.work / f"first-{tokens}.txt", tokens
        if path.exists():
            return path
        with open(self.options.text, "rb") as whole, open(path, "wb") as few:
            for line in whole:
                few.write(line)
                left -= line.count(b" ") + 2
                if left <= 0:
                    return path
        path.unlink()
        return Path(self.options.text)

    def measure(self, model: str, tokens: int) -> dict[str, Any]:
        kept = self.work / f"{model}-{tokens}.json"
        if not kept.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            found = self._lmplz(tokens) if model == "lmplz" else self._train(model, tokens)
            kept.write_text(json.dumps({"model": model, **found}))
            shutil.rmtree(self.folder)
        return dict(json.loads(kept.read_text()))

    def _vocabulary(self, tokens: int) -> Path:
        path = self.work / f"words-{tokens}.txt"
        if not path.exists():
            subprocess.run(
                [sys.executable, "-m", "snm", "vocab", str(self.beginning(tokens)), "-o", str(path)], check=True,
                cwd=ROOT,
            )  # fmt: skip
        return path

    def _lmplz(self, tokens: int) -> dict[str, Any]:
        program = str(self.options.kenlm / "lmplz") if self.options.kenlm else "lmplz"
        words, text, arpa = self._vocabulary(tokens), self.beginning(tokens), self.folder / "model.arpa"
        command = [program, "-o", ORDER, "-S", self.options.memory, "-T", str(self.folder), "--arpa", str(arpa),
                   "--text", str(text), "--limit_vocab_file", str(words), "--skip_symbols",
                   "--discount_fallback"]  # fmt: skip
        figures, _ = measured(command, self.folder)
        with open(arpa, "rb") as lines:
            counts = [line for line, _ in zip(lines, range(int(ORDER) + 1), strict=False) if line.startswith(b"ngram ")]
        links = sum(int(line.partition(b"=")[2]) for line in counts)
        return {"tokens": tokens, "links": links, **figures}

    def _train(self, model: str, tokens: int) -> dict[str, Any]:
        path = self.folder / "model"
        command = [sys.executable, "-m", "snm", "train", str(self.beginning(tokens)), "-o", str(path), "--json",
                   "--memory", self.options.memory, *TRAIN[model]]  # fmt: skip
        if model != "kn" and self.options.dev:
            command += ["--dev", str(self.options.dev)]
        figures, output = measured(command, self.folder)
        manifest = json.loads((path / "manifest.json").read_text())
        figures["GB"] = json.loads(output)["peak_bytes"] / 1e9
        found = {"tokens": manifest["text"]["tokens"], "links": manifest["links"], **figures}
        if self.options.verify:
            verified, _ = measured([sys.executable, "-m", "snm", "verify", str(path)], self.folder)
            found["verify s"] = verified["seconds"]
        if self.options.test:
            _, scored = measured([sys.executable, "-m", "snm", "ppl", str(path), str(self.options.test), "--json"],
                                 self.folder)  # fmt: skip
            found["test perplexity"] = json.loads(scored[scored.index("{") :])["ppl"]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", nargs="*", type=float, default=[5e7, 2e8, 8e8])
    parser.add_argument("--models", nargs="*", default=["lmplz", *TRAIN], choices=["lmplz", *TRAIN])
    parser.add_argument("--memory", default="4G")
    parser.add_argument("--verify", action="store_true", help="verify each of our models")
    parser.add_argument("--dev", type=Path, help="held-out text, for the gate")
    parser.add_argument("--test", type=Path, help="text for perplexities")
    parser.add_argument("--work", type=Path, default=ROOT / "bench-scale")
    parser.add_argument("--kenlm", type=Path, help="folder of KenLM's programs [default: the PATH]")
    parser.add_argument("--json", type=Path, help="write the table there too")
    scale = Scale(parser.parse_args())
    found = [scale.measure(model, int(tokens)) for tokens in scale.options.tokens for model in scale.options.models]
    columns = list(dict.fromkeys(column for row in found for column in row))
    rows = [{column: row.get(column, "") for column in columns} for row in found]
    report("scale", scale.options.text.name, rows, scale.options.json)


if __name__ == "__main__":
    main()
