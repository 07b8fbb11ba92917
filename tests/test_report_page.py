"""The page of a report in a real Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import snm
from tests.test_reports import GOLDEN, TEXT, golden

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("needs Chromium (Debian's package chromium)", allow_module_level=True)

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
]
VIEWS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1200, "height": 900}},
    "dark": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True},
}
HOSTILE = "<script>window.hit=1</script>", "<img/src=x/onerror=window.hit=1>", "&lt;b&gt;", "w" * 90


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def page_of_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on models of several families, one of whose words are markup."""
    folder = tmp_path_factory.mktemp("report")
    lines = [*TEXT.read_text().split("\n"), *(" ".join([*HOSTILE[i % 3 :], "the sea"]) for i in range(30))]
    settings = snm.Settings(features="ngram(0..2)", threads=1)
    hostile = snm.train(iter(lines), folder / "<i>hostile & long name of a model.model", settings)
    models: list[Path | snm.LanguageModel] = [
        hostile,
        *(golden(kind) for kind in ("snm", "sources", "mixture", "lstm")),
        GOLDEN / "kneser-ney.arpa",
    ]
    snm.report(models, iter(lines), resamples=50).save(folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize("view", VIEWS)
def test_everyone_can_read_it(browser: Any, page_of_report: Path, view: str) -> None:
    """axe finds nothing serious, nothing is wider than the window, no script runs, and nothing else is loaded."""
    context = browser.new_context(**VIEWS[view])
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_of_report.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    found = axe.Axe().run(page).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")] == []
    assert asked == [page_of_report.as_uri()]
    assert said == []
    context.close()


def test_sections_are_reached_by_their_links(browser: Any, page_of_report: Path) -> None:
    page = browser.new_page(viewport={"width": 800, "height": 600})
    page.goto(page_of_report.as_uri())
    names = page.locator("nav a").all_inner_texts()
    assert names[:3] == ["Perplexity", "Comparison", "What is hard"]
    page.get_by_role("link", name="Learning").click()
    assert page.evaluate("window.scrollY") > 0
    assert page.locator("section:target h2").inner_text() == "Learning"
    heats = page.locator(".sentence span").evaluate_all("all => all.map(e => +e.style.getPropertyValue('--heat'))")
    assert 0 <= min(heats) < max(heats) <= 1
    page.close()


def test_it_prints(browser: Any, page_of_report: Path) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(page_of_report.as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(29, 28, 26)"
    assert page.locator("nav").is_hidden()
    assert page.pdf().startswith(b"%PDF")
    page.close()


def test_explanations_show_their_features(browser: Any) -> None:
    model = snm.load(golden("snm"))
    page = browser.new_page()
    page.set_content(model.explain(TEXT.read_text().split("\n")[0])._repr_html_())
    word = page.locator(".snm-word").nth(1)
    assert word.locator("[role=tooltip]").is_hidden()
    word.hover()
    assert "P = " in word.locator("[role=tooltip]").inner_text()
    page.mouse.move(0, 400)
    word.focus()
    assert word.locator("[role=tooltip]").is_visible()
    page.close()
