"""What reading shows of files that are more than lines: pictures, PDF files, notebooks.

The box looks into the files. The host looks at no more than size and first bytes of what it
sends to a model as a picture.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from executor.errors import Code, ToolError
from executor.model import Block
from executor.results import Limit, decode, shown_name, size_of
from executor.tool import Context, Outcome

MOST_ENCODED = 5 << 20
"""Characters of base64 that Anthropic's API takes of one picture."""
MOST_BYTES = MOST_ENCODED // 4 * 3
"""Bytes of one picture."""
MOST_PICTURES = 10
"""Pictures that are shown of one notebook."""
MOST_PICTURE_BYTES = 5 << 20
"""Bytes of all pictures of one notebook."""
MOST_TEXT = 1 << 20
"""Bytes of text that are taken of a file before it is cut to what the model is shown."""
MOST_PAGES = 20
"""Pages of a PDF file that are shown at a time."""
MOST_PAGE_BYTES = 6 << 20
"""Bytes of the pictures of all pages that are shown at a time."""
MOST_OUTPUT = 20_000
"""Bytes that are shown of one output of a cell."""

NO_CELLS = (Code.EXECUTION_ERROR, Code.UNSUPPORTED, Code.TOO_LARGE)
"""A notebook that can't be shown by cells is shown as the text that it is."""
_RANGE = re.compile(r"([1-9][0-9]{0,8})(?:-([1-9][0-9]{0,8}))?")
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
PDF = "application/pdf"
_NAMES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf")
_DRAWING = 0.6
"""The part of a call's time in which pages are drawn; then there is no more than their text."""
_LATE = 2
_MEMORY = (3, 8)
"""The part of the box's memory that the process may have: gVisor ends a box that has no more."""
_ONE_AT_A_TIME = "\0pictures"
"""The lock of what may start that process."""


async def in_its_place(
    context: Context,
    path: str,
    error: ToolError,
    *,
    pages: str | None = None,
    in_lines: bool = False,
) -> Outcome:
    """What is shown of a file that was refused as lines: a picture, or pages of a PDF file.

    Args:
        context: of the call.
        path: as `Context.path` gives it.
        error: the refusal, which tells what the file is.
        pages: pages that are wanted; None = none in particular.
        in_lines: certain lines are wanted.

    Raises:
        ToolError: the refusal, of whatever can't be shown; what `read_image` and `read_pdf`
            raise; INVALID_ARGUMENTS, that is not asked for in lines or in pages.
    """
    media = (error.details or {}).get("media_type") if error.code is Code.UNSUPPORTED else None
    if media not in (*PICTURES, PDF):
        raise error
    if in_lines:
        what = "PDF file" if media == PDF else "picture"
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            f"{shown_name(context.shown(path))} is a {what}, which has no lines; leave offset and "
            "limit out to see it.",
            error.details,
        ) from error
    if media == PDF:
        return await read_pdf(context, path, pages)
    require_no_pages(pages)
    return await read_image(context, path)


def require_no_pages(pages: str | None) -> None:
    """Refuse pages of what has none."""
    if pages is not None:
        raise ToolError(
            Code.INVALID_ARGUMENTS, "pages is for PDF files, and this is none; leave it out."
        )


# ─── pictures ───────────────────────────────────────────────────────────────────────


def require_content(context: Context, path: str, size: int) -> None:
    """Refuse an empty file that is named as a picture or a PDF file.

    Raises:
        ToolError: EXECUTION_ERROR, there is nothing to show.
    """
    if size == 0 and path.lower().endswith(_NAMES):
        what = "PDF file" if path.lower().endswith(".pdf") else "picture"
        raise ToolError(
            Code.EXECUTION_ERROR,
            f"{shown_name(context.shown(path))} is empty (0 bytes): it is no {what} yet.",
            {"size": 0},
        )


