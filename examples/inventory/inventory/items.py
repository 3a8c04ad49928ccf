"""Items, and reading them from a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation


@dataclass(frozen=True)
class Item:
    """What is sold. `price` is for one piece; at `reorder_at` pieces it is ordered again."""

    sku: str
    name: str
    price: Decimal
    reorder_at: int = 0


class BadRow(Exception):
    """A row of the file can't be read."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        super().__init__(f"line {line}: {reason}")


def read_items(lines: Iterable[str]) -> Iterator[tuple[Item, int]]:
    """The items of a CSV file, each with the pieces on hand."""
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            price = Decimal(row["price"])
            on_hand, reorder_at = int(row["on_hand"]), int(row["reorder_at"])
        except (InvalidOperation, ValueError, TypeError, KeyError) as error:
            raise BadRow(number, f"not a number, or missing ({error})") from error
        if price < 0 or on_hand < 0:
            raise BadRow(number, "price and pieces on hand can't be negative")
        yield Item(row["sku"], row["name"], price, reorder_at), on_hand
