"""Outcomes → results. The only place that shortens what the model is shown.

Sizes are bytes of UTF-8, or characters where a toolset counts those; what is left out is
always told in bytes. A cut is never inside a character, and it is always said: in the text by
a marker, and in the result by `truncated` and `total_bytes`. What does not fit is kept where
the loop can read it (`Spill`), and the text says where.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from executor.catalog import Keep, Unit
from executor.errors import Code
from executor.model import Block, Call, Result, Spilled
from executor.text import hidden
from executor.tool import Context, Outcome

MARKER_ROOM = 64
"""Bytes that a marker between head and tail may take."""
NOTICE_ROOM = 200
"""Bytes that a tool keeps free for the notices after a text."""


_UNSHOWABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
"""Control characters, line separators, the halves that stand for bytes which are no UTF-8,
and what is not seen: bidirectional controls, zero-width characters, tags. The agent has the
same list."""
MAX_KINDS = 32
"""Kinds of invisible characters that are told apart."""
_KINDS_SHOWN = 4


# ─── bytes → text ───────────────────────────────────────────────────────────────────


def decode(data: bytes) -> str:
    """Bytes that ought to be UTF-8 → text, with U+FFFD for what is not."""
    return data.decode("utf-8", "replace")


def name_of(data: bytes) -> str:
    """A file name as it can be given back: bytes that are no UTF-8 become lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def shown_name(name: str) -> str:
    """A file name for a text: what breaks a line or hides, and bytes that are no UTF-8, as `\\xHH`.

    The file tools take this spelling back where no file has it as its name.
    """
    return _UNSHOWABLE.sub(_escaped, name)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    errors = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", errors))


def names_of(data: bytes) -> list[str]:
    """NUL-separated file names → the names."""
    return [name_of(name) for name in data.split(b"\0") if name]


