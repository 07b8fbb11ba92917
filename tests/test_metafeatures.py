"""Which conjunctions there are, and what the language and the plan make of them."""

from __future__ import annotations

import pytest

from snm.errors import SettingsError, SpecError
from snm.metafeatures import FLOOR_CODES, NAMES, PAIR_CODES, MetafeatureSet
from snm.training import TrainingSettings


@pytest.mark.parametrize(
    ("feature_buckets", "link_buckets", "number"),
    [(1, 1, 2**5 - 1), (1, 2, 2**6 - 1), (2, 1, 2**6 - 1), (2, 2, 2**7 - 1)],
)
def test_all_conjunctions(feature_buckets: int, link_buckets: int, number: int) -> None:
    masks = MetafeatureSet.parse("all", feature_buckets, link_buckets, merged=False).masks()
    assert len(masks) == number
    assert set(masks.values()) == {1}


def test_merging_keeps_the_number_and_halves_the_look_ups() -> None:
    merged, apart = (MetafeatureSet.parse("all", 1, 1, merged).masks() for merged in (True, False))
    assert sum(merged.values()) == sum(apart.values()) == 31
    assert len(merged) == 4 + 15
    assert all(not mask & 1 or not mask & 0b110 for mask in merged), "with the feature, no type and no count"


@pytest.mark.parametrize("name", NAMES)
def test_ablation_takes_out_every_conjunction_that_holds_the_name(name: str) -> None:
    left = MetafeatureSet.parse(f"all, -{name}")
    assert len(left.conjunctions) == 15
    assert not any(name in conjunction for conjunction in left.conjunctions)


def test_named_conjunctions_and_their_text() -> None:
    chosen = MetafeatureSet.parse(" target , type+link-count ")
    assert str(chosen) == "target, type+link-count"
    assert MetafeatureSet.parse(str(chosen)) == chosen
    assert MetafeatureSet.parse(str(MetafeatureSet.parse())) == MetafeatureSet.parse()


@pytest.mark.parametrize("text", ["", "colour", "all, -colour", "-feature", "target+"])
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="expected"):
        MetafeatureSet.parse(text)


def test_three_buckets_are_refused() -> None:
    with pytest.raises(SpecError, match="expected 1 or 2"):
        MetafeatureSet.parse("all", 3)


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
        {"slots": 1 << 40},
    ):
        with pytest.raises(SettingsError):
            TrainingSettings(**wrong)  # type: ignore[arg-type, unused-ignore]
