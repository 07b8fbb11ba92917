"""The command line: output, exit codes, one-line errors."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

import snm
from snm.cli.main import main
from snm.features.specification import FeatureSpec
from snm.loading import load
from snm.storage import ArrayWriter

SENTENCE = "the cat sees fish"


def run(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=text)


def ok(*arguments: object, text: str | None = None) -> str:
    result = run(*arguments, text=text)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*arguments: object, text: str | None = None) -> str:
    """Run a command that must fail; return the line of its error."""
    result = run(*arguments, text=text)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr.strip().split("\n")[-1]


def test_every_command_on_a_trained_model(corpus_file: Path, tmp_path: Path) -> None:
    """The tour of the README."""
    model = tmp_path / "my.model"
    trained = json.loads(ok("train", corpus_file, "-o", model, "--preset", "snm5-skip", "--threads", "1", "--json"))
    assert trained["links"] > 500
    report = json.loads(ok("ppl", model, corpus_file, "--json"))
    assert set(report) >= {"sentences", "tokens", "oov", "oov_rate", "logprob10", "ppl", "ppl_no_oov", "seconds"}
    assert 1 < report["ppl"] < 5
    assert "perplexity" in ok("ppl", model, corpus_file)
    assert "features" in ok("info", model)
    assert json.loads(ok("info", model, "--json"))["kind"] == "snm"
    assert "differs from 1 by at most" in ok("verify", model, corpus_file, "--contexts", "50")
    assert json.loads(ok("verify", model, "--contexts", "20", "--json"))["worst"] < 1e-5


def test_messages_go_to_standard_error(corpus_file: Path, tmp_path: Path) -> None:
    result = run("train", corpus_file, "-o", tmp_path / "m", "--threads", "1")
    assert result.stdout == ""
    assert "400 sentences" in result.stderr
    assert "wrote" in result.stderr
    assert run("train", corpus_file, "-o", tmp_path / "n", "--quiet", "--threads", "1").stderr == ""


def test_score_prints_a_line_for_each_line(model_path: Path, tmp_path: Path) -> None:
    model = snm.load(model_path)
    lines = [SENTENCE, "", "a dog eats"]
    output = ok("score", model_path, text="\n".join(lines) + "\n").split("\n")
    assert float(output[0]) == pytest.approx(model.score(SENTENCE), abs=1e-6)
    assert output[1] == ""
    assert float(output[2]) == pytest.approx(model.score("a dog eats"), abs=1e-6)
    assert output[3:] == [""]
    path = tmp_path / "text"
    path.write_text("\n".join(lines))
    assert ok("score", model_path, path).split("\n") == output


def test_score_tokens_and_json(model_path: Path) -> None:
    sentence = "the purple cat = fish"
    total, *columns = ok("score", model_path, "--tokens", text=f"<s> {sentence} </s>").rstrip("\n").split("\t")
    parts = [column.split(" ") for column in columns]
    assert [part[0] for part in parts] == [*sentence.split(), "</S>"]
    assert [part[2:] for part in parts] == [[], ["OOV"], [], ["OOV"], [], []]
    assert sum(float(part[1]) for part in parts) == pytest.approx(float(total), abs=1e-5)
    line = json.loads(ok("score", model_path, "--tokens", "--json", text=sentence))
    assert line["logprob10"] == pytest.approx(float(total), abs=1e-6)
    assert (line["tokens"], line["oov"]) == (6, 2)
    assert [word["oov"] for word in line["words"]] == [False, True, False, True, False, False]
    assert json.loads(ok("score", model_path, "--json", text="\n"))["logprob10"] is None


def test_next(model_path: Path) -> None:
    lines = ok("next", model_path, "the old", "-k", "3").strip().split("\n")
    assert ok("next", model_path, "the", "old", "-k", "3").strip().split("\n") == lines
    assert lines[0].endswith("  man")
    found = json.loads(ok("next", model_path, "the old", "-k", "3", "--json"))
    assert [entry["word"] for entry in found] == [line.split("  ")[1] for line in lines]


def test_generate(model_path: Path) -> None:
    first = ok("generate", model_path, "-n", "3", "--seed", "5")
    assert first == ok("generate", model_path, "-n", "3", "--seed", "5")
    assert len(first.strip().split("\n")) == 3
    assert first.split("\n")[1:3] != ok("generate", model_path, "-n", "2", "--seed", "6").split("\n")[:2]
    assert ok("generate", model_path, "--prompt", "the cat", "--seed", "1").startswith("the cat")


def test_explain(model_path: Path) -> None:
    text = ok("explain", model_path, SENTENCE, "--top", "2")
    assert "cat  P = " in text
    assert "more" in text
    explained = json.loads(ok("explain", model_path, SENTENCE, "--json"))
    scored = json.loads(ok("score", model_path, "--tokens", "--json", text=SENTENCE))["words"]
    for word, score in zip(explained, scored, strict=True):
        assert math.isclose(sum(part["share"] for part in word["parts"]), 10 ** score["logprob10"], rel_tol=1e-6)


def test_training_options_reach_the_model(corpus_file: Path, tmp_path: Path) -> None:
    ok(
        "train", corpus_file, "-o", tmp_path / "m", "--features", "ngram(0..1)", "--min-count", "5", "--max-words", "4",
        "--loss", "poisson", "--optimiser", "sgd", "--rate", "0.001", "--passes", "2", "--events", "500",
        "--slots", "4096",
        "--metafeatures", "all, -target", "--feature-buckets", "double", "--link-buckets", "single", "--no-merge",
        "--memory", "600M",
        "--partitions", "2", "--threads", "1", "--seed", "9", "--closed", "--dev", corpus_file,
    )  # fmt: skip
    manifest = json.loads(ok("info", tmp_path / "m", "--json"))
    training = manifest["training"]
    expected = {
        "loss": "poisson", "optimiser": "sgd", "rate": 0.001, "passes": 2, "events": 500, "slots": 4096,
        "feature_buckets": "double", "link_buckets": "single", "merge": False, "seed": 9,
    }  # fmt: skip
    assert {name: training[name] for name in expected} == expected
    assert "target" not in training["metafeatures"].replace("feature-target", "")
    assert manifest["vocabulary"] == {"words": 7, "closed": True, "document": False}
    assert manifest["features"] == "ngram(0..1)"


def test_training_on_standard_input(corpus_file: Path, tmp_path: Path) -> None:
    ok("train", "-", "-o", tmp_path / "m", "--threads", "1", text=corpus_file.read_text())
    assert json.loads(ok("ppl", tmp_path / "m", "-", "--json", text=SENTENCE))["tokens"] == 5
    assert json.loads(ok("ppl", tmp_path / "m", "--json", text=SENTENCE))["tokens"] == 5


def test_families_are_imported(corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "myfamilies.py").write_text(
        "import numpy as np\n"
        "from snm import feature_family\n"
        "@feature_family('length')\n"
        "def length(vocabulary):\n"
        "    return lambda tokens, position: np.maximum(position, 0).astype(np.uint64)\n"
    )
    monkeypatch.chdir(tmp_path)
    features = "ngram(0..1) + family(length)"
    line = fails("train", corpus_file, "-o", "m", "--features", features)
    assert "--import MODULE" in line
    ok("train", corpus_file, "-o", "m", "--features", features, "--import", "myfamilies", "--threads", "1")
    assert "perplexity" in ok("ppl", "m", corpus_file, "--import", tmp_path / "myfamilies.py")
    (tmp_path / "broken.py").write_text("def (")
    assert "SyntaxError" in fails("ppl", "m", corpus_file, "--import", "broken")
    assert "cannot import" in fails("ppl", "m", corpus_file, "--import", "nowhere_to_be_found")


# -- errors


def test_errors_are_one_line(corpus_file: Path, model_path: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "m")
    empty = tmp_path / "empty"
    empty.write_text("")
    latin = tmp_path / "latin"
    latin.write_bytes(b"caf\xe9\n")
    for arguments, what in [
        (("train", tmp_path / "nowhere", *out), "no such file, folder or glob"),
        (("train", empty, *out), "no words"),
        (("train", latin, *out), "invalid UTF-8"),
        (("train", corpus_file, *out, "--features", "ngram(4..1)"), "range 4..1 is empty"),
        (("train", corpus_file, *out, "--preset", "snm99"), "no preset 'snm99'"),
        (("train", corpus_file, *out, "--preset", ""), "no preset ''"),
        (("train", corpus_file, *out, "--features", ""), "empty term"),
        (("train", corpus_file, *out, "--features", "skip(r=2, s=1, words=1)"), "no feature meets"),
        (("train", "", *out), "name of a text is empty"),
        (("train", corpus_file, "-o", ""), "the name is empty"),
        (("train", corpus_file, "-o", corpus_file), "is not a model"),
        (("train", corpus_file, *out, "--dev", tmp_path / "nowhere"), "no such file"),
        (("train", corpus_file, *out, "--preset", "snm5", "--features", "ngram(0)"), "exclude each other"),
        (("train", corpus_file, *out, "--metafeatures", "colour"), "no metafeature 'colour'"),
        (("train", corpus_file, *out, "--model", "kn", "--loss", "poisson"), "--loss would have no effect"),
        (("train", corpus_file, *out, "--vocab", corpus_file, "--min-count", "2"), "--min-count would have no effect"),
        (("train", corpus_file, *out, "--discounts", "single"), "--discounts would have no effect"),
        (("train", corpus_file, *out, "--preset", "snm5", "--order", "3"), "--order would have no effect"),
        (("train", corpus_file, *out, "--memory", "lots"), "is not a size"),
        (("train", corpus_file, *out, "--memory", "1M"), "memory is 1,048,576"),
        (("train", corpus_file, *out, "--memory", "infG"), "is not a size"),
        (("train", corpus_file, *out, "--seed", "-1"), "not in the range"),
        (("train", corpus_file, *out, "--rate", "nan"), "rate is nan"),
        (("train", corpus_file, *out, "--loss", "multinomial", "--events", "9"), "held-out text only"),
        (("train", corpus_file, *out, "--vocab", tmp_path / "nowhere"), "cannot read"),
        (("train", corpus_file, *out, "--dev", empty), "held-out"),
        (("train", corpus_file, "-o", model_path), "exists already"),
        (("train", corpus_file), "Missing option '-o'"),
        (("train", *out), "expected TEXT, or --counts in place of it"),
        (("ppl", tmp_path / "nowhere", corpus_file), "no such model"),
        (("ppl", tmp_path, corpus_file), "is not a model"),
        (("ppl", model_path, empty), "no words"),
        (("score", model_path, latin), "invalid UTF-8"),
        (("explain", model_path, ""), "nothing to explain"),
        (("next", model_path, "the", "-k", "0"), "Invalid value"),
        (("generate", model_path, "--temperature", "0"), "temperature"),
        (("generate", model_path, "--seed", "-1"), "not in the range"),
        (("verify", model_path, empty), "no words"),
        (("dance",), "No such command"),
    ]:
        assert what in fails(*arguments), arguments
    assert not (tmp_path / "m").exists()


def test_scoring_stops_at_bad_text_and_prints_earlier_scores(model_path: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text(SENTENCE + "\n")
    bad.write_bytes(b"caf\xe9\n")
    result = run("score", model_path, good, bad)
    assert result.exit_code == 2
    assert len(result.stdout.strip().split("\n")) == 1
    assert "bad, line 1" in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no signals to other processes")
@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_training_leaves_no_files(tmp_path: Path, signal_: signal.Signals) -> None:
    """Interrupted while it waits for standard input."""
    command = [sys.executable, "-m", "snm", "train", "-", "-o", str(tmp_path / "m")]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs are started deaf to it
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    while not list(tmp_path.iterdir()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal_)
    assert process.wait(60) == {signal.SIGINT: 130, signal.SIGTERM: 143}[signal_]
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no signals to other processes")
def test_a_caught_signal_is_sent_again_and_cleanup_is_not_interrupted() -> None:
    code = (
        "import os, signal, sys, time; from snm.cli.terminal import Interrupts\n"
        "with Interrupts():\n"
        "    try: os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
        "    except BaseException: pass\n"
        "    try: time.sleep(60)\n"
        "    finally: time.sleep(1); print('cleared away')\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=50)
    assert (found.returncode, found.stdout, found.stderr) == (143, "cleared away\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"], [], *([c, "--help"] for c in main.commands)])
def test_help_needs_no_numba(arguments: list[str]) -> None:
    """The help imports neither NumPy nor Numba, so it is fast."""
    code = (
        "import sys; from snm.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: status = end.code\n"
        "assert not {'numba', 'numpy'} & set(sys.modules), 'imported too much'\n"
        "sys.exit(status)"
    )
    found = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert found.returncode == (0 if arguments else 2), found.stderr
    assert "Usage" in found.stdout + found.stderr or "version" in found.stdout


def test_a_full_disk_leaves_no_files(corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(ArrayWriter):
        def append(self, block: np.ndarray) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("snm.storage.ArrayWriter", Full)
    result = run("train", corpus_file, "-o", tmp_path / "m", "--threads", "1")
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr.strip().split("\n")[-1]
    assert list(tmp_path.iterdir()) == []


def test_the_module_is_the_command() -> None:
    found = subprocess.run([sys.executable, "-m", "snm", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"snm, version {snm.__version__}"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix shell")
def test_a_closed_pipe_ends_quietly(model_path: Path) -> None:
    """`snm score MODEL | head` ends quietly."""
    score = [sys.executable, "-m", "snm", "score", str(model_path)]
    subprocess.run(score, input=SENTENCE, capture_output=True, text=True, check=True)  # may say that it compiles
    command = f"yes '{SENTENCE}' | head -200000 | {sys.executable} -m snm score {model_path} | head -2"
    found = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert len(found.stdout.split("\n")) == 3
    assert found.stderr == ""


def test_demo(tmp_path: Path) -> None:
    text = ok("demo", "-o", tmp_path / "models", "--threads", "2")
    assert text.count("perplexity") == 3
    assert "sum to 1" in text
    assert snm.load(tmp_path / "models" / "medium").next_words("the")


def test_training_as_the_paper_does(corpus_file: Path, tmp_path: Path) -> None:
    result = run("train", corpus_file, "-o", tmp_path / "m", "--paper", "--threads", "1")
    m = load(tmp_path / "m").manifest
    assert m["features"] == str(FeatureSpec("snm5"))
    t = m["training"]
    assert (t["feature_buckets"], t["link_buckets"], t["merge"], t["start"]) == ("double", "double", False, 0.0)
    assert len(t["metafeatures"].split(",")) == 31, "127 with two buckets of both counts"
    assert (m["gate"], t["prune"], t["optimiser"], t["rate"], t["passes"]) == (None, 1, "adagrad", 0.02, 1)
    assert t["events_used"] == m["text"]["tokens"]
    assert "as the paper, except: AdaGrad instead of SGD, weights of 16 bits in the model" in result.stderr


def test_options_beside_paper_are_kept_and_listed(corpus_file: Path, tmp_path: Path) -> None:
    options = ("--optimiser", "sgd", "--preset", "snm5-skip", "--prune", "2", "--events", "500", "--merge")
    result = run("train", corpus_file, "-o", tmp_path / "m", "--paper", *options)
    m = load(tmp_path / "m").manifest
    assert (m["training"]["optimiser"], m["training"]["rate"], m["training"]["prune"]) == ("sgd", 0.002, 2)
    assert m["features"] == str(FeatureSpec("snm5-skip"))
    for part in ("merged", "about 500 events", "fewer than 2 times"):
        assert part in result.stderr
    assert "AdaGrad" not in result.stderr
    line = fails("train", corpus_file, "-o", tmp_path / "n", "--paper", "--preset", "medium")
    assert "word classes, which the paper does not have" in line


def test_help_of_train_shows_the_common_options_first_and_the_others_in_groups() -> None:
    text = run("train", "--help").stdout
    sections = [part.partition(":")[0] for part in text.split("\n\n") if ":\n  -" in part]
    assert sections == ["Options", "Vocabulary", "Features", "Estimation", "Neural models", "Resources"]
    common = text.split("Options:")[1].split("Vocabulary:")[0]
    assert [name for name in ("--preset", "--paper", "--dev", "--memory") if name not in common] == []
    assert "--metafeatures" not in common
    for parameter in main.commands["train"].params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[-1] in text