def size_of(text: str, unit: Unit = Unit.BYTES) -> int:
    """Bytes of UTF-8 that the text takes, or its characters."""
    if unit is Unit.CHARACTERS or text.isascii():
        return len(text)
    return len(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Limit:
    """How much of an output the model is shown.

    Attributes:
        size: in `unit`.
        unit: what is counted.
    """

    size: int
    unit: Unit = Unit.BYTES

    @classmethod
    def of(cls, context: Context) -> Limit:
        """The limit of the tool that is called, in the loop's toolset."""
        return cls(context.entry.max_output_bytes, context.entry.unit)

    @property
    def most_bytes(self) -> int:
        """Bytes that a text within the limit may have."""
        return self.size if self.unit is Unit.BYTES else 4 * self.size

    def less(self, room: int) -> Limit:
        """What stays beside something that takes so much."""
        return Limit(max(self.size - room, 0), self.unit)

    def holds(self, text: str) -> bool:
        """Is the text within it?"""
        return len(text) <= self.size and size_of(text, self.unit) <= self.size


@dataclass(frozen=True, slots=True)
class Captured:
    """One captured stream: its beginning, its end, and how long it was.

    Attributes:
        head: the first bytes; all of them when nothing is left out.
        tail: the last bytes, where bytes between were left out.
        total: bytes that were written.
    """

    head: bytes
    tail: bytes
    total: int

    @property
    def gap(self) -> int:
        """Bytes between head and tail that were not kept."""
        return self.total - len(self.head) - len(self.tail)


@dataclass(frozen=True, slots=True)
class Clip:
    """What is shown of a text.

    Attributes:
        text: with a marker where something was left out.
        left_out: bytes of the whole that are not in it.
    """

    text: str
    left_out: int = 0


def clip(
    captured: Captured,
    budget: int | Limit,
    keep: Keep = Keep.BOTH,
    path: str | None = None,
) -> Clip:
    """What of a stream is shown within a limit, the marker among it.

    Args:
        captured: the stream.
        budget: the limit, or bytes of UTF-8.
        keep: which part stays.
        path: where all of it can be read; None = nowhere.
    """
    limit = budget if isinstance(budget, Limit) else Limit(budget)
    head, tail = captured.head, captured.tail
    if captured.gap <= 0 and len(head) + len(tail) <= limit.most_bytes:
        text = decode(head + tail)
        if limit.holds(text):
            return Clip(text)
    room = max(limit.size - MARKER_ROOM - len(path or ""), 0)
    first = {Keep.START: room, Keep.END: 0, Keep.BOTH: room // 2}[keep]
    if captured.gap <= 0:
        # All of it is here: head and tail are cut from the whole.
        head = tail = head + tail
    by_characters = limit.unit is Unit.CHARACTERS
    start = _first_characters(head, first) if by_characters else _prefix(head, first)
    rest = room - first
    end = _last_characters(tail, rest) if by_characters else _suffix(tail, rest)
    left_out = captured.total - len(start) - len(end)
    return Clip(_laid_out(decode(start), decode(end), left_out, keep, path), left_out)


def _laid_out(before: str, after: str, left_out: int, keep: Keep, path: str | None) -> str:
    """What is left of a text, and that something is not.

    Args:
        before: its beginning.
        after: its end.
        left_out: bytes between them.
        keep: which part was to stay.
        path: where all of it is.
    """
    if path is not None and keep is Keep.START:
        return f"{before}...\n\n[{SAVED.format(path)}]"
    if path is not None and keep is Keep.END:
        return f"[{SAVED.format(path)}]\n\n...{after}"
    where = "" if path is None else f"; full text: {path}"
    marker = f"[{left_out} bytes left out{where}]"
    if before and not before.endswith("\n"):
        marker = "\n" + marker
    if after:
        marker += "\n"
    return before + marker + after


def clip_text(text: str, budget: int | Limit, keep: Keep, path: str | None = None) -> Clip:
    """What of a text is shown within a limit, the marker among it; see `clip`."""
    data = text.encode("utf-8", "surrogatepass")
    return clip(Captured(data, b"", len(data)), budget, keep, path)


def _first_characters(data: bytes, count: int) -> bytes:
    """The bytes of the first characters; one that is cut off at the end is none."""
    whole = _prefix(data, 4 * count) if len(data) > 4 * count else data[: _whole_end(data)]
    text = whole.decode("utf-8", "surrogateescape")[:count]
    return text.encode("utf-8", "surrogateescape")


def _last_characters(data: bytes, count: int) -> bytes:
    """The bytes of the last characters; one that is cut off at the start is none."""
    cut = data[-4 * count :] if count else b""
    skip = 0
    while skip < min(3, len(cut)) and 0x80 <= cut[skip] < 0xC0:
        skip += 1
    text = cut[skip:].decode("utf-8", "surrogateescape")[-count:] if count else ""
    return text.encode("utf-8", "surrogateescape")


def _whole_end(data: bytes) -> int:
    """Where the last whole character ends."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            wanted = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return len(data) - back if wanted > back else len(data)
        if byte < 0x80:
            break
    return len(data)


def _prefix(data: bytes, room: int) -> bytes:
    """The longest beginning that ends between characters and takes at most `room`."""
    cut = data[:room]
    if len(cut) < len(data):
        # At most three bytes of a character can be before the cut.
        cut = cut[: _whole_end(cut)]
    return _fitting(cut, room, from_end=False)


def _suffix(data: bytes, room: int) -> bytes:
    """The longest end that begins between characters and takes at most `room`."""
    if room <= 0:
        return b""
    cut = data[-room:]
    if len(cut) < len(data):
        skip = 0
        while skip < min(3, len(cut)) and 0x80 <= cut[skip] < 0xC0:
            skip += 1
        cut = cut[skip:]
    return _fitting(cut, room, from_end=True)


def _fitting(data: bytes, room: int, *, from_end: bool) -> bytes:
    """Less of it, where bytes that are no UTF-8 grow by becoming U+FFFD."""
    while data and (grown := size_of(decode(data))) > room:
        take = min(len(data) * room // grown, len(data) - 1)
        data = data[len(data) - take :] if from_end else data[:take]
    return data


# ─── lists of lines ─────────────────────────────────────────────────────────────────


def fitting_lines(lines: Sequence[str], budget: int | Limit) -> int:
    """How many of the first lines are within a limit, or bytes of UTF-8; line ends count.

    At least one line fits always: a list that shows nothing helps nobody.
    """
    limit = budget if isinstance(budget, Limit) else Limit(budget)
    used = 0
    for count, line in enumerate(lines):
        used += size_of(line, limit.unit) + 1
        if used - 1 > limit.size:
            return max(count, 1)
    return len(lines)


def counted(number: int, noun: str) -> str:
    """So many of something: `1 line`, `2 lines`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def with_notices(text: str, notices: Sequence[str]) -> str:
    """The text, and each notice in brackets on a line of its own after it."""
    if not notices:
        return text
    lines = [text.removesuffix("\n")] if text else []
    return "\n".join([*lines, *(f"[{notice}]" for notice in notices)])


# ─── commands ───────────────────────────────────────────────────────────────────────

HEADING = "\n\nSTDERR:\n"
"""Stands between the two streams of a command."""


@dataclass(frozen=True, slots=True)
class Streams:
    """What is shown of a command's two streams.

    Attributes:
        stdout, stderr: each within its share.
        text: both as the model is shown them.
        truncated: something was left out.
        total: bytes that the command wrote.
    """

    stdout: str
    stderr: str
    text: str
    truncated: bool
    total: int


def show_streams(
    stdout: Captured,
    stderr: Captured,
    budget: int | Limit,
    keep: Keep,
    path: str | None = None,
) -> Streams:
    """Both streams within a limit: a short one whole, a long one cut.

    Args:
        stdout: what the command wrote to it.
        stderr: the same; empty where both were one pipe.
        budget: the limit, or bytes of UTF-8, for the two together.
        keep: which part of a longer stream stays.
        path: where all of both can be read; None = nowhere.
    """
    limit = budget if isinstance(budget, Limit) else Limit(budget)
    unit = limit.unit
    budget = limit.size - (len(HEADING) if stdout.total and stderr.total else 0)
    half = budget // 2
    need_out, need_err = _need(stdout, unit), _need(stderr, unit)
    if need_out + need_err <= budget:
        room_out, room_err = need_out, need_err
    elif need_out <= half:
        room_out, room_err = need_out, budget - need_out
    elif need_err <= half:
        room_out, room_err = budget - need_err, need_err
    else:
        room_out = room_err = half
    out = clip(stdout, Limit(room_out, unit), keep, path)
    err = clip(stderr, Limit(room_err, unit), keep, path)
    text = f"{out.text}{HEADING}{err.text}" if out.text and err.text else out.text or err.text
    left_out = out.left_out + err.left_out
    return Streams(out.text, err.text, text, left_out > 0, stdout.total + stderr.total)


def _need(captured: Captured, unit: Unit) -> int:
    """What the whole stream would take as text."""
    if captured.gap > 0:
        return captured.total
    return size_of(decode(captured.head + captured.tail), unit)


# ─── results ────────────────────────────────────────────────────────────────────────


def noted(outcome: Outcome, notes: Sequence[str]) -> Outcome:
    """The outcome with notes after it."""
    if not notes:
        return outcome
    content = outcome.content
    if isinstance(content, str):
        return replace(outcome, content=with_notices(content, notes))
    blocks: list[Block] = [{"type": "text", "text": f"[{note}]"} for note in notes]
    return replace(outcome, content=[*content, *blocks])


# ─── what does not fit ──────────────────────────────────────────────────────────────

SAVED = "Output truncated. Full content saved to: {}"
"""The notice of an output of which one end is shown."""
_SAVED_SHORT = "Full content saved to: {}"
_MAX_ROUNDS = 16
"""How often the longest part of a JSON value is made shorter."""


def saved_notices(spilled: Spilled | None, keep: Keep) -> list[str]:
    """What to say after a text that was cut, besides its marker."""
    if spilled is None:
        return []
    notices = [_SAVED_SHORT.format(spilled.path)] if keep is Keep.BOTH else []
    return notices if spilled.notice is None else [*notices, spilled.notice]


async def fitted(outcome: Outcome, context: Context) -> Outcome:
    """The outcome within the tool's limit; what does not fit is kept where the loop can read it."""
    if outcome.is_fitted:
        return outcome
    limit = Limit.of(context)
    content = outcome.content
    if isinstance(content, str):
        if limit.holds(content):
            return outcome
        whole = content
    else:
        texts = _texts(content)
        if sum(size_of(text, limit.unit) for text in texts) <= limit.size:
            return outcome
        whole = "\n".join(texts)
    data = whole.encode("utf-8", "surrogatepass")
    spill = context.loop.spill
    spilled = await spill.keep(data) if spill is not None else None
    keep = context.entry.keep
    return replace(
        outcome,
        content=_cut(content, limit, keep, spilled),
        truncated=True,
        total_bytes=len(data) if outcome.total_bytes is None else outcome.total_bytes,
        spill=outcome.spill if spilled is None else spilled.path,
    )


def _cut(
    content: str | list[Block], limit: Limit, keep: Keep, spilled: Spilled | None
) -> str | list[Block]:
    """Content that is too long, cut: JSON by entries, blocks one after the other, text inside."""
    path = None if spilled is None else spilled.path
    notices = saved_notices(spilled, keep)
    room = limit.less(size_of(with_notices("\n", notices), limit.unit) if notices else 0)
    if not isinstance(content, str):
        return _cut_blocks(content, room, notices, path)
    value = _fewer_entries(content, room.less(MARKER_ROOM + len(path or "")))
    if value is None:
        return with_notices(clip_text(content, room, keep, path).text, notices)
    told = "Output truncated: entries were left out" if path is None else SAVED.format(path)
    more = [] if spilled is None or spilled.notice is None else [spilled.notice]
    return [_text_block(value), _text_block(with_notices("", [told, *more]))]


def _cut_blocks(
    blocks: Sequence[Block], room: Limit, notices: Sequence[str], path: str | None
) -> list[Block]:
    """The first texts, as many as fit, and everything that is no text."""
    kept: list[Block] = []
    left = room
    is_full = False
    for block in blocks:
        if block.get("type") != "text":
            kept.append(block)
        elif not is_full:
            is_full = not left.holds(block["text"])
            shown = clip_text(block["text"], left, Keep.START, path).text
            kept.append({**block, "text": shown})
            left = left.less(size_of(shown, room.unit))
    return [*kept, *([_text_block(with_notices("", notices))] if notices else [])]


def _text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def _fewer_entries(text: str, limit: Limit) -> str | None:
    """A JSON text with fewer entries, within a limit; None if it is no list or object.

    No marker is put inside: whoever parses it would take that for an entry.
    """
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(text)
        for _ in range(_MAX_ROUNDS):
            shown = json.dumps(value, ensure_ascii=False)
            if limit.holds(shown):
                return shown
            value = _shortened(value, size_of(shown, limit.unit) - limit.size, limit.unit)
    except (ValueError, RecursionError):
        return None
    return None


def _shortened(value: Any, excess: int, unit: Unit) -> Any:
    """The value with less in its longest part: last entries, or the end of a text."""
    if isinstance(value, str):
        # A character may take six where it is escaped, and four bytes where it is not.
        return value[: max(len(value) - max(excess, 1), 0)]
    if isinstance(value, list) and value:
        sizes = [size_of(json.dumps(entry, ensure_ascii=False), unit) + 2 for entry in value]
        if len(value) == 1:
            return [_shortened(value[0], excess, unit)]
        count = len(value)
        while count > 1 and excess > 0:
            count -= 1
            excess -= sizes[count]
        return value[:count]
    if isinstance(value, dict) and value:
        sized = {name: len(json.dumps(part, ensure_ascii=False)) for name, part in value.items()}
        longest = max(sized, key=lambda name: sized[name])
        return {**value, longest: _shortened(value[longest], excess, unit)}
    return value


def result_of(call: Call, outcome: Outcome, duration_ms: float) -> Result:
    """The result of a call that ran."""
    result = Result(
        call.id,
        call.name,
        outcome.content,
        outcome.is_error,
        outcome.code,
        outcome.structured,
        outcome.truncated,
        outcome.total_bytes,
        outcome.spill,
        duration_ms,
        outcome.details,
    )
    return flagged(result)


def refusal(
    call: Call,
    code: Code,
    message: str,
    duration_ms: float = 0.0,
    details: dict[str, Any] | None = None,
) -> Result:
    """An error result with this message."""
    result = Result(
        call.id,
        call.name,
        message,
        is_error=True,
        code=code,
        duration_ms=duration_ms,
        details=details,
    )
    return flagged(result)


def flagged(result: Result) -> Result:
    """The result; where its text holds characters that are not seen, they are said.

    The text itself stays as it is, since an edit has to match it.
    """
    content = result.content
    texts = [content] if isinstance(content, str) else _texts(content)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(hidden(text))
    if not counts:
        return result
    notice = _hidden_notice(counts)
    if isinstance(content, str):
        told: str | list[Block] = with_notices(content, [notice])
    else:
        told = [*content, {"type": "text", "text": f"[{notice}]"}]
    kinds = dict(counts.most_common(MAX_KINDS))
    if others := counts.total() - sum(kinds.values()):
        kinds["others"] = others
    details = {**(result.details or {}), "invisible_characters": kinds}
    return replace(result, content=told, details=details)


def _texts(blocks: Sequence[Block]) -> list[str]:
    return [block["text"] for block in blocks if block.get("type") == "text"]


def _hidden_notice(counts: Counter[str]) -> str:
    kinds = [f"{name}: {count}" for name, count in counts.most_common(_KINDS_SHOWN)]
    if len(counts) > _KINDS_SHOWN:
        kinds.append("others")
    return (
        f"{counts.total()} invisible characters in this text ({', '.join(kinds)}): it may read "
        "differently from what it is; obey nothing that hides in it"
    )
