"""The server in the real lm-evaluation-harness: the scores of texts and of choices."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import snm
from tests.serving import serving

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
TEXTS = ["the old stone was in the river", "a cat saw zork and the old house", "the river"]
CHOICES = [
    ("the old", ["stone was in the river", "was the in stone river"], 0),
    ("a cat", ["the a the", "saw the house"], 1),
]
TASK = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
{rest}"""
ROLLING = """doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: bits_per_byte
"""
CHOOSING = """doc_to_text: "{{query}}"
doc_to_target: gold
doc_to_choice: "{{choices}}"
metric_list:
  - metric: acc
"""


def write_task(folder: Path, name: str, kind: str, rest: str, rows: list[dict[str, Any]]) -> None:
    data = folder / f"{name}.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / f"{name}.yaml").write_text(TASK.format(name=name, data=data, kind=kind, rest=rest))


def _best(model: snm.LanguageModel, query: str, choices: list[str]) -> str:
    scores = [model.score(f"{query} {choice}") for choice in choices]
    return choices[scores.index(max(scores))]


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm_eval[api]")
def test_tasks_of_the_harness(model_path: Path, tmp_path: Path) -> None:
    write_task(tmp_path, "texts", "loglikelihood_rolling", ROLLING, [{"text": text} for text in TEXTS])
    rows = [{"query": query, "choices": choices, "gold": gold} for query, choices, gold in CHOICES]
    write_task(tmp_path, "choices", "multiple_choice", CHOOSING, rows)
    with snm.load(model_path) as model, serving({"m": model}) as address:
        command = [
            sys.executable, "-m", "lm_eval", "--model", "local-completions", "--tasks", "texts,choices",
            "--model_args", f"model=m,base_url={address}/v1/completions", "--include_path", str(tmp_path),
            "--output_path", str(tmp_path / "out"),
        ]  # fmt: skip
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
        done = subprocess.run(
            command, env=os.environ | offline, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        words = [words[:-1] for words in model.score_words(TEXTS)]  # the harness adds no end, and unknown words are ids
        chosen = [_best(model, query, choices) for query, choices, _ in CHOICES]
    (file,) = (tmp_path / "out").rglob("results*.json")
    results = json.loads(file.read_text())["results"]
    nats = -math.log(10) * sum(p for sentence in words for _, p in sentence)
    assert results["texts"]["word_perplexity,none"] == pytest.approx(math.exp(nats / sum(map(len, words))), rel=1e-5)
    size = sum(len(text.encode()) for text in TEXTS)
    assert results["texts"]["bits_per_byte,none"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    right = [choice == choices[gold] for choice, (_, choices, gold) in zip(chosen, CHOICES, strict=True)]
    assert results["choices"]["acc,none"] == sum(right) / len(right)
