"""Which calls of a turn run together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.scheduling import MAX_PARALLEL, batches
from executor.tool import Order

S, U, L = Order.SAFE, Order.UNSAFE, Order.LAST


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ([], []),
        ([S, S, S], [[0, 1, 2]]),
        ([U, U], [[0], [1]]),
        ([S, U, S, S], [[0], [1], [2, 3]]),
        ([S, L, S], [[0, 2], [1]]),
        ([L, U, L, S], [[1], [3], [0], [2]]),
    ],
)
def test_neighbours_that_are_safe_run_together(
    orders: list[Order], expected: list[list[int]]
) -> None:
    """Adjacent safe calls share a batch, unsafe ones stand alone, last ones come last."""
    assert batches(orders) == expected


@given(st.lists(st.sampled_from(list(Order))))
def test_every_call_runs_once_and_order_holds(orders: list[Order]) -> None:
    """Every call is in one batch, no batch is too wide, nothing passes an unsafe call."""
    found = batches(orders)
    flat = [position for batch in found for position in batch]
    assert sorted(flat) == list(range(len(orders)))
    assert all(len(batch) <= MAX_PARALLEL for batch in found)
    assert all(len(batch) == 1 or {orders[p] for p in batch} == {S} for batch in found)
    rest = [position for position in flat if orders[position] is not L]
    assert rest == sorted(rest)
    assert flat[len(rest) :] == [p for p, order in enumerate(orders) if order is L]
