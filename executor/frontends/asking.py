"""Asks the person at the terminal: whether a call may run, and what the model wants to know.

The terminal is opened by its name, `/dev/tty`: standard input carries calls. What is shown
goes through `executor.text`, so that nothing of a command hides or acts, and all of it is
shown, page by page, before an answer counts. Keys that were struck before a question are
thrown away.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import json
import os
import re
import select
import termios
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.rule import Rule
from rich.segment import Segment
from rich.text import Text

from executor.errors import Code, ToolError
from executor.model import ApprovalAnswer, ApprovalRequest, Question, Remember
from executor.text import hidden, json_line, one_line, visible

T = TypeVar("T")

TERMINAL = "/dev/tty"
USUAL_SIZE = (80, 24)
MAX_LINE = 1 << 20
"""Characters that may be typed."""
MAX_TOLD = 100_000
"""Characters of a description, a reason or a rule, each on one line."""
_PATIENCE = 2.0
"""Seconds that a withdrawn question may take to leave the terminal."""

_KEYS = {
    **{"\r": "enter", "\n": "enter", "\x03": "interrupt", "\x04": "interrupt"},
    **{"\x7f": "backspace", "\x08": "backspace", "\x01": "home", "\x05": "end", "\x15": "kill"},
    **{"\x1b[D": "left", "\x1b[C": "right", "\x1b[H": "home", "\x1b[F": "end"},
    **{"\x1bOD": "left", "\x1bOC": "right", "\x1bOH": "home", "\x1bOF": "end"},
    **{"\x1b[3~": "delete", "\x1b[1~": "home", "\x1b[4~": "end"},
}


_UNENDED = re.compile(r"\x1b(?:[\[O][^@-~]{0,16})?\Z")
"""The beginning of a key's sequence."""


class _Withdrawn(Exception):
    """Nobody waits for the answer any more."""


class _Refused(Exception):
    """The person pressed Ctrl-C or Ctrl-D."""


# ─── the terminal ───────────────────────────────────────────────────────────────────


