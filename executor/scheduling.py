"""Which calls of one turn may run together. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from executor.tool import Order

MAX_PARALLEL = 10
"""Calls that run at the same time; each search starts a process in the box."""


def batches(orders: Iterable[Order]) -> list[list[int]]:
    """The calls of a turn, by position, in batches: one batch after the other.

    The calls of a batch run at the same time.
    """
    found: list[list[int]] = []
    last: list[list[int]] = []
    open_batch: list[int] | None = None
    for position, order in enumerate(orders):
        if order is Order.LAST:
            last.append([position])
        elif order is Order.UNSAFE:
            found.append([position])
            open_batch = None
        elif open_batch is None or len(open_batch) == MAX_PARALLEL:
            open_batch = [position]
            found.append(open_batch)
        else:
            open_batch.append(position)
    return found + last
