"""An MCP server that does as it is told, well or badly; the standard library only.

Its first argument is how it behaves: `good`, `junk`, `silent`, `dies`, `huge`, `odd`, `asks`,
`holds`: asked for its tools the second time, it answers only after `release`, as they were then;
`early`: asked for its tools the first time, it says that they changed before it answers;
`reborn`: it has other tools once it has been started in its directory before.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import time
from typing import Any

KIND = sys.argv[1] if len(sys.argv) > 1 else "good"
CANCELLED: set[Any] = set()
LOCK = threading.Lock()
EXTRA: list[str] = []
HELD: list[dict[str, Any]] = []
LISTED: list[Any] = []
BORN = "born.txt"
PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAA"
    "DUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def send(message: dict[str, Any]) -> None:
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def tool(name: str, schema: Any = None, read_only: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "description": f"does {name}"}
    made["inputSchema"] = {"type": "object"} if schema is None else schema
    if read_only:
        made["annotations"] = {"readOnlyHint": True}
    return made


def tools() -> list[Any]:
    found: list[Any] = [
        tool(
            "echo",
            {
                "type": "object",
                "properties": {"text": {"type": ["string", "null"]}},
                "required": ["text"],
                "additionalProperties": False,
            },
            True,
        ),
        tool("fail"),
        tool("die"),
        tool("big"),
        tool("blocks"),
        tool("picture"),
        tool("large-picture"),
        tool("progress"),
        tool("endless"),
        tool("hang"),
        tool("write"),
        tool("add"),
        tool("cancelled", None, True),
        tool("mixed"),
        tool("pid", None, True),
        tool("wait"),
        tool("data"),
        tool("refuse"),
        tool("list"),
        tool("no-numbers"),
        {
            **tool("promised"),
            "outputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    ]
    if KIND == "odd":
        deep: Any = {}
        for _ in range(100):
            deep = {"properties": {"a": deep}}
        found += [
            tool("with space/slash"),
            tool("x" * 100),
            tool("y" * 300),
            tool("half\ud800"),
            tool(
                "strange",
                {
                    "properties": {
                        "$top": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
                        "five": 5,
                        "typed": {"type": "strin", "maximum": float("inf")},
                    },
                    "required": ["$top"],
                },
            ),
            tool("boolean", True),
            tool("no type", {}),
            tool("list", []),
            tool("deep", deep),
            tool("wide", {"description": "w" * 100_000}),
            tool("vast", {"description": "v" * 300_000}),
            tool(
                "slow",
                {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
            ),
            tool(
                "far",
                {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/schema.json"}}},
            ),
            tool(
                "round",
                {"type": "object", "properties": {"a": {"$ref": "#"}}, "allOf": [{"$ref": "#"}]},
            ),
            {
                "name": "said",
                "description": "before\x1b[2J\u202eafter" + "d" * 9000,
                "inputSchema": {"type": "object"},
            },
            {"name": 5},
            "text",
        ]
    if KIND == "reborn":
        found.append(tool("asks", {"type": "object", "required": ["new" if EXTRA else "old"]}))
    return found + [tool(name) for name in EXTRA]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def progress(params: dict[str, Any], count: int, pause: float) -> None:
    token = params.get("_meta", {}).get("progressToken")
    for number in range(count):
        said = {"progressToken": token, "progress": number, "message": f"step {number}"}
        send({"method": "notifications/progress", "params": said})
        send({"method": "notifications/progress", "params": {**said, "progressToken": "nobody's"}})
        time.sleep(pause)


def call(number: Any, params: dict[str, Any]) -> None:
    name, given = params["name"], params.get("arguments", {})
    result: dict[str, Any] = {"content": [text(name)]}
    if name == "echo":
        result = {"content": [text(json.dumps(given))], "structuredContent": given}
    elif name == "fail":
        result = {"content": [text("it went wrong")], "isError": True}
    elif name == "die":
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os._exit(7)
    elif name == "big":
        result = {"content": [text("x" * 5_000_000)]}
    elif name == "blocks":
        result = {"content": [text(f"block {n}") for n in range(200)]}
    elif name == "picture":
        result = {"content": [{"type": "image", "data": PICTURE, "mimeType": "image/png"}]}
    elif name == "large-picture":
        data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * 10_000_000).decode()
        result = {
            "content": [text("see"), {"type": "image", "data": data, "mimeType": "image/png"}]
        }
    elif name == "mixed":
        result = {
            "content": [
                {"type": "resource_link", "uri": "file:///a", "name": "a"},
                {"type": "resource", "resource": {"uri": "file:///b", "text": "inside"}},
                {"type": "audio", "data": "", "mimeType": "audio/wav"},
                {"type": "smell"},
                7,
            ]
        }
    elif name == "progress":
        progress(params, 6, 0.3)
    elif name == "endless":
        progress(params, 1000, 0.1)
    elif name in ("hang", "wait"):
        if name == "wait":
            progress(params, 1, 0)
        while number not in CANCELLED:
            time.sleep(0.02)
        return
    elif name == "write":
        with open("written.txt", "w") as file:
            file.write("by a server")
    elif name == "add":
        EXTRA[:] = given.get("names", ["added"])
        send({"method": "notifications/tools/list_changed"})
    elif name == "cancelled":
        result = {"content": [text(str(len(CANCELLED)))]}
    elif name == "data":
        deep: Any = {}
        for _ in range(given["levels"]):
            deep = {"a": deep}
        result = {"content": [], "structuredContent": deep}
    elif name == "list":
        result = {"content": [], "structuredContent": ["a", 1]}
    elif name == "no-numbers":
        token = params.get("_meta", {}).get("progressToken")
        for known, total in ((float("nan"), 1), (float("inf"), None), (1, float("nan"))):
            said = {"progressToken": token, "progress": known, "total": total}
            send({"method": "notifications/progress", "params": said})
        result = {"content": [], "structuredContent": {"x": float("nan"), "y": [float("-inf"), 1]}}
    elif name == "promised":
        result = {"content": [text("done")], "structuredContent": {"a": given["a"]}}
    elif name == "pid":
        result = {"content": [text(str(os.getpid()))]}
    elif name == "held":
        result = {"content": [text(str(len(HELD)))]}
    elif name == "release":
        while HELD:
            send(HELD.pop())
    elif name == "refuse":
        send({"id": number, "error": {"code": -32000, "message": "not today"}})
        return
    send({"id": number, "result": result})


def main() -> None:
    if KIND == "dies":
        sys.stderr.write("no licence\x1b[0m\n")
        sys.exit(3)
    if KIND == "junk":
        print("starting up ...", flush=True)
        print("{'no': json}", flush=True)
    if KIND == "asks":
        while True:
            send({"id": 1, "method": "ping"})
    if KIND == "reborn":
        if os.path.exists(BORN):
            EXTRA.append("fresh")
        open(BORN, "w").close()
    if KIND == "huge":
        piece = "x" * (1 << 20)
        for _ in range(40):
            sys.stdout.write(piece)
        sys.stdout.flush()
    for line in sys.stdin:
        message = json.loads(line)
        method, number, params = message.get("method"), message.get("id"), message.get("params", {})
        if KIND == "silent":
            continue
        if method == "initialize":
            send(
                {
                    "id": number,
                    "result": {
                        "protocolVersion": params["protocolVersion"],
                        "capabilities": {"tools": {"listChanged": True}},
                        "serverInfo": {"name": "stub", "version": "1"},
                    },
                }
            )
        elif method == "tools/list":
            LISTED.append(number)
            told = {"id": number, "result": {"tools": tools()}}
            if KIND == "early" and len(LISTED) == 1:
                EXTRA.append("late")
                send({"method": "notifications/tools/list_changed"})
            if KIND == "holds" and len(LISTED) == 2:
                HELD.append(told)
            else:
                send(told)
        elif method == "tools/call":
            threading.Thread(target=call, args=(number, params), daemon=True).start()
        elif method == "notifications/cancelled":
            CANCELLED.add(params["requestId"])
        elif number is not None:
            send({"id": number, "error": {"code": -32601, "message": "no such method"}})


main()
