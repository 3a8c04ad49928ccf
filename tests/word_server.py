"""A language server of words: a word's definition is the first place where a text has it.

It runs in boxes, so it imports nothing of ours. A word is looked for in the one document that is
asked about, the word "wrong" is a problem, and characters are counted (utf-32).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

DOCUMENTS: dict[str, str] = {}


def send(message: dict[str, Any]) -> None:
    data = json.dumps({"jsonrpc": "2.0", **message}).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
    sys.stdout.buffer.flush()


def received() -> Any:
    """The next message; None = there is none any more."""
    size = 0
    while line := sys.stdin.buffer.readline():
        name, _, value = line.strip().partition(b":")
        if name.lower() == b"content-length":
            size = int(value)
        elif not name:
            return json.loads(sys.stdin.buffer.read(size))
    return None


def words(uri: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each word of a document, with its range."""
    for number, line in enumerate(DOCUMENTS[uri].split("\n")):
        for found in re.finditer(r"\w+", line):
            start, end = found.span()
            yield (
                found[0],
                {
                    "start": {"line": number, "character": start},
                    "end": {"line": number, "character": end},
                },
            )


def word_at(uri: str, line: int, character: int) -> str | None:
    for word, place in words(uri):
        start, end = place["start"], place["end"]
        if start["line"] == line and start["character"] <= character <= end["character"]:
            return word
    return None


def initialized() -> Any:
    names = ("definition", "hover", "references", "documentSymbol", "rename")
    return {
        "capabilities": {
            **{f"{name}Provider": True for name in names},
            "positionEncoding": "utf-32",
            "textDocumentSync": {"openClose": True, "change": 1},
        }
    }


def answer(method: str, params: Any) -> Any:
    if method in ("initialize", "shutdown"):
        return initialized() if method == "initialize" else None
    uri = params["textDocument"]["uri"]
    if method == "textDocument/documentSymbol":
        return [
            {"name": word, "kind": 13, "range": place, "selectionRange": place}
            for word, place in words(uri)
        ]
    word = word_at(uri, **params["position"])
    places = [place for other, place in words(uri) if other == word]
    if method == "textDocument/hover":
        return {"contents": f"the word {word}"} if word else None
    if method == "textDocument/rename":
        return {"changes": {uri: [{"range": one, "newText": params["newName"]} for one in places]}}
    found = [{"uri": uri, "range": place} for place in places]
    return found[:1] if method == "textDocument/definition" else found


def report(uri: str, text: str) -> None:
    DOCUMENTS[uri] = text
    problems = [
        {"range": place, "severity": 1, "message": "this word is wrong"}
        for word, place in words(uri)
        if word == "wrong"
    ]
    params = {"uri": uri, "diagnostics": problems}
    send({"method": "textDocument/publishDiagnostics", "params": params})


while (message := received()) is not None and message.get("method") != "exit":
    told = message.get("params") or {}
    if message["method"] == "textDocument/didOpen":
        report(told["textDocument"]["uri"], told["textDocument"]["text"])
    elif message["method"] == "textDocument/didChange":
        report(told["textDocument"]["uri"], told["contentChanges"][-1]["text"])
    elif "id" in message:
        send({"id": message["id"], "result": answer(message["method"], told)})
