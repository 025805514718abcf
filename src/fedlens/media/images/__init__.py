"""Images: what is asked of them, what is drawn, and what is found."""
