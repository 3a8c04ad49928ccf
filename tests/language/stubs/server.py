"""A language server that behaves as its first argument says; the standard library only.

What it hears is in the file /tmp/heard, one method a line; /tmp/starts has one line a start.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

KIND = sys.argv[1]
READ, WRITE = sys.stdin.buffer, sys.stdout.buffer
HERE = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 1}}
CAPABILITIES: dict[str, Any] = {
    "textDocumentSync": 1,
    "definitionProvider": True,
    "hoverProvider": True,
    "referencesProvider": True,
    "documentSymbolProvider": True,
    "renameProvider": True,
}
Message = dict[str, Any]

texts: dict[str, str] = {}
answers: dict[object, Any] = {}
held: list[Message] = []
ready = threading.Event()


def note(name: str, line: object) -> None:
    with open(f"/tmp/{name}", "a") as file:
        file.write(f"{line}\n")


def starts() -> int:
    with open("/tmp/starts") as file:
        return len(file.readlines())


def raw(data: bytes) -> None:
    WRITE.write(data)
    WRITE.flush()


def send(**message: Any) -> None:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    raw(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))


def receive() -> Message:
    """The next message; an answer is kept."""
    size = 0
    while line := READ.readline().strip():
        if line.lower().startswith(b"content-length:"):
            size = int(line[15:])
    if not size:
        sys.exit(0)
    message: Message = json.loads(READ.read(size))
    if "method" in message:
        note("heard", message["method"])
    else:
        answers[message["id"]] = message.get("result", message.get("error"))
    return message


def answer(asked: Message, result: Any) -> None:
    send(id=asked["id"], result=result)


def place(asked: Message, line: int = 0) -> dict[str, Any]:
    there = {"line": line, "character": 0}
    return {"uri": asked["params"]["textDocument"]["uri"], "range": {"start": there, "end": there}}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def wait_for_ever() -> NoReturn:
    while True:
        time.sleep(1000)


# ─── what it does when it is asked where something is defined ───


def crash(asked: Message) -> None:
    say("I am broken")
    os._exit(7)


def dies_behind_a_helper(asked: Message) -> None:
    """What it has started holds its output open. Twice; then it answers."""
    if starts() % 3:
        subprocess.Popen(["sleep", "1000"])
        crash(asked)
    answer(asked, place(asked))


def crash_once(asked: Message) -> None:
    if starts() == 1:
        crash(asked)
    answer(asked, place(asked))


def goes_on_without_its_worker(asked: Message) -> None:
    """Twice, and then it has one."""
    if not starts() % 3:
        answer(asked, place(asked))
        return
    send(method="window/logMessage", params={"type": 1, "message": f"[worker] gone: {starts()}"})
    answer(asked, None)


def ready_later(asked: Message) -> None:
    """It knows nothing before it has logged that it is ready."""
    answer(asked, place(asked) if ready.is_set() else None)


def get_ready() -> None:
    ready.set()
    send(method="window/logMessage", params={"type": 3, "message": "Found 1 file"})


def hang_once(asked: Message) -> None:
    if starts() == 1:
        say("I think")
        wait_for_ever()
    answer(asked, place(asked))


def hang_in_the_first_box(asked: Message) -> None:
    """Of another box only the worktree is the same."""
    if os.path.exists("asked"):
        answer(asked, place(asked))
    with open("asked", "w"):
        pass


def hang(asked: Message) -> None:
    """It hears, and does not answer."""


def garbage(asked: Message) -> None:
    raw(b"print() of a debugger\n" * 1000)
    wait_for_ever()


def endless_header(asked: Message) -> None:
    raw(b"X-Header: ")
    with contextlib.suppress(BrokenPipeError):
        while True:
            raw(b"x" * 65536)


def too_long(asked: Message) -> None:
    raw(b"Content-Length: 9999999999\r\n\r\n{}")
    wait_for_ever()


def negative(asked: Message) -> None:
    raw(b"Content-Length: -5\r\n\r\n{}")
    wait_for_ever()


def no_json(asked: Message) -> None:
    raw(b"Content-Length: 5\r\n\r\n{{{{{")
    wait_for_ever()


def no_unicode(asked: Message) -> None:
    raw(b'Content-Length: 4\r\n\r\n"\xff\xfe"')
    wait_for_ever()


def deep(asked: Message) -> None:
    body = b"[" * 200_000 + b"]" * 200_000
    raw(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    wait_for_ever()


def half(asked: Message) -> None:
    raw(b"Content-Length: 500\r\n\r\n{")
    os._exit(0)


def other_messages(asked: Message) -> None:
    """Answers to nobody, and what is no message, before the right one."""
    number = asked["id"]
    odds: list[Any] = [number + 1000, str(number), None, True, [], {}, -1, number + 0.5, 10**30]
    for odd in odds:
        send(id=odd, result=place(asked, 5))
    for body in (
        b"5",
        b"[]",
        b'"x"',
        b"null",
        b"{}",
        b'{"method": 5}',
        b'{"method": null, "id": 1}',
    ):
        raw(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    send(method="$/progress", params=5)
    send(method="$/progress", params={"token": [], "value": 7})
    send(method="textDocument/publishDiagnostics", params={"uri": [], "diagnostics": 1})
    answer(asked, place(asked))
    answer(asked, place(asked, 7))


def flood_of_news(asked: Message) -> None:
    """More than is read, and never an answer."""
    words = {"type": 3, "message": "x" * 100_000}
    with contextlib.suppress(BrokenPipeError):
        while True:
            send(method="window/logMessage", params=words)


def much_news(asked: Message) -> None:
    for number in range(5000):
        send(method="window/logMessage", params={"type": 3, "message": f"news {number} " * 5})
        send(
            method="$/progress", params={"token": number, "value": {"kind": "begin", "title": "w"}}
        )
        send(method="$/progress", params={"token": number, "value": {"kind": "end"}})
    answer(asked, place(asked))


def flood_of_requests(asked: Message) -> None:
    """Asks, and takes no answer."""
    with contextlib.suppress(BrokenPipeError):
        for number in range(10**9):
            send(id=f"q{number}", method="workspace/configuration", params={"items": [{}] * 100})
    wait_for_ever()


def wants_much(asked: Message) -> None:
    """Asks for what a client may do, one after the other, and tells the answers."""
    edit = {"changes": {place(asked)["uri"]: [{"range": HERE, "newText": "PWNED"}]}}
    wishes: list[tuple[str, Any]] = [
        ("workspace/applyEdit", {"edit": edit}),
        ("window/showDocument", {"uri": "https://example.org/?q=secret", "external": True}),
        ("workspace/configuration", {"items": [{"section": "stub.depth"}, {}, 5, {"section": 7}]}),
        ("workspace/configuration", None),
        ("workspace/workspaceFolders", None),
        ("client/registerCapability", {"registrations": [{"id": "1", "method": "x"}]}),
        ("window/showMessageRequest", {"type": 1, "message": "Yes?", "actions": [{"title": "Y"}]}),
        ("workspace/semanticTokens/refresh", None),
        ("no/such" * 1000, None),
    ]
    for number, (method, params) in enumerate(wishes):
        send(id=number, method=method, params=params)
    while len(answers) < len(wishes):
        held.append(receive())
    answer(asked, {"contents": json.dumps([answers[number] for number in range(len(wishes))])})


def in_reverse(asked: Message) -> None:
    """Answers two at a time, the later one first."""
    held.append(asked)
    if len(held) == 2:
        while held:
            last = held.pop()
            answer(last, place(last))


def memory(asked: Message) -> None:
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20) * 16))


def deaf(asked: Message) -> None:
    """Reads no more, but runs on."""
    wait_for_ever()


def modified(asked: Message) -> None:
    """A change came in between, it says, twice."""
    held.append(asked)
    if len(held) > 2:
        answer(asked, place(asked))
    else:
        send(id=asked["id"], error={"code": -32801, "message": "content modified"})


def modified_for_ever(asked: Message) -> None:
    send(id=asked["id"], error={"code": -32801, "message": "content modified"})


def echo(asked: Message) -> None:
    """Answers what the file says, which is JSON."""
    said = json.loads(texts[asked["params"]["textDocument"]["uri"]])
    send(id=asked["id"], **said)


def long_hover(asked: Message) -> None:
    size = int(texts[asked["params"]["textDocument"]["uri"]])
    answer(asked, {"contents": "word " * (size // 5)})


def many(asked: Message) -> None:
    number = int(texts[asked["params"]["textDocument"]["uri"]])
    answer(asked, [place(asked, line) for line in range(number)])


def good(asked: Message) -> None:
    answer(asked, place(asked))


KINDS: dict[str, Callable[[Message], None]] = {
    name: made for name, made in globals().items() if callable(made) and not isinstance(made, type)
}


# ─── what it does otherwise ───


def begin(asked: Message) -> None:
    """Answers `initialize`."""
    if KIND == "silent":
        say("I\x1b[2J wait for a licence")
        wait_for_ever()
    if KIND == "refuses":
        send(id=asked["id"], error={"code": -32603, "message": "no licence\x1b[2J"})
        return
    if KIND == "garbage_first":
        raw(b"Welcome to my server!\n" * 500)
        wait_for_ever()
    if KIND == "odd":
        answer(asked, {"capabilities": {"positionEncoding": ["utf-8"], "hoverProvider": {}}})
        return
    if KIND == "nothing":
        answer(asked, None)
        return
    answer(asked, {"capabilities": {**CAPABILITIES, "positionEncoding": "utf-8"}})


def opened(uri: str, text: str, version: int) -> None:
    texts[uri] = text
    if KIND == "mute":
        return
    report = {"uri": uri, "version": version, "diagnostics": []}
    send(method="textDocument/publishDiagnostics", params=report)


def hear(message: Message) -> None:
    method = message.get("method")
    params: Any = message.get("params")
    if method == "initialize":
        begin(message)
    elif method == "initialized" and KIND == "busy":
        work = {"kind": "begin", "title": "Indexing", "message": "the universe", "percentage": 1}
        send(method="$/progress", params={"token": "t", "value": work})
    elif method == "initialized" and KIND == "ready_later":
        threading.Timer(1.0, get_ready).start()
    elif method == "textDocument/didOpen":
        document = params["textDocument"]
        opened(document["uri"], document["text"], document["version"])
    elif method == "textDocument/didChange":
        document = params["textDocument"]
        opened(document["uri"], params["contentChanges"][0]["text"], document["version"])
    elif method == "shutdown":
        if KIND == "stays":
            wait_for_ever()
        answer(message, None)
    elif method == "exit":
        sys.exit(0)
    elif "id" in message and method is not None:
        KINDS.get(KIND, good)(message)


def main() -> None:
    note("starts", os.getpid())
    if KIND == "dies":
        say("No module named 'server'")
        sys.exit(3)
    if KIND == "talks":
        for number in range(100_000):
            say(f"log line {number}")
    while True:
        hear(held.pop(0) if KIND == "wants_much" and held else receive())


main()
