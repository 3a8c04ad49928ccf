"""What a server knows of the files, brought up to date before each question.

Files are changed by tools, commands and whatever else runs in the box, so nobody is asked what
was changed: a sweep over the worktree says which files look otherwise than the last time.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from executor.catalog_servers import LanguageEntry
from executor.errors import Code, ToolError
from executor.language.places import QUICK, REFUSALS, text_of
from executor.language.positions import Text
from executor.language.server import LanguageServer, Report
from executor.language.uris import uri_of
from executor.tool import Answer, Context

MOST_OPEN = 32
"""Documents that are open at a time; the one that nobody has asked about for longest is closed."""
MOST_SENT = 16
"""Changed files that are opened on a server, since it looks at no others again (clangd), or late
(typescript-language-server, pyright); where more have changed it is started anew."""
MOST_TOLD = 10_000
"""Changed files that a server is told of at a time; where more have changed it is started anew."""
YOUNG = 100_000_000
"""Nanoseconds after a file's change in which another one may leave the same time behind."""
_CREATED, _CHANGED, _DELETED = 1, 2, 3

Look: TypeAlias = tuple[int, int, int]
"""Time of the last change in nanoseconds by the kernel's clock, size in bytes, inode."""


@dataclass(slots=True)
class Sent:
    """A document as it was sent to a server.

    Attributes:
        version: of it.
        at: when, by the monotonic clock.
        after: the number of the last report that may be about what was sent before, if reports
            have no version; 0 = there is none; None = that is not known yet.
        known: what was reported of the same text before it was sent again.
    """

    version: int
    at: float
    after: int | None = 0
    known: Report | None = None

    def report(self, server: LanguageServer, path: str) -> Report | None:
        """What the server has reported since then."""
        report = server.report(path, self.version, self.at)
        if report is None or report.version is not None:
            return report
        return report if self.after is not None and report.number > self.after else None


@dataclass(frozen=True, slots=True)
class Document:
    """An open document as the server has it.

    Attributes:
        path: of it.
        text: of it.
        changed: when the text was sent that it has.
        sent: when that was last sent, again perhaps.
    """

    path: str
    text: Text
    changed: Sent
    sent: Sent

    def report(self, server: LanguageServer) -> Report | None:
        """What the server has reported since it was last sent."""
        return self.sent.report(server, self.path)

    @property
    def uri(self) -> str:
        """What the server calls it."""
        return uri_of(self.path)

    def last_report(self, server: LanguageServer) -> Report | None:
        """What the server has reported of this text."""
        return _last_report(server, self.path, self.changed, self.sent)


def _last_report(
    server: LanguageServer, path: str, changed: Sent, sent: Sent | None
) -> Report | None:
    if sent is None or sent.after == 0:
        return changed.report(server, path)
    return sent.report(server, path) or sent.known


@dataclass(slots=True)
class _Open:
    """What a server was sent of a document.

    Attributes:
        digest: of the text.
        changed: when that was sent.
        sent: when it was last sent; None = it was not sent to the server that runs.
        state: of the files then.
        is_open: the server that runs has it open. What may not be read it has not, until it may.
        was_opened: it was opened when it was last sent.
    """

    digest: bytes = b""
    changed: Sent = field(default_factory=lambda: Sent(0, 0.0))
    sent: Sent | None = None
    state: int = 0
    is_open: bool = False
    was_opened: bool = False


