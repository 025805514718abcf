"""The settings a recipe gets where it leaves them open: chosen from public numbers, never from private metrics."""

import math
from collections.abc import Callable
from typing import Any

from fedlens.media import opening
from fedlens.media.protocol import Values


def settled(values: Values, judged: Callable[[Values], Any]) -> Values:
    """Where a recipe leaves rounds or clip open, what works without tuning; whatever it says itself stays.

    Chosen from public numbers alone; `judged` makes a recipe of settings, to see how much noise they mean.
    """
    privacy = values.get("privacy")
    if not isinstance(privacy, dict) or not isinstance(privacy.get("epsilon"), int | float):
        return values
    if "rounds" in privacy and ("clip" in privacy or "adaptive_clip" in privacy):
        return values
    given = [privacy["epsilon"], privacy.get("rounds", 1), privacy.get("count_noise", 1)]
    if not all(isinstance(v, int | float) and 1e-3 <= v <= 1e9 for v in given) or given[0] > 1e4:
        return values  # its errors are told as they are
    medium = opening.chosen(lambda medium: any(key in values for key in medium.tables))
    if not all(isinstance(values.get(name, {}), dict) for name in ("training", *medium.table_keys)):
        return values
    counting = max(4.0, 16 / privacy["epsilon"])  # costs a twentieth of the whole
    floor = 2.4 * privacy.get("count_noise", counting)  # below it, nobody at all would pass for a group
    open_here = {"count_noise": counting, "threshold_noise": counting, "minimum_units": max(20, math.ceil(floor))}
    values = values | {"privacy": open_here | privacy}
    return medium.settled(values, judged)
