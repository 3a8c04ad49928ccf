"""An MCP server over streamable HTTP, in a thread of the tests; the standard library only."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHANGED = b'data: {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}\n\n'


@dataclass
class Far:
    """A running server.

    Attributes:
        port: of the loopback.
        headers: of the requests that came.
        is_large: its answers to calls are larger than any may be.
        moves: it redirects each request to there.
        is_packed: its answers to calls are compressed.
        is_endless: its answers to calls are an event that does not end.
        sent: bytes of such events.
        cut: its answers to calls are of this type and break off.
        held: set once a call came that waits: whose arguments say so.
        refusal: a call is refused with this code of an error and the status 400; None = it is not.
        go: set = calls that wait are answered, and well.
        session: that it begins, and the only one that it knows; None = it has none.
        lost: its answer in another session: the status, and a body that is JSON or empty.
        status: of its answers to requests, which are no messages; None = as it should be.
        events: that its answers to calls are, and the rest of them, before they break off.
        asked_on: times that it was asked for the rest of an answer.
        most_asked_on: times until it gives the answer itself; None = it never does.
        is_silent: its answers to calls are comments without end.
        open: threads of such answers that somebody reads, and of calls that wait.
        pushes: what it says again and again on its own stream, taking no answers; None = it has
            no such stream.
        change: its own stream is quiet until this is set, and says then that there is one more
            tool; None = it has no such stream.
    """

    port: int = 0
    headers: list[dict[str, str]] = field(default_factory=list)
    is_large: bool = False
    moves: str | None = None
    is_packed: bool = False
    is_endless: bool = False
    sent: int = 0
    cut: str | None = None
    held: threading.Event = field(default_factory=threading.Event)
    refusal: int | None = None
    go: threading.Event = field(default_factory=threading.Event)
    session: str | None = None
    lost: tuple[int, str] = (404, "")
    status: int | None = None
    events: bytes | None = None
    asked_on: int = 0
    most_asked_on: int | None = None
    is_silent: bool = False
    open: set[int] = field(default_factory=set)
    pushes: bytes | None = None
    change: threading.Event | None = None


@contextmanager
def far() -> Iterator[Far]:
    """A server for as long as this lasts."""
    known = Far()
    answers: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            """The rest of an answer, or what it says by itself."""
            if self.headers["last-event-id"] is not None and known.events is not None:
                known.asked_on += 1
                is_last = known.asked_on == known.most_asked_on
                self._stream(b"data: %b\n\n" % answers[-1] if is_last else known.events, 1)
            elif known.change is not None:
                self._stream(CHANGED, 1, after=known.change)
            elif known.pushes is not None:
                self._stream(known.pushes)
            else:
                self._answer(405, b"")

        def do_DELETE(self) -> None:
            """The end of a session."""
            self._answer(200, b"")

        def do_POST(self) -> None:
            """One message."""
            known.headers.append({key.lower(): value for key, value in self.headers.items()})
            body = self.rfile.read(int(self.headers["content-length"]))
            if known.moves is not None:
                self._answer(307, b"", location=known.moves)
                return
            message = json.loads(body)
            if "id" not in message or "method" not in message:
                if "method" not in message and known.pushes is not None:
                    known.go.wait(60)
                self._answer(202, b"")
                return
            if known.status is not None:
                self._answer(known.status, b"go away", "text/plain")
                return
            given = self.headers["mcp-session-id"]
            if message["method"] != "initialize" and given != known.session:
                status, text = known.lost
                self._answer(status, text.encode(), "application/json" if text else "text/plain")
                return
            result = _result(message, known)
            said = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
            if message["method"] == "tools/call":
                self._answer_call(said, message["params"]["arguments"])
            else:
                session = {"mcp-session-id": known.session} if known.session else {}
                self._answer(200, said, **session)

        def _answer_call(self, said: bytes, given: dict[str, Any]) -> None:
            if given.get("waits"):
                known.open.add(threading.get_ident())
                known.held.set()
                known.go.wait(60)
                known.open.discard(threading.get_ident())
                self._answer(200, said)
            elif known.refusal is not None:
                self._answer(400, _refused(said, known.refusal))
            elif known.is_endless:
                self._stream(b"data: " + b"x" * (1 << 16) + b"\n", 1200)
            elif known.events is not None:
                answers.append(said)
                self._stream(known.events, 1)
            elif known.is_silent:
                known.open.add(threading.get_ident())
                self._stream(b": still there\n\n", pause=0.05)
                known.open.discard(threading.get_ident())
            elif known.is_packed:
                self._answer(200, gzip.compress(said), **{"content-encoding": "gzip"})
            elif known.cut is not None:
                self.close_connection = True
                self._answer(200, b"data: ", known.cut, **{"content-length": "1000"})
            else:
                self._answer(200, said)

        def _stream(
            self,
            data: bytes,
            most: int = 1 << 30,
            pause: float = 0.0,
            after: threading.Event | None = None,
        ) -> None:
            """The same again and again, until nobody listens or there was enough."""
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True
            if after is not None:
                after.wait(60)
            try:
                for _ in range(most):
                    self.wfile.write(data)
                    known.sent += len(data)
                    time.sleep(pause)
            except OSError:
                return

        def _answer(
            self, status: int, body: bytes, kind: str = "application/json", **headers: str
        ) -> None:
            self.send_response(status)
            usual = {"content-type": kind, "content-length": str(len(body))}
            for name, value in {**usual, **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _refused(said: bytes, code: int) -> bytes:
    """A refusal in place of an answer."""
    error = {"code": code, "message": "no such row"}
    return json.dumps({"jsonrpc": "2.0", "id": json.loads(said)["id"], "error": error}).encode()


def _result(message: dict[str, Any], known: Far) -> dict[str, Any]:
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "far", "version": "1"},
            }
        case "tools/list":
            has_more = known.change is not None and known.change.is_set()
            tools = ("say", "more") if has_more else ("say",)
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}
        case _:
            said = known.headers[-1].get("authorization", "")
            text = "x" * (34 << 20) if known.is_large else f"you sent {said}"
            return {"content": [{"type": "text", "text": text}]}
