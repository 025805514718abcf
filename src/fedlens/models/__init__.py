"""Models as pure functions of their parameters."""
