"""The page of the server, in a real Chromium."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import snm

for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason="needs the extra serve")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")

from tests.serving import serving  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("needs Chromium (Debian's package chromium)", allow_module_level=True)

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
SERIOUS = ("serious", "critical")
PAGE = Path(snm.__file__).parent / "server" / "page"
VIEWS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1200, "height": 900}},
    "dark": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True},
}
TEXT = "the old man sees the cat\na dog likes zork"
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def models(model_path: Path, corpus_file: Path) -> dict[str, snm.LanguageModel]:
    kn = snm.train(
        corpus_file, model_path.parent / "kn.model", snm.Settings(model="kn", order=3, threads=1), force=True
    )
    return {"small": snm.load(model_path), "kn": kn}


@pytest.fixture(scope="module")
def address(models: dict[str, snm.LanguageModel]) -> Iterator[str]:
    with serving(models, threads=2) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Open]:
    """Opens the page. Whatever it writes to the browser's console fails the test."""
    said: list[str] = []
    contexts = []

    def opened(url: str = address, **view: Any) -> Any:
        context = browser.new_context(**(view or VIEWS["desktop"]))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(url)
        until(page, "document.querySelectorAll('#model-a option').length")
        return page

    yield opened
    folder = os.environ.get("SNM_SCREENSHOTS")  # to look at
    for context in contexts:
        for page in context.pages if folder else ():
            name = re.sub(r"\W+", "-", os.environ["PYTEST_CURRENT_TEST"].split("::")[1].split(" ")[0])
            page.screenshot(path=f"{folder}/{name}.png", full_page=True)
        context.close()
    assert said == []


def until(page: Any, condition: str) -> None:
    """Wait for a condition in JavaScript. (Playwright's own function for it needs `eval`, which the page forbids.)"""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"{condition} does not come true")


def until_next(page: Any, word: str) -> None:
    """Wait for a list of next words that begins with this one."""
    until(page, f"document.querySelector('#next[aria-busy=false] li')?.firstChild.data === '{word}'")


def bits_of(page: Any, line: int, word: int) -> float:
    label = page.locator(f'.word[data-line="{line}"][data-word="{word}"]').first.get_attribute("aria-label")
    return float(label.split(", ")[1].removesuffix(" bits"))


def tab_until(page: Any, wanted: str, key: str = "Tab") -> None:
    """Press Tab until the focus is where it is wanted."""
    for _ in range(30):
        if page.evaluate("wanted => document.activeElement.matches(wanted)", wanted):
            return
        page.keyboard.press(key)
    pytest.fail(f"{wanted} cannot be reached with the keyboard")


def test_words_have_their_surprisal(open_page: Open, models: dict[str, snm.LanguageModel]) -> None:
    page = open_page()
    page.type("#text", TEXT)
    page.wait_for_selector('.word[data-line="1"][data-word="4"]')
    for line, text in enumerate(TEXT.split("\n")):
        for i, (word, log10_p) in enumerate(models["small"].score_words([text], spelled=True)[0]):
            shown = page.locator(f'.word[data-line="{line}"][data-word="{i}"]')
            assert bits_of(page, line, i) == pytest.approx(-log10_p * math.log2(10), abs=0.051)
            heat = float(shown.evaluate("word => word.style.getPropertyValue('--heat')"))
            assert heat == pytest.approx(min(1, -log10_p * math.log2(10) / 16), abs=1e-3)
            assert shown.evaluate("word => word.classList.contains('unknown')") == (word == "zork")
    assert "1 unknown" in page.inner_text("#status")


def test_next_words_while_typing(open_page: Open, models: dict[str, snm.LanguageModel]) -> None:
    page = open_page()
    page.type("#text", "the old ")
    until_next(page, "man")
    best = [word for word, _ in models["small"].next_words("the old", k=8) if not word.startswith("<")]
    assert page.locator("#next li").first.inner_text().split()[0] == best[0] == "man"
    page.keyboard.press("Tab")
    playwright.expect(page.locator("#text")).to_have_value("the old man ")
    page.keyboard.type("li")
    until_next(page, "likes")
    page.locator("#next li").first.click()
    playwright.expect(page.locator("#text")).to_have_value("the old man likes ")
    until(page, "document.querySelectorAll('#next[aria-busy=false] li').length > 2")
    second = page.locator("#next li").nth(1).inner_text().split()[0]
    page.keyboard.press("Alt+ArrowDown")
    assert page.get_attribute("#text", "aria-activedescendant") == "next-1"
    page.keyboard.press("Tab")
    assert page.input_value("#text") == f"the old man likes {second} "


def test_the_end_of_a_sentence_is_a_line(open_page: Open) -> None:
    page = open_page()
    page.type("#text", "the cat eats fish ")
    until_next(page, "↵ end")
    page.keyboard.press("Tab")
    assert page.input_value("#text") == "the cat eats fish\n"