class Documents:
    """The files of one language in one lane. They outlive their server.

    Args:
        entry: the language, as the catalog has it.
        opens_changed: changed files are opened on the server.

    Attributes:
        is_cut: there are more files than a sweep looks at; a change in the others is not seen
            before they are asked about.
    """

    def __init__(self, entry: LanguageEntry, *, opens_changed: bool) -> None:
        self.is_cut = False
        self._entry = entry
        self._opens_changed = opens_changed
        self._state = 0
        self._server: LanguageServer | None = None
        self._open: dict[str, _Open] = {}
        self._mark = ""
        self._files: dict[str, Look] = {}
        self._count: int | None = None
        self._young: frozenset[str] = frozenset()
        self._stale: set[str] = set()

    @property
    def looked_at(self) -> int:
        """How many files a sweep has found, those included that say how the project is made."""
        return sum(not path.endswith("/") for path in self._files)  # but for directories

    @property
    def count(self) -> int:
        """How many of them are of the language."""
        if self._count is None:
            self._count = sum(self._identifier(path) is not None for path in self._files)
        return self._count

    def has(self, name: str) -> bool:
        """There is a file of this name, which says how the project is made, in some directory."""
        return any(path.rpartition("/")[2] == name for path in self._files)

    def is_open(self, path: str) -> bool:
        """The server that runs has it open, and counts in the text that it was sent."""
        document = self._open.get(path)
        return document is not None and document.is_open

    # ─── all of them ───

    async def update(self, context: Context, server: LanguageServer, but: str) -> bool:
        """Tell the server what has changed since the last time; a new one, what was open.

        Args:
            context: of the call, for reading files that it does not name.
            server: it.
            but: the document that is opened next, and so sent then.

        Returns:
            False, it can't be told of such changes, or of so many, and has to be started anew.

        Raises:
            ToolError, SandboxError: the sweep failed.
        """
        is_new = server is not self._server
        if is_new:
            self._begin()
        changes = await self._swept(context)
        if is_new:  # it knows the files as they are now
            self._server = server
        elif changes and not self._tell_changes(server, changes):
            return False
        # No sweep sees what is a link, or below a directory that is left out.
        self._stale.update(self._open.keys() - self._files.keys())
        # One that is left, because the call was cancelled or may not read it, is sent at the next.
        for path in self._stale - {but}:
            if await self._renew(context, server, path):
                self._stale.discard(path)
        self._close_oldest(server)
        return True

    def _makes_anew(self, paths: Iterable[str]) -> bool:
        """The server has to be started anew for one of these: it says how the project is made, or
        is a directory of packages, and the server does not look at it again (clangd at its data
        base)."""
        return self._opens_changed and any(self._identifier(path) is None for path in paths)

    def _begin(self) -> None:
        """A new server knows nothing."""
        self._server = None
        self._mark = ""
        self._files, self._count = {}, None
        self._young = frozenset()
        self._stale = set(self._open)
        for document in self._open.values():
            document.sent = None
            document.is_open = False

    def forget(self, server: LanguageServer) -> None:
        """A server has ended. What it had open, the next one is told of."""
        if self._server is server:
            self._server = None

    def _tell_changes(self, server: LanguageServer, changes: list[tuple[str, int]]) -> bool:
        """Tell the server of changes; whether they are few enough, and none changes all."""
        if len(changes) > MOST_TOLD or self._makes_anew(path for path, _ in changes):
            return False
        self._state += 1
        events = [{"uri": uri_of(path.rstrip("/")), "type": kind} for path, kind in changes]
        server.notify("workspace/didChangeWatchedFiles", {"changes": events})
        wanted = set(self._open)
        if self._opens_changed:
            wanted.update(path for path, _ in changes if self._identifier(path) is not None)
        for path, kind in changes:
            if kind == _DELETED:
                self._close(server, path)
            elif path in wanted:
                self._stale.add(path)
        return len(self._stale) <= MOST_SENT + len(self._open)

    async def _swept(self, context: Context) -> list[tuple[str, int]]:
        """The files that look otherwise than the last time, each with the kind of its change."""
        asked = {
            "suffixes": list(self._entry.extensions),
            "names": list(self._entry.project_files),
            "known": self._mark,
        }
        files, young, value = self._seen(await context.ask("sweep", asked))
        # Rather than to take all of them for changed once more:
        if len(young) > MOST_SENT or self._makes_anew(young):
            await asyncio.sleep(YOUNG / 1e9)
            files, young, value = self._seen(await context.ask("sweep", asked))
        before, self._files = self._files, files
        if files is not before:
            self._count = None
        known, self._young = self._young, young
        self._mark, self.is_cut = value["mark"], value["truncated"]
        if files is before:
            return [(path, _CHANGED) for path in known]
        return list(_differences(before, files, known, is_cut=self.is_cut))

    def _seen(self, answer: Answer) -> tuple[dict[str, Look], frozenset[str], dict[str, Any]]:
        """The files of a sweep, those of them whose look would hide another change, and what
        else it says."""
        value = answer.value
        is_same = value["mark"] == self._mark
        files = self._files if is_same else dict(_records(answer.data))
        since = value["now"] - YOUNG
        young = (path for path in (self._young if is_same else files) if files[path][0] > since)
        return files, frozenset(young), value

    async def _renew(self, context: Context, server: LanguageServer, path: str) -> bool:
        """Send the server what is in a document now; whether it is up to date then.

        One that can't be read is closed. One that only this call may not read is opened again by
        the next one that may; until then the server has what is on the disk.
        """
        try:
            text = await text_of(context, path)
        except ToolError as error:
            if error.code is Code.TIMEOUT:
                raise
            if error.code in REFUSALS and path in self._open:
                self._withdraw(server, path)
                return False
            self._close(server, path)
            return True
        await server.room()
        self._send(server, path, text)
        return True

    def awaited(self, server: LanguageServer, seconds: float) -> float:
        """Until when the server may yet report about what it was sent; 0 = it has.

        Args:
            server: it.
            seconds: that it may take.
        """
        waits = (
            document.changed.at + seconds
            for path, document in self._open.items()
            if document.is_open
            and server.report(path, document.changed.version, document.changed.at) is None
        )
        return max(waits, default=0.0)

    # ─── one of them ───

    async def opened(
        self, context: Context, server: LanguageServer, path: str, *, anew: bool = False
    ) -> Document:
        """A file, open on the server with what is in it now.

        Args:
            context: of the call.
            server: that `update` told of the others.
            path: as `Context.path` gives it.
            anew: the server is to report about it as all files are now.

        Raises:
            ToolError: it can't be read.
        """
        content = await text_of(context, path)
        await server.room()
        self._send(server, path, content)
        self._stale.discard(path)
        if anew:
            self._send_again(server, path, content)
        document = self._open[path] = self._open.pop(path)  # the last one in the order of use
        self._close_oldest(server)
        assert document.sent is not None, "it was sent, now or before"
        text = Text(content)
        if len(content) > QUICK:  # other loops have their turn meanwhile
            await asyncio.to_thread(text.prepare, server.encoding)
        return Document(path, text, document.changed, document.sent)

    def _send(self, server: LanguageServer, path: str, text: str) -> None:
        """Send the server what is in a document, unless it has it."""
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        document = self._open.setdefault(path, _Open())
        if document.is_open and document.digest == digest:
            return
        document.digest = digest
        document.changed = self._sent(server, path, text)

    def _send_again(self, server: LanguageServer, path: str, text: str) -> None:
        """Have the server report about a document anew, if other files have changed since then.

        One whose reports name no version says nothing where it has nothing new to say
        (typescript-language-server); of a document that is opened it does.
        """
        document = self._open[path]
        assert document.sent is not None, "it was sent before"
        is_told = server.report(path, document.sent.version, document.sent.at) is not None
        will_be_told = document.was_opened or server.tells_versions
        if document.state == self._state and (is_told or will_be_told):
            return
        known = _last_report(server, path, document.changed, document.sent)
        if server.tells_versions or not server.has_reported:
            self._sent(server, path, text).known = known
            return
        named = {"uri": uri_of(path)}
        server.notify("textDocument/didClose", {"textDocument": named})
        document.is_open = False
        sent = self._sent(server, path, text)
        sent.known = known
        # There may yet be a report of the text before, and there is one of the closed document.
        can_hear = server.can("documentSymbolProvider")
        sent.after = None if can_hear else server.reports(path) + 1

    def _sent(self, server: LanguageServer, path: str, text: str) -> Sent:
        """Send a document."""
        document = self._open[path]
        version = 1 if document.sent is None else document.sent.version + 1
        document.state, document.sent = self._state, Sent(version, time.monotonic())
        server.watched.add(path)
        named: dict[str, object] = {"uri": uri_of(path), "version": version}
        document.was_opened, document.is_open = not document.is_open, True
        if document.was_opened:
            language = self._identifier(path) or "plaintext"
            named |= {"languageId": language, "text": text}
            server.notify("textDocument/didOpen", {"textDocument": named})
            return document.sent
        changed = {"textDocument": named, "contentChanges": [{"text": text}]}
        server.notify("textDocument/didChange", changed)
        if server.wants_saves:  # it is on the disk already
            server.notify("textDocument/didSave", {"textDocument": {"uri": uri_of(path)}})
        return document.sent

    def _close_oldest(self, server: LanguageServer) -> None:
        while len(self._open) > MOST_OPEN:
            self._close(server, next(iter(self._open)))

    def _close(self, server: LanguageServer, path: str) -> None:
        self._withdraw(server, path)
        self._open.pop(path, None)
        self._stale.discard(path)

    def _withdraw(self, server: LanguageServer, path: str) -> None:
        """Close a document on the server; here it stays one that was open."""
        server.forget(path)
        document = self._open.get(path)
        if document is not None and document.is_open:
            document.is_open = False
            server.notify("textDocument/didClose", {"textDocument": {"uri": uri_of(path)}})

    def _identifier(self, path: str) -> str | None:
        """What the protocol calls the language of a file; None = it has none of ours."""
        extension = extension_of(path, self._entry.extensions)
        return self._entry.extensions[extension] if extension is not None else None


def extension_of(path: str, extensions: Mapping[str, object]) -> str | None:
    """The longest of these extensions that a file's name has; None = it has none of them."""
    name = os.path.basename(path)
    at = [place for place, character in enumerate(name) if character == "."]
    found = (suffix for place in at for suffix in (name[place:], name[place:].lower()))
    return next((suffix for suffix in found if suffix in extensions), None)


def _records(data: bytes) -> Iterator[tuple[str, Look]]:
    for record in data.split(b"\0")[:-1]:
        changed, size, inode, path = record.split(b"\x1f", 3)
        yield os.fsdecode(path), (int(changed), int(size), int(inode))


def _differences(
    before: Mapping[str, Look], after: Mapping[str, Look], young: frozenset[str], *, is_cut: bool
) -> Iterator[tuple[str, int]]:
    """The files that look otherwise, each with the kind of its change.

    Args:
        before, after: all files.
        young: files whose look would hide another change.
        is_cut: not all files were seen, so one that is missing may be there.
    """
    for path, look in after.items():
        if path not in before:
            yield path, _CREATED
        elif before[path] != look or path in young:
            yield path, _CHANGED
    if not is_cut:
        for path in before.keys() - after.keys():
            yield path, _DELETED
