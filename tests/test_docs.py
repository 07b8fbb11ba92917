"""The documents agree with the program."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import snm
from snm.cli.main import main
from snm.features.specification import FeatureSpec

ROOT = Path(__file__).parents[1]


def test_the_command_reference_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))["reference"]()
    assert (ROOT / "docs" / "commands.md").read_text() == made, "run: make docs"


def test_the_pictures_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_pictures.py"))["pictures"]()
    for name, picture in made.items():
        assert (ROOT / "docs" / "concepts" / name).read_text() == picture, "run: make docs"


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert set(main.commands) - set(re.findall(r"\b(?:snm|make) (\w+)", readme)) == set()


def test_every_command_of_the_readme_exists() -> None:
    readme = (ROOT / "README.md").read_text()
    used = re.findall(r"^\$ snm (\w+)(.*)$", readme, re.MULTILINE)
    assert len(used) > 5
    for name, rest in used:
        options = {option for p in main.commands[name].params for option in p.opts}
        assert set(re.findall(r"(?<= )--?[a-z]+", rest)) <= options, name


def test_the_changelog_has_the_version() -> None:
    assert f"## {snm.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_specifications_in_the_documents_can_be_parsed() -> None:
    text = (ROOT / "docs" / "features.md").read_text()
    block = text.split("## The specification language")[1].split("##")[0]
    specs = [line.split("   ")[0] for line in block.split("```text\n")[1].split("\n```")[0].split("\n")]
    assert len(specs) == 11
    for spec in specs:
        FeatureSpec(spec)


@pytest.mark.parametrize("name", ["medium", "large", "snm5-skip", "snm5-skip-only", "snm10-skip"])
def test_the_table_of_presets(name: str) -> None:
    table = (ROOT / "docs" / "features.md").read_text().split("## Presets")[1]
    (row,) = [line for line in table.split("\n") if line.startswith(f"| `{name}`")]
    assert row.endswith(f"| at most {len(FeatureSpec(name).templates)} |")


def test_the_example_of_a_family_is_the_tested_one() -> None:
    text, tested = ((ROOT / path).read_text() for path in ("docs/features.md", "tests/test_features.py"))
    lines = [
        line.strip() for line in text.split("def suffix_pair(vocabulary):")[1].split("model = ")[0].split("\n")
        if "=" in line and "def" not in line
    ]  # fmt: skip
    assert len(lines) == 4
    for line in lines:
        assert line in tested


def test_local_links_exist() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_every_term_of_the_glossary_is_unique() -> None:
    tables = (ROOT / "docs" / "glossary.md").read_text().split("| --- | --- |\n")[1:]
    cells = [cell for table in tables for cell in re.findall(r"^\| (.+?) \|", table.split("\n\n")[0], re.MULTILINE)]
    terms = [term for cell in cells for term in re.split(r", (?![^(]*\))", cell)]
    assert len(terms) > 80
    assert [term for term in set(terms) if terms.count(term) > 1] == []


def test_prose_is_wrapped() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if path.name == "benchmarks.md":  # generated, with the benchmarks' own descriptions
            continue
        for number, line in enumerate(path.read_text().split("\n"), 1):
            table_or_link = line.startswith("|") or re.fullmatch(r"\s*(- )?!?\[[^]]*\]\([^)]*\)\W*", line)
            assert len(line) <= 120 or table_or_link, f"{path.name}:{number} has {len(line)} characters"
