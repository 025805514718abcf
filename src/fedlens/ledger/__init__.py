"""What was released, as events and not as epsilons; what may still be; and who said so."""

from fedlens.ledger.book import Ledger
from fedlens.ledger.booked import RunClosedError
from fedlens.ledger.budgets import Budget, Standing
from fedlens.ledger.chain import Entry, Head
from fedlens.ledger.reviewers import NotApprovedError
from fedlens.ledger.spending import Account, Item, Spending, guarantee
from fedlens.ledger.storage import LedgerError, is_remote
from fedlens.ledger.weighing import Weighed
from fedlens.ledger.witness import PutBackError

__all__ = [
    "Account",
    "Budget",
    "Entry",
    "Head",
    "Item",
    "Ledger",
    "LedgerError",
    "NotApprovedError",
    "PutBackError",
    "RunClosedError",
    "Spending",
    "Standing",
    "Weighed",
    "guarantee",
    "is_remote",
]
