from decimal import Decimal

import pytest
from inventory.items import Item
from inventory.orders import Line, Order, OutOfStock, place, read_orders
from inventory.stock import Stock, UnknownItem

PLATE = Item("PLATE-A", "Base plate A", Decimal("14.50"), reorder_at=2)
BOLT = Item("BOLT-M6", "Bolt M6 x 20", Decimal("0.12"), reorder_at=100)


@pytest.fixture
def stock() -> Stock:
    stock = Stock()
    stock.receive(PLATE, 5)
    stock.receive(BOLT, 500)
    return stock


def test_an_order_reserves_its_pieces(stock: Stock) -> None:
    place(Order("A-1", [Line("PLATE-A", 2), Line("BOLT-M6", 8)]), stock)
    assert (stock.available("PLATE-A"), stock.available("BOLT-M6")) == (3, 492)


def test_too_large_an_order_reserves_nothing(stock: Stock) -> None:
    with pytest.raises(OutOfStock, match="6 of PLATE-A wanted, 5 available"):
        place(Order("A-2", [Line("BOLT-M6", 8), Line("PLATE-A", 6)]), stock)
    assert (stock.available("PLATE-A"), stock.available("BOLT-M6")) == (5, 500)


def test_an_item_on_two_lines_counts_as_a_whole(stock: Stock) -> None:
    with pytest.raises(OutOfStock, match="6 of PLATE-A wanted, 5 available"):
        place(Order("A-3", [Line("PLATE-A", 3), Line("BOLT-M6", 12), Line("PLATE-A", 3)]), stock)
    assert (stock.available("PLATE-A"), stock.available("BOLT-M6")) == (5, 500)


def test_an_unknown_item_is_refused(stock: Stock) -> None:
    with pytest.raises(UnknownItem):
        place(Order("A-4", [Line("GEAR-9", 1)]), stock)


def test_the_price_counts_every_line(stock: Stock) -> None:
    order = Order("A-5", [Line("PLATE-A", 1), Line("BOLT-M6", 10), Line("PLATE-A", 1)])
    assert order.price(stock) == Decimal("30.20")


def test_lines_of_a_file_are_gathered_into_orders() -> None:
    orders = read_orders(["order,sku,quantity", "A,X,1", "B,Y,2", "A,Z,3"])
    assert [(order.number, len(order.lines)) for order in orders] == [("A", 2), ("B", 1)]
