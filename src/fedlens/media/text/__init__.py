"""Text: what is asked of it, what is written, and what is found."""
