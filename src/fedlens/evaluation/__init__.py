"""How good synthetic images are: what a classifier learns from them, how far they lie from real ones, what it cost."""
