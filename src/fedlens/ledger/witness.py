"""A witness: the heads of a ledger, kept where who puts an old ledger back cannot put them back too."""

import pathlib

from fedlens.ledger.chain import Place
from fedlens.ledger.storage import WITNESSES, LedgerError, is_remote, opened


class PutBackError(LedgerError):
    """The ledger is not the newest one that its witness saw."""


class Witness:
    """A second file, on another disk, or a PostgreSQL database; it may be the witness of many ledgers.

    A ledger is told by the hash of its first entry. Heads are added and never changed.
    """

    def __init__(self, address: str, *, create: bool = False) -> None:
        self.address = address
        if not create and not is_remote(address) and not pathlib.Path(address).exists():
            raise LedgerError(f"Expected the witness of the ledger at {address}; it is missing. Nothing is released.")
        try:
            self._store = opened(address, WITNESSES, make=create)
        except LedgerError:
            raise self._unreachable() from None

    def _unreachable(self) -> LedgerError:
        return LedgerError(
            f"Expected the witness of the ledger at {self.address}; it cannot be read or written."
            " Nothing is released until it can."
        )

    def last(self, ledger: str) -> Place | None:
        """The latest head it was told of; None for a ledger it knows nothing of."""
        heads = self._heads(ledger, "desc limit 1")
        return heads[0] if heads else None

    def heads(self, ledger: str) -> list[Place]:
        return self._heads(ledger, "")

    def _heads(self, ledger: str, order: str) -> list[Place]:
        select = f"select number, hash from witnessed where ledger = ? order by number {order}"
        try:
            heads = self._store.rows(select, (ledger,))
        except LedgerError:
            raise self._unreachable() from None
        if not all(type(number) is int and type(digest) is str for number, digest in heads):
            raise LedgerError(f"Expected numbers and hashes in the witness at {self.address}: somebody edited it.")
        return [(number, digest) for number, digest in heads]

    def keep(self, ledger: str, head: Place) -> None:
        """On disk when it returns."""
        number, digest = head
        try:
            with self._store.transaction():
                known = self._store.rows("select hash from witnessed where ledger = ? and number = ?", (ledger, number))
                if not known:
                    self._store.rows(
                        "insert into witnessed (ledger, number, hash) values (?, ?, ?)", (ledger, number, digest)
                    )
        except LedgerError:
            raise self._unreachable() from None
        if known and known != [(digest,)]:
            raise put_back(self.address, number)


def put_back(address: str, number: int) -> PutBackError:
    return PutBackError(
        f"Expected entry {number} in the ledger, as its witness at {address} saw it: an old ledger was put back, or it"
        " was rewritten. Nothing was booked; bring the newest ledger back (fedlens ledger verify tells more)."
    )


def resolved(address: str) -> str:
    """So that it is found from anywhere."""
    return address if is_remote(address) else str(pathlib.Path(address).resolve())
