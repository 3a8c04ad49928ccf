"""Git for loops: a history of a loop's own inside, and the checked way of it back outside."""
