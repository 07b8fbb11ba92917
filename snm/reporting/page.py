"""A report as one page of HTML: no script, no other file, and nothing in it that is not escaped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib.resources import files

from snm.markup import svg
from snm.markup.charts import Chart
from snm.markup.html import Html, as_html, heat, joined, table, tag, word
from snm.reporting import charts
from snm.reporting.bootstrap import Difference, Interval
from snm.reporting.contributions import Contributions
from snm.reporting.figures import Compared, Detail, Findings, ModelFigures
from snm.reporting.sizes import Sizes
from snm.reporting.words import Band, Line, Word
from snm.version import __version__

FRAME_HEIGHT = 700  # of a report in a notebook


def page(report: Findings) -> str:
    """The whole page."""
    names = [model.name for model in report.comparison.models]
    title = f"{', '.join(names)} on {report.comparison.text}"
    sections = list(_sections(report))
    links = tag("nav", *(tag("a", name, href=f"#{_id(name)}") for name, _ in sections), aria_label="Sections")
    body = [
        tag("h1", title), tag("p", _about(report.comparison), class_="quiet"), links,
        *(tag("section", tag("h2", name), *parts, id=_id(name)) for name, parts in sections),
        tag("p", f"Written by snm {__version__}.", class_="quiet"),
    ]  # fmt: skip
    style = Html(files("snm.reporting").joinpath("page.css").read_text(encoding="utf-8"))
    head = [
        Html('<meta charset="utf-8">'), Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", title), tag("style", style),
    ]  # fmt: skip
    whole = tag("html", tag("head", *head), tag("body", tag("main", *body)), lang="en")
    return f"<!doctype html>\n{whole}\n"


def framed(report: Findings) -> str:
    """The page in a frame of its own, for a notebook: neither style reaches the other."""
    return tag(
        "iframe", srcdoc=page(report), title="Report", sandbox="", width="100%", height=str(FRAME_HEIGHT),
        style="border:1px solid #999",
    )  # fmt: skip


def _id(name: str) -> str:
    return name.lower().replace(" ", "-")


def _about(comparison: Compared) -> str:
    first = comparison.models[0].perplexity
    size = f"{_size(comparison.text_bytes)} of text"
    if not comparison.whole:
        size = f"an even sample of {_size(comparison.sample_bytes)} out of {size}"
    return f"{size[0].upper()}{size[1:]}: {first.sentences:,} sentences, {first.tokens:,} words and sentence ends."


def _size(size: int) -> str:
    """Bytes, in a unit that leaves digits to see."""
    return (
        f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{max(size, 1) / 1e3:,.0f} KB" if size >= 1e3 else f"{size} bytes"
    )


def _sections(report: Findings) -> Iterator[tuple[str, list[Html]]]:
    comparison = report.comparison
    several = len(comparison.models) > 1
    yield "Perplexity", list(_perplexity(comparison))
    if several:
        yield "Comparison", list(_comparison(report))
    yield "What is hard", list(_bands(report))
    yield "Hard words", list(_words(report))
    yield (
        "Hard sentences",
        [_legend(comparison.models[0].name), *(_sentence(s, comparison) for s in report.hardest_sentences)],
    )
    brought = [(d, made) for d in report.details for made in d.contributions]
    if brought:
        yield "What brings how much", [*_explained(brought), _pair(_contributions(d, m, several) for d, m in brought)]
    lines = [(d, chart) for d in report.details for chart in d.curves]
    if lines:
        yield "Learning", [_pair(_card(chart, d.name if several else "") for d, chart in lines)]
    yield "Size", list(_sizes(report.details, several))
    yield "Models", [_model(detail) for detail in report.details]


# ---------------------------------------------------------------------------------------------
# parts of a page


def _scrolled(inner: Html) -> Html:
    """A table that may be wider than the window. It can be scrolled with the keyboard."""
    return tag("div", inner, class_="table", tabindex="0", role="group", aria_label="Table")


def _pair(cards: Iterator[Html]) -> Html:
    return tag("div", *cards, class_="pair")


def _card(chart: Chart, above: str = "", *more: object) -> Html:
    title = f"{above}: {chart.title}" if above else chart.title
    return tag("figure", tag("figcaption", title), svg.draw(chart), *more, class_="card")


def _figure(value: float | None, digits: int = 2) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.{0 if abs(value) >= 10_000 else digits}f}"


def _between(interval: Interval, digits: int = 2) -> str:
    return f"{interval.low:,.{digits}f} to {interval.high:,.{digits}f}"


def _percent(share: float) -> str:
    return f"{100 * share:+.2f} %"


def p_value(found: Difference, resamples: int) -> str:
    """A p-value; the least that so many draws can show is a bound."""
    least = 1 / (1 + resamples)
    return f"≤ {least:.1g}" if found.p_value < 1.5 * least else f"{found.p_value:.3g}"


# ---------------------------------------------------------------------------------------------
# perplexity and comparison


def summary(comparison: Compared) -> Html:
    """The table of perplexities."""
    header = [
        "model", "perplexity", "95 % interval", "without OOVs", "OOVs spelled", "bits a byte", "OOVs", "size, MB",
        "words/s",
    ]  # fmt: skip
    return table("All figures", header, (_row(model) for model in comparison.models))


def differences(comparison: Compared) -> Html:
    """The table of the models' differences from the first."""
    rows = [
        [
            word(m.name), _percent(m.difference.ratio.value - 1),
            f"{_percent(m.difference.ratio.low - 1)} to {_percent(m.difference.ratio.high - 1)}",
            p_value(m.difference, comparison.resamples), f"{m.difference.better:.1%}",
        ]
        for m in comparison.models
        if m.difference is not None
    ]  # fmt: skip
    header = ["model", "perplexity", "95 % interval", "p-value", "sentences predicted better"]
    return table(f"Compared with {comparison.models[0].name}", header, rows)