async def read_image(context: Context, path: str) -> Outcome:
    """A picture, as a block that the model sees: smaller than it is, if it is too large.

    Args:
        context: of the call.
        path: as `Context.path` gives it.

    Raises:
        ToolError: EXECUTION_ERROR, it is damaged; TOO_LARGE; or it can't be read.
    """
    asked = {"path": path, "max_bytes": MOST_BYTES, "memory": _memory(context)}
    async with context.session.lock(_ONE_AT_A_TIME):
        try:
            answer = await context.ask("read_image", asked)
        except ToolError as error:
            if error.code is not Code.TIMEOUT:
                raise
            name = shown_name(context.shown(path))
            text = f"{name} is too large to be made smaller in {context.seconds:g} seconds. "
            text += "Use run_command to make a smaller one of it."
            raise ToolError(Code.TIMEOUT, text) from error
    value = answer.value
    context.session.knows(path, value["hash"], value.get("key"), value["modified"])
    names = ("media_type", "width", "height", "size", "scaled", "modified", "hash")
    facts = {**{name: value[name] for name in names}, "encoding": None, "lines": None}
    media = media_type(answer.data)
    if media is None or media != value["media_type"]:
        raise ToolError(
            Code.EXECUTION_ERROR,
            f"{shown_name(context.shown(path))} is no picture that can be sent.",
        )
    told = f"{media}, {value['width']}x{value['height']} pixels, {value['size']} bytes"
    content = _pictured(context, media, answer.data, told)
    if value["scaled"] and not context.loop.text_only:
        note = f"[shown smaller than it is: {value['width']}x{value['height']} pixels, "
        content.append(_text(f"{note}{value['size']} bytes]"))
    return Outcome(content, facts, total_bytes=value["size"], is_fitted=True)


def _memory(context: Context) -> int:
    part, of = _MEMORY
    return context.loop.limits.memory_bytes * part // of


def _pictured(context: Context, media: str, data: bytes, told: str) -> list[Block]:
    """A picture as a block, or what is said of it where no pictures are sent.

    Args:
        context: of the call.
        media: its type.
        data: it.
        told: what is known of it.
    """
    if context.loop.text_only:
        return [_not_sent(told)]
    source = {"type": "base64", "media_type": media, "data": base64.b64encode(data).decode()}
    return [{"type": "image", "source": source}]


def sendable(context: Context, block: Block) -> Block:
    """The block, or what is said of a picture where no pictures are sent."""
    if block["type"] != "image" or not context.loop.text_only:
        return block
    source = block["source"]
    return _not_sent(f"{source['media_type']}, {len(source['data']) // 4 * 3} bytes")


def _not_sent(told: str) -> Block:
    return _text(f"[picture: {told}; not sent, this loop is given text only]")


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def media_type(data: bytes) -> str | None:
    """The type of a picture by its first bytes; None if they are no picture's."""
    if not 0 < len(data) <= MOST_BYTES:
        return None
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def is_picture(source: Any) -> bool:
    """Is this the source of a picture as models take it: whole base64 of what it says?

    Args:
        source: of a block.
    """
    if not isinstance(source, dict) or source.get("type") != "base64":
        return False
    text = source.get("data")
    if not isinstance(text, str) or len(text) > MOST_ENCODED:
        return False
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return media_type(data) == source.get("media_type") is not None


# ─── PDF files ──────────────────────────────────────────────────────────────────────


def page_range(text: str) -> tuple[int, int]:
    """`3` or `1-5` → the first and the last page.

    Raises:
        ToolError: INVALID_ARGUMENTS, it is neither.
    """
    match = _RANGE.fullmatch(text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (0, 0)
    if not 1 <= first <= last:
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            f"pages is a page or a range of pages, for example 3 or 1-5, not {text[:40]!r}.",
        )
    return first, last


async def read_pdf(context: Context, path: str, pages: str | None) -> Outcome:
    """Pages of a PDF file: their text, and a picture of each.

    Args:
        context: of the call.
        path: as `Context.path` gives it.
        pages: which; None = all, if they are not too many.

    Raises:
        ToolError: TOO_LARGE, too many pages; INVALID_ARGUMENTS, there are no such pages;
            UNSUPPORTED, a password is needed; EXECUTION_ERROR, it is damaged; or it can't be
            read.
    """
    first, last = page_range(pages) if pages is not None else (0, 0)
    asked = {
        "path": path,
        "first": first,
        "last": last,
        "max_pages": MOST_PAGES,
        "max_bytes": MOST_TEXT,
        "picture_bytes": 0 if context.loop.text_only else MOST_PAGE_BYTES,
        "seconds": max(int(context.seconds * _DRAWING), 1),
        "memory": _memory(context),
    }
    async with context.session.lock(_ONE_AT_A_TIME):
        answer = await context.ask("read_pages", asked)
    value, blocks, at = answer.value, list[Block](), 0
    for part in value["parts"]:
        piece = answer.data[at : at + part["length"]]
        at += part["length"]
        media = media_type(piece) if part["kind"] == "picture" else None
        if media is not None:
            blocks += _pictured(context, media, piece, f"page {part['page']}")
        else:
            blocks.append(_text(_page_told(part, value["pages"], piece)))
    # Its pages are shown, not its bytes: nobody writes it over by what was seen.
    known = {"key": value.get("key"), "modified": value["modified"]}
    context.session.saw(path, value["hash"], 1, 0, more=True, **known)
    names = ("pages", "size", "modified", "hash")
    facts: dict[str, Any] = {name: value[name] for name in names}
    cut = any(part["left_out"] for part in value["parts"])
    return Outcome(blocks, facts, truncated=cut, total_bytes=value["size"])


