"""Plans, what they cost, and how a guarantee is stated."""

from fedlens.privacy.bounds import Bound, L2Clip, UpdateAndBit
from fedlens.privacy.guarantee import Guarantee
from fedlens.privacy.plan import Neighbours, Plan, Unit
from fedlens.privacy.sampling import Everyone, Poisson, Sampling

__all__ = [
    "Bound",
    "Everyone",
    "Guarantee",
    "L2Clip",
    "Neighbours",
    "Plan",
    "Poisson",
    "Sampling",
    "Unit",
    "UpdateAndBit",
]