def in_notebook(comparison: Compared) -> Html:
    """Both tables, and what models are compared by."""
    parts = [summary(comparison)]
    if any(model.difference is not None for model in comparison.models):
        parts.append(differences(comparison))
    if len(comparison.models) > 1:
        parts.append(tag("p", comparison.basis_text))
    return joined(parts)


def _row(model: ModelFigures) -> list[object]:
    p = model.perplexity
    return [
        word(model.name), _figure(p.ppl), _between(model.interval), _figure(p.ppl_no_oov), _figure(p.ppl_spelled),
        _figure(p.bits_per_byte, 4), f"{p.oov:,} ({p.oov_rate:.2%})", _figure(model.bytes / 1e6, 1),
        f"{model.words_per_second:,.0f}",
    ]  # fmt: skip


def _perplexity(comparison: Compared) -> Iterator[Html]:
    yield _scrolled(summary(comparison))
    yield tag(
        "p", "Unknown words (OOVs) count as <UNK> in the first column. The interval is that of "
        f"{comparison.resamples:,} draws of the bootstrap over sentences. Words a second are those of this run.",
        class_="quiet",
    )  # fmt: skip
    if comparison.few:
        yield tag("p", "The text has few sentences: the intervals say little.", class_="warning")
    if len(comparison.models) > 1:
        yield _pair(iter([_card(charts.of_perplexities(comparison))]))


def _comparison(report: Findings) -> Iterator[Html]:
    comparison = report.comparison
    yield tag("p", comparison.basis_text)
    chart = charts.of_ratios(comparison)
    if chart is None:
        return
    first = comparison.models[0].name
    yield _scrolled(differences(comparison))
    yield tag(
        "p", "The p-value is how probable a difference as large is by chance, by the paired bootstrap: all models are "
        "measured on the same drawn sentences.", class_="quiet",
    )  # fmt: skip
    yield _pair(iter([_card(chart)]))
    for name in report.better:
        yield tag("h3", f"{name} and {first}: sentences with the largest difference", class_="screen")
        for title, lines in (("better", report.better[name]), ("worse", report.worse[name])):
            if lines:
                parts = [_difference(line, first, name) for line in lines]
                yield tag("details", tag("summary", f"{len(lines)} that {name} predicts {title}"), *parts)


def _difference(line: Line, first: str, other: str) -> Html:
    figures = f"perplexity {_figure(line.ppl[1])} under {other}, {_figure(line.ppl[0])} under {first}"
    return _coloured(line, figures)


# ---------------------------------------------------------------------------------------------
# what is hard


def _bands(report: Findings) -> Iterator[Html]:
    names = [model.name for model in report.comparison.models]
    frequency = "By frequency of the word", report.by_frequency, report.aligned, "rank"
    length = "By words in the sentence", report.by_length, names, "words"
    yield _pair(
        _card(charts.of_bands(title, bands, models), "", _band_table(title, bands, models, what))
        for title, bands, models, what in (frequency, length)
        if bands
    )
    yield tag(
        "p", "Ranks are those of the words in the first model, by their probability without context: 1–10 are the ten "
        "most frequent words.", class_="quiet",
    )  # fmt: skip
    if len(report.aligned) < len(names):
        rest = ", ".join(name for name in names if name not in report.aligned)
        yield tag("p", f"Left out by frequency, because they divide the text in other words: {rest}.", class_="quiet")


