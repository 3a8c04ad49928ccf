"""Functions of the host's that hang, ignore cancellation, cancel themselves, or answer nonsense."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from executor import callables
from executor.callables import TooLate, Unusable, bounded, called, is_cancelled, own_json


@pytest.fixture
def forever() -> Iterator[threading.Event]:
    """Something to wait for that comes only after the test."""
    event = threading.Event()
    yield event
    event.set()


def test_a_function_that_never_ends_holds_up_nobody(forever: threading.Event) -> None:
    """Not the next one, however many hang already, and not the end of the event loop."""

    async def scene() -> Any:
        hanging = [bounded(called(lambda _: forever.wait(), None), 0.05) for _ in range(50)]
        found = await asyncio.gather(*hanging, return_exceptions=True)
        assert {type(one) for one in found} == {TooLate}
        return await bounded(called(lambda argument: argument, "here"), 30)

    started = time.monotonic()
    assert asyncio.run(scene()) == "here"
    assert time.monotonic() - started < 20


def test_what_ignores_its_cancellation_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while; whoever waited goes on."""
    monkeypatch.setattr(callables, "PATIENCE", 0.05)

    async def scene() -> None:
        end = asyncio.Event()

        async def stubborn() -> None:
            while not end.is_set():
                try:
                    await end.wait()
                except asyncio.CancelledError:
                    continue
            raise ValueError("nobody hears it")

        with pytest.raises(TooLate):
            await bounded(stubborn(), 0.05)
        end.set()

    asyncio.run(scene())


def test_who_cancels_itself_has_not_cancelled_its_caller() -> None:
    """A cancellation that nobody asked for is a fault; one that somebody asked for goes on."""

    async def own() -> None:
        raise asyncio.CancelledError

    async def scene() -> None:
        with pytest.raises(Unusable, match="cancelled itself"):
            await bounded(own(), 30)
        assert not is_cancelled()
        ended = asyncio.Event()

        async def waits() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = asyncio.create_task(bounded(waits(), 30))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(scene())


def test_a_function_may_raise_whatever_it_likes() -> None:
    """From its thread too; what no future can hold is told as another error."""

    def stops(_: Any) -> None:
        raise StopIteration

    def fails(_: Any) -> None:
        raise KeyError("x")

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(bounded(called(stops, None), 30))
    with pytest.raises(KeyError):
        asyncio.run(bounded(called(fails, None), 30))


def _deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


CIRCLE: dict[str, Any] = {}
CIRCLE["x"] = CIRCLE


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "list where an object"),
        ("{}", "str where an object"),
        ({"x": {1, 2}}, "no JSON"),
        ({"x": float("nan")}, "no JSON"),
        ({"x": b""}, "no JSON"),
        ({(1, 2): 1}, "no JSON"),
        (CIRCLE, "no JSON"),
        (_deep(100_000), "nested too deep"),
    ],
)
def test_what_is_no_json_object_is_refused(value: Any, reason: str) -> None:
    """With the reason, whatever it is."""
    with pytest.raises(Unusable, match=reason):
        own_json(value)


def test_a_copy_is_nobody_elses() -> None:
    """Halves of characters, which stand for odd bytes of names, survive."""
    given: dict[str, Any] = {"x": [1, {"y": "\udcff é"}], "z": None}
    copied = own_json(given)
    assert copied == given
    given["x"][1]["y"] = "changed"
    assert copied["x"][1]["y"] == "\udcff é"
