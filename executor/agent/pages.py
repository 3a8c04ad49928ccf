"""Pages of PDF files, taken apart by a process that lives as long as one call.

The agent looks at no byte of a file but the first ones. The process is given a copy in memory:
no path, and nothing that changes while it reads.
"""

from __future__ import annotations

import json
import os

from . import files, pictures
from .operation import PROGRAM, Command, Exit, Failure
from .text import media_type
from .workspace import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from .operation import Operation, Steps
    from .workspace import Workspace

_HEADER = 64 << 10
_STEP = 1 << 20
_KINDS = ("page", "picture", "damaged")


def read_pages(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """Some pages of a PDF file: their text, and pictures of them."""
    path: str = arguments["path"]
    python, library = workspace.pdf
    if not os.path.exists(library):
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
    wanted = (arguments["first"], arguments["last"], arguments["max_pages"], *room)
    argv = [python, "-I", "-S", "-B", PROGRAM, library, *map(str, wanted)]
    source = yield from _in_memory(content.data)
    content.data = b""
    try:
        output, end = yield from _output(Command(argv, source), _HEADER + sum(room))
    finally:
        os.close(source)
    if end.status:
        raise _damaged(path, f"taking it apart ended with {_named(end.status)}")
    header, _, data = output.partition(b"\n")
    reply = _reply(path, header, data, arguments)
    yield from _require_pictures(path, reply["parts"], data)
    return {**content.facts, **reply}, data


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


def _in_memory(data: bytes) -> Generator[None, Any, int]:
    """A descriptor of a file that is nowhere, from its start on."""
    fd = os.memfd_create("pdf", os.MFD_CLOEXEC)
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


def _output(command: Command, most: int) -> Generator[Any, Any, tuple[bytes, Exit]]:
    """What a program writes, and how it ends."""
    pieces: list[bytes] = []
    size = 0
    answer = yield command
    while not isinstance(answer, Exit):
        pieces.append(answer)
        size += len(answer)
        if size > most:
            raise Failure("TOO_LARGE", "The pages have too much in them. Read fewer at a time.")
        answer = yield None
    return b"".join(pieces), answer


def _named(status: int) -> str:
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


OPERATIONS: dict[str, Operation] = {"read_pages": read_pages}
