"""Text: what is asked of it, what is written, and what is found."""

from fedlens.media import Source

SOURCES = {
    "jsonl": Source(options=frozenset({"path", "text", "users", "attributes"})),
    "docstrings": Source(built_in=True),
}
