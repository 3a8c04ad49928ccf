"""Results that were shown in part, as resources of the Model Context Protocol.

The whole of such a result is a file of the host's, bound into the boxes of its loop. It is read
from there as it was kept: values of secrets are masked in it already. A URI names one of those
files by its number, and nothing else has a URI.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS, is_version_at_least

from executor.frontends.mcp_contents import fault
from executor.loop import Loop
from executor.model import RESULTS, Result
from executor.sandbox.spill import number_of, path_of

ROOT: Final = "executor://results/"
MOST: Final = 128 << 10
"""Bytes that one read returns at the most. As JSON they may be six times as many, and the SDK's own
client takes no more than 1 MiB at a time over HTTP. And a client that reads no answers has a
hundred of them held, each several times over on its way."""
LEAST: Final = 4
"""Bytes that one read is of at the least: a character may take as many."""
PAGE: Final = 100
"""Resources on a page of their list."""
LINKS_SINCE: Final = "2025-06-18"
"""The version of the protocol whose results may hold links; older clients refuse them."""

_URI = re.compile(re.escape(ROOT) + r"([1-9][0-9]{0,17})\.txt(?:\?(.*))?")
_NUMBER = re.compile(r"[0-9]{1,18}")
_NOT_FOUND = -32002
"""Versions before 2026 have a code of their own for resources that are not there."""
_HOW = (
    f"A read returns at most {MOST >> 10} KiB, from its beginning; ?offset=BYTES&limit=BYTES is "
    "another piece, and _meta says which one is next."
)

TEMPLATE: Final = types.ResourceTemplate(
    uri_template=f"{ROOT}{{name}}{{?offset,limit}}",
    name="result",
    title="The whole of a result that was shown in part",
    description=f"The names are those of the resources. {_HOW} Pieces of a text begin and end "
    "with whole characters, at or before the byte that was asked for.",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a URI asks for.

    Attributes:
        path: of the file, as seen in the boxes.
        start: the first byte.
        size: bytes, at the most.
    """

    path: str
    start: int = 0
    size: int = MOST

    @classmethod
    def of(cls, uri: str) -> Asked | None:
        """What it asks for; None = no result has such a URI.

        Raises:
            ValueError: what is wrong with its query.
        """
        found = _URI.fullmatch(uri)
        if found is None:
            return None
        given = _numbers(found[2] or "")
        size = min(max(given.get("limit", MOST), LEAST), MOST)
        return cls(path_of(int(found[1])), given.get("offset", 0), size)


def _numbers(query: str) -> dict[str, int]:
    if not query:
        return {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=2)
    except ValueError:
        pairs = [("", "")]
    given = dict(pairs)
    is_right = given.keys() <= {"offset", "limit"} and len(given) == len(pairs)
    if not is_right or not all(_NUMBER.fullmatch(text) for text in given.values()):
        raise ValueError("after the ? come offset and limit, both numbers of bytes")
    return {name: int(text) for name, text in given.items()}


def uri_of(path: str) -> str:
    """The URI of a file, whose path is as seen in the boxes."""
    return ROOT + _name_of(path)