def test_one_click_chooses_a_word_while_next_words_are_shown(open_page: Open) -> None:
    """The list of next words goes when the text loses the focus, and the page moves; not under the pointer."""
    page = open_page()
    page.fill("#text", TEXT)
    page.focus("#text")
    page.keyboard.press("End")
    page.keyboard.type(" ")
    until(page, "document.querySelector('#next[aria-busy=false] li')")
    page.locator('.word[data-line="0"][data-word="4"]').first.click()
    page.wait_for_selector(".part")
    assert page.inner_text("#explanations h2") == "“the” according to small"
    assert page.is_hidden("#next")


def test_an_empty_page_says_what_it_is_for(open_page: Open) -> None:
    page = open_page()
    assert "the less the model expected it" in page.inner_text("#intro")
    page.fill("#text", TEXT)
    until(page, "document.querySelector('#intro').hidden")


def test_what_made_a_word_probable(open_page: Open, models: dict[str, snm.LanguageModel]) -> None:
    page = open_page()
    page.fill("#text", TEXT)
    page.click('.word[data-line="0"][data-word="4"]')
    page.wait_for_selector(".part")
    expected = models["small"].explain(TEXT.split("\n")[0])[4]
    assert page.inner_text("#explanations h2") == "“the” according to small"
    assert f"P = {expected.probability:.3g}" in page.inner_text("#explanations")
    rows = page.locator(".part").all()
    for row, part in zip(rows, expected.parts, strict=False):
        assert row.locator("span").first.inner_text() in (part.feature, f"{part.feature} any context")
        shown = row.locator(".figure").inner_text()
        share = part.share / expected.probability
        assert shown == "< 0.1 %" or float(shown.removesuffix(" %")) == pytest.approx(100 * share, abs=0.51)
    drawn = [p for p in expected.parts[: len(rows)] if p.shape is not None and p.shape[1]]
    assert page.locator(".arcs path[d*=C]").count() == len(drawn) > 0
    rows[1].click()
    assert page.locator(".arcs.some g.on").get_attribute("data-part") == "1"


def test_sources(open_page: Open) -> None:
    golden = Path(__file__).parent / "golden" / "format3"
    with serving({"both": snm.load(golden / "sources")}) as address:
        page = open_page(address)
        page.fill("#text", "the old stone")
        page.click('.word[data-word="2"]')
        page.wait_for_selector(".part .source")
        assert "By source" in page.inner_text("#explanations")
        assert page.locator(".key li").all_inner_texts()[-1].split()[0] in ("sea", "base")
        assert page.is_hidden("#compare")


def test_two_models(open_page: Open, models: dict[str, snm.LanguageModel]) -> None:
    page = open_page()
    page.fill("#text", TEXT)
    page.select_option("#model-b", "kn")
    until(page, "document.querySelectorAll('.words').length === 2")
    page.click("#tab-differences")
    rows = page.locator("#differences tbody tr")
    apart = [float(text.split()[0]) for text in rows.locator("td:last-child").all_inner_texts()]
    assert apart == sorted(apart, reverse=True)
    scores = [m.score_words(TEXT.split("\n"), spelled=m.spelling is not None) for m in models.values()]
    most = max(abs(a - b) for x, y in zip(*scores, strict=True) for (_, a), (_, b) in zip(x, y, strict=True))
    assert apart[0] == pytest.approx(most * math.log2(10), abs=0.06)
    rows.first.locator("button").click()
    page.wait_for_selector(".part")
    assert page.locator('.word[aria-selected="true"]').count() == 2
    assert "of another kind" in page.inner_text("#explanations")


def test_a_document(open_page: Open, models: dict[str, snm.LanguageModel]) -> None:
    page = open_page()
    lines = [f"the cat eats {word}" for word in ("fish", "cake", "dog", "old") * 300]
    page.fill("#text", "\n".join(lines))
    page.click("#tab-sentences")
    until(page, "document.querySelectorAll('#sentences tbody tr').length === 1200")
    figures = [row.split()[0] for row in page.locator("#sentences tbody tr td:nth-child(2)").all_inner_texts()[:4]]
    expected = [models["small"].perplexity([line]).ppl for line in lines[:4]]
    assert [float(figure.replace(",", "")) for figure in figures] == pytest.approx(expected, rel=0.1)
    page.select_option("#order", "hard")
    hardest = lines[max(range(4), key=lambda i: expected[i])]
    assert page.locator("#sentences tbody tr").first.locator("td.long").inner_text() == hardest
    ppl = models["small"].perplexity(lines).ppl
    found = re.search(r"perplexity ([\d.]+)", page.inner_text("#sentences caption"))
    assert found is not None
    assert float(found[1]) == pytest.approx(ppl, abs=0.051)


