"""PRIVATE. What the owner of data says about them, and whether a run is let in."""