class Resources:
    """The results of one loop that were shown in part."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}

    def link(self, result: Result, loop: Loop, version: str) -> types.ResourceLink | None:
        """What is said of the whole of a result; None = it was shown, or was not kept.

        Args:
            result: of a call.
            loop: that made it.
            version: of the protocol.
        """
        path = result.spill
        kept = loop.kept() if path is not None else {}
        if path is None or path not in kept:
            return None
        self._tools = {one: tool for one, tool in self._tools.items() if one in kept}
        self._tools[path] = str(result.name)
        if not is_version_at_least(version, LINKS_SINCE):
            return None
        return types.ResourceLink(
            uri=uri_of(path),
            name=_name_of(path),
            title="The whole of this result",
            description=f"{kept[path]} bytes; in the sandbox, {path}",
            size=kept[path],
        )

    def page(self, loop: Loop, cursor: str | None) -> types.ListResourcesResult:
        """Some of those that are kept now, the newest first.

        Args:
            loop: that made them.
            cursor: of the page before.

        Raises:
            MCPError: it is none.
        """
        if cursor is not None and not _NUMBER.fullmatch(cursor):
            raise fault(types.INVALID_PARAMS, "the cursor is of no page of this list")
        sizes = {number_of(path): size for path, size in loop.kept().items()}
        kept = sorted(((number, size) for number, size in sizes.items() if number), reverse=True)
        left = [one for one in kept if cursor is None or one[0] < int(cursor)]
        shown = left[:PAGE]
        return types.ListResourcesResult(
            resources=[self._resource(path_of(number), size) for number, size in shown],
            next_cursor=str(shown[-1][0]) if len(left) > PAGE else None,
        )

    def _resource(self, path: str, size: int) -> types.Resource:
        tool = self._tools.get(path)
        return types.Resource(
            uri=uri_of(path),
            name=_name_of(path),
            title="A result" if tool is None else f"A result of {tool}",
            description=f"The whole of it, {size} bytes; in the sandbox, {path}. {_HOW}",
            size=size,
        )


def _name_of(path: str) -> str:
    return path.removeprefix(f"{RESULTS}/")


# ─── reading ────────────────────────────────────────────────────────────────────────


async def read(loop: Loop | None, uri: str, version: str) -> types.ReadResourceResult:
    """A piece of a result.

    Args:
        loop: that made it; None = it is not open yet.
        uri: which, and which piece.
        version: of the protocol.

    Raises:
        MCPError: there is no such result, or it was dropped to make room; or no such piece.
    """
    try:
        asked = Asked.of(uri)
    except ValueError as error:
        raise fault(types.INVALID_PARAMS, str(error)) from error
    total = None if loop is None or asked is None else loop.kept().get(asked.path)
    if loop is None or asked is None or total is None:
        raise _not_found(uri, version)
    if asked.start > total:
        said = f"the result ends at byte {total}, before the offset {asked.start}"
        raise fault(types.INVALID_PARAMS, said)
    try:
        piece = await _Piece.read(loop, asked)
    except KeyError as error:
        raise _not_found(uri, version) from error
    meta: dict[str, Any] = {"executor/offset": piece.start, "executor/total": total}
    if piece.end < total:
        meta["executor/next"] = f"{uri_of(asked.path)}?offset={piece.end}&limit={asked.size}"
    return types.ReadResourceResult(contents=[piece.contents(uri, meta)])


def _not_found(uri: str, version: str) -> MCPError:
    code = types.INVALID_PARAMS if version in MODERN_PROTOCOL_VERSIONS else _NOT_FOUND
    said = "there is no such result, or it was dropped to make room for newer ones"
    return fault(code, said, {"uri": uri[:1000]})


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some of a result.

    The character that a piece begins within is part of it, the one that it ends within is not, so
    that pieces side by side are the whole. Of bytes that are no text the same holds for what looks
    like a character.

    Attributes:
        start: the first byte.
        data: the bytes.
        text: the same; None = they are no UTF-8.
    """

    start: int
    data: bytes
    text: str | None

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return self.start + len(self.data)

    @classmethod
    async def read(cls, loop: Loop, asked: Asked) -> _Piece:
        """What a URI asks for.

        Raises:
            KeyError: it was dropped meanwhile.
        """
        before = min(asked.start, LEAST - 1)
        first = asked.start - before
        window = await loop.read_kept(asked.path, first, before + asked.size + 1)
        begin = _boundary(window, before)
        data = window[begin : _boundary(window, before + asked.size)]
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = None
        return cls(first + begin, data, text)

    def contents(
        self, uri: str, meta: dict[str, Any]
    ) -> types.TextResourceContents | types.BlobResourceContents:
        """It, as the protocol has it."""
        if self.text is not None:
            return types.TextResourceContents(
                uri=uri, mime_type="text/plain", text=self.text, _meta=meta
            )
        blob = base64.b64encode(self.data).decode()
        return types.BlobResourceContents(
            uri=uri, mime_type="application/octet-stream", blob=blob, _meta=meta
        )


def _boundary(window: bytes, position: int) -> int:
    """Where the character begins that has this byte."""
    position = min(position, len(window))
    for where in range(position, max(position - LEAST, -1), -1):
        if where == len(window) or window[where] & 0xC0 != 0x80:
            return where
    return position
