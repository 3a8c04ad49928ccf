"""The language servers of a loop: one for each language in each lane, started when it is needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from executor.catalog_servers import LanguageEntry
from executor.code_questions import CodeQuestion, Found
from executor.errors import Code, SandboxError, ToolError
from executor.language.answers import (
    BadAnswer,
    Target,
    diagnostics,
    hover_text,
    renaming,
    symbols,
    targets,
)
from executor.language.documents import MOST_SENT, Document, Documents, extension_of
from executor.language.messages import Ended, Refused
from executor.language.places import Files, Spots, previews_of, spots_of
from executor.language.positions import NoPosition
from executor.language.reports import last_report
from executor.language.server import PROBLEMS, LanguageServer, started
from executor.results import counted, shown_name
from executor.sandbox.completion import to_completion
from executor.served import without_box
from executor.tool import Context, Surroundings

PATIENCE = 300.0
"""Seconds in which a server that is at work has to have answered anything that it was asked."""
INDEXING = 20.0
"""Seconds that a question waits while the server says that it is busy."""
SEEN = 8.0
"""Seconds that a server may take to report about a document that it was sent, until a question is
asked all the same."""
_INVALID = (-32602, -32600)
"""Codes of answers that blame the question."""

_PROVIDERS: Mapping[str, tuple[str, str]] = {
    "goto_definition": ("definitionProvider", "textDocument/definition"),
    "hover": ("hoverProvider", "textDocument/hover"),
    "find_references": ("referencesProvider", "textDocument/references"),
    "document_symbols": ("documentSymbolProvider", "textDocument/documentSymbol"),
    "rename_preview": ("renameProvider", "textDocument/rename"),
}
"""Operation → the capability that a server has for it, and the request."""


class LanguageServers:
    """The language servers of a loop; see `executor.tool.Languages`.

    Args:
        entries: the catalog's languages, by name.
    """

    def __init__(self, entries: Mapping[str, LanguageEntry]) -> None:
        self._entries = {name: entry for name, entry in entries.items() if entry.enabled}
        self._owners = {
            extension: name
            for name, entry in self._entries.items()
            for extension in entry.extensions
        }
        self._desks: dict[tuple[str, str], _Desk] = {}
        self._limits: set[asyncio.Timeout] = set()
        self._is_closed = False

    def missing(self, around: Surroundings) -> str | None:
        """Why no question can be answered in the lane of these surroundings; None = some can."""
        known = around.session.programs.get(around.lane)
        commands = [words for entry in self._entries.values() for words in entry.commands]
        if commands and (known is None or any(words[0] in known for words in commands)):
            return None
        if not commands:
            return "the catalog has no language that is enabled"
        names = ", ".join(dict.fromkeys(words[0] for words in commands))
        return (
            f"the sandbox had no language server when it began (none of {names}); the layer "
            "language-servers of the image heavy has some"
        )

    async def ask(self, context: Context, question: CodeQuestion) -> Found:
        """See `executor.tool.Languages`."""
        desk = await self._desk(context, question.path)
        began, seconds = time.monotonic(), context.seconds
        limit = asyncio.timeout(seconds)
        self._limits.add(limit)
        try:
            async with limit:
                return await desk.answer(context, question)
        except TimeoutError:
            if self._is_closed:
                raise SandboxError("the loop is closed") from None
            said = await desk.give_up(seconds / 2)
            took = time.monotonic() - began
            text = f"Timed out: {desk.name} gave no answer in {took:.0f} seconds.{said}"
            raise ToolError(Code.TIMEOUT, text) from None
        finally:
            self._limits.discard(limit)

    async def _desk(self, context: Context, path: str) -> _Desk:
        extension = extension_of(path, self._owners)
        if extension is None:
            raise ToolError(Code.UNSUPPORTED, self._no_language(path))
        language = self._owners[extension]
        entry = self._entries[language]
        around = context.loop
        await around.box.ready()  # which programs it has is known then
        known = around.session.programs.get(around.lane, frozenset())
        command = next((words for words in entry.commands if words[0] in known), None)
        if command is None:
            names = ", ".join(words[0] for words in entry.commands)
            raise ToolError(
                Code.UNSUPPORTED,
                f"There is no language server for {extension} files in this sandbox: it had none "
                f"of {names} when it began.",
            )
        if self._is_closed:
            raise SandboxError("the loop is closed")
        key = around.lane, language
        if key not in self._desks:
            self._desks[key] = _Desk(entry, command)
        return self._desks[key]

    def _no_language(self, path: str) -> str:
        name = path.rpartition("/")[2]
        suffix = "." + name.rpartition(".")[2] if "." in name.lstrip(".") else ""
        what = f"{suffix} files" if suffix else "files without an extension"
        known = " ".join(self._owners) or "none"
        return f"There is no language server for {what}. Extensions with one: {known}."

    async def close(self) -> None:
        """End all servers. Questions end now: a server may take long to say its first word."""
        self._is_closed = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(0.0)
        await to_completion(_all(*(desk.close() for desk in self._desks.values())))


async def _all(*works: Coroutine[Any, Any, None]) -> None:
    await asyncio.gather(*works)


class _Desk:
    """Where questions about one language in one lane are answered.

    Args:
        entry: the language, as the catalog has it.
        command: of its server.
    """

    def __init__(self, entry: LanguageEntry, command: Sequence[str]) -> None:
        self.name = command[0].rpartition("/")[2]
        self._entry = entry
        self._command = command
        self._lock = asyncio.Lock()
        self._diagnosing = asyncio.Lock()
        self._server: LanguageServer | None = None
        self._is_at_once = command[0] in entry.at_once
        self._documents = Documents(entry, opens_changed=command[0] not in entry.following)
        self._is_reporting = True
        self._is_closed = False

    async def answer(self, context: Context, question: CodeQuestion) -> Found:
        """The answer; a server that ends over it is started again once.

        Raises:
            ToolError, SandboxError: see `executor.tool.Languages`.
        """
        if question.operation != "diagnostics":
            return await self._answered(context, question)
        # Each sends its document anew, and what the server has begun for another one it puts off.
        async with self._diagnosing:
            return await self._answered(context, question)

    async def _answered(self, context: Context, question: CodeQuestion) -> Found:
        said = ""
        beside = _beside(context)
        for _ in range(2):
            server, document = await self._ready(context, question)
            try:
                return await self._asked(beside, question, server, document)
            except Ended:
                said = await self._lost(server)
            except Refused as error:
                code = Code.INVALID_ARGUMENTS if error.code in _INVALID else Code.EXECUTION_ERROR
                text = f"{self.name} refused to answer: {error.message}"
                raise ToolError(code, text) from error
            except BadAnswer as error:
                text = f"{self.name} gave an answer that can't be used: {error}"
                raise ToolError(Code.EXECUTION_ERROR, text) from error
        raise ToolError(
            Code.EXECUTION_ERROR,
            f"The language server {self.name} ended when it was asked, and again when it was "
            f"started anew.{said}",
        )

    # ─── the server ───

    async def _ready(
        self, context: Context, question: CodeQuestion
    ) -> tuple[LanguageServer, Document]:
        """The server, with the files as they are now, and the one that is asked about open."""
        is_diagnosed = question.operation == "diagnostics"
        path, beside = question.path, _beside(context)
        async with self._lock:
            server = await self._running(context)
            if not await self._documents.update(beside, server, path):
                await self._end()
                server = await self._running(context)
                await self._documents.update(beside, server, path)
            opened = await self._documents.opened(context, server, path, anew=is_diagnosed)
            return server, opened

    async def _running(self, context: Context) -> LanguageServer:
        """The server, which is started if there is none; the lock is held."""
        if self._is_closed:
            raise SandboxError("the loop is closed")
        server = self._server
        if server is not None and not server.is_over:
            return server
        await self._end()
        serve = context.loop.serve
        if serve is None:
            raise ToolError(Code.UNSUPPORTED, "No server can be started in this sandbox.")
        context.progress(f"starting {self.name}")
        secrets = context.loop.secrets
        self._server = await started(serve, self._entry, self._command, secrets)
        return self._server

    async def _lost(self, server: LanguageServer) -> str:
        """How a server ended that answers no more."""
        async with self._lock:
            return await self._end() if self._server is server else ""

    async def _end(self) -> str:
        """End the server, if there is one, and say how it ended."""
        server, self._server = self._server, None
        if server is None:
            return ""
        self._documents.forget(server)
        try:
            return await server.end()
        except SandboxError as error:
            return without_box(error)

    async def give_up(self, seconds: float) -> str:
        """End a server that owes an answer and has said nothing for so long, or does not answer.

        Returns:
            What there is to say about that.
        """
        server, now = self._server, time.monotonic()
        if server is None:
            return " It had not yet started."
        since = server.owing_since
        is_silent = since is not None and now - max(since, server.heard_at) >= seconds
        is_deaf = server.waiting_since is not None and now - server.waiting_since >= PATIENCE
        if since is None and now - server.heard_at >= seconds:
            return " It was not asked in time: the sandbox is busy; ask again later."
        if not is_silent and not is_deaf:
            return " It is still at work; ask again later."
        if await server.has_died():
            return f" It has ended; the next call starts it anew.{await self._end()}"
        # Another call may hold the lock, and this one's time is over. To that one it is a server
        # that ends over its question.
        said = await self._end()
        what = "said nothing" if is_silent else "answered nothing"
        return f" It {what} for long and was ended; the next call starts it anew.{said}"

    async def close(self) -> None:
        """End the server for good."""
        async with self._lock:
            self._is_closed = True
            await self._end()

    # ─── the questions ───

    async def _asked(
        self, context: Context, question: CodeQuestion, server: LanguageServer, document: Document
    ) -> Found:
        """Ask, and make places of the answer.

        Raises:
            Ended, Refused, BadAnswer: of the server.
            ToolError: there is no such position, or the server can't answer this.
        """
        asked = _params(server, question, document)
        left = context.seconds
        await self._settled(context, server, left / 4)
        notes = self._notes(question, server)
        files = self._files(context, server, document)
        if question.operation == "diagnostics":
            problems, late = await self._diagnosed(server, document, left / 4)
            return _found(self.name, await spots_of(files, problems), [*notes, *late])
        capability, method = _PROVIDERS[question.operation]
        if not server.can(capability):
            raise ToolError(Code.UNSUPPORTED, f"{self.name} does not know {question.operation}.")
        found = await self._found(await server.ask(method, asked), question, document, files)
        if files.unlike:
            more = await self._opened(context, server, files.unlike)
            await self._settled(context, server, left / 8)
            files = self._files(context, server, document, *more)
            found = await self._found(await server.ask(method, asked), question, document, files)
        if files.unlike:
            others = counted(len(files.unlike), "file")
            notes.append(
                f"{self.name} may count otherwise than is shown in {others} with a byte order mark "
                "or invalid UTF-8"
            )
        return replace(found, notes=(*notes, *found.notes))

    async def _settled(self, context: Context, server: LanguageServer, seconds: float) -> None:
        """Wait until the server knows what it was sent, and is busy with nothing; twice as long."""
        if not self._is_at_once:
            await self._seen(server, seconds)
        await server.settled(min(INDEXING, seconds), context.progress)

    def _files(self, context: Context, server: LanguageServer, *documents: Document) -> Files:
        """The files of an answer; of these documents the text is what the server was sent."""
        known = {document.path: document.text for document in documents}
        return Files(context, server.encoding, known, self._documents.is_open)

    async def _opened(
        self, context: Context, server: LanguageServer, paths: Sequence[str]
    ) -> list[Document]:
        """Open files, so that the server counts in the same text as is shown.

        Raises:
            Ended: there is another server by now.
            ToolError: TIMEOUT.
        """
        found: list[Document] = []
        async with self._lock:
            if self._server is not server:
                raise Ended
            for path in paths[:MOST_SENT]:
                try:
                    found.append(await self._documents.opened(context, server, path))
                except ToolError as error:  # it is another file by now
                    if error.code is Code.TIMEOUT:
                        raise
        return found

    async def _found(
        self, answer: Any, question: CodeQuestion, document: Document, files: Files
    ) -> Found:
        """Places of an answer.

        Raises:
            BadAnswer: of the server.
        """
        match question.operation:
            case "hover":
                found = Found(self.name, text=hover_text(answer))
                return found if found.text else _with_place(found, question, document)
            case "rename_preview":
                change = renaming(answer)
                word = document.text.word(question.line or 1, question.column or 1)
                spots = await previews_of(files, change, word)
                return _found(self.name, spots, [*self._doubts(spots, word), *change.others])
            case "document_symbols":
                return _found(self.name, await spots_of(files, symbols(answer, document.uri)), [])
        found = _found(self.name, await spots_of(files, targets(answer)), [])
        return found if found.total else _with_place(found, question, document)

    def _doubts(self, spots: Spots, word: str) -> list[str]:
        """What has to be known of a renaming that would replace something else than the word."""
        if not spots.doubtful:
            return []
        names = ", ".join(shown_name(path) for path in spots.doubtful[:3])
        more = " and others" if len(spots.doubtful) > 3 else ""
        return [
            f"in {names}{more} {self.name} would replace something else than {word}: it seems to "
            "count otherwise there than is shown; look before you edit"
        ]

    def _notes(self, question: CodeQuestion, server: LanguageServer) -> list[str]:
        """What has to be known of any answer to this question now."""
        notes = []
        if server.state is not None:
            notes.append(f"{self.name} says: {server.state}; more may be found later")
        elif not server.is_ready:
            notes.append(f"{self.name} may not know all files yet; more may be found later")
        if question.operation in ("find_references", "rename_preview"):
            notes += self._notes_on_uses()
        if self._documents.is_cut:
            notes.append(
                f"only {self._documents.looked_at} files are looked at for changes, and there are "
                "more; what has changed in the others may be told as it was"
            )
        return notes

    def _notes_on_uses(self) -> Iterator[str]:
        """Where it does not look for them."""
        documents, program = self._documents, self._command[0]
        most, index = self._entry.searched.get(program), self._entry.indexed_by.get(program)
        if most is not None and documents.count > most:
            yield (
                f"{self.name} looks for uses in {most} files at most, and there are "
                f"{documents.count} here; a search for the word finds the others"
            )
        if index is not None and documents.count > 1 and not documents.has(index):
            yield (
                f"without a {index} {self.name} looks for uses only in files that it was asked "
                "about; a search for the word finds the others"
            )

    async def _diagnosed(
        self, server: LanguageServer, document: Document, seconds: float
    ) -> tuple[Sequence[Target], list[str]]:
        """What is wrong with a document, and what has to be known of that."""
        told = await last_report(server, document, seconds)
        if server.answers_problems:
            answer = await server.ask(PROBLEMS, {"textDocument": {"uri": document.uri}})
            items = answer.get("items") if isinstance(answer, Mapping) else []
            return diagnostics(items, document.uri), []
        if told.report is None:
            return [], [f"{self.name} has reported nothing about this file yet"]
        part = f"{self.name} may not have reported all there is"
        return told.report.targets, [] if told.is_whole else [part]

    async def _seen(self, server: LanguageServer, seconds: float) -> None:
        """Wait until it has reported about what it was sent, which it does once it knows it.

        One that is asked for problems reports none by itself.
        """
        last = time.monotonic() + seconds
        while self._is_reporting and not server.is_over and not server.answers_problems:
            now = time.monotonic()
            until = min(self._documents.awaited(server, SEEN), last)
            if now >= until:
                # One that reports nothing at all is not waited for again.
                self._is_reporting = until == 0 or server.has_reported
                return
            await server.news(until - now)


def _beside(context: Context) -> Context:
    """The context for reading other files than the one that is asked about.

    What rules deny, or want asked about, the agent sees where a file is opened. Who agreed to the
    call has agreed to the one file that it names.
    """
    return replace(context, rules=context.beside)


def _params(server: LanguageServer, question: CodeQuestion, document: Document) -> dict[str, Any]:
    """What the request says.

    Raises:
        ToolError: INVALID_ARGUMENTS, there is no such position.
    """
    asked: dict[str, Any] = {"textDocument": {"uri": document.uri}}
    if question.line is None or question.column is None:
        return asked
    try:
        position = document.text.position(question.line, question.column, server.encoding)
    except NoPosition as error:
        raise ToolError(Code.INVALID_ARGUMENTS, str(error)) from error
    asked["position"] = position
    if question.operation == "find_references":
        asked["context"] = {"includeDeclaration": True}
    if question.operation == "rename_preview":
        asked["newName"] = question.new_name
    return asked


def _found(name: str, spots: Spots, notes: Sequence[str]) -> Found:
    return Found(name, spots.spots, spots.total, spots.hidden, notes=tuple(notes))


def _with_place(found: Found, question: CodeQuestion, document: Document) -> Found:
    """The answer with what stands at the place, where nothing was found: most often another one
    was meant."""
    if question.line is None or question.column is None:
        return found
    line = document.text.line(question.line)
    before, after = line[: question.column - 1], line[question.column - 1 :]
    shown = f"{before[-100:]}⟦here⟧{after[:100]}"
    return replace(found, notes=(*found.notes, f"the place is {shown}"))