def _band_table(title: str, bands: Sequence[Band], models: Sequence[str], what: str) -> Html:
    header = [what, "words", "share of all bits", *(f"perplexity of {name}" for name in models)]
    rows = [
        [band.name, f"{band.words:,}", f"{band.share:.1%}", *(charts.perplexity(bits) for bits in band.bits)]
        for band in bands
    ]  # fmt: skip
    return tag("details", tag("summary", "Figures"), _scrolled(table(title, header, rows)))


def _words(report: Findings) -> Iterator[Html]:
    bits = [f"bits, {name}" if len(report.aligned) > 1 else "bits" for name in report.aligned]
    tables = []
    if report.hardest_words:
        rows = [[word(w.word), f"{w.times:,}", *_bits(w)] for w in report.hardest_words]
        caption = f"On average, if seen {report.least_times} times"
        tables.append(_scrolled(table(caption, ["word", "times", *bits], rows)))
    if report.hardest_places:
        rows = [[word(w.word), *_bits(w), tag("span", word(w.before))] for w in report.hardest_places]
        tables.append(_scrolled(table("Where they are", ["word", *bits, "after"], rows, (1, len(bits) + 1))))
    yield tag("div", *tables, class_="tables")
    if report.unknown_words:
        items = (tag("li", word(text), tag("span", f"{n:,}", class_="figure")) for text, n in report.unknown_words)
        yield tag("h3", "Most frequent unknown words")
        yield tag("ul", *items, class_="list")


def _bits(one: Word) -> list[str]:
    return [_figure(bits, 1) for bits in one.bits]


def _legend(first: str) -> Html:
    return tag(
        "div", f"Words by their surprisal under {first}: 0 bits", tag("span", class_="scale"), "16 bits and more",
        class_="legend",
    )  # fmt: skip


def _sentence(line: Line, comparison: Compared) -> Html:
    pairs = zip(comparison.models, line.ppl, strict=True)
    several = len(comparison.models) > 1
    parts = (f"{_figure(ppl)} under {model.name}" if several else _figure(ppl) for model, ppl in pairs)
    return _coloured(line, f"perplexity {', '.join(parts)}")


def _coloured(line: Line, about: str) -> Html:
    words = (
        tag("span", word(text), style=f"--heat:{heat(bits)}", title=f"{bits:.1f} bits") for text, bits in line.words
    )
    return tag("div", tag("p", about), joined(words, " "), class_="sentence")


# ---------------------------------------------------------------------------------------------
# models


def _explained(brought: Sequence[tuple[Detail, Contributions]]) -> Iterator[Html]:
    words = max(made.words for _, made in brought)
    text = (
        "The share is the part of the words' probability that comes from the rows of a type, on average. “Perplexity "
        "without” is by how much it would rise if these rows were left out and all others stayed as they are (– where "
        "some word would have no probability then). A type has others that can stand in for it, so these figures do "
        f"not add up. Measured on {words:,} words of the text."
    )
    yield tag("p", text, class_="quiet")


def _contributions(detail: Detail, made: Contributions, several: bool) -> Html:
    header = ["part", "share", "of the distribution", "perplexity without"]
    rows = [
        [
            part.name, f"{part.share:.2%}", "–" if part.weight is None else f"{part.weight:.2%}",
            "–" if part.without is None else _percent(part.without),
        ]
        for part in made.parts
    ]  # fmt: skip
    figures = tag("details", tag("summary", "Figures"), _scrolled(table(made.title, header, rows)))
    return _card(charts.of_contributions(made), detail.name if several else "", figures)


def _sizes(details: Sequence[Detail], several: bool) -> Iterator[Html]:
    for detail in details:
        for number, made in enumerate(detail.sizes):
            title = f"{detail.name}: {made.title}" if several else made.title
            note = [tag("p", made.note, class_="quiet")] if made.note else []
            figures = tag("details", tag("summary", "Figures"), _scrolled(_size_table(made)))
            parts = [*note, _pair(_card(chart) for chart in charts.of_sizes(made)), figures]
            if number:  # of a member
                yield tag("details", tag("summary", title), *parts)
            else:
                yield from [tag("h3", title), *parts]


def _size_table(made: Sizes) -> Html:
    rows = [[part.name, *(_whole(n) for n in (part.rows, part.links, part.bytes))] for part in made.parts]
    return table(made.title, ["part", "rows", "links", "bytes"], rows)


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _model(detail: Detail) -> Html:
    rows = [[name, as_html(value)] for name, value in detail.description]
    return _scrolled(table(detail.name, ["entry", "value"], rows, (2, 2)))
