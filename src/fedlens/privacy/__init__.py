"""Plans, what they cost, and how a guarantee is stated."""

from fedlens.privacy.bounds import Bound, L2Clip, RowClip, TopKSign, UpdateAndBit
from fedlens.privacy.guarantee import Guarantee, plain, rounded
from fedlens.privacy.matrix import MatrixPlan, Promise, promised
from fedlens.privacy.plan import Neighbours, Plan, Unit
from fedlens.privacy.sampling import Balanced, Everyone, FixedSize, Poisson, Sampling

__all__ = [
    "Balanced",
    "Bound",
    "Everyone",
    "FixedSize",
    "Guarantee",
    "L2Clip",
    "MatrixPlan",
    "Neighbours",
    "Plan",
    "Poisson",
    "Promise",
    "RowClip",
    "Sampling",
    "TopKSign",
    "Unit",
    "UpdateAndBit",
    "plain",
    "promised",
    "rounded",
]
