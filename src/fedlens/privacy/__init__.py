"""Plans, what they cost, and how a guarantee is stated."""

from fedlens.privacy.bounds import Bound as Bound
from fedlens.privacy.bounds import L2Clip as L2Clip
from fedlens.privacy.bounds import RowClip as RowClip
from fedlens.privacy.bounds import TopKSign as TopKSign
from fedlens.privacy.bounds import UpdateAndBit as UpdateAndBit
from fedlens.privacy.guarantee import Guarantee as Guarantee
from fedlens.privacy.guarantee import plain as plain
from fedlens.privacy.guarantee import rounded as rounded
from fedlens.privacy.matrix import MatrixPlan as MatrixPlan
from fedlens.privacy.matrix import Promise as Promise
from fedlens.privacy.matrix import promised as promised
from fedlens.privacy.plan import Neighbours as Neighbours
from fedlens.privacy.plan import Plan as Plan
from fedlens.privacy.plan import Unit as Unit
from fedlens.privacy.sampling import Balanced as Balanced
from fedlens.privacy.sampling import Everyone as Everyone
from fedlens.privacy.sampling import FixedSize as FixedSize
from fedlens.privacy.sampling import Poisson as Poisson
