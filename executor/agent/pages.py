"""Pages of PDF files, and pictures: what is too large is made smaller by the same process.

It lives as long as one call and is given a copy in memory: no path, and nothing that changes
while it reads. The agent looks at no byte of a PDF file but the first ones, and decodes no pixel.
"""

from __future__ import annotations

import json
import os

from . import files, pictures, scaling
from .operation import PROGRAM, Command, Exit, Failure
from .text import HEAD, media_type
from .workspace import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from .operation import Operation, Steps
    from .workspace import Workspace

_HEADER = 64 << 10
_STEP = 1 << 20
_SECONDS = 60
_MEMORY = 1 << 30
_KINDS = ("page", "picture", "damaged")


def read_pages(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """Some pages of a PDF file: their text, and pictures of them."""
    path: str = arguments["path"]
    if not os.path.exists(workspace.pdf[1]):
        raise Failure(
            "UNSUPPORTED",
            f"{shown(path)} is a PDF file, and this sandbox can't show any: its runtime has no "
            "PDFium. Use run_command, for example with pdftotext, where the image has it.",
            {"media_type": "application/pdf"},
        )
    content = yield from files.content(workspace, path, files.EDIT_LIMIT)
    if media_type(content.data[:64]) != "application/pdf":
        raise Failure("CONFLICT", f"{shown(path)} is no longer a PDF file. Read it again.")
    room = arguments["max_bytes"], arguments["picture_bytes"]
    limits = (*room, arguments.get("seconds", _SECONDS))
    memory = arguments.get("memory", _MEMORY)
    wanted = (memory, arguments["first"], arguments["last"], arguments["max_pages"], *limits)
    try:
        source = yield from in_memory(content.data)
        content.data = b""
        output = yield from _taken_apart(workspace, source, wanted, _HEADER + sum(room))
    except _Ended as error:
        raise _damaged(path, str(error)) from None
    header, _, data = output.partition(b"\n")
    reply = _reply(path, header, data, arguments)
    yield from _require_pictures(path, reply["parts"], data)
    return {**content.facts, **reply}, data


class _Ended(Exception):
    """The process did not end well; the text says how."""


def _taken_apart(
    workspace: Workspace, source: int, wanted: tuple[Any, ...], most: int
) -> Generator[Any, Any, bytes]:
    """What the process says.

    Args:
        workspace: says where the interpreter and the library are.
        source: descriptor of its input, which is closed.
        wanted: its other arguments.
        most: bytes that it may say.
    """
    python, library = workspace.pdf
    argv = [python, "-I", "-S", "-B", PROGRAM, library, *map(str, wanted)]
    too_much = Failure("TOO_LARGE", "The pages have too much in them. Read fewer at a time.")
    try:
        output, end = yield from output_of(Command(argv, source), most, too_much)
    finally:
        os.close(source)
    if end.status:
        raise _Ended(f"taking it apart ended with {named(end.status)}")
    return output


def _require_pictures(
    path: str, parts: list[dict[str, Any]], data: bytes
) -> Generator[None, Any, None]:
    """Refuse pictures that are none: a file may have taken over the process that read it."""
    at = 0
    for part in parts:
        end = at + part["length"]
        if part["kind"] == "picture" and part["length"]:
            try:
                picture = yield from pictures.looked_through(data[at:end])
            except pictures.Damaged:
                picture = None
            if picture is None or picture.is_too_large:
                raise _damaged(path, "its reader makes no sense")
        at = end


def in_memory(data: bytes) -> Generator[None, Any, int]:
    """A descriptor of a file that is nowhere, from its start on."""
    fd = os.memfd_create("input", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view[:_STEP]) :]
            yield None
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def output_of(
    command: Command, most: int, too_much: Failure
) -> Generator[Any, Any, tuple[bytes, Exit]]:
    """What a program writes, and how it ends.

    Raises:
        Failure: `too_much`, it writes more than so many bytes.
    """
    pieces: list[bytes] = []
    size = 0
    answer = yield command
    while not isinstance(answer, Exit):
        pieces.append(answer)
        size += len(answer)
        if size > most:
            raise too_much
        answer = yield None
    return b"".join(pieces), answer


def named(status: int) -> str:
    """How a process ended, for people."""
    return f"signal {-status}" if status < 0 else f"exit code {status}"


def _damaged(path: str, why: str) -> Failure:
    return Failure(
        "EXECUTION_ERROR",
        f"{shown(path)} is damaged, or too much for its reader: {why}. It can't be shown.",
        {"media_type": "application/pdf"},
    )


