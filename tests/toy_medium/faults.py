"""Faults of levels."""

from fedlens.media.faults import Fault, Faults

FAULTS = Faults(
    of="levels", known={"upended": Fault(summary="levels counted from the top", change=lambda levels: 9 - levels)}
)
