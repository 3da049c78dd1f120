"""The text of an HTML page, as somebody would read it: no tags, scripts, styles or struck text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_UNSEEN = {"script", "style", "title", "template", "del", "s", "strike"}
_RAISED = {"sup": "^", "sub": "_"}  # 10^9 is not 109
_INLINE = {"a", "abbr", "b", "bdo", "big", "cite", "code", "em", "font", "i", "ins", "del", "mark"}
_INLINE |= {"q", "s", "small", "span", "strike", "strong", "sub", "sup", "tt", "u", "wbr"}
_CELLS = {"td", "th"}


def text_of(page: str) -> str:
    """Return the text of a page: blocks are lines, and a space parts the cells of a table.

    HTML that is not well formed is read much as browsers do. Nothing is refused.
    """
    reader = _Reader()
    reader.feed(page)
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.found).split("\n"))
    return "\n".join(line for line in lines if line)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._open: list[str] = []  # open blocks and unseen elements
        self._kept = 0  # depth of elements whose line breaks count

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in _UNSEEN or tag not in _INLINE:
            self._open.append(tag)
        self._kept += tag == "pre"
        self._part(tag)
        if tag in _RAISED:
            self.handle_data(_RAISED[tag])

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self._part(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:  # a block also ends what was struck in it
            del self._open[len(self._open) - 1 - self._open[::-1].index(tag) :]
        self._kept -= tag == "pre" and self._kept > 0
        self._part(tag)

    def handle_data(self, data: str) -> None:
        if _UNSEEN.isdisjoint(self._open):
            self.found.append(data if self._kept else " ".join(re.split(r"[\r\n]", data)))

    def _part(self, tag: str) -> None:
        if tag not in _INLINE:
            self.found.append(" " if tag in _CELLS else "\n")
