"""Values of secrets are masked in everything that leaves a loop: the one place that does it.

Boxes don't know them, but a server may say them in spite of the broker, and a worktree may hold
what its loop was given as a secret. So what comes from a box is masked before a tool sees it,
whole, and so is what tools of the host make, before it is cut, kept, told or logged. A mask is as
long as what it covers: positions and lengths that were said stay true. A loop without secrets has
none of this.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from executor.egress.secrets import Masker, Secrets
from executor.errors import Partial, SandboxError, ToolError, partial_of
from executor.model import Spilled
from executor.tool import Answer, Box, OnOutput, Operations, Spill

Kind = TypeVar("Kind")

_STREAMS = ("stdout", "stderr")


def redacted(value: Kind, secrets: Secrets | None) -> Kind:
    """Texts, JSON-able data, outcomes, results, events: with every value masked.

    What holds none of them is returned as it is.
    """
    if not secrets:
        return value
    masked: Kind = _masked(value, secrets)
    return masked


def _masked(value: Any, secrets: Secrets) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed: dict[str, Any] = {}
        for field in dataclasses.fields(value):
            before = getattr(value, field.name)
            after = _masked(before, secrets)
            if field.init and after is not before:
                changed[field.name] = after
        return dataclasses.replace(value, **changed) if changed else value
    if isinstance(value, str | bytes):
        return secrets.masked(value)
    if isinstance(value, Mapping):
        pairs = {_masked(name, secrets): _masked(part, secrets) for name, part in value.items()}
        is_same = all(a is b for a, b in zip(pairs.values(), value.values(), strict=False))
        return value if is_same and pairs.keys() == value.keys() else pairs
    if type(value) in (list, tuple):
        parts = [_masked(part, secrets) for part in value]
        is_same = all(a is b for a, b in zip(parts, value, strict=True))
        return value if is_same else type(value)(parts)
    return value


def redact_error(error: BaseException, secrets: Secrets | None) -> None:
    """Masks the values in what an error says, and in what it was raised from."""
    if not secrets:
        return
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.args = _masked(one.args, secrets)
        if isinstance(one, ToolError):
            one.details = _masked(one.details, secrets)
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        waiting += (one.__cause__, one.__context__)


# ─── what comes from a box ──────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Answer:
    value: dict[str, Any]
    data: bytes


class RedactedOperations:
    """The operations of a box, whose answers hold no value."""

    def __init__(self, box: Operations, secrets: Secrets) -> None:
        self._operations = box
        self._secrets = secrets

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        body: bytes = b"",
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Answer:
        """See `executor.tool.Operations`."""
        live = None if on_output is None else _Live(on_output, self._secrets)
        take = None if live is None else live.take
        try:
            answer = await self._operations.request(
                op, arguments, body, timeout=timeout, on_output=take
            )
        except (ToolError, SandboxError) as error:
            redact_error(error, self._secrets)
            raise
        except BaseException as error:
            partial = partial_of(error)
            if partial is not None:
                error.args = (Partial(self._answer(partial)),)
            raise
        finally:
            if live is not None:
                live.end()
        return self._answer(answer)

    def _answer(self, answer: Answer) -> Answer:
        return _Answer(_masked(answer.value, self._secrets), self._data(answer))

    def _data(self, answer: Answer) -> bytes:
        """The bytes, masked; of what a command has printed, in each stream by itself."""
        sizes = [answer.value.get(name) for name in _STREAMS]
        if not any(isinstance(one, dict) and {"head", "tail"} <= one.keys() for one in sizes):
            return self._secrets.mask(answer.data)
        shown = b""
        for one in filter(None, sizes):
            start, middle = len(shown), len(shown) + one["head"]
            head, tail = answer.data[start:middle], answer.data[middle : middle + one["tail"]]
            if one["total"] > len(head) + len(tail):
                shown += b"".join(self._secrets.mask_cut(head, tail))
            else:
                shown += self._secrets.mask(head + tail)
        return shown + self._secrets.mask(answer.data[len(shown) :])


class RedactedBox(RedactedOperations):
    """A box as tools see it: nothing that comes from it holds a value."""

    def __init__(self, box: Box, secrets: Secrets) -> None:
        super().__init__(box, secrets)
        self._box = box

    async def ready(self) -> None:
        """See `executor.tool.Box`."""
        await self._box.ready()


class _Live:
    """Live output on its way: a value may come in two pieces."""

    def __init__(self, on_output: OnOutput, secrets: Secrets) -> None:
        self._on_output = on_output
        self._maskers: dict[Literal["stdout", "stderr"], Masker] = {
            "stdout": secrets.masker(),
            "stderr": secrets.masker(),
        }

    def take(self, channel: Literal["stdout", "stderr"], data: bytes) -> None:
        if shown := self._maskers[channel].feed(data):
            self._on_output(channel, shown)

    def end(self) -> None:
        for channel, masker in self._maskers.items():
            if rest := masker.end():
                self._on_output(channel, rest)


class RedactedSpill:
    """Where long outputs are kept, without the values; a value may come in two pieces."""

    def __init__(self, spill: Spill, secrets: Secrets) -> None:
        self._spill = spill
        self._secrets = secrets

    @property
    def most(self) -> int:
        """See `executor.tool.Spill`."""
        return self._spill.most

    def holds(self, path: str) -> bool:
        """See `executor.tool.Spill`."""
        return self._spill.holds(path)

    async def keep(
        self, output: bytes | AsyncIterable[bytes], instead_of: str | None = None
    ) -> Spilled | None:
        """See `executor.tool.Spill`."""
        if isinstance(output, bytes):
            return await self._spill.keep(self._secrets.mask(output), instead_of)
        return await self._spill.keep(_pieces(output, self._secrets.masker()), instead_of)


async def _pieces(output: AsyncIterable[bytes], masker: Masker) -> AsyncIterator[bytes]:
    async for piece in output:
        if shown := masker.feed(piece):
            yield shown
    if rest := masker.end():
        yield rest
