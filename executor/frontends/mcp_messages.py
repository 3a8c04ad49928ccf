"""A line → the messages of JSON-RPC in it, and what is answered to those that are none. Pure."""

from __future__ import annotations

import codecs
import json
from typing import Any, Final

import mcp_types as types
import pydantic_core
from mcp.shared.dispatcher import as_request_id
from mcp.shared.message import SessionMessage

from executor.frontends.mcp_contents import sendable
from executor.frontends.reading import MAX_LINE

MAX_MESSAGES: Final = 1000
"""In an array, which has room for millions: each of them may be answered."""
_FORM = (
    'a message is {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}: an id is a whole '
    "number or a text, and is left out where no answer is wanted; params are an object or left out"
)
_TOO_LONG = f"this line has more than {MAX_LINE >> 20} MiB and was not read; send less at a time"
_TOO_MANY = f"at most {MAX_MESSAGES} messages in an array; send fewer"


class Refusal(SessionMessage):
    """An answer to what no server is asked."""

    @classmethod
    def of(cls, code: int, text: str, id: types.RequestId | None) -> Refusal:
        """The refusal of a message.

        Args:
            code: of JSON-RPC.
            text: says what to do.
            id: of the request; None = it is not known.
        """
        error = types.ErrorData(code=code, message=text)
        return cls(types.JSONRPCError(jsonrpc="2.0", id=id, error=error))


def read(line: bytes) -> list[SessionMessage]:
    """What is in a line: a message or a refusal, or some of both where it is an array.

    Nothing is in an empty line, in a wrong answer and in a wrong notification: nobody waits for an
    answer to those.

    Args:
        line: as `reading.lines` has it.
    """
    if len(line) > MAX_LINE:
        return [Refusal.of(types.INVALID_REQUEST, _TOO_LONG, _id_of(_beginning(line)))]
    line = line.removeprefix(codecs.BOM_UTF8)
    if not line.strip():
        return []
    try:
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return _of_values(line)
    if isinstance(message, types.JSONRPCNotification) and (b'"id"' in line or b"\\u" in line):
        return _of_values(line)  # it may be a request, with an id, however spelled, that is none
    return [SessionMessage(message)]


def _of_values(line: bytes) -> list[SessionMessage]:
    """The same for a line that is not one right message."""
    try:
        value = pydantic_core.from_json(line)
    except ValueError as error:
        text = f"this line is no JSON in UTF-8: {error}"
        return _refused(_guessed(line), types.PARSE_ERROR, text)
    # An array was a message in one version of the protocol; its answers need not be one.
    values = value if isinstance(value, list) and value else [value]
    if len(values) > MAX_MESSAGES:
        return [Refusal.of(types.INVALID_REQUEST, _TOO_MANY, None)]
    return [item for one in values for item in _of_value(one)]


def _of_value(value: Any) -> list[SessionMessage]:
    try:
        message = types.jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValueError:
        return _refused(value, types.INVALID_REQUEST, _FORM)
    if isinstance(message, types.JSONRPCNotification) and "id" in value:
        return _refused(value, types.INVALID_REQUEST, _FORM)
    return [SessionMessage(message)]


def _refused(value: Any, code: int, text: str) -> list[SessionMessage]:
    """What is answered to a value that is no message."""
    if isinstance(value, dict):
        method = value.get("method")
        is_answer = method is None and not value.keys().isdisjoint(("result", "error"))
        if is_answer or ("id" not in value and isinstance(method, str)):
            return []
    return [Refusal.of(code, text, _id_of(value))]


def _id_of(value: Any) -> types.RequestId | None:
    """The id that an answer can have; None = there is none."""
    id = as_request_id(value.get("id")) if isinstance(value, dict) else None
    return id if id == sendable(id) else None


def _guessed(line: bytes) -> Any:
    """What a line may mean that is no JSON: Python's reader takes some that others do not."""
    try:
        return json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _beginning(line: bytes) -> Any:
    """What a line begins with that was cut: digits at its end may be half a number, and go."""
    try:
        return pydantic_core.from_json(line.rstrip(b"0123456789"), allow_partial=True)
    except ValueError:
        return None
