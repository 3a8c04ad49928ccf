"""What a call costs, against what the same work costs without us. See `__main__`."""
