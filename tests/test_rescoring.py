"""Rescoring of n-best lists and lattices, and the tuning of weights."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
from snm.errors import InputError, SnmError
from snm.rescoring import (
    Arc,
    Hypothesis,
    Lattice,
    NBest,
    Weights,
    best_path,
    errors_of,
    read_lattices,
    read_nbest,
    rescore,
    rescore_file,
    tune_weights,
    write_nbest,
)
from snm.rescoring.weights import distance, envelope, totals_of
from snm.settings import Settings
from tests.channel import write_sound_alikes
from tests.conftest import train
from tests.test_cli import fails, ok

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("rescoring")
    text = write_sound_alikes(folder / "text.txt")
    return train([text], folder / "kn.model", Settings(model="kn", order=3, threads=1))


def lists_of(model: Any, seed: int, n: int = 30) -> list[NBest]:
    """Lists in which words that sound alike are taken for each other; the acoustic score knows little."""
    random = np.random.default_rng(seed)
    alike = ["pat", "bat", "pad", "bad", "ped"]
    found = []
    for i, line in enumerate((model.path.parent / "text.txt").read_text().split("\n")[seed * 50 :][:n]):
        texts = [line]
        for _ in range(7):
            texts.append(" ".join(str(random.choice(alike)) if w in alike else w for w in line.split()))
        scores = random.normal(0, 2, len(texts))
        order = np.argsort(-scores)
        hypotheses = [Hypothesis(texts[k], float(scores[k]), float(random.normal(-5, 1))) for k in order]
        found.append(NBest(f"utt{i}", hypotheses, line))
    return found


def test_the_model_finds_the_right_words(model: Any) -> None:
    dev, test = lists_of(model, 0), lists_of(model, 3)
    before, words = errors_of(test)
    found, weights = rescore(model, test, dev=dev)
    after, _ = errors_of(found)
    assert after < 0.3 * before < 0.2 * words
    assert weights.model > 0
    for one in found:
        totals = [h.total for h in one.hypotheses]
        assert totals == sorted(totals, reverse=True) == pytest.approx(totals_of(one, weights).tolist())
        assert one.hypotheses[0].model == pytest.approx(model.score(one.hypotheses[0].text) * math.log(10))


def test_weights_are_as_good_as_any_of_a_grid(model: Any) -> None:
    lists, _ = rescore(model, lists_of(model, 1, 15))

    def errors(weights: Weights) -> int:
        return sum(
            distance((one.reference or "").split(), one.hypotheses[int(np.argmax(totals_of(one, weights)))].words)
            for one in lists
        )

    grid = itertools.product((0.0, 0.2, 0.5, 1.0, 2.0, 5.0), (0.0, 0.5, 1.0), (-1.0, 0.0, 1.0))
    assert errors(tune_weights(lists)) <= min(errors(Weights(*given)) for given in grid)


@pytest.mark.parametrize("seed", range(20))
def test_envelopes(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 12))
    slopes, heights = random.integers(-3, 4, n).astype(float), random.normal(size=n)
    edges, lines = envelope(slopes, heights)
    assert edges == sorted(edges)
    for x in [-1e6, *random.uniform(-3, 3, 30), 1e6]:
        line = lines[int(np.searchsorted(edges, x))]
        assert heights[line] + x * slopes[line] == pytest.approx((heights + x * slopes).max())


def test_an_empty_hypothesis_and_a_single_one(model: Any) -> None:
    found, _ = rescore(
        model, [NBest("a", [Hypothesis(""), Hypothesis("the man", -1.0)]), NBest("b", [Hypothesis("x")])]
    )
    scores = {h.text: h.model for h in found[0].hypotheses}
    assert scores[""] == pytest.approx(math.log(model.distribution(model.context(""))[1]))
    assert found[1].hypotheses[0].total == found[1].hypotheses[0].model
    assert rescore(model, [])[0] == []


class TestFiles:
    def test_json_lines_there_and_back(self, model: Any, tmp_path: Path) -> None:
        lists = lists_of(model, 2, 5)
        write_nbest(lists, tmp_path / "a.jsonl")
        assert read_nbest(tmp_path / "a.jsonl") == lists
        write_nbest(lists, tmp_path / "best.txt")
        assert (tmp_path / "best.txt").read_text().split("\n")[0] == f"utt0 {lists[0].hypotheses[0].text}"

    def test_kaldi(self, tmp_path: Path) -> None:
        (tmp_path / "words_text").write_text("a-x-1 the man\na-x-2 a man\nb-1 \n")
        (tmp_path / "ac_cost").write_text("a-x-1 3.5\na-x-2 4\nb-1 1\n")
        assert read_nbest(tmp_path)[0] == NBest("a-x", [Hypothesis("the man", -3.5), Hypothesis("a man", -4.0)])
        (tmp_path / "lm_cost").write_text("a-x-1 7\na-x-2 8\nb-1 9\n")
        lists = read_nbest(tmp_path)
        assert lists[0].hypotheses[1].language == -8.0
        assert lists[1] == NBest("b", [Hypothesis("", -1.0, -9.0)])

    def test_the_command(self, model: Any, tmp_path: Path) -> None:
        for name, seed in (("dev", 0), ("test", 3)):
            write_nbest(lists_of(model, seed), tmp_path / f"{name}.jsonl")
        test, dev, out = (str(tmp_path / name) for name in ("test.jsonl", "dev.jsonl", "out.jsonl"))
        report = json.loads(ok("rescore", str(model.path), test, "--dev", dev, "-o", out, "--json"))
        assert report["errors"] < report["errors_before"]
        assert report["fewest_errors"] == 0
        assert (report["utterances"], report["hypotheses"]) == (30, 240)
        best = read_nbest(out)
        assert errors_of(best) == (report["errors"], report["words"])
        weights = report["weights"]
        again = ok(
            "rescore", str(model.path), test, "--model-weight", str(weights["model"]), "--old-weight",
            str(weights["language"]), "--word-bonus", str(weights["word"]), "-o", str(tmp_path / "out.txt"),
        )  # fmt: skip
        assert f"word errors, now     {report['errors']}" in again
        lines = (tmp_path / "out.txt").read_text().strip().split("\n")
        assert lines == [f"{one.id} {one.hypotheses[0].text}" for one in best]

    def test_references_apart(self, model: Any, tmp_path: Path) -> None:
        lists = lists_of(model, 1, 4)
        (tmp_path / "ref.txt").write_text("".join(f"{one.id} {one.reference}\n" for one in lists))
        for one in lists:
            one.reference = None
        write_nbest(lists, tmp_path / "a.jsonl")
        report = rescore_file(model, tmp_path / "a.jsonl", reference=tmp_path / "ref.txt")
        assert report.words == sum(
            len(line.split()) - 1 for line in (tmp_path / "ref.txt").read_text().split("\n") if line
        )
        assert rescore_file(model, tmp_path / "a.jsonl").errors is None
        (tmp_path / "ref.txt").write_text("utt0 a\n")
        with pytest.raises(InputError, match="no line for 'utt1'"):
            rescore_file(model, tmp_path / "a.jsonl", reference=tmp_path / "ref.txt")

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("no json", "line 2"),
            ('{"id": "a"}', "no n-best list"),
            ('{"nbest": [{"acoustic": 1}]}', "no n-best list"),
            ('{"nbest": []}', "is empty"),
            ('{"nbest": [{"text": "a", "acoustic": NaN}]}', "acoustic is nan"),
            ('["a"]', "no n-best list"),
        ],
    )
    def test_damaged_lists(self, tmp_path: Path, line: str, message: str) -> None:
        (tmp_path / "a.jsonl").write_text('{"nbest": [{"text": "a"}]}\n' + line + "\n")
        with pytest.raises(InputError, match=message) as error:
            read_nbest(tmp_path / "a.jsonl")
        assert "\n" not in str(error.value)

    def test_other_errors(self, model: Any, tmp_path: Path) -> None:
        (tmp_path / "empty.jsonl").write_text("\n")
        (tmp_path / "words_text").write_text("a-1 the man\n")
        (tmp_path / "ac_cost").write_text("a-1 x\n")
        (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
        for path in ("nowhere", "empty.jsonl", ".", "bytes.jsonl"):
            with pytest.raises(SnmError) as error:
                read_nbest(tmp_path / path)
            assert "\n" not in str(error.value)
        (tmp_path / "ac_cost").write_text("b-1 1\n")
        with pytest.raises(InputError, match="not in ac_cost"):
            read_nbest(tmp_path)
        with pytest.raises(SnmError):
            Weights(model="a")  # type: ignore[arg-type]
        with pytest.raises(InputError):
            Weights(model=math.nan)
        with pytest.raises(InputError, match="no list has a reference"):
            tune_weights([NBest("a", [Hypothesis("b")])])
        write_nbest([NBest("a", [Hypothesis("b")], "b")], tmp_path / "a.jsonl")
        fails("rescore", str(model.path), str(tmp_path / "a.jsonl"), "--dev", "a", "--model-weight", "1")
        fails("rescore", str(model.path), str(tmp_path / "nowhere.jsonl"))


KALDI = """utt1
0 1 the 2.5,1.0,1_2
1 2 man 3.0,2.0,3
1 2 nan 3.0,1.0,3
2 3 has 1.0,1.0,
3 0.5,0.25,

