"""Kernels against the reference: features, counts, gradients, steps, matrix, row sums, probabilities."""

from __future__ import annotations

from collections import Counter as Counter_
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snm.adjustment.events import AnnotatedEvents
from snm.adjustment.function import Adjustment
from snm.adjustment.held_out import HeldOut
from snm.adjustment.metafeatures import MetafeatureSet
from snm.adjustment.registered import classes_of
from snm.adjustment.settings import TrainingSettings
from snm.adjustment.threads import AdjustmentTrainer
from snm.counts.counting import Counter, unigram_counts
from snm.features.extraction import Extractor
from snm.kernels.adjustment import GROUP_EVENTS
from snm.layouts.counts import Counts
from snm.layouts.weights import bucket_hashes, class_salt
from snm.reference import paper
from snm.text.encoding import Text
from tests.conftest import SMALL_SKIPS, extractor_of, parts_of, random_text, store_of, temporary_file, text_of

SPECS = ["ngram(0..4)", SMALL_SKIPS, "snm5-skip", "snm5-skip-only", "snm10-skip"]
WORDS = 14  # vocabulary of the generated texts


def all_counts(text: Text, extractor: Extractor, threads: int = 1, partitions: int | None = None) -> Counts:
    """The counts of all partitions and of the empty feature, concatenated."""
    counter = Counter(text, extractor, 1 << 30, threads, partitions)
    return Counts.joined([unigram_counts(text, extractor), *parts_of(counter)])


def as_dictionary(counts: Counts, values: np.ndarray) -> dict[tuple[int, int], float]:
    """{(feature key, target): value}"""
    keys = np.repeat(counts.features, np.diff(counts.offsets))
    return dict(zip(zip(keys.tolist(), counts.targets.tolist(), strict=True), values.tolist(), strict=True))


def reference_counts(text: Text, extractor: Extractor) -> paper.Counts:
    return paper.count(extractor.spec, paper.to_sentences(text.tokens), len(extractor.vocabulary))


def key(extractor: Extractor, feature: paper.Feature) -> int:
    return paper.key_of(extractor.spec, extractor.layout, feature)


def reference_adjustment(
    extractor: Extractor, metafeatures: MetafeatureSet, table: np.ndarray, counts: paper.Counts | None = None
) -> paper.Adjustment:
    """`counts`: those that continuation counts are of."""
    buckets = metafeatures.feature_buckets, metafeatures.link_buckets
    hashes = tuple(bucket_hashes(name) for name in ("feature-count", "link-count", "diversity"))
    classes = []
    for name in metafeatures.classes:
        if name == "continuation":
            table_of_classes = paper.continuation(extractor.spec, counts or {}, len(extractor.vocabulary))
        else:
            table_of_classes = classes_of(name, extractor.vocabulary, extractor.spec.types)
        classes.append((table_of_classes, class_salt(name)))
    return paper.Adjustment(
        extractor.spec, extractor.layout, metafeatures.masks(), table, buckets, hashes, classes=classes
    )


def random_adjustment(extractor: Extractor, settings: TrainingSettings, seed: int = 0) -> Adjustment:
    """An adjustment function with random weights, so that every metafeature matters."""
    made = Adjustment(extractor, settings, settings.table_slots(0))
    made.table[:, 0] = np.random.default_rng(seed).normal(0, 0.1, len(made.table))
    return made


def annotated(text: Text, extractor: Extractor) -> AnnotatedEvents:
    annotations = AnnotatedEvents(text, extractor, unigram_counts(text, extractor), 1 << 30, temporary_file)
    for _ in Counter(text, extractor, 1 << 30, partitions=3, annotations=annotations):
        pass
    return annotations


texts = st.lists(st.lists(st.integers(2, WORDS - 1), min_size=1, max_size=25), min_size=1, max_size=12).map(text_of)


@pytest.mark.parametrize("spec", SPECS)
@given(text=texts)
def test_features_and_counts_equal_the_reference(spec: str, text: Text) -> None:
    extractor = extractor_of(spec, text, WORDS)
    expected = {
        (key(extractor, feature), target): n
        for feature, row in reference_counts(text, extractor).items()
        for target, n in row.items()
    }
    counts = all_counts(text, extractor)
    assert as_dictionary(counts, counts.link_counts) == expected
    totals = np.add.reduceat(counts.link_counts, counts.offsets[:-1], dtype=np.uint64)
    assert np.array_equal(totals, counts.feature_counts)


