"""One language server: started, initialised, asked, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any, get_args

from executor.catalog_servers import LanguageEntry
from executor.errors import Code, SandboxError, ToolError
from executor.language.answers import BadAnswer, Target, diagnostics
from executor.language.messages import (
    CONTENT_MODIFIED,
    METHOD_NOT_FOUND,
    SERVER_CANCELLED,
    Ended,
    Peer,
    Refused,
)
from executor.language.positions import Encoding
from executor.language.uris import path_of, uri_of
from executor.sandbox.completion import to_completion
from executor.served import Program, Serve, Served, last_words
from executor.text import one_line, visible

if TYPE_CHECKING:
    from executor.egress.secrets import Secrets

SHUTDOWN_TIMEOUT = 1.0
"""Seconds that a server may take to make ready for its end."""
GRACE = 0.5
"""Seconds between TERM and KILL then."""
MOST_REPORTED = 1000
"""Problems of one document that are kept: the gravest."""
MAX_TOKEN = 200
"""Characters of the name of a work."""
MAX_WORKS = 64
"""Works under way that are remembered of one server; registrations at a time, too."""
STUCK = 4.0
"""Seconds after which nobody waits for a work of which nothing more is said."""
MOST_REPEATS = 5
REPEAT_AFTER = 0.1
"""Seconds after which is asked again what a change was in the way of; each time as many more."""
BETWEEN_TOLD = 0.25
"""Seconds between two reports of its work that are passed on."""
MUTE = 2.0
"""Seconds in which a server has said nothing and owes an answer, until it is looked whether its
process has ended: what it has started may hold its output open."""
PROBLEMS = "textDocument/diagnostic"
"""The request for what is wrong with a document."""
QUIET = 0.25
"""Seconds without a work under way after which a server is taken to be ready."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """What a server has said by itself of a document.

    Attributes:
        version: of the document that it is about; None = it doesn't say.
        targets: the diagnostics, `MOST_REPORTED` at most.
        at: when, by the monotonic clock.
        number: counted up from the first one of the document.
    """

    version: int | None
    targets: tuple[Target, ...]
    at: float
    number: int


@dataclass(slots=True)
class _Work:
    """What a server says that it is busy with.

    Attributes:
        words: of it.
        at: when it last said something of it, by the monotonic clock.
    """

    words: str
    at: float


class LanguageServer:
    """A server that has been started. Made by `started`.

    Args:
        program: as its command names it.
        served: it, running.
        entry: its language, as the catalog has it.
        secrets: that are masked in all that it says; None = there are none.

    Attributes:
        name: of its program.
        encoding: in which it counts characters.
        watched: paths of the open documents; reports of others are not kept.
        told: how often it has reported, of any of them.
        tells_versions: its reports say of which version of a document they are.
        is_ready: it knows all files, as far as it says so.
    """

    def __init__(
        self, program: str, served: Served, entry: LanguageEntry, secrets: Secrets | None = None
    ) -> None:
        self.name = visible(program.rpartition("/")[2])
        self.encoding: Encoding = "utf-16"
        self.watched: set[str] = set()
        self._entry = entry
        self._ready_once_logged = entry.ready_once_logged.get(program, ())
        self._over_once_logged = entry.over_once_logged.get(program, ())
        self.is_ready = not self._ready_once_logged
        self._waits_for_ready = True
        self._served = served
        self._capabilities: Mapping[str, Any] = {}
        self._works: dict[str | int, _Work] = {}
        self._last_work = time.monotonic()
        self._reports: dict[str, Report] = {}
        self._heard_out: dict[str, tuple[int, bool]] = {}
        self._registered: set[str] = set()
        self.told = 0
        self.tells_versions = False
        self._is_carried_on = False
        self._changed = asyncio.Event()
        # What it says is cut in many places, so that it has to be masked before.
        self._mask = secrets.mask if secrets else bytes
        self._peer = Peer(served.stream, self._answer, self._hear, self._mask)

    @property
    def is_over(self) -> bool:
        """It answers no more."""
        return self._peer.over.is_set()

    @property
    def has_reported(self) -> bool:
        """It has said something of a document by itself."""
        return self.told > 0

    @property
    def heard_at(self) -> float:
        """When it last said anything, by the monotonic clock."""
        return self._peer.heard_at

    @property
    def waiting_since(self) -> float | None:
        """Since when it answers nothing, though it was asked; None = it does."""
        return self._peer.waiting_since

    @property
    def owing_since(self) -> float | None:
        """Since when it owes an answer, or room for what it is sent; None = it owes nothing."""
        return self._peer.owing_since

    # ─── begin ───

    async def initialize(self) -> None:
        """Agree on how to speak.

        Raises:
            Refused, Ended: it does not.
            SandboxError: its box is lost.
        """
        asked = _initialization(self._entry)
        answer = await self._peer.request("initialize", asked)
        found = answer.get("capabilities") if isinstance(answer, Mapping) else None
        self._capabilities = found if isinstance(found, Mapping) else {}
        encoding = self._capabilities.get("positionEncoding")
        self.encoding = next((one for one in get_args(Encoding) if one == encoding), "utf-16")
        self.notify("initialized", {})
        if self._entry.settings:
            self.notify("workspace/didChangeConfiguration", {"settings": self._entry.settings})
        state = await self._served.state()
        self._is_carried_on = not state.is_running  # by what it has started: it is a wrapper

    def can(self, name: str) -> bool:
        """It says that it has this capability, a provider of something for example."""
        return self._capabilities.get(name) not in (None, False)

    @property
    def answers_problems(self) -> bool:
        """It answers what is wrong with a document. Some say so only once they are at work."""
        return self.can("diagnosticProvider") or bool(self._registered)

    @property
    def wants_saves(self) -> bool:
        """It is to be told that a document was saved."""
        kind = self._capabilities.get("textDocumentSync")
        return isinstance(kind, Mapping) and kind.get("save") not in (None, False)

    # ─── asking ───

    async def ask(self, method: str, params: Any) -> Any:
        """Its answer; asked for again where a change came in between.

        Raises:
            Refused: it does not answer this.
            Ended: it answers no more.
        """
        for count in range(1, MOST_REPEATS + 1):
            try:
                return await self._asked(method, params)
            except Refused as error:
                if error.code not in (CONTENT_MODIFIED, SERVER_CANCELLED):
                    raise
            await asyncio.sleep(REPEAT_AFTER * count)
        return await self._asked(method, params)

    async def _asked(self, method: str, params: Any) -> Any:
        worked_at = self._last_work
        watching = asyncio.create_task(self._watch())
        try:
            answer = await self._peer.request(method, params)
        finally:
            watching.cancel()
        if not self._works:  # what it did for this answer holds up no other
            self._last_work = worked_at
        return answer

    async def _watch(self) -> None:
        while not self.is_over:
            await asyncio.sleep(MUTE)
            await self.has_died()

    async def has_died(self) -> bool:
        """Whether its process has ended, and nothing was heard since: it is over then."""
        if self._is_carried_on or time.monotonic() - self.heard_at < MUTE:
            return False
        with contextlib.suppress(SandboxError):  # which is seen by its connection
            if not (await self._served.state()).is_running:
                self._peer.end()
                return True
        return False

    def notify(self, method: str, params: Any) -> None:
        """Tell it something."""
        self._peer.notify(method, params)

    async def room(self) -> None:
        """Wait until it has taken most of what it was sent, or ends."""
        await self._peer.room()

    def _answer(self, method: str, params: Any) -> Any:
        """What it asks for: its settings, and leave for what nobody minds."""
        match method:
            case "workspace/configuration":
                return _settings(self._entry.settings, params)
            case "workspace/workspaceFolders":
                return _folders()
            case "workspace/applyEdit":
                return {"applied": False, "failureReason": "files are only looked at"}
            case "window/showDocument":
                return {"success": False}
            case "client/registerCapability":
                if len(self._registered) < MAX_WORKS:
                    self._registered |= _registrations(params, "registrations")
                self._wake()
                return None
            case "client/unregisterCapability":  # the protocol spells it so
                self._registered -= _registrations(params, "unregisterations")
                return None
            case "window/workDoneProgress/create" | "window/showMessageRequest":
                return None
        if method.startswith("workspace/") and method.endswith("/refresh"):
            return None
        raise Refused(METHOD_NOT_FOUND, f"there is no {method[:100]}")

    # ─── what it tells ───

    def _hear(self, method: str, params: Any) -> None:
        if not isinstance(params, Mapping):
            return
        match method:
            case "$/progress":
                self._hear_progress(params)
            case "textDocument/publishDiagnostics":
                self._hear_report(params)
            case "window/logMessage" | "window/showMessage":
                message = params.get("message")
                if isinstance(message, str):
                    self._hear_log(message)

    def _hear_log(self, message: str) -> None:
        log.debug("%s: %s", self.name, one_line(message))
        if any(text in message for text in self._ready_once_logged):
            self.is_ready = True
            self._wake()
        if any(text in message for text in self._over_once_logged):
            self._peer.fault = f"it logged that it can work no more: {one_line(message)}"

    def _hear_progress(self, params: Mapping[str, Any]) -> None:
        token, value = params.get("token"), params.get("value")
        if not isinstance(token, str | int) or not isinstance(value, Mapping):
            return
        if isinstance(token, str) and len(token) > MAX_TOKEN:
            return
        self._last_work = time.monotonic()
        kind = value.get("kind")
        if kind == "end":
            self._works.pop(token, None)
        elif kind in ("begin", "report") and (token in self._works or len(self._works) < MAX_WORKS):
            self._works[token] = _Work(_words(value), self._last_work)
        self._wake()

    def _hear_report(self, params: Mapping[str, Any]) -> None:
        uri, version = params.get("uri"), params.get("version")
        path = path_of(uri) if isinstance(uri, str) else None  # servers spell URIs in many ways
        if path is None or path not in self.watched:
            return
        try:
            found = tuple(diagnostics(params.get("diagnostics"), uri_of(path))[:MOST_REPORTED])
        except BadAnswer as error:
            log.debug("%s: a report is left out: %s", self.name, error)
            return
        known = version if type(version) is int else None
        before = self._reports.get(path)
        number = 1 if before is None else before.number + 1
        self._reports[path] = Report(known, found, time.monotonic(), number)
        self.told += 1
        self.tells_versions = known is not None
        self._wake()

    def _wake(self) -> None:
        """Those who wait are told; who waits from now on waits for what comes then."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def report(self, path: str, version: int, since: float) -> Report | None:
        """What it last reported of an open document; None = nothing that is about this version.

        Args:
            path: of the document.
            version: of the document, or a later one.
            since: when that was sent, by the monotonic clock.
        """
        report = self._reports.get(path)
        if report is None or report.at < since:
            return None
        return report if report.version is None or report.version >= version else None

    async def hear_out(self, path: str, times: int, seconds: float) -> bool:
        """Ask something about an open document, to have heard what it says before it answers.

        The question is one for which `tsserver` does not put its looking at problems off.

        Args:
            path: of the document.
            times: one question after the other.
            seconds: for all of them.

        Returns:
            It has answered them.
        """
        if not self.can("documentSymbolProvider"):
            return False
        asked = {"textDocument": {"uri": uri_of(path)}}
        try:
            async with asyncio.timeout(seconds):
                for _ in range(times):
                    with contextlib.suppress(Refused):
                        await self.ask("textDocument/documentSymbol", asked)
        except (Ended, TimeoutError):
            return False
        return True

    def take(self, path: str, *, is_whole: bool) -> None:
        """The last report of a document is taken: as all that there is to say, or as a part."""
        self._heard_out[path] = self.reports(path), is_whole

    def taken(self, path: str) -> bool | None:
        """How the last report of a document was taken; None = it was not yet."""
        number, is_whole = self._heard_out.get(path, (0, False))
        return is_whole if number and number == self.reports(path) else None

    def reports(self, path: str) -> int:
        """How often it has reported of an open document."""
        report = self._reports.get(path)
        return 0 if report is None else report.number

    def forget(self, path: str) -> None:
        """A document is closed; what was reported of it is out of date."""
        self.watched.discard(path)
        self._reports.pop(path, None)
        self._heard_out.pop(path, None)

    @property
    def work(self) -> str | None:
        """What it is busy with, in its own words; None = it says nothing of that.

        What it has said nothing more of for some time is a state, which may stay for ever.
        """
        since = time.monotonic() - STUCK
        return next((work.words for work in self._works.values() if work.at >= since), None)

    @property
    def state(self) -> str | None:
        """The same, and what has been so for long."""
        return next((work.words for work in self._works.values()), None)

    async def news(self, seconds: float) -> None:
        """Wait until it tells something of its work or of a document, or ends; at most so long."""
        waits = [asyncio.ensure_future(one.wait()) for one in (self._changed, self._peer.over)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def settled(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Wait until it is ready and busy with nothing, as far as it says, or ends.

        That it gets ready is waited for once.

        Args:
            seconds: to wait at most.
            tell: is told what it is busy with.
        """
        last = time.monotonic() + seconds
        told_at = 0.0
        while not self.is_over:
            now = time.monotonic()
            work = self.work
            quiet = self._last_work + QUIET - now
            waits_for_ready = self._waits_for_ready and not self.is_ready
            if (work is None and quiet <= 0 and not waits_for_ready) or now >= last:
                self._waits_for_ready = False
                return
            if work is not None and now - told_at >= BETWEEN_TOLD:
                told_at = now
                tell(f"{self.name}: {work}")
            pause = quiet if work is None and quiet > 0 else BETWEEN_TOLD
            await self.news(min(last - now, pause))

    # ─── end ───

    async def end(self) -> str:
        """End it and all that it started, to its end even if the caller is cancelled meanwhile.

        Returns:
            How it ended and what it last said, in sentences.

        Raises:
            SandboxError: its box is lost, and it with the box.
        """
        return await to_completion(self._end())

    async def _end(self) -> str:
        was_over = self.is_over
        if not was_over:
            with contextlib.suppress(Refused, Ended, TimeoutError):
                async with asyncio.timeout(SHUTDOWN_TIMEOUT):
                    await self._peer.request("shutdown", None)
                self.notify("exit", None)
        try:
            state = await self._served.end(GRACE)
        finally:
            await self._peer.close()
        state = replace(state, stderr=self._mask(state.stderr))
        return last_words(state, is_over=was_over, fault=self._peer.fault)


async def started(
    serve: Serve, entry: LanguageEntry, words: Sequence[str], secrets: Secrets | None = None
) -> LanguageServer:
    """Start a server in a box.

    Args:
        serve: starts it.
        entry: its language, as the catalog has it.
        words: of its command.
        secrets: that are masked in all that it says; None = there are none.

    Raises:
        ToolError: EXECUTION_ERROR, it did not start, or not in time; what `Serve` raises.
        SandboxError: there is no box to start it in.
    """
    served = await serve(Program(tuple(words), entry.environment))
    server = LanguageServer(words[0], served, entry, secrets)
    seconds = entry.start_timeout_ms / 1000
    try:
        async with asyncio.timeout(seconds):
            await server.initialize()
    except (TimeoutError, Refused, Ended) as error:
        cause = "it ended."
        if isinstance(error, TimeoutError):
            cause = f"it did not answer in {seconds:g} seconds."
        elif isinstance(error, Refused):
            cause = f"it refused: {error.message}."
        said = await server.end()
        text = f"The language server {server.name} could not be started: {cause}{said}"
        raise ToolError(Code.EXECUTION_ERROR, text) from error
    except BaseException:
        with contextlib.suppress(SandboxError):
            await server.end()
        raise
    return server


def _words(value: Mapping[str, Any]) -> str:
    """What a report of progress says."""
    said = (value.get("title"), value.get("message"))
    words = [word for word in said if isinstance(word, str)]
    part = value.get("percentage")
    if isinstance(part, int) and 0 <= part <= 100:
        words.append(f"{part}%")
    return one_line(" ".join(words), 200)


def _registrations(params: Any, key: str) -> set[str]:
    """The ids of the registrations that let it be asked for problems."""
    items = params.get(key) if isinstance(params, Mapping) else None
    found = items[:MAX_WORKS] if isinstance(items, list) else []
    ids = [
        item.get("id")
        for item in found
        if isinstance(item, Mapping) and item.get("method") == PROBLEMS
    ]
    return {one for one in ids if isinstance(one, str) and len(one) <= MAX_TOKEN}


# ─── what it is told ────────────────────────────────────────────────────────────────


def _folders() -> list[dict[str, str]]:
    return [{"uri": uri_of(""), "name": "workspace"}]


def _settings(settings: Mapping[str, Any], params: Any) -> list[Any]:
    """What it is configured with, section by section as it asks."""
    items = params.get("items") if isinstance(params, Mapping) else None
    return [_section(settings, one) for one in (items if isinstance(items, list) else [])[:100]]


def _section(settings: Mapping[str, Any], item: Any) -> Any:
    section = item.get("section") if isinstance(item, Mapping) else None
    if not isinstance(section, str) or not section:
        return settings
    if section in settings:
        return settings[section]
    found: Any = settings
    for name in section.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _initialization(entry: LanguageEntry) -> dict[str, Any]:
    version = metadata.version("executor")
    root = uri_of("")
    return {
        "processId": None,
        "clientInfo": {"name": "executor", "version": version},
        "rootPath": root.removeprefix("file://"),
        "rootUri": root,
        "workspaceFolders": _folders(),
        "initializationOptions": entry.options or None,
        "capabilities": _CAPABILITIES,
    }


_KINDS = list(range(1, 27))
"""Kinds of symbols that the protocol has."""
_CAPABILITIES: Mapping[str, Any] = {
    # Where both know it characters are counted as people do, and nothing is converted.
    "general": {"positionEncodings": ["utf-32", "utf-16", "utf-8"]},
    "window": {"workDoneProgress": True},
    "workspace": {
        "configuration": True,
        "workspaceFolders": True,
        "applyEdit": False,
        "didChangeConfiguration": {"dynamicRegistration": False},
        "didChangeWatchedFiles": {"dynamicRegistration": True},
        "workspaceEdit": {
            "documentChanges": True,
            "resourceOperations": ["create", "rename", "delete"],
        },
    },
    "textDocument": {
        "synchronization": {"didSave": True},
        "definition": {"linkSupport": True},
        "references": {},
        "hover": {"contentFormat": ["markdown", "plaintext"]},
        "documentSymbol": {
            "hierarchicalDocumentSymbolSupport": True,
            "symbolKind": {"valueSet": _KINDS},
        },
        "publishDiagnostics": {"versionSupport": True},
        # pyright is asked by those alone who let it say later that it can be.
        "diagnostic": {"dynamicRegistration": True},
        "rename": {"prepareSupport": False},
    },
}
