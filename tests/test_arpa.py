"""ARPA files: export, import, and files of other toolkits."""

from __future__ import annotations

import gzip
import io
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import snm
import snm.kenlm
from snm.baselines.backoff.arpa import export_arpa, import_arpa, levels, write_arpa
from snm.baselines.backoff.model import BackoffModel
from snm.errors import FormatError
from snm.evaluation import verify
from snm.kernels import arpa as arpa_kernels
from snm.pipeline import train
from snm.reference import backoff
from snm.reference.paper import to_sentences
from snm.settings import Settings
from snm.text.encoding import encode_files
from tests.conftest import entry_of
from tests.test_cli import fails, ok


@pytest.fixture(scope="module", params=["kn", "katz", "sbo"])
def model(request: pytest.FixtureRequest, corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> BackoffModel:
    path = tmp_path_factory.mktemp("arpa") / "m"
    train(corpus_file, path, Settings(model=request.param, order=4, threads=1))
    return BackoffModel(path)


def text_of(model: BackoffModel) -> str:
    stream = io.StringIO()
    write_arpa(model, stream)
    return stream.getvalue()


def test_all_ngrams_of_the_text_are_found(model: BackoffModel, corpus_file: Path) -> None:
    sentences = to_sentences(encode_files(corpus_file, model.vocabulary).tokens)
    counts = backoff.count_ngrams(sentences, 4)
    for level, expected in zip(levels(model), counts, strict=True):
        found = {tuple(words) for words in level.words.tolist()}
        assert len(found) == len(level.words)
        if level.words.shape[1] > 1:
            assert found == set(expected)


def test_the_header_has_the_number_of_ngrams(model: BackoffModel) -> None:
    text = text_of(model)
    head, *sections = text.split("\n\n")
    said = [int(line.partition("=")[2]) for line in head.split("\n")[1:]]
    assert said == [len(section.split("\n")) - 1 for section in sections[:4]]
    assert text.endswith("\\end\\\n")


def test_exported_and_imported_models_agree(model: BackoffModel, corpus_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.arpa.gz"
    path.write_bytes(gzip.compress(text_of(model).encode()))
    again = import_arpa(path, tmp_path / "m")
    assert verify(again.path, contexts=30).worst < 1e-5
    sentence = "the cat sees a purple fish eats fish"
    assert again.score(sentence) == pytest.approx(model.score(sentence), abs=1e-5)
    text = encode_files(corpus_file, model.vocabulary)
    other = encode_files(corpus_file, again.vocabulary)
    assert again.perplexity(other).ppl == pytest.approx(model.perplexity(text).ppl, rel=1e-6)


GOLDEN = """
\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-99\t<s>\t-0.30103
-0.69897\t</s>
-0.69897\t<unk>
-0.522879\tcat\t-0.2218487
-0.522879\tdog\t-0.1

\\2-grams:
-0.30103\t<s> cat
-0.39794\tcat dog
-0.1\tdog </s>

\\end\\
"""


def test_a_file_of_another_toolkit(tmp_path: Path) -> None:
    path = tmp_path / "golden.arpa"
    path.write_text(GOLDEN)
    model = import_arpa(path, tmp_path / "m")
    assert model.vocabulary.words == ("<S>", "</S>", "<UNK>", "cat", "dog")
    words = dict(model.score_words(["cat dog bird"])[0])
    assert words["cat"] == pytest.approx(-0.30103, abs=1e-5)
    assert words["dog"] == pytest.approx(-0.39794, abs=1e-5)
    assert words["bird"] == pytest.approx(-0.1 - 0.69897, abs=1e-5), "the backoff of dog, and <unk>"
    assert words["</S>"] == pytest.approx(-0.69897, abs=1e-5)
    assert model.score("cat cat") == pytest.approx(-0.30103 - 0.2218487 - 0.522879 - 0.2218487 - 0.69897, abs=1e-5)


BACKING_OFF = """
\\data\\
ngram 1=5
ngram 2=3
ngram 3=1

\\1-grams:
-99\t<s>\t-0.30103
-0.69897\t</s>
-0.69897\t<unk>\t-0.4
-0.522879\tcat\t-0.2218487
-0.522879\tdog\t-0.1

\\2-grams:
-0.30103\t<s> cat\t-0.2
-0.39794\tcat dog\t-0.15
-0.1\tdog </s>

\\3-grams:
-0.05\t<s> cat dog

\\end\\
"""


def test_the_backoff_weight_of_an_ngram_that_begins_no_longer_one(tmp_path: Path) -> None:
    """It counts when the model backs off from the n-gram, as KenLM has it."""
    path = tmp_path / "m.arpa"
    path.write_text(BACKING_OFF)
    model = import_arpa(path, tmp_path / "m")
    after = dict(model.score_words(["dog cat dog cat"])[0][3:])
    assert after["cat"] == pytest.approx(-0.15 - 0.1 - 0.522879, abs=1e-5)
    assert dict(model.score_words(["bird dog"])[0])["dog"] == pytest.approx(-0.4 - 0.522879, abs=1e-5)
    assert not [what for wrong, what in model.faults() if wrong]
    export_arpa(model, tmp_path / "again.arpa")
    again = import_arpa(tmp_path / "again.arpa", tmp_path / "again")
    sentences = [" ".join(words) for words in product(["cat", "dog", "bird"], repeat=4)]
    surface = snm.kenlm.Model(str(tmp_path / "m"))
    for sentence in sentences:
        wanted = [score for _, score in model.score_words([sentence])[0]]
        assert [score for _, score in again.score_words([sentence])[0]] == pytest.approx(wanted, abs=1e-5)
        assert [score for score, _, _ in surface.full_scores(sentence)] == pytest.approx(wanted, abs=1e-5)
    smaller = snm.prune(model, tmp_path / "smaller", links=6)
    assert smaller.manifest["links"] <= 6
    kenlm = pytest.importorskip("kenlm")
    other = kenlm.Model(str(path))
    for sentence in sentences:
        assert other.score(sentence) == pytest.approx(model.score(sentence), abs=1e-5)


def test_without_unk_the_vocabulary_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "closed.arpa"
    path.write_text(GOLDEN.replace("1=5", "1=4").replace("-0.69897\t<unk>\n", ""))
    model = import_arpa(path, tmp_path / "m")
    assert model.vocabulary.closed
    assert np.isnan(dict(model.score_words(["bird"])[0])["bird"])


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("\\data\\", "hello", "is neither a model nor an ARPA file"),
        ("ngram 2=3", "ngram 2=4", "3 2-grams; expected 4"),
        ("ngram 2=3", "ngram 2=2", "expected 2 n-grams"),
        ("\\2-grams:", "\\3-grams:", "expected \\\\2-grams:"),
        ("<s> cat", "<s> bird", "expected numbers, and words of the 1-grams"),
        ("-0.39794", "x", "expected numbers, and words of the 1-grams"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, old: str, new: str, what: str) -> None:
    path = tmp_path / "bad.arpa"
    path.write_text(GOLDEN.replace(old, new, 1))
    with pytest.raises(FormatError, match=what):
        import_arpa(path, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_export_and_import_commands(model: BackoffModel, model_path: Path, tmp_path: Path) -> None:
    ok("export", model.path, tmp_path / "a.arpa")
    assert (tmp_path / "a.arpa").read_text() == text_of(model) == ok("export", model.path)
    ok("import", tmp_path / "a.arpa", "-o", tmp_path / "m")
    assert "estimation" in ok("info", tmp_path / "m")
    ok("export", model_path, tmp_path / "b.arpa")
    assert "ngram 1=" in (tmp_path / "b.arpa").read_text()
    assert "cannot read" in fails("import", tmp_path / "nowhere", "-o", tmp_path / "n")


def test_kneser_ney_writes_the_golden_file(tmp_path: Path) -> None:
    """The file was made with SNM; `lmplz -o 3 --discount_fallback` gives the same 423 n-grams within 6e-7."""
    golden = Path(__file__).parent / "golden"
    train(golden / "text.txt", tmp_path / "m", Settings(model="kn", order=3, min_count=1))
    found, expected = text_of(BackoffModel(tmp_path / "m")), (golden / "kneser-ney.arpa").read_text()
    for line, wanted in zip(found.split("\n"), expected.split("\n"), strict=True):
        parts, wanted_parts = line.split("\t"), wanted.split("\t")
        assert parts[1:2] == wanted_parts[1:2]
        if len(parts) > 1:
            numbers = [float(part) for part in parts[::2]]
            assert numbers == pytest.approx([float(part) for part in wanted_parts[::2]], abs=2e-6)


@given(
    number=st.one_of(
        st.floats(-99, 0).map(repr),
        st.floats(-99, 0).map(lambda x: f"{x:.7g}"),
        st.floats(-99, 0).map(lambda x: f"{x:.3e}"),
        st.sampled_from(
            ["-99", "0", "+1.5", "-.5", "-5.", "1e5", "-1E-4", "1e400", "nan", "-inf", "-", "", ".", "1e", "--1"]
        ),
    )
)
def test_numbers_are_read_as_python_reads_them(number: str) -> None:
    """Or not at all: then Python reads the line."""
    data = np.frombuffer(number.encode() + b"\tx\n", np.uint8)
    value, end = entry_of(arpa_kernels.read_number)(data, 0)
    if end >= 0:
        assert value == float(number)
        assert end == len(number)
    else:
        assert not re.fullmatch(r"-?\d{1,2}(\.\d{1,7})?", number), "the usual form"


def test_lines_of_unusual_form_are_read_among_others(tmp_path: Path) -> None:
    """The compiled reader stops at such a line, Python reads it, and the compiled one goes on."""
    lines = ["-1\ta b\t-0.5", "-1 b a -0.25", "-1.00000000000000000001\tb b", "-1\ta a\t", "-2e0\tb </s>"]
    text = "\\data\\\nngram 1=4\nngram 2=5\n\n\\1-grams:\n-99\t<s>\n-1\ta\t-0.2\n-1\tb\t-0.3\n-1\t</s>\n\n\\2-grams:\n"
    path = tmp_path / "x.arpa"
    path.write_text(text + "".join(f"{line.rstrip()}\n" for line in lines) + "\n\\end\\\n")
    made = import_arpa(path, tmp_path / "m")
    scores = [made.step(made.step(made.start(), first)[1], second)[0] for first, second in ("ab", "ba", "bb", "aa")]
    assert [*scores, made.step(made.step(made.start(), "b")[1], "</s>")[0]] == pytest.approx([-1, -1, -1, -1, -2])
