"""One TOML file says what is asked of which data, at what price; from it everything else follows."""
