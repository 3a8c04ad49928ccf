from decimal import Decimal

from inventory.items import Item
from inventory.stock import Stock


def test_pieces_at_the_mark_are_ordered_again() -> None:
    stock = Stock()
    low, enough = Item("L", "Low", Decimal(1), 4), Item("E", "Enough", Decimal(1), 4)
    stock.receive(low, 4)
    stock.receive(enough, 5)
    assert stock.to_reorder() == [low]


def test_shipping_takes_reserved_pieces_off_the_shelf() -> None:
    stock = Stock()
    stock.receive(Item("N", "Nut", Decimal(1)), 10)
    stock.reserve("N", 4)
    stock.ship("N", 4)
    assert stock.available("N") == 6
