"""PRIVATE. Units of privacy and their examples: where they come from, and which of them a model is trained on."""
