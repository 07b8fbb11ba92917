"""Sets of conjunctions: parsing, buckets, plans."""

from __future__ import annotations

import pytest

from snm.adjustment.metafeatures import NAMES, MetafeatureSet
from snm.adjustment.settings import TrainingSettings
from snm.errors import SettingsError, SpecError
from snm.layouts.weights import FLOOR_CODES, PAIR_CODES, half_octave
from snm.reference.paper import half_octaves


@pytest.mark.parametrize(
    ("feature_buckets", "link_buckets", "number"),
    [
        ("single", "single", 2**5 - 1),
        ("single", "half", 2**5 - 1),
        ("single", "double", 2**6 - 1),
        ("double", "single", 2**6 - 1),
        ("double", "double", 2**7 - 1),
    ],
)
def test_all_conjunctions(feature_buckets: str, link_buckets: str, number: int) -> None:
    masks = MetafeatureSet.parse("all", feature_buckets=feature_buckets, link_buckets=link_buckets, merge=False).masks()
    assert len(masks) == number
    assert set(masks.values()) == {1}


def test_merging_keeps_the_number_and_halves_the_look_ups() -> None:
    merged, apart = (MetafeatureSet.parse("all", link_buckets="single", merge=merge).masks() for merge in (True, False))
    assert sum(merged.values()) == sum(apart.values()) == 31
    assert len(merged) == 4 + 15
    assert all(not mask & 1 or not mask & 0b110 for mask in merged), "with the feature, no type and no count"


@pytest.mark.parametrize("name", NAMES)
def test_ablation_removes_every_conjunction_with_the_name(name: str) -> None:
    left = MetafeatureSet.parse(f"all, -{name}")
    assert len(left.conjunctions) == 15
    assert not any(name in conjunction for conjunction in left.conjunctions)


def test_named_conjunctions_and_their_text() -> None:
    chosen = MetafeatureSet.parse(" target , type+link-count ")
    assert str(chosen) == "target, type+link-count"
    assert MetafeatureSet.parse(str(chosen)) == chosen
    assert MetafeatureSet.parse(str(MetafeatureSet.parse())) == MetafeatureSet.parse()


@pytest.mark.parametrize("text", ["", "colour", "all, -colour", "-feature", "target+"])
def test_invalid_conjunctions_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="expected"):
        MetafeatureSet.parse(text)


def test_unknown_buckets_are_refused() -> None:
    with pytest.raises(SpecError, match="expected single or double"):
        MetafeatureSet.parse("all", feature_buckets="half")
    with pytest.raises(SpecError, match="expected single or double or half"):
        MetafeatureSet.parse("all", link_buckets="thirds")


def test_half_octaves_equal_the_reference_and_leave_the_first_slot_of_a_line_free() -> None:
    counts = [*range(1, 5000), 2**20 - 1, 2**20, 3 * 2**19, 2**31]
    assert [half_octave(n) for n in counts] == [half_octaves(n) for n in counts]
    assert [half_octave(n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 15, 16)] == [1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8]


def test_lean_is_four_conjunctions() -> None:
    assert len(MetafeatureSet.parse("lean").conjunctions) == 4
    assert MetafeatureSet.parse("lean, target").conjunctions > MetafeatureSet.parse().conjunctions


def test_the_codes_of_a_line_do_not_collide() -> None:
    # code 0 is the conjunction without the link count; pair 0 cannot occur in its line
    assert len({0, *FLOOR_CODES, *PAIR_CODES[1:]}) == 8
    assert len({*FLOOR_CODES, *PAIR_CODES}) == 8


def test_settings_out_of_range_are_refused() -> None:
    for wrong in (
        {"loss": "hinge"},
        {"optimiser": "adam"},
        {"passes": -1},
        {"rate": -0.1},
        {"rate": float("inf")},
        {"accumulator": 0.0},
        {"slots": 0},
        {"start": 31.0},
        {"start": float("nan")},
        {"slots": 1 << 40},
    ):
        with pytest.raises(SettingsError):
            TrainingSettings(**wrong)  # type: ignore[arg-type, unused-ignore]
