"""Stock and orders of a small shop."""
