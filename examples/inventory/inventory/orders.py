"""Orders: what is wanted, and reserving it."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal

from inventory.stock import Stock


@dataclass(frozen=True)
class Line:
    """So many pieces of one item. An order may name an item on several lines."""

    sku: str
    quantity: int


@dataclass
class Order:
    """What one customer wants."""

    number: str
    lines: list[Line] = field(default_factory=list)

    def totals(self) -> Counter[str]:
        """Pieces of each item, over all lines."""
        totals: Counter[str] = Counter()
        for line in self.lines:
            totals[line.sku] += line.quantity
        return totals

    def price(self, stock: Stock) -> Decimal:
        """What the order costs."""
        return sum(
            (stock.items[sku].price * count for sku, count in self.totals().items()), Decimal(0)
        )


class OutOfStock(Exception):
    """There are not enough pieces for an order; nothing was reserved for it."""

    def __init__(self, order: Order, sku: str, wanted: int, available: int) -> None:
        self.sku = sku
        super().__init__(f"{order.number}: {wanted} of {sku} wanted, {available} available")


def place(order: Order, stock: Stock) -> None:
    """Reserve the order as a whole, or raise `OutOfStock` and reserve nothing."""
    for line in order.lines:
        available = stock.available(line.sku)
        if line.quantity > available:
            raise OutOfStock(order, line.sku, line.quantity, available)
    for line in order.lines:
        stock.reserve(line.sku, line.quantity)


def read_orders(lines: Iterable[str]) -> list[Order]:
    """The orders of a CSV file, in the order of their first lines."""
    orders: dict[str, Order] = {}
    for row in csv.DictReader(lines):
        order = orders.setdefault(row["order"], Order(row["order"]))
        order.lines.append(Line(row["sku"], int(row["quantity"])))
    return list(orders.values())
