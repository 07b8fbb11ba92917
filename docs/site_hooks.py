"""What MkDocs does beside its own work, see mkdocs.yml: pages of files in the root of the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
_NAMED = re.compile(r"\[(?:docs/)?[\w./-]+\.md\]\(([\w./-]+\.md)(#[\w-]+)?\)")
"""Links whose label is the name of the file: a page has a title."""
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[([^]]*)\]\((?!https?:)([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=moved((ROOT / name).read_text())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of a page in docs to files of the root."""
    up = "../" * page.file.src_uri.count("/")
    for name, target in PAGES.items():
        markdown = markdown.replace(f"]({up}../{name})", f"]({up}{target})")
    return _NAMED.sub(
        lambda match: f"[{title_of(page.file, match[1]) or match[1]}]({match[1]}{match[2] or ''})", markdown
    )


def on_post_page(output: str, **_: Any) -> str:
    """The search has a name for screen readers."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def title_of(file: Any, target: str) -> str | None:
    """The heading of a page that a link of another page leads to."""
    path = (ROOT / "docs" / file.src_uri).parent / target
    found = _HEADING.search(path.read_text()) if path.exists() else None
    return found[1] if found else None


def moved(text: str) -> str:
    """The text of a file of the root, as a page of docs. What the site lacks is no link any more."""

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2].removeprefix("docs/"), match[3] or ""
        target = PAGES.get(target, target)
        found = target in PAGES.values() or (ROOT / "docs" / target).suffix in (".md", ".svg", ".png")
        return f"[{label}]({target}{anchor})" if found else f"`{label}`"

    return _LINK.sub(link, text)
