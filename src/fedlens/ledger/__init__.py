"""What was released, as events and not as epsilons; what may still be; and who said so."""

from fedlens.ledger.book import Ledger as Ledger
from fedlens.ledger.booked import RunClosedError as RunClosedError
from fedlens.ledger.budgets import Budget as Budget
from fedlens.ledger.budgets import Standing as Standing
from fedlens.ledger.chain import Entry as Entry
from fedlens.ledger.chain import Head as Head
from fedlens.ledger.reviewers import NotApprovedError as NotApprovedError
from fedlens.ledger.spending import Account as Account
from fedlens.ledger.spending import Item as Item
from fedlens.ledger.spending import Spending as Spending
from fedlens.ledger.spending import guarantee as guarantee
from fedlens.ledger.storage import LedgerError as LedgerError
from fedlens.ledger.storage import is_remote as is_remote
from fedlens.ledger.weighing import Weighed as Weighed
from fedlens.ledger.witness import PutBackError as PutBackError