utt2
0 1 a 1,1
0 1 <eps> 0,5
1 0,0
"""


class TestLattices:
    def test_kaldi(self, tmp_path: Path) -> None:
        (tmp_path / "a.lat").write_text(KALDI)
        first, second = read_lattices(tmp_path / "a.lat")
        assert (first.id, first.final) == ("utt1", {3: (-0.25, -0.5)})
        assert first.arcs[0] == Arc(0, 1, "the", -1.0, -2.5)
        assert second.arcs[1].word is None
        assert second.final == {1: (0.0, 0.0)}

    def test_openfst_with_symbols(self, tmp_path: Path) -> None:
        (tmp_path / "one.txt").write_text("5 1 1 1 0.5\n5 1 2 2\n1 2 0 0 3\n2 1.5\n")
        (tmp_path / "words.txt").write_text("<eps> 0\nthe 1\na 2\n")
        (lattice,) = read_lattices(tmp_path / "one.txt", tmp_path / "words.txt")
        assert (lattice.id, lattice.start, lattice.final) == ("one", 5, {2: (-1.5, 0.0)})
        assert [arc.word for arc in lattice.arcs] == ["the", "a", None]
        (tmp_path / "one.txt").write_text("0 1 the 0.5\n0 1 a\n1\n")
        (lattice,) = read_lattices(tmp_path / "one.txt")
        assert [(arc.word, arc.acoustic) for arc in lattice.arcs] == [("the", -0.5), ("a", 0.0)]

    @pytest.mark.parametrize("seed", range(3))
    def test_the_best_path_is_that_of_all_paths(self, model: Any, seed: int) -> None:
        random = np.random.default_rng(seed)
        words = ["the", "man", "a", "nan", "has", "pat", "bat", "zebra", None]
        arcs = [
            Arc(i, i + int(random.integers(1, 3)), words[int(random.integers(len(words)))], *random.normal(-2, 1, 2))
            for i in range(5)
            for _ in range(3)
        ]
        lattice = Lattice("a", arcs, {5: (-0.1, -0.2), 6: (0.0, 0.0)})
        weights = Weights(0.7, 0.3, 0.5)
        paths: list[tuple[float, str]] = []

        def walk(node: int, taken: list[Arc]) -> None:
            if node in lattice.final:
                text = " ".join(arc.word for arc in taken if arc.word)
                end = lattice.final[node]
                acoustic = sum(arc.acoustic for arc in taken) + end[0]
                language = sum(arc.language for arc in taken) + end[1]
                score = model.score(text) if text else math.log10(model.distribution(model.context(""))[1])
                total = acoustic + 0.7 * score * math.log(10) + 0.3 * language + 0.5 * len(text.split())
                paths.append((total, text))
            for arc in arcs:
                if arc.source == node:
                    walk(arc.target, [*taken, arc])

        walk(0, [])
        found = best_path(model, lattice, weights, n=3)
        total, text = max(paths)
        assert found.hypotheses[0].text == text
        assert found.hypotheses[0].total == pytest.approx(total, abs=1e-6)
        assert len({h.text for h in found.hypotheses}) == len(found.hypotheses)

    def test_the_command(self, model: Any, tmp_path: Path) -> None:
        (tmp_path / "a.lat").write_text(KALDI)
        (tmp_path / "ref.txt").write_text("utt1 the man has\nutt2 a\n")
        out = ok(
            "rescore", str(model.path), str(tmp_path / "a.lat"), "--format", "lattice", "--reference",
            str(tmp_path / "ref.txt"), "-o", str(tmp_path / "out.txt"),
        )  # fmt: skip
        assert "word errors, now     0 of 4" in out
        assert (tmp_path / "out.txt").read_text() == "utt1 the man has\nutt2 a\n"

    def test_damaged_lattices(self, model: Any, tmp_path: Path) -> None:
        for text, message in (
            ("0 1 a 1\n1 0 b 1\n1\n", "cycle"),
            ("0 1 a 1\n", "no final node"),
            ("0 1 a 1\n2 3 b 1\n3\n", "no path"),
            ("0 1 a b c d\n1\n", "expected an arc"),
            ("x 1 a\n", "expected an arc"),
            ("0 1 a b x\n1\n", "expected an arc"),
        ):
            (tmp_path / "a.lat").write_text(text)
            with pytest.raises(InputError, match=message) as error:
                rescore_file(model, tmp_path / "a.lat", form="lattice")
            assert "\n" not in str(error.value)
        (tmp_path / "words.txt").write_text("a b c\n")
        with pytest.raises(InputError, match="a word and its number"):
            list(read_lattices(tmp_path / "a.lat", tmp_path / "words.txt"))
        with pytest.raises(InputError, match="cannot read"):
            list(read_lattices(tmp_path / "nowhere"))
        neural = snm.load(GOLDEN / "format3" / "lstm")
        best = best_path(neural, Lattice("a", [Arc(0, 1, "the", 0.0)], {1: (0.0, 0.0)}), Weights()).hypotheses[0]
        assert best.total == pytest.approx(neural.score("the") * math.log(10), abs=1e-4)
