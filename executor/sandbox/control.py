"""Control payloads of the agent: JSON that is bounded before anything is made of it."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from executor.errors import ProtocolError

MAX_DIGITS = 20
"""Of a number: sizes have 63 bits. Turning long ones into numbers takes long."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is out of range")
    return number


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


_from_text = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole
).decode


def from_json(payload: bytes) -> dict[str, Any]:
    """A control payload. Depth, digits and size are bounded by the decoder and the frame.

    Raises:
        ProtocolError: it is no JSON object.
    """
    try:
        value = _from_text(payload.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"unreadable JSON: {type(error).__name__}") from error
    if not isinstance(value, dict):
        raise ProtocolError("JSON that is no object")
    return value