def _reply(path: str, header: bytes, data: bytes, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the program says, as far as it can be.

    Args:
        path: for messages.
        header: what it says.
        data: what follows.
        arguments: of the operation.

    Raises:
        Failure: it says that there is nothing to show, or makes no sense.
    """
    try:
        said = json.loads(header[:_HEADER])
        fault, pages = said.get("fault"), int(said.get("pages", 0))
        parts = [
            {"kind": kind, "page": int(page), "length": int(length), "left_out": int(left_out)}
            for kind, page, length, left_out in said.get("parts", ())
            if kind in _KINDS
        ]
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise _damaged(path, "its reader makes no sense") from None
    if fault is not None:
        raise _refusal(path, str(fault), pages, arguments)
    numbers = [pages, *(part[name] for part in parts for name in ("page", "length", "left_out"))]
    is_whole = sum(part["length"] for part in parts) == len(data)
    if not is_whole or len(parts) > 2 * arguments["max_pages"] or not all(map(_is_sane, numbers)):
        raise _damaged(path, "its reader makes no sense")
    return {"pages": pages, "parts": parts}


def _is_sane(number: int) -> bool:
    return 0 <= number < 1 << 31


def _refusal(path: str, fault: str, pages: int, arguments: dict[str, Any]) -> Failure:
    name, most, details = shown(path), arguments["max_pages"], {"pages": pages}
    if fault == "password":
        return Failure(
            "UNSUPPORTED",
            f"{name} is protected: a password is needed to read it. Ask for a copy without one.",
            {"media_type": "application/pdf", "password": True},
        )
    if fault == "range":
        return Failure(
            "INVALID_ARGUMENTS",
            f"pages begins with {arguments['first']}, and {name} has {pages} pages.",
            details,
        )
    if fault == "many":
        first = arguments["first"] or 1
        return Failure(
            "TOO_LARGE",
            f"{name} has {pages} pages; at most {most} can be shown at a time. Use pages, for "
            f"example pages={first}-{min(first + most - 1, pages)}.",
            {**details, "limit": most},
        )
    return _damaged(path, "it has no pages that can be found")


# ─── pictures ───────────────────────────────────────────────────────────────────────


def read_image(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """A picture's bytes, its type and its size in pixels; smaller ones, if it is too large."""
    path, limit = arguments["path"], arguments["max_bytes"]
    content = yield from files.content(workspace, path, files.EDIT_LIMIT)
    picture = yield from _whole(path, content)
    sides = {"width": picture.width, "height": picture.height}
    facts = {**content.facts, **sides, "media_type": picture.media_type, "scaled": False}
    size = len(content.data)
    if not picture.is_too_large and size <= limit:
        return facts, content.data
    small = yield from _smaller(workspace, content, picture, arguments)
    if not small:
        most = pictures.MAX_SIDE
        raise Failure(
            "TOO_LARGE",
            f"{shown(path)} has {picture.width}x{picture.height} pixels and {size} bytes; at most "
            f"{most}x{most} pixels and {limit} bytes can be shown, and it can't be scaled here. "
            f"Use run_command to make a smaller one of it{_example(shown(path))}.",
            {**sides, "size": size, "limit": limit},
        )
    return {**facts, "media_type": "image/png", "scaled": True}, small


def _whole(path: str, content: files.Content) -> Generator[None, Any, pictures.Picture]:
    try:
        picture = yield from pictures.looked_through(content.data)
    except pictures.Damaged as error:
        media, size = media_type(content.data[:HEAD]), len(content.data)
        raise Failure(
            "EXECUTION_ERROR",
            f"{shown(path)} is damaged ({media}, {size} bytes): {error}. It can't be shown.",
            {"media_type": media, "size": size},
        ) from None
    if picture is None:
        raise Failure("CONFLICT", f"{shown(path)} is no longer a picture. Read it again.")
    return picture


def _smaller(
    workspace: Workspace,
    content: files.Content,
    picture: pictures.Picture,
    arguments: dict[str, Any],
) -> Generator[Any, Any, bytes]:
    """A PNG file of fewer pixels; empty if none can be made."""
    made = scaling.page_of(content.data, picture)
    content.data = b""
    if made is None or not os.path.exists(workspace.pdf[1]):
        return b""
    source = yield from in_memory(made[0])
    limit = arguments["max_bytes"]
    wanted = (arguments.get("memory", _MEMORY), "alone", limit, made[1])
    made = None
    try:
        output = yield from _taken_apart(workspace, source, wanted, _HEADER + limit)
        header, _, data = output.partition(b"\n")
        parts = _reply("", header, data, {"max_pages": 1})["parts"]
        yield from _require_pictures("", parts, data)
    except (_Ended, Failure):
        return b""
    return data


_SCALERS = (
    ("magick", "magick {} -resize 1568x1568 small.png"),
    ("convert", "convert {} -resize 1568x1568 small.png"),
    ("vipsthumbnail", "vipsthumbnail {} --size 1568x1568 -o small.png"),
    ("ffmpeg", "ffmpeg -i {} -vf scale=1568:1568:force_original_aspect_ratio=decrease small.png"),
)


def _example(name: str) -> str:
    """The command that makes a smaller picture, if there is a program for that."""
    places = os.environ.get("PATH", os.defpath).split(":")
    for program, command in _SCALERS:
        if any(os.access(f"{place}/{program}", os.X_OK) for place in places):
            quoted = "'" + name.replace("'", "'\\''") + "'"
            return f", for example: {command.format(quoted)}"
    return ", with a program of yours: the image has none that is known to do it"


OPERATIONS: dict[str, Operation] = {"read_pages": read_pages, "read_image": read_image}
