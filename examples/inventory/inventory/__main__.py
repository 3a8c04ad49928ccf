"""Place all orders of a file and say what came of it."""

from __future__ import annotations

import sys
from pathlib import Path

from inventory.items import read_items
from inventory.orders import OutOfStock, place, read_orders
from inventory.stock import Stock


def main(items: str, orders: str) -> None:
    stock = Stock()
    for item, on_hand in read_items(Path(items).read_text().splitlines()):
        stock.receive(item, on_hand)
    for order in read_orders(Path(orders).read_text().splitlines()):
        try:
            place(order, stock)
        except OutOfStock as error:
            print(f"refused   {error}")
        else:
            print(f"reserved  {order.number}: {order.price(stock)}")
    for item in stock.to_reorder():
        print(f"reorder   {item.sku}: {stock.available(item.sku)} left")


if __name__ == "__main__":
    main(*sys.argv[1:3])