class Screen:
    """The terminal while a question stands: keys come singly and send no signals.

    Args:
        path: of the terminal.
        wake: a descriptor that becomes readable when the question is withdrawn.

    Raises:
        ToolError: APPROVAL_REQUIRED, there is no terminal, or it belongs to another program.
    """

    def __init__(self, path: str, wake: int) -> None:
        self._wake = wake
        self._keys: list[str] = []
        self._reader = Keys()
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            raise _nobody(f"there is no terminal ({error.strerror})") from error
        try:
            if os.tcgetpgrp(self._fd) != os.getpgrp():
                raise _nobody("this program is not in the foreground of its terminal")
            self._before = termios.tcgetattr(self._fd)
            self._switch()
        except BaseException as error:
            os.close(self._fd)
            if isinstance(error, OSError | termios.error):
                raise _nobody("the terminal can't be used") from error
            raise

    def _switch(self) -> None:
        modes = termios.tcgetattr(self._fd)
        modes[0] &= ~(termios.IXON | termios.ICRNL)
        modes[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
        # What was typed before the question was not meant for it.
        termios.tcsetattr(self._fd, termios.TCSAFLUSH, modes)

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError, termios.error):
            if kind is _Withdrawn:
                self.write("\r\x1b[K(no answer is needed any more)\n")
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        os.close(self._fd)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        try:
            columns, rows = os.get_terminal_size(self._fd)
        except OSError:
            return USUAL_SIZE
        return (columns or USUAL_SIZE[0], rows or USUAL_SIZE[1])

    def write(self, text: str) -> None:
        """Show text in which nothing acts but what is ours."""
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data:
            data = data[os.write(self._fd, data) :]

    def key(self) -> str:
        """The next key: a character, or a name from `_KEYS`.

        Raises:
            _Withdrawn: the question is not needed any more.
            _Refused: Ctrl-C, Ctrl-D, or the terminal is gone.
        """
        while not self._keys:
            ready, _, _ = select.select([self._fd, self._wake], [], [])
            if self._wake in ready:
                raise _Withdrawn
            try:
                data = os.read(self._fd, 4096)
            except OSError:
                data = b""
            if not data:
                raise _Refused
            self._keys += self._reader.take(data)
        key = self._keys.pop(0)
        if key == "interrupt":
            self.write("\n")
            raise _Refused
        return key

    def line(self, prompt: str, text: str = "") -> str:
        """A line that the person types, or changes.

        Args:
            prompt: stands before it.
            text: what it is at first.

        Raises:
            _Withdrawn, _Refused: see `key`.
        """
        typed, cursor = list(text), len(text)
        while True:
            self._draw(prompt, typed, cursor)
            key = self.key()
            if key == "enter":
                self.write("\n")
                return "".join(typed)
            cursor = _edited(typed, cursor, key)

    def _draw(self, prompt: str, typed: Sequence[str], cursor: int) -> None:
        """The part of the line around the cursor that has room; only that is looked at."""
        left = max(self.size[0] - cell_len(prompt) - 2, 8)
        before, after = "", ""
        start = end = cursor
        while start and (width := cell_len(shown := one_line(typed[start - 1]))) < left:
            before, left, start = shown + before, left - width, start - 1
        while end < len(typed) and (width := cell_len(shown := one_line(typed[end]))) < left:
            after, left, end = after + shown, left - width, end + 1
        move = f"\x1b[{cell_len(after)}D" if after else ""
        self.write(f"\r\x1b[K{prompt}{before}{after}{move}")

    def show(self, *parts: RenderableType) -> None:
        """Show all of it, page by page; the last page stays.

        Raises:
            _Withdrawn, _Refused: see `key`.
        """
        lines = self._rendered(Group(*parts))
        page = max(self.size[1] - 2, 4)
        while len(lines) > page:
            self.write("".join(f"{line}\n" for line in lines[:page]))
            lines = lines[page:]
            self.write(f"── {len(lines)} more lines: any key goes on, e shows the end ──")
            key = self.key()
            self.write("\r\x1b[K")
            if key == "e" and len(lines) > page:
                self.write(f"… {len(lines) - page} lines\n")
                lines = lines[-page:]
        self.write("".join(f"{line}\n" for line in lines))

    def _rendered(self, what: RenderableType) -> list[str]:
        console = Console(
            file=io.StringIO(),
            width=self.size[0],
            force_terminal=True,
            color_system="standard",
            highlight=False,
            markup=False,
            emoji=False,
        )
        with console.capture() as capture:
            console.print(what)
        return capture.get().rstrip("\n").split("\n")


