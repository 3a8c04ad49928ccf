"""Results of foreign tools as outcomes: every block believed as little as its maker."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from executor.errors import Code
from executor.foreign.faults import faults_of
from executor.foreign.schemas import MAX_DEPTH, depth
from executor.model import Block
from executor.text import visible
from executor.tool import Context, Outcome
from executor.tools.rich import MOST_BYTES, MOST_PICTURES, media_type, sendable

MAX_BLOCKS = 1000
"""Blocks of one result that are looked at."""
MAX_LABEL = 300
"""Characters of a name or an address that are shown."""


def outcome_of(answer: Mapping[str, Any], context: Context, promised: Any = None) -> Outcome:
    """What a call came to.

    Args:
        answer: the result of `tools/call`, of whatever shape.
        context: of the call.
        promised: the schema that the server gives of the data; of whatever shape.
    """
    given = answer.get("content")
    blocks = given if isinstance(given, list) else []
    shown = _Shown(context)
    for block in blocks[:MAX_BLOCKS]:
        shown.add(block)
    if len(blocks) > MAX_BLOCKS:
        shown.note(f"{len(blocks) - MAX_BLOCKS} more blocks of the result were left out")
    data = _data(answer.get("structuredContent"), context.entry.max_output_bytes, shown)
    is_object = isinstance(data, Mapping)
    if data is not None and not blocks:
        shown.tell(json.dumps(data, ensure_ascii=False))
    elif data is not None and not is_object:
        shown.note("the result's data are no object, and left out")
    is_error = answer.get("isError") is True
    if is_object and not is_error and (faults := faults_of(data, promised)):
        said = "; ".join(f"{name} {fault}" for name, fault in faults)
        shown.remark(f"the result's data are not as the server says that they are: {said}")
    return Outcome(
        shown.content(),
        dict(data) if isinstance(data, Mapping) else None,
        is_error=is_error,
        code=Code.EXECUTION_ERROR if is_error else None,
        truncated=shown.is_less,
    )


def _data(value: Any, most: int, shown: _Shown) -> Any:
    """The data of a result, if it has some and they are no larger than its text may be."""
    if depth(value) > MAX_DEPTH or len(json.dumps(value)) > most:
        shown.note("the result's data are too large, and left out")
        return None
    return value


class _Shown:
    """Blocks as they are taken, texts that follow each other joined."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._texts: list[str] = []
        self._blocks: list[Block] = []
        self._pictures = 0
        self.is_less = False

    def add(self, block: Any) -> None:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "text":
            self.tell(block.get("text"))
        elif kind == "image":
            self._add_picture(block)
        elif kind == "resource_link":
            label = _label(block.get("title") or block.get("name"))
            self._texts.append(f"[resource {label}: {_label(block.get('uri'))}]")
        elif kind == "resource":
            self._add_resource(block.get("resource"))
        elif kind == "audio":
            self.note(f"audio ({_label(block.get('mimeType'))}), which can't be shown")
        else:
            self.note(f"a block of the unknown type {_label(kind)}")

    def tell(self, text: Any) -> None:
        """One more text."""
        self._texts.append(_text(text))

    def note(self, text: str) -> None:
        """Something that can't be shown."""
        self.is_less = True
        self.remark(text)

    def remark(self, text: str) -> None:
        """A word about the result."""
        self._texts.append(f"[{text}]")

    def content(self) -> str | list[Block]:
        """All of it; one text where there are only texts."""
        if not self._blocks:
            return "\n".join(self._texts) or "(no output)"
        self._flush()
        return self._blocks

    def _flush(self) -> None:
        if self._texts:
            self._blocks.append({"type": "text", "text": "\n".join(self._texts)})
            self._texts = []

    def _add_picture(self, block: Mapping[str, Any]) -> None:
        data = block.get("data")
        size = len(data) // 4 * 3 if isinstance(data, str) else 0
        if size > MOST_BYTES + 3:
            self.note(f"a picture of {size} bytes, not shown: at most {MOST_BYTES} are sent")
            return
        if self._pictures >= MOST_PICTURES:
            self.note(f"one more picture, not shown: at most {MOST_PICTURES} are sent")
            return
        try:
            raw = base64.b64decode(data or "", validate=True)
        except (binascii.Error, ValueError, TypeError):
            raw = b""
        media = media_type(raw)
        if media is None:
            self.note("a picture that is none, or of a type that can't be sent")
            return
        self._pictures += 1
        source = {"type": "base64", "media_type": media, "data": base64.b64encode(raw).decode()}
        self._flush()
        self._blocks.append(sendable(self._context, {"type": "image", "source": source}))

    def _add_resource(self, resource: Any) -> None:
        held = resource if isinstance(resource, Mapping) else {}
        where = _label(held.get("uri"))
        if isinstance(held.get("text"), str):
            self._texts.append(f"[resource {where}]\n{_text(held['text'])}")
        else:
            blob = held.get("blob")
            size = len(blob) // 4 * 3 if isinstance(blob, str) else 0
            self.note(f"resource {where}: {size} bytes that are no text, not shown")


def _text(value: Any) -> str:
    """Text with control characters and halves of characters made visible."""
    return visible(value) if isinstance(value, str) else ""


def _label(value: Any) -> str:
    return visible(value)[:MAX_LABEL] if isinstance(value, str) else "without a name"
