"""How many pieces there are, and how many of them are promised."""

from __future__ import annotations

from collections import Counter

from inventory.items import Item


class UnknownItem(KeyError):
    """No item has this number."""


class Stock:
    """Pieces on hand and pieces reserved, by item number."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self._on_hand: Counter[str] = Counter()
        self._reserved: Counter[str] = Counter()

    def receive(self, item: Item, quantity: int) -> None:
        """Put pieces on the shelf."""
        self.items[item.sku] = item
        self._on_hand[item.sku] += quantity

    def available(self, sku: str) -> int:
        """Pieces that are on hand and not promised to anyone."""
        if sku not in self.items:
            raise UnknownItem(sku)
        return self._on_hand[sku] - self._reserved[sku]

    def reserve(self, sku: str, quantity: int) -> None:
        """Promise pieces. The caller has made sure that they are available."""
        self._reserved[sku] += quantity

    def ship(self, sku: str, quantity: int) -> None:
        """Reserved pieces leave the house."""
        self._reserved[sku] -= quantity
        self._on_hand[sku] -= quantity

    def to_reorder(self) -> list[Item]:
        """Items of which as many pieces are left as their mark says, or fewer."""
        return [item for item in self.items.values() if self.available(item.sku) <= item.reorder_at]
