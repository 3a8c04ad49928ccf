"""A language server that knows open documents alone, and does one thing more that it should not.

It is asked for the places of a word in all open documents. What that one thing is its first
argument says. Runs in boxes: the standard library only. In its directory, the worktree, it notes
each start in `.starts` and each method that it hears in `.heard`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from typing import Any

KIND = sys.argv[1]
TEXTS: dict[str, str] = {}
LOCK = threading.Lock()
PROVIDERS = ("definition", "hover", "references", "documentSymbol", "rename")


def note(name: str, line: str) -> None:
    with open(name, "a") as file:
        file.write(f"{line}\n")


def raw(body: bytes) -> None:
    with LOCK:
        sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        sys.stdout.buffer.flush()


def send(message: dict[str, Any]) -> None:
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode())


def tell(method: str, params: Any) -> None:
    send({"method": method, "params": params})


def received() -> Any:
    size = 0
    while line := sys.stdin.buffer.readline():
        name, _, value = line.strip().partition(b":")
        if name.lower() == b"content-length":
            size = int(value)
        elif not name:
            return json.loads(sys.stdin.buffer.read(size))
    return None


def places(word: str) -> list[dict[str, Any]]:
    """Where a word stands in open documents."""
    return [
        {
            "uri": uri,
            "range": {
                "start": {"line": number, "character": found.start()},
                "end": {"line": number, "character": found.end()},
            },
        }
        for uri, text in sorted(known().items())
        for number, line in enumerate(text.split("\n"))
        for found in re.finditer(r"\w+", line)
        if found[0] == word
    ]


def known() -> dict[str, str]:
    """Open documents, and where it reads the disk other files, a character for each byte."""
    if KIND != "reads_disk":
        return TEXTS
    found = {}
    for name in os.listdir():
        if name.endswith(".x"):
            with open(name, encoding="latin-1", newline="") as file:
                found[f"file:///workspace/{name}"] = file.read()
    return found | TEXTS


def renaming(word: str, new: str) -> Any:
    """Edits of all places."""
    changes: dict[str, Any] = {}
    for place in places(word):
        edit = {"range": place["range"], "newText": new}
        changes.setdefault(place["uri"], []).append(edit)
    return {"changes": changes}


def word_at(uri: str, line: int, character: int) -> str:
    found = re.finditer(r"\w+", TEXTS[uri].split("\n")[line])
    return next((one[0] for one in found if one.start() <= character <= one.end()), "")


def hover(text: str) -> Any:
    """Says much, as the document wants it."""
    word, count = text.split()[:2]
    return {"contents": word * int(count)}


def many(asked: Any, text: str) -> None:
    """An answer of so many parts, each of so much JSON."""
    part, count = text.split()[:2]
    result = b"[" + b",".join([part.encode()] * int(count)) + b"]"
    raw(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (asked["id"], result))


def on_disk() -> str:
    """The second word of the file as it is on the disk."""
    with open("a.x") as file:
        return file.read().split()[1]


def answer(asked: Any) -> None:
    params = asked["params"]
    uri = params["textDocument"]["uri"]
    if KIND == "long_ids":
        return send({"id": "\u00e9" * 1000, "method": "workspace/configuration"})
    if KIND == "many":
        return many(asked, TEXTS[uri])
    if KIND == "flags":
        name = "x" * 190 + on_disk()
        print(name, file=sys.stderr)
        symbol = {"name": name, "kind": 1, **places("flag")[0]}
        return send({"id": asked["id"], "result": [{**symbol, "selectionRange": symbol["range"]}]})
    if asked["method"] == "textDocument/hover":
        return send({"id": asked["id"], "result": hover(TEXTS[uri])})
    word = word_at(uri, **params["position"])
    if asked["method"] == "textDocument/rename":
        return send({"id": asked["id"], "result": renaming(word, params["newName"])})
    send({"id": asked["id"], "result": places(word)})


def long_tokens() -> None:
    for number in range(50):
        work = {"kind": "begin", "title": "works"}
        tell("$/progress", {"token": f"{number}" + "x" * (1 << 20), "value": work})


BESIDE = {"long_tokens": long_tokens}


def begin(asked: Any) -> None:
    if KIND == "says_nothing":
        return
    able: dict[str, Any] = {f"{name}Provider": True for name in PROVIDERS}
    able |= {"positionEncoding": "utf-32", "textDocumentSync": {"openClose": True, "change": 1}}
    send({"id": asked["id"], "result": {"capabilities": able}})
    if KIND in BESIDE:
        threading.Thread(target=BESIDE[KIND], daemon=True).start()


def report(uri: str, version: Any) -> None:
    problems: list[Any] = []
    if KIND == "flags":
        problems = [
            {**place, "severity": 1, "message": "x" * 990 + on_disk()}
            for place in places("flag")
            if place["uri"] == uri
        ]
    params = {"uri": uri, "version": version, "diagnostics": problems}
    tell("textDocument/publishDiagnostics", params)


def hear(message: Any) -> None:
    method, params = message.get("method"), message.get("params")
    note(".heard", str(method))
    if method == "initialize":
        begin(message)
    elif method in ("textDocument/didOpen", "textDocument/didChange"):
        document = params["textDocument"]
        text = document["text"] if "text" in document else params["contentChanges"][0]["text"]
        TEXTS[document["uri"]] = text
        report(document["uri"], document["version"])
    elif method == "textDocument/didClose":
        del TEXTS[params["textDocument"]["uri"]]
    elif method == "shutdown":
        send({"id": message["id"], "result": None})
    elif method == "exit":
        sys.exit(0)
    elif "id" in message and method is not None:
        answer(message)


note(".starts", KIND)
while (message := received()) is not None:
    hear(message)
