"""What a run asks for, and how a request writes it down."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from fedlens.ledger.chain import Entry, root
from fedlens.ledger.facts import read, sound
from fedlens.ledger.spending import Account, Spending
from fedlens.privacy import Promise, promised


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """What a run asks for: so many releases of a plan, on an account."""

    account: Account
    stage: str
    plan: Promise

    @property
    def spending(self) -> Spending:
        """As if all of it were released."""
        return Spending(account=self.account, plans=(self.plan,))


def written(item: Item) -> dict[str, Any]:
    """Without the name of the run, which a request does not know yet."""
    account = item.account
    partition = account.partition.removeprefix(root(account.run))
    return {"stage": item.stage, "part": account.part, "partition": partition, "plan": item.plan.to_dict()}


def items_of(request: Entry) -> list[Item]:
    """What a request asks for."""
    return read(request, lambda: [_item(request, asked) for asked in request.facts["asked"]])


def _item(request: Entry, asked: dict[str, Any]) -> Item:
    """Older requests do not tell partitions, and are priced as if they had none in common."""
    account = Account(
        run=f"{request.run}/{asked['part']}",
        population=request.population,
        partition=f"{request.run}{asked.get('partition', ': ' + asked['part'])}",
        part=asked["part"],
    )
    return Item(account=account, stage=str(asked["stage"]), plan=sound(promised(asked["plan"])))


def all_asked(items: Sequence[Item], asked: Sequence[Any]) -> bool:
    """Whether a request asked for all of this, each as often as it is wanted."""
    left = list(asked)
    for item in items:
        mine = written(item)
        # Older requests do not tell the partition.
        same = [one for one in left if isinstance(one, dict) and one == {name: mine.get(name) for name in one} and one]
        if not same:
            return False
        left.remove(same[0])
    return True
