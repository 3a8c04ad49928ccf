from decimal import Decimal

import pytest
from inventory.items import BadRow, read_items

HEAD = "sku,name,price,on_hand,reorder_at"


def test_a_row_becomes_an_item_and_its_pieces() -> None:
    [(item, on_hand)] = read_items([HEAD, "NUT-M6,Nut M6,0.08,450,100"])
    assert (item.sku, item.price, on_hand) == ("NUT-M6", Decimal("0.08"), 450)


@pytest.mark.parametrize("row", ["X,x,free,1,0", "X,x,1.00,many,0", "X,x,-1,1,0", "X,x"])
def test_a_bad_row_is_named_by_its_line(row: str) -> None:
    with pytest.raises(BadRow, match="line 2"):
        list(read_items([HEAD, row]))
