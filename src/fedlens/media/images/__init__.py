"""Images: what is asked of them, what is drawn, and what is found."""

from fedlens.media import Source

SOURCES = {
    "npz": Source(options=frozenset({"path", "images", "labels", "users", "attributes", "deal_to"})),
    "digits": Source(options=frozenset({"deal_to"}), built_in=True, facts={"side": 8, "units": 100, "classes": 10}),
}
