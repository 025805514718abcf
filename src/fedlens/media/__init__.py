"""What data can be of: a medium is a folder here."""
