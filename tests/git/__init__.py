"""Tests of git: the host's half, boxes, and what tries to get from one to the other."""