def _page_told(part: dict[str, Any], pages: int, piece: bytes) -> str:
    """A page as text, or why there is no more of it."""
    number = part["page"]
    if part["kind"] == "damaged":
        return f"[page {number} is damaged and can't be shown]"
    if part["kind"] == "picture":
        is_late = part["left_out"] == _LATE
        why = "the pages before took too long" if is_late else "it takes too many bytes"
        return f"[no picture of page {number}: {why}; read it alone]"
    text = decode(piece).rstrip("\n") or "[no text on this page]"
    if part["left_out"]:
        text += f"\n[{part['left_out']} more bytes are not shown; read this page alone]"
    return f"─── page {number} of {pages} ───\n{text}"


# ─── notebooks ──────────────────────────────────────────────────────────────────────


def is_notebook(path: str) -> bool:
    """Is a file of this name read by cells? What it holds decides whether it can be."""
    return path.endswith(".ipynb")


async def read_notebook(context: Context, path: str) -> Outcome:
    """All cells of a notebook with their outputs: texts, and pictures as blocks.

    Args:
        context: of the call.
        path: as `Context.path` gives it.

    Raises:
        ToolError: EXECUTION_ERROR, it is broken; UNSUPPORTED, it has an old format; TOO_LARGE;
            or it can't be read.
    """
    asked = {
        "path": path,
        "max_bytes": MOST_TEXT,
        "part_bytes": MOST_OUTPUT,
        "pictures": 0 if context.loop.text_only else MOST_PICTURES,
        "picture_bytes": MOST_PICTURE_BYTES,
    }
    answer = await context.ask("read_notebook", asked)
    value = answer.value
    blocks = _blocks(context, value, answer.data)
    left_out = sum(part["left_out"] for part in value["parts"])
    more = value["cells"] - value["shown"]
    if more > 0:
        blocks.append(_text(f"[{more} more cells are not shown; read the text with offset=1]"))
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    limit = Limit.of(context)
    is_whole = not left_out and more <= 0
    is_whole = is_whole and sum(size_of(text, limit.unit) for text in texts) <= limit.size
    known = {"key": value.get("key"), "modified": value["modified"]}
    # Whoever has not seen all of it may change a cell, and not write it over.
    if is_whole:
        context.session.knows(path, value["hash"], value.get("key"), value["modified"])
    else:
        context.session.saw(path, value["hash"], 1, 0, more=True, **known)
    names = ("cells", "language", "size", "modified", "hash")
    facts: dict[str, Any] = {name: value[name] for name in names}
    cut = bool(left_out) or more > 0
    return Outcome(blocks, facts, truncated=cut, total_bytes=value["size"])


def _blocks(context: Context, value: dict[str, Any], data: bytes) -> list[Block]:
    """The parts of a notebook in their order; texts between two pictures are one block."""
    blocks: list[Block] = []
    texts: list[str] = []
    at = 0
    for part in value["parts"]:
        piece = data[at : at + part["length"]]
        at += part["length"]
        media = media_type(piece) if part["kind"] == "picture" else None
        if media is None:
            texts.append(_told(part, value["language"], piece))
            continue
        if texts:
            blocks.append(_text("\n".join(texts)))
        texts = []
        blocks += _pictured(context, media, piece, f"{media}, {len(piece)} bytes")
    if texts or not blocks:
        blocks.append(_text("\n".join(texts) or "The notebook has no cells."))
    return blocks


def _told(part: dict[str, Any], language: str | None, piece: bytes) -> str:
    """One part of a notebook as text.

    Args:
        part: what is said of it.
        language: of code cells.
        piece: its text; empty for a picture that is not sent.
    """
    name, what = shown_name(part["cell"]), shown_name(part["what"])
    if part["kind"] == "picture":
        size = max(part["left_out"], part["length"])
        return f"[picture of cell {name}: {what}, {size} bytes, not shown]"
    text = decode(piece).removesuffix("\n")
    if part["left_out"]:
        text += f"\n[{part['left_out']} more bytes are not shown]"
    if part["kind"] == "output":
        return f"[output of cell {name}: {what}]\n{text}"
    count = "" if part["count"] is None else f" [{part['count']}]"
    spoken = f" ({shown_name(language)})" if what == "code" and language else ""
    return f"─── cell {name}: {what}{spoken}{count} ───\n{text}"
