"""The documentation site: it builds without a warning, has every public name, and loads nothing from other hosts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import snm
from snm import decoding, errors, kenlm, rescoring

for package in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(package, reason="needs the extra site")

ROOT = Path(__file__).parents[1]
LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "object": "data",
}
"""Elements that load something, and the attribute that says what. A link does so unless it only says what there is."""
SAYS = {"canonical", "next", "prev", "edit"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={"PATH": "", "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Page(HTMLParser):
    """What a page loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.anchors.add(found.get("id", ""))
        if tag == "link" and found.get("rel") not in SAYS:
            self.loaded.append(found["href"])
        if LOADS.get(tag) in found:
            self.loaded.append(found[LOADS[tag]])
        self.loaded += re.findall(r"url\(([^)]*)\)", found.get("style", ""))


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 45
    for path in pages:
        for url in Page(path).loaded:
            local = url.partition("?")[0].partition("#")[0]
            assert "//" not in url, f"{path}: {url}"
            assert (path.parent / local).exists() or path.name == "404.html", f"{path}: {url}"
    for path in site.rglob("*.css"):
        for url in re.findall(r"url\(([^)]*)\)", path.read_text()):
            assert url.startswith(("data:", '"data:', "'data:")) or "//" not in url, f"{path}: {url}"
        assert "@import" not in path.read_text(), path


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    anchors = {name for path in (site / "reference").glob("*.html") for name in Page(path).anchors}
    named = (site / "reference" / "models.html").read_text()
    modules: list[Any] = [snm, decoding, kenlm, rescoring]
    for module in modules:
        for name in set(module.__all__) - {"__version__", "decoding", "errors", "kenlm", "StatefulModel", "SnmError"}:
            assert f"{module.__name__}.{name}" in anchors, f"{module.__name__}.{name}"
    assert "snm.StatefulModel" in named
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.SnmError):
            assert f"snm.errors.{name}" in anchors


def test_no_page_is_left_out_of_the_navigation(site: Path) -> None:
    menu = (site / "index.html").read_text()
    for path in (ROOT / "docs").rglob("*.md"):
        page = path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert f'href="{page}"' in menu, page


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian's package chromium)")
@pytest.mark.parametrize("view", ["desktop", "phone"])
def test_a_browser_asks_no_other_host_and_can_search(site: Path, view: str) -> None:
    """From the disk, where there is neither a server nor a network."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    asked: list[str] = []
    size = {"width": 1200, "height": 900} if view == "desktop" else {"width": 360, "height": 740}
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=size)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: asked.append(f"error: {error}"))
        for name in ("index", "tutorials/first-model", "concepts/model", "reference/models", "results", "commands"):
            page.goto((site / f"{name}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
        page.goto((site / "index.html").as_uri())
        if view == "phone":
            page.locator("label.md-header__button[for=__search]").click()
        page.locator(".md-search__input").click()
        page.keyboard.type("skip-gram")
        page.locator(".md-search-result__item").first.wait_for()
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian's package chromium)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(site: Path, scheme: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(color_scheme=scheme).new_page()
        for name in ("index", "tutorials/first-model", "concepts/model", "reference/models", "commands"):
            page.goto((site / f"{name}.html").as_uri())
            page.wait_for_timeout(400)  # colours fade in
            found = axe.Axe().run(page).response["violations"]
            assert [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")] == []
        browser.close()