@given(text=texts)
def test_class_features_and_counts_equal_the_reference(text: Text) -> None:
    classes = np.array([0, 1, 2, *(3 + i % 3 for i in range(WORDS - 3))], np.uint16)
    spec = "ngram(0..2) + class(r=1..3, a=0..1) + class(r=1, s=1..3, a=0, tied) + skip(r=1, s=1, a=0)"
    extractor = extractor_of(spec, text, WORDS, classes=classes)
    expected: Counter_[tuple[int, int]] = Counter_()
    for context, target in paper.events(paper.to_sentences(text.tokens)):
        for feature in paper.features_of(extractor.spec, context, classes.tolist()):
            if feature[1]:
                expected[key(extractor, feature), target] += 1
    counts = Counts.joined(parts_of(Counter(text, extractor, 1 << 30)))
    assert as_dictionary(counts, counts.link_counts) == expected


@pytest.mark.parametrize("spec", SPECS)
def test_distinct_features_have_distinct_keys_with_their_type(spec: str) -> None:
    text = random_text(3, 200, WORDS - 2, 30)
    extractor = extractor_of(spec, text, WORDS)
    features = list(reference_counts(text, extractor))
    keys = [key(extractor, feature) for feature in features]
    assert len(set(keys)) == len(features)
    assert extractor.layout.type_of(np.array(keys, np.uint64)).tolist() == [kind for kind, _ in features]


METAFEATURES = [
    MetafeatureSet.parse(),
    MetafeatureSet.parse("all"),
    MetafeatureSet.parse("all", link_buckets="double"),
    MetafeatureSet.parse("all", link_buckets="double", merge=False),
    MetafeatureSet.parse("all", feature_buckets="double", link_buckets="double", merge=False),
    MetafeatureSet.parse("all", feature_buckets="double", link_buckets="double"),
    MetafeatureSet.parse("all", link_buckets="single"),
    MetafeatureSet.parse("all, -feature", link_buckets="double"),
    MetafeatureSet.parse("type+link-count, target, feature-count+link-count"),
    MetafeatureSet.parse("target, feature"),
]


@pytest.mark.parametrize("loss", ["leave-one-out", "poisson"])
@pytest.mark.parametrize("metafeatures", METAFEATURES, ids=lambda m: f"{len(m.masks())}masks-{m.link_buckets}")
def test_gradients_equal_the_reference(metafeatures: MetafeatureSet, loss: str) -> None:
    text = random_text(5)
    extractor = extractor_of(SMALL_SKIPS, text, WORDS)
    made = random_adjustment(extractor, TrainingSettings(metafeatures=metafeatures))
    found, _ = kernel_gradients(text, extractor, made, loss == "leave-one-out")
    counts, reference = reference_counts(text, extractor), reference_adjustment(extractor, metafeatures, made.table)
    compared = 0
    for k, (context, target) in enumerate(paper.events(paper.to_sentences(text.tokens))):
        parts = paper.gradients(extractor.spec, counts, reference, context, target, loss == "leave-one-out")
        expected = {key(extractor, feature): pair for feature, pair in parts.items()}
        assert found[k].keys() == expected.keys()
        for feature, pair in expected.items():
            assert found[k][feature] == pytest.approx(pair, rel=1e-6)
            compared += 1
    assert compared > 1000


def kernel_gradients(
    text: Text, extractor: Extractor, made: Adjustment, leave_one_out: bool
) -> tuple[list[dict[int, tuple[float, float]]], float]:
    """{feature key: (negative part, positive part)} of each event, and the summed loss."""
    tokens = text.tokens
    keys = extractor.keys(tokens, 0, len(tokens))
    annotations = annotated(text, extractor)
    gradients = np.full((len(tokens), extractor.n_templates, 2), np.nan)
    trainer = AdjustmentTrainer(made, extractor.n_templates, annotations.unigrams, leave_one_out, rate=0.0)
    loss = trainer.train(keys, tokens, annotations.values(), gradients)
    events = []
    for k in np.flatnonzero(tokens != 0):
        used = [q for q in range(extractor.n_templates) if not np.isnan(gradients[k, q, 0])]
        events.append({int(keys[q, k]): tuple(gradients[k, q].tolist()) for q in used})
    return events, loss