def test_buttons(open_page: Open) -> None:
    page = open_page()
    page.fill("#text", "The cat sees fish. A dog (the old man) likes cake, doesn't it?")
    page.click("#split")
    assert page.input_value("#text") == "The cat sees fish .\nA dog ( the old man ) likes cake , does n't it ?"
    page.fill("#text", "the old")
    page.click("#continue")
    until(page, "/^the old .*\\n$/.test(document.querySelector('#text').value)")
    page.click("#clear")
    playwright.expect(page.locator("#results")).to_be_hidden()
    assert page.evaluate("document.activeElement.id") == "text"


def test_with_the_keyboard_alone(open_page: Open) -> None:
    page = open_page()
    tab_until(page, "#text")
    page.keyboard.type("the old ")
    until_next(page, "man")
    page.keyboard.press("Tab")
    assert page.input_value("#text") == "the old man "
    page.wait_for_selector("#next li")
    page.wait_for_selector('.word[data-word="3"]')
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "continue"
    tab_until(page, "#tab-words")
    tab_until(page, ".word")
    for key, word in [
        ("ArrowRight", "old"),
        ("End", "↵"),
        ("ArrowLeft", "man"),
        ("Home", "the"),
        ("ArrowRight", "old"),
    ]:
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.firstChild.data") == word
    page.keyboard.press("Enter")
    page.wait_for_selector(".part")
    assert page.inner_text("#explanations h2") == "“old” according to small"
    tab_until(page, ".part")
    page.keyboard.press("Enter")
    assert page.get_attribute(".part", "aria-pressed") == "true"
    tab_until(page, "#tab-words", "Shift+Tab")
    page.keyboard.press("ArrowRight")
    playwright.expect(page.locator("#view-sentences")).to_be_visible()
    tab_until(page, "#model-b", "Shift+Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    until(page, "document.querySelectorAll('.words').length === 2")


@pytest.mark.parametrize("view", VIEWS)
def test_everyone_can_use_it(open_page: Open, view: str) -> None:
    """axe finds nothing serious, and nothing is wider than the window."""
    page = open_page(**VIEWS[view])

    def check() -> None:
        page.wait_for_timeout(300)  # colours change slowly
        found = axe.Axe().run(page).response["violations"]
        assert [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in SERIOUS] == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

    check()
    page.type("#text", f"{TEXT}\nthe old ")
    page.wait_for_selector("#next li")
    check()
    page.keyboard.press("Escape")
    page.select_option("#model-b", "kn")
    until(page, "document.querySelectorAll('.words').length === 2")
    page.check("#numbers")
    page.click('.word[data-line="0"][data-word="4"]')
    page.wait_for_selector(".part")
    check()
    for name in ("sentences", "differences"):
        page.click(f"#tab-{name}")
        check()


def test_a_tap_on_a_phone(open_page: Open) -> None:
    page = open_page(**VIEWS["phone"])
    page.type("#text", "the old ")
    until_next(page, "man")
    page.locator("#next li").first.tap()
    playwright.expect(page.locator("#text")).to_have_value("the old man ")
    page.locator('.word[data-word="1"]').tap()
    page.wait_for_selector(".part")
    wide = "button, select, .word, #next li"
    sizes = page.evaluate(
        "wide => [...document.querySelectorAll(wide)].filter(e => e.offsetParent).map(e => e.offsetHeight)", wide
    )
    assert min(sizes) >= 24


def test_the_token_is_asked_for(browser: Any, models: dict[str, snm.LanguageModel]) -> None:
    with serving(models, token="secret") as address:
        page = browser.new_page()
        page.goto(address)
        for token in ("wrong", "secret"):
            page.wait_for_selector("#ask[open]")
            page.fill("#token", token)
            page.keyboard.press("Enter")
        until(page, "document.querySelectorAll('#model-a option').length === 2")
        page.fill("#text", "the cat")
        page.wait_for_selector(".word")
        page.close()


def test_a_server_that_is_gone(browser: Any, models: dict[str, snm.LanguageModel]) -> None:
    with serving(models) as address:
        page = browser.new_page()
        page.goto(address)
        until(page, "document.querySelectorAll('#model-a option').length === 2")
    page.fill("#text", "the cat")
    until(page, "document.querySelector('#problem').textContent === 'The server does not answer.'")
    page.close()


def test_nothing_comes_from_elsewhere(open_page: Open, address: str) -> None:
    """All that is loaded comes from the server, in less than 100 KB, and no other script could run."""
    asked: list[str] = []
    page = open_page()
    page.on("request", lambda request: asked.append(request.url))
    response = page.reload()
    until(page, "document.querySelectorAll('#model-a option').length === 2")
    assert len(asked) >= 4
    assert all(url.startswith((address, "data:")) for url in asked)
    assert sum(path.stat().st_size for path in PAGE.iterdir()) < 100_000
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
