"""A recipe, carried out: planned, run, resumed, reported."""
