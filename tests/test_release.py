"""What releases are made of: versions, recipes, locked packages and workflows agree with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import snm

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked() -> dict[str, list[str]]:
    """The lines of each locked package: its version first, then its hashes."""
    blocks = re.split(r"\n(?=[a-z])", (ROOT / "requirements" / "test.txt").read_text())[1:]
    return {re.split("[=[]", block)[0]: block.splitlines() for block in blocks}


def read_yaml(name: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="needs the package PyYAML")
    return yaml.safe_load((ROOT / name).read_text())


def test_versions_agree() -> None:
    assert f"\nversion: {snm.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'\n  version: "{snm.__version__}"\n' in (ROOT / "conda" / "recipe.yaml").read_text()


def test_the_citation_has_the_authors_and_the_paper() -> None:
    cited = read_yaml("CITATION.cff")
    assert cited["cff-version"] == "1.2.0"
    assert cited["authors"] == [{"name": "The SNM developers"}]
    assert [author["family-names"] for author in cited["references"][0]["authors"]] == ["Shazeer", "Pelemans", "Chelba"]


def test_the_recipe_needs_what_the_wheel_needs() -> None:
    recipe = read_yaml("conda/recipe.yaml")
    needed = [Requirement(line) for line in PROJECT["dependencies"]]
    assert recipe["requirements"]["run"] == [
        f"python {PROJECT['requires-python']}",
        *(f"{one.name} {one.specifier}" for one in needed if one.marker is None),
    ]
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["about"]["summary"] == PROJECT["description"]
    entry_points = [f"{name} = {where}" for name, where in PROJECT["scripts"].items()]
    assert recipe["build"] | {"python": {"entry_points": entry_points}, "noarch": "python"} == recipe["build"]


def test_every_dependency_has_a_lowest_version() -> None:
    """So that `make test-minimum` knows which to test."""
    extras = PROJECT["optional-dependencies"].values()
    for line in [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]:
        if not line.startswith("snm["):
            assert re.search(">=[0-9]", line), line


def test_locked_packages_have_hashes_and_no_address() -> None:
    text = (ROOT / "requirements" / "test.txt").read_text()
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text
    found = locked()
    assert len(found) > 30
    for name, (first, *hashes) in found.items():
        assert re.fullmatch(r"\S+==\S+( ; .*)? \\", first), name
        assert hashes, name
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in hashes), name


def test_the_lock_fits_the_project_and_has_no_package_of_cuda() -> None:
    found = locked()
    for line in [*PROJECT["dependencies"], *(PROJECT["optional-dependencies"]["test"])]:
        needed = Requirement(line)
        if needed.name != "snm":
            name = needed.name.replace("_", "-")
            assert name in found, "run: make lock"
            version = found[name][0].split("==")[1].split()[0]
            assert needed.specifier.contains(version), f"{line}: run make lock"
    assert not [name for name in found if name.startswith(("torch", "triton", "nvidia", "cuda"))]


@pytest.mark.parametrize("name", ["ci", "release", "site"])
def test_workflows_are_read_only_but_where_they_publish(name: str) -> None:
    workflow = read_yaml(f".github/workflows/{name}.yml")
    assert workflow["permissions"] in ({}, {"contents": "read"})
    writers = {
        job: {right for right, access in what.get("permissions", {}).items() if access == "write"}
        for job, what in workflow["jobs"].items()
    }
    rights = {"release": {"attestations", "contents", "id-token"}, "site": {"id-token", "pages"}}
    published = {"publish": rights[name]} if name in rights else {}
    assert {job: found for job, found in writers.items() if found} == published
