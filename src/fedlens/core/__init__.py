"""What everything stands on: trees of tensors, randomness, files; it knows neither privacy nor data."""