class Keys:
    """What a terminal sends → keys; a slow line brings some of them in pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def take(self, data: bytes) -> list[str]:
        """The keys that are whole: characters, and names from `_KEYS`."""
        text = self._begun + self._decoder.decode(data)
        begun = _UNENDED.search(text)
        self._begun = begun[0] if begun is not None else ""
        return list(_split(text.removesuffix(self._begun)))


def _split(text: str) -> Iterator[str]:
    """Characters and escape sequences as keys; sequences that mean nothing here are dropped."""
    position = 0
    while position < len(text):
        end = position + 1
        if text[position] == "\x1b" and text[end : end + 1] in ("[", "O"):
            end += 1
            while end < len(text) and not "@" <= text[end] <= "~":
                end += 1
            end += 1
        part = text[position:end]
        position = end
        if part in _KEYS:
            yield _KEYS[part]
        elif len(part) == 1 and part.isprintable():
            yield part


def _edited(typed: list[str], cursor: int, key: str) -> int:
    """What a key does to a line; where the cursor is then."""
    if key == "left":
        return max(cursor - 1, 0)
    if key == "right":
        return min(cursor + 1, len(typed))
    if key in ("home", "end"):
        return 0 if key == "home" else len(typed)
    if key == "kill":
        del typed[:cursor]
        return 0
    if key == "backspace" and cursor:
        cursor -= 1
    if key in ("backspace", "delete"):
        del typed[cursor : cursor + 1]
        return cursor
    if len(key) == 1 and len(typed) < MAX_LINE:
        typed.insert(cursor, key)
        return cursor + 1
    return cursor


# ─── questions ──────────────────────────────────────────────────────────────────────


def _nobody(reason: str) -> ToolError:
    return ToolError(
        Code.APPROVAL_REQUIRED, f"It needs the user's decision, and nobody can be asked: {reason}."
    )


def decision(screen: Screen, request: ApprovalRequest) -> ApprovalAnswer:
    """What the person says of a request. Ctrl-C is a no.

    Raises:
        _Withdrawn: nobody waits for it any more.
    """
    try:
        screen.show(*_request_parts(request))
        return _decided(screen, request)
    except _Refused:
        return ApprovalAnswer(approved=False, arguments_hash=request.arguments_hash)


def _decided(screen: Screen, request: ApprovalRequest) -> ApprovalAnswer:
    always = " / (a)lways" if request.rules else ""
    prompt = f"Run it? (y)es / (n)o{always} / (e)dit: "
    bound = request.arguments_hash
    while True:
        said = screen.line(prompt).strip().lower()
        if said in ("y", "yes"):
            return ApprovalAnswer(approved=True, arguments_hash=bound)
        if said in ("a", "always") and request.rules:
            return ApprovalAnswer(approved=True, remember=Remember.SESSION, arguments_hash=bound)
        if said in ("n", "no"):
            reason = screen.line("Why not (Enter for no reason): ").strip()
            return ApprovalAnswer(approved=False, reason=reason or None, arguments_hash=bound)
        if said in ("e", "edit"):
            changed = _changed(screen, request.arguments)
            if changed is not None:
                return ApprovalAnswer(
                    approved=True, modified_arguments=changed, arguments_hash=bound
                )


def _changed(screen: Screen, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Other arguments, as JSON; None = the person left them as they are."""
    before = text = json_line(dict(arguments))
    while True:
        text = screen.line("Run this instead: ", text)
        if text == before:
            return None
        try:
            changed = json.loads(text)
        except (ValueError, RecursionError) as error:
            screen.write(f"That is no JSON: {one_line(str(error))}\n")
            continue
        if isinstance(changed, dict):
            return changed
        screen.write("Write a JSON object, as it was.\n")


_IN_DIFF = frozenset({"content", "old_string", "new_string", "edits", "new_source"})


def _request_parts(request: ApprovalRequest) -> Iterator[RenderableType]:
    """All that a person has to see: nothing of what would run is left out."""
    yield Rule(Text(f"{one_line(request.tool, 100)} asks to run"), style="yellow")
    yield _shown(request.action, "bold")
    if request.diff is not None:
        yield _coloured(request.diff)
    rest = {
        name: value
        for name, value in request.arguments.items()
        if value != request.action
        and name != "description"
        and (request.diff is None or name not in _IN_DIFF)
    }
    if rest:
        yield _shown(json_line(rest, indent=2), "dim")
    if request.description:
        yield _told("The model says", request.description, "italic")
    if unseen := hidden(f"{request.action}{request.diff or ''}"):
        named = ", ".join(f"{name} ({count})" for name, count in unseen.items())
        yield Text(f"It holds characters that are not seen: {named}", style="bold red")
    yield _told("Why you are asked", request.reason)
    for rule in request.rules:
        yield _told("Always", rule)


class _Foreign:
    """Text that others wrote, set in on every line: none can be taken for one of ours.

    rich's own wrapping takes a second for ten thousand lines.

    Args:
        lines: what acts or hides in them is shown as escapes.
        style: of a line.
    """

    def __init__(self, lines: Iterable[str], style: Callable[[str], str]) -> None:
        self._lines = lines
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        width = max(options.max_width - len(_MARGIN), 8)
        for line in self._lines:
            style = console.get_style(self._style(line))
            for piece in chop_cells(line.expandtabs(), width) or [""]:
                yield Segment(_MARGIN)
                yield Segment(piece, style)
                yield Segment.line()


_MARGIN = "  "


def _shown(text: str, style: str = "none") -> _Foreign:
    return _Foreign(visible(text).split("\n"), lambda line: style)


