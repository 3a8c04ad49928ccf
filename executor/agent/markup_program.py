"""HTML as Markdown: a program of its own, never a part of the agent.

A page comes from anybody. So it is read in a process that lives as long as one call, in the box,
with the rights of a command, and with less: it may take only so much memory and time, start
nothing and write no file. What it writes to its output is believed by nobody.

    python3 markup_program.py LIBRARY MEMORY SECONDS MOST_BYTES ADDRESS

LIBRARY is the directory of the packages that it uses, MEMORY and MOST_BYTES are bytes, ADDRESS is
where the page is from: links become whole by it. The input is the page, in UTF-8. The output is
one line of JSON, `{"title", "is_cut"}`, then the Markdown.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
from urllib.parse import urljoin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MEMORY = 1 << 30
DEPTH = 100
"""Elements within each other; what is within more of them counts as being in the last of these:
what makes Markdown calls itself for each."""
MOST_ELEMENTS = 50_000
"""Elements of a page; of what comes after so many there is the text alone."""
MOST_ADDRESS = 2000
"""Characters of a link's address; a longer one holds data, not a place."""
MOST_TITLE = 300
_UNSEEN = (
    "title",
    "script",
    "style",
    "noscript",
    "template",
    "svg",
    "iframe",
    "object",
    "canvas",
    "head",
)
_IMPLIED = {
    "li": ({"li"}, {"ul", "ol"}),
    "dt": ({"dt", "dd"}, {"dl"}),
    "dd": ({"dt", "dd"}, {"dl"}),
    "tr": ({"tr"}, {"table"}),
    "td": ({"td", "th"}, {"tr", "table"}),
    "th": ({"td", "th"}, {"tr", "table"}),
    "p": ({"p"}, {"li", "dd", "td", "th", "div", "section", "article", "blockquote", "body"}),
}
"""Element → those that end where it begins, if they are open, and those whose inside is theirs.
(HTML leaves these end tags optional; the parser of the standard library wants them.)"""
_SCHEMES = ("http:", "https:", "mailto:")


def confine(memory: int, seconds: int) -> None:
    """Give up what reading a page does not need. Limits only go down from here."""
    wanted = {
        resource.RLIMIT_AS: min(memory, MEMORY),
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: 16,
    }
    for name, most in wanted.items():
        _, now = resource.getrlimit(name)
        limit = most if now == resource.RLIM_INFINITY else min(most, now)
        resource.setrlimit(name, (limit, limit))


def base_of(soup: Any, address: str) -> str:
    """What links start from: the page's `<base>`, where it has one of the web, or its address."""
    element = soup.find("base", href=True)
    if element is None:
        return address
    try:
        base = urljoin(address, str(element["href"]).strip())
    except ValueError:
        return address
    is_of_web = base.lower().startswith(("http:", "https:"))
    return base if is_of_web and len(base) <= MOST_ADDRESS else address


def with_whole_links(soup: Any, address: str) -> None:
    """Links and pictures by their whole address; those that lead to no place are left out."""
    for name, attribute in (("a", "href"), ("img", "src")):
        for element in soup.find_all(name):
            given = element.get(attribute)
            if not isinstance(given, str):
                continue
            try:
                whole = urljoin(address, given.strip())
            except ValueError:
                whole = ""
            if whole.startswith(_SCHEMES) and len(whole) <= MOST_ADDRESS:
                element[attribute] = whole
            else:
                del element[attribute]
    for element in soup.find_all("img"):
        if not element.get("src"):
            element.replace_with(element.get("alt") or "")


def markdown(page: str, address: str) -> tuple[str, str]:
    """Title and Markdown of a page."""
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    class Page(BeautifulSoup):
        """A page of bounded depth and size."""

        elements = 0

        def handle_starttag(self, name: str, *given: Any, **named: Any) -> Any:
            """An element begins; None = it is left out, and what is in it stays."""
            ended, around = _IMPLIED.get(name, (set(), set()))
            for tag in reversed(self.tagStack) if ended else ():
                if tag.name in around:
                    break
                if tag.name in ended:
                    self.handle_endtag(tag.name)
                    break
            self.elements += 1
            if len(self.tagStack) > DEPTH or self.elements > MOST_ELEMENTS:
                return None
            return super().handle_starttag(name, *given, **named)

    soup = Page(page, "html.parser")
    found = soup.title
    title = " ".join(found.get_text().split())[:MOST_TITLE] if found is not None else ""
    address = base_of(soup, address)
    for element in soup.find_all(_UNSEEN):
        element.extract()
    with_whole_links(soup, address)
    converter = MarkdownConverter(heading_style="ATX", bullets="-", autolinks=False)
    return title, tidy(converter.convert_soup(soup))


def tidy(text: str) -> str:
    """Without blanks at the ends of lines, and never more than one empty line."""
    lines: list[str] = []
    for line in map(str.rstrip, text.splitlines()):
        if line or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).strip("\n")


def main() -> None:
    """Read the page, write its Markdown."""
    library, memory, seconds, most, address = sys.argv[1:]
    confine(int(memory), int(seconds))
    gc.disable()  # what a page is made into stays until the end
    sys.path.append(library)
    page = sys.stdin.buffer.read().decode("utf-8", "replace")
    title, text = markdown(page, address)
    data = text.encode("utf-8", "replace")
    is_cut = len(data) > int(most)
    if is_cut:
        data = data[: int(most)].decode("utf-8", "ignore").encode()
    said = {"title": title, "is_cut": is_cut}
    with os.fdopen(1, "wb") as sink:
        sink.write(json.dumps(said).encode() + b"\n" + data)
    os._exit(0)  # to take a large page apart again costs as much as to read it


if __name__ == "__main__":
    main()
