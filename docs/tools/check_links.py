"""Check offline that the files and anchors of all internal links in a built site exist."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken(root: Path) -> tuple[int, list[str]]:
    """Return the number of internal links of the site at `root`, and the broken ones."""
    pages = {path.resolve(): Page(path) for path in sorted(root.rglob("*.html"))}
    checked, wrong = 0, []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            checked += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.exists() or (target in pages and anchor not in pages[target].anchors):
                wrong.append(f"{path.relative_to(root.resolve())}: {link}")
    return checked, wrong


def main() -> int:
    root = Path(sys.argv[1])
    checked, wrong = broken(root)
    for each in wrong:
        print(f"broken link in {each}", file=sys.stderr)
    print(f"{checked} internal links, {len(wrong)} broken")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