@pytest.mark.parametrize("optimiser", ["adagrad", "sgd"])
@pytest.mark.parametrize("loss", ["leave-one-out", "poisson"])
@pytest.mark.parametrize("metafeatures", METAFEATURES[:3], ids=lambda m: f"{len(m.masks())}masks-{m.link_buckets}")
def test_steps_equal_the_reference(metafeatures: MetafeatureSet, loss: str, optimiser: str) -> None:
    text = random_text(11, 12)
    extractor = extractor_of("ngram(0..2) + skip(r=1, s=1..3, a=0, tied)", text, WORDS)
    settings = TrainingSettings(loss=loss, optimiser=optimiser, rate=0.05, metafeatures=metafeatures, slots=1 << 22)
    made = Adjustment(extractor, settings, settings.slots or 0)
    reference = reference_adjustment(extractor, metafeatures, made.table.copy())
    annotated(text, extractor).train(made, settings, 1, lambda n: None)
    counts = reference_counts(text, extractor)
    groups: dict[int, list[tuple[paper.Sentence, int, list[paper.Feature]]]] = {}
    events = paper.events(paper.to_sentences(text.tokens))
    for k, (context, target) in zip(np.flatnonzero(text.tokens != 0).tolist(), events, strict=True):
        templates = {f: first_template(extractor, context, f) for f in paper.features_of(extractor.spec, context)}
        groups.setdefault(k // GROUP_EVENTS, []).append((context, target, sorted(templates, key=templates.__getitem__)))
    for group in groups.values():
        paper.train_group(extractor.spec, counts, reference, group, 0.05, loss == "leave-one-out")
    assert len(groups) > 3
    assert np.count_nonzero(reference.table[:, 0]) > 300
    np.testing.assert_allclose(made.table, reference.table, rtol=1e-5, atol=1e-6)


def first_template(extractor: Extractor, context: paper.Sentence, feature: paper.Feature) -> int:
    """The first template that gives this feature."""
    tokens = np.array([*context, 1], np.uint32)
    column: list[int] = extractor.keys(tokens, len(context), len(tokens))[:, 0].tolist()
    return column.index(key(extractor, feature))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("metafeatures", METAFEATURES[:3], ids=lambda m: f"{len(m.masks())}masks-{m.link_buckets}")
@pytest.mark.parametrize("loss", ["leave-one-out", "poisson"])
def test_matrix_row_sums_and_probabilities_equal_the_reference(
    spec: str, metafeatures: MetafeatureSet, loss: str, tmp_path: Path
) -> None:
    text = random_text(13, 25)
    extractor = extractor_of(spec, text, WORDS)
    made = random_adjustment(extractor, TrainingSettings(loss=loss, metafeatures=metafeatures))
    counts = all_counts(text, extractor)
    weights, sums = made.weigh(counts, threads=2)
    reference = reference_adjustment(extractor, metafeatures, made.table)
    m = paper.matrix(reference_counts(text, extractor), reference, loss == "leave-one-out")
    expected = {(key(extractor, f), j): v for f, row in m.items() for j, v in row.items()}
    assert as_dictionary(counts, weights) == pytest.approx(expected, rel=1e-6)
    row_sums = {key(extractor, f): sum(row.values()) for f, row in m.items()}
    assert dict(zip(counts.features.tolist(), sums.tolist(), strict=True)) == pytest.approx(row_sums, rel=1e-6)

    other = random_text(17, 10)  # held-out text, with features that were never seen
    held_out = HeldOut(other, extractor, counts.between(0, 1), store_of(text, extractor, tmp_path / "counts"))
    expected_ppl = paper.perplexity(extractor.spec, m, paper.to_sentences(other.tokens))
    assert held_out.perplexity(made) == pytest.approx(expected_ppl, rel=1e-6)


def small_case() -> tuple[Text, Extractor, TrainingSettings, Adjustment]:
    """A text with every word of the vocabulary: the aggregated gradient leaves out words that do not occur."""
    text = random_text(19, 12, 8, 8)
    text = Text(np.concatenate([text.tokens, text_of([[*range(2, 10), 9, 8]]).tokens]), text.sentences + 1)
    extractor = extractor_of("ngram(0..2) + skip(r=1, s=1, a=0..1)", text, 10)
    settings = TrainingSettings(slots=500, metafeatures=MetafeatureSet.parse(merge=False))
    return text, extractor, settings, random_adjustment(extractor, settings)


def numerical_derivatives(loss: object, table: np.ndarray, slots: list[int], step: float = 1e-4) -> list[float]:
    """Central differences of a loss with respect to some weights, in double precision."""
    found = []
    for slot in slots:
        at = []
        for sign in (1, -1):
            table[slot, 0] += sign * step
            at.append(loss())  # type: ignore[operator]
            table[slot, 0] -= sign * step
        found.append((at[0] - at[1]) / (2 * step))
    return found


def busiest_slots(gradient: np.ndarray) -> list[int]:
    busiest: list[int] = np.argsort(-np.abs(gradient))[:25].tolist()
    return busiest


@pytest.mark.parametrize("loss", ["leave-one-out", "poisson"])
def test_poisson_gradient_is_the_derivative_of_the_loss(loss: str) -> None:
    """The aggregated gradient, summed over a pass, against numerical derivatives of the loss of all events."""
    text, extractor, settings, made = small_case()
    leave_one_out = loss == "leave-one-out"
    counts, table = reference_counts(text, extractor), made.table.astype(np.float64)
    reference = reference_adjustment(extractor, settings.metafeatures, table)
    sentences = paper.to_sentences(text.tokens)
    if leave_one_out:
        # without the event, a feature with C_i* = 1 does not exist; the reference's y' leaves it out too
        def total() -> float:
            return sum(
                paper.poisson_loss(paper.left_out_prediction(extractor.spec, counts, reference, c, t), t)
                for c, t in paper.events(sentences)
            )
    else:

        def total() -> float:
            m = paper.matrix(counts, reference)
            return sum(
                paper.poisson_loss(paper.prediction(m, paper.features_of(extractor.spec, c)), t)
                for c, t in paper.events(sentences)
            )

    gradient, kernel_loss = summed_gradient(text, extractor, made, reference, counts, leave_one_out)
    slots = busiest_slots(gradient)
    assert gradient[slots] == pytest.approx(numerical_derivatives(total, table, slots), rel=1e-4, abs=1e-6)
    assert kernel_loss == pytest.approx(total(), rel=1e-6)


def summed_gradient(
    text: Text, extractor: Extractor, made: Adjustment, reference: paper.Adjustment,
    counts: paper.Counts, leave_one_out: bool,
) -> tuple[np.ndarray, float]:  # fmt: skip
    """The kernel's gradients of all events, summed for each slot of the table."""
    found, loss = kernel_gradients(text, extractor, made, leave_one_out)
    gradient = np.zeros(len(made.table))
    for parts, (context, target) in zip(found, paper.events(paper.to_sentences(text.tokens)), strict=True):
        for feature in paper.features_of(extractor.spec, context):
            if key(extractor, feature) not in parts:
                continue
            g_n, g_p = parts[key(extractor, feature)]
            seen, c = sum(counts[feature].values()), counts[feature][target]
            n, c_p = seen - leave_one_out, c - leave_one_out
            for _, slot, w, m in reference.metafeatures(feature, target, n, c, seen):
                gradient[slot] += g_n * w * m
            if c_p:
                for _, slot, w, m in reference.metafeatures(feature, target, n, c_p, seen):
                    gradient[slot] += g_p * w * m
    return gradient, loss


def test_multinomial_gradient_is_the_derivative_of_the_loss(tmp_path: Path) -> None:
    text, extractor, settings, _ = small_case()
    made = random_adjustment(extractor, replace(settings, loss="multinomial"))
    counts = all_counts(text, extractor)
    other = random_text(23, 6, 8, 8)
    held_out = HeldOut(other, extractor, counts.between(0, 1), store_of(text, extractor, tmp_path / "counts"))
    gradient = np.zeros(len(made.table), np.float64)
    loss = held_out._train_batch(np.arange(held_out.events), made, 0.0, gradient)

    table = made.table.astype(np.float64)
    reference = reference_adjustment(extractor, settings.metafeatures, table)
    c = reference_counts(text, extractor)

    def total() -> float:
        m = paper.matrix(c, reference)
        return sum(
            paper.multinomial_loss(paper.prediction(m, paper.features_of(extractor.spec, context)), target)
            for context, target in paper.events(paper.to_sentences(other.tokens))
        )

    assert loss == pytest.approx(total(), rel=1e-6)
    slots = busiest_slots(gradient)
    assert gradient[slots] == pytest.approx(numerical_derivatives(total, table, slots), rel=1e-4, abs=1e-6)
