"""Levels: a medium of whole numbers from 0 to 9, one an example; copied into the house by tests."""

from fedlens.media import Source

SOURCES = {"tally": Source(options=frozenset({"path"}))}  # a level a line, after the number of its user