def _told(label: str, text: str, style: str = "") -> Text:
    """One line that is ours, with a text in it that is not."""
    return Text(f"{label}: {one_line(text, MAX_TOLD)}", style=style, overflow="fold")


def _coloured(diff: str) -> _Foreign:
    styles = {"+": "green", "-": "red", "@": "cyan"}
    # Line by line: the end of a line may be what differs.
    lines = map(visible, diff.split("\n"))
    return _Foreign(lines, lambda line: styles.get(line[:1], "none"))


def answers(screen: Screen, questions: Sequence[Question]) -> dict[str, list[str]]:
    """What the person says to the model's questions.

    Raises:
        ToolError: REJECTED, they did not want to answer.
        _Withdrawn: nobody waits for it any more.
    """
    try:
        return {question.question: _answered(screen, question) for question in questions}
    except _Refused:
        raise ToolError(
            Code.REJECTED, "The user did not want to answer. Decide by what you know."
        ) from None


def _answered(screen: Screen, question: Question) -> list[str]:
    parts: list[RenderableType] = [
        Rule(Text(one_line(question.header, 40)), style="cyan"),
        _shown(question.question, "bold"),
    ]
    for number, option in enumerate(question.options, 1):
        told = one_line(option.description, MAX_TOLD)
        parts.append(_shown(f"{number}. {one_line(option.label)}: {told}"))
    screen.show(*parts)
    several = ", several with commas" if question.multi_select else ""
    while True:
        said = screen.line(f"A number{several}, or your own words: ").strip()
        if said:
            return _chosen(said, question)


def _chosen(said: str, question: Question) -> list[str]:
    """Labels, where these are their numbers; else the words themselves."""
    numbers = [part.strip() for part in said.split(",")] if question.multi_select else [said]
    labels = {str(number): option.label for number, option in enumerate(question.options, 1)}
    if all(number in labels for number in numbers):
        return list(dict.fromkeys(labels[number] for number in numbers))
    return [said]


# ─── the approver ───────────────────────────────────────────────────────────────────


class TerminalApprover:
    """The person at the terminal decides. Questions that come together wait for each other.

    Args:
        path: of the terminal.
    """

    def __init__(self, path: str = TERMINAL) -> None:
        self._path = path
        self._turn = asyncio.Lock()

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer:
        """See `Approver.approve`."""
        return await self._ask(lambda screen: decision(screen, request))

    async def answer(self, questions: Sequence[Question]) -> Mapping[str, Sequence[str]]:
        """See `Approver.answer`."""
        return await self._ask(lambda screen: answers(screen, questions))

    async def _ask(self, question: Callable[[Screen], T]) -> T:
        """Put a question, beside the loop: a person may take long, and stop the terminal."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            asked: asyncio.Future[T] = loop.create_future()
            wake, sink = os.pipe2(os.O_CLOEXEC)

            def settle(result: T | None, error: BaseException | None) -> None:
                if asked.done():
                    return
                if error is not None:
                    asked.set_exception(error)
                else:
                    asked.set_result(result)  # type: ignore[arg-type]

            def put() -> None:
                result: T | None = None
                failure: BaseException | None = None
                try:
                    with Screen(self._path, wake) as screen:
                        result = question(screen)
                except BaseException as error:
                    failure = error
                finally:
                    os.close(wake)
                with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
                    loop.call_soon_threadsafe(settle, result, failure)

            try:
                threading.Thread(target=put, name="question", daemon=True).start()
            except RuntimeError:
                os.close(wake)
                os.close(sink)
                raise
            try:
                return await asyncio.shield(asked)
            finally:
                os.close(sink)  # withdraws it, if it still stands
                if not asked.done():
                    await asyncio.wait({asked}, timeout=_PATIENCE)
                if asked.done():
                    asked.exception()


def terminal(path: str = TERMINAL) -> TerminalApprover | None:
    """An approver at the terminal that this program belongs to; None = there is none."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return TerminalApprover(path) if os.isatty(fd) else None
    finally:
        os.close(fd)
