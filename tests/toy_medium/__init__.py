"""Levels: a medium of whole numbers from 0 to 9, one an example; copied into the house by tests."""

from fedlens.media import Source

SOURCES: dict[str, Source] = {}  # it comes in population folders only
