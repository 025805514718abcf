"""A witness: the heads of a ledger, kept where who puts an old ledger back cannot put them back too.

Nothing is released by an entry that the witness of a ledger has not seen.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator

from fedlens.core import pins
from fedlens.ledger.chain import Place
from fedlens.ledger.entries import Entries, fact
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
        with self._reached():
            self._store = opened(address, WITNESSES, make=create)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except LedgerError:
            unreachable = f"Expected the witness of the ledger at {self.address}; it cannot be read or written."
            raise LedgerError(f"{unreachable} Nothing is released until it can.") from None

    def last(self, ledger: str) -> Place | None:
        """The latest head it was told of; None for a ledger it knows nothing of."""
        heads = self.heads(ledger, "desc limit 1")
        return heads[0] if heads else None

    def heads(self, ledger: str, order: str = "") -> list[Place]:
        with self._reached():
            select = f"select number, hash from witnessed where ledger = ? order by number {order}"
            heads = self._store.rows(select, (ledger,))
        if not all(type(number) is int and type(digest) is str for number, digest in heads):
            raise LedgerError(f"Expected numbers and hashes in the witness at {self.address}: somebody edited it.")
        return [(number, digest) for number, digest in heads]

    def keep(self, ledger: str, head: Place) -> None:
        """On disk when it returns."""
        number, digest = head
        with self._reached(), self._store.transaction():
            known = self._store.rows("select hash from witnessed where ledger = ? and number = ?", (ledger, number))
            if not known:
                insert = "insert into witnessed (ledger, number, hash) values (?, ?, ?)"
                self._store.rows(insert, (ledger, number, digest))
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


class Watch:
    """Holds a ledger against what its witness saw, and lets the witness see what is booked.

    `required` is the address that the ledger must name; empty where nobody says so.
    """

    def __init__(self, entries: Entries, required: str) -> None:
        self._entries = entries
        self._required = resolved(required) if required else ""
        self._opened: Witness | None = None

    @contextlib.contextmanager
    def booking(self) -> Iterator[None]:
        """A transaction; when it returns, the witness has seen what was booked, if there is a witness.

        Why the ledger first: whoever dies between the two has released nothing, and the witness is behind, which the
        next one makes good. So a ledger behind its witness is never the trace of an accident.
        """
        with self._entries.store.transaction():
            self.check(reachable=True)
            yield
            witness, head = self._witness(reachable=True), self._entries.head()
            identity = self._entries.identity()
        if witness:
            witness.keep(identity, head)
            if (last := witness.last(identity)) and last[0] > head[0]:  # somebody else was faster: on the same ledger?
                with self._entries.store.transaction():
                    self._compare(witness)

    def check(self, *, reachable: bool) -> None:
        """Within a transaction: compares with what the witness has seen, and lets it see the rest."""
        address = self.address()
        if self._required and self._required != address:
            named = "another" if address else "none"
            raise LedgerError(
                f"Expected a ledger whose witness is {self._required}; it names {named}: it was put back to a time"
                " before (fedlens ledger witness names one)."
            )
        if witness := self._witness(reachable=reachable):
            try:
                self._compare(witness, keep=reachable)
            except PutBackError:
                raise
            except LedgerError:
                if reachable:
                    raise

    def address(self) -> str | None:
        """Of the witness that is named; None for none."""
        named = self._entries.where("kind = 'witness'")
        return fact(named[-1], "to", str) if named else None

    def name(self, address: str, *, lost: bool) -> None:
        """Within a transaction: books the witness from now on. It must know the ledger before the ledger names it."""
        witness, head = Witness(address, create=True), self._entries.head()
        if head[0]:  # one that does not know it was lost, or exchanged
            self._must_hold(witness.last(self._entries.identity()), witness)
            witness.keep(self._entries.identity(), head)
        self._entries.append("witness", "", body={"to": address, "lost": lost})
        if not head[0]:
            witness.keep(self._entries.identity(), self._entries.head())

    def seen(self) -> tuple[list[Place], list[str]]:
        """What the witness saw; and what is wrong with the witness."""
        try:
            address = self.address()
            if self._required and self._required != address:
                return [], [f"the ledger does not name the witness {self._required}: it was put back to a time before"]
            witness = self._witness(reachable=True)
            heads = witness.heads(self._entries.identity()) if witness else []
        except (LedgerError, ValueError) as error:
            return [], [f"the witness cannot tell: {error}"]
        unknown = [f"the witness at {address} knows nothing of this ledger"] if witness and not heads else []
        return heads, unknown

    def _witness(self, *, reachable: bool) -> Witness | None:
        """The one that the ledger names; None where it names none, or where one that cannot be reached need not be."""
        address = self.address()
        if address is None:
            return None
        if self._opened is None or self._opened.address != address:
            try:
                self._opened = Witness(address)
            except (LedgerError, ValueError):
                if reachable:
                    raise
                return None
        return self._opened

    def _compare(self, witness: Witness, keep: bool = True) -> None:
        """Refuses a ledger that does not hold what its witness saw."""
        identity, head = self._entries.identity(), self._entries.head()
        last = witness.last(identity)
        if last is None:
            raise put_back(witness.address, head[0])
        self._must_hold(last, witness)
        if keep and last[0] < head[0]:
            witness.keep(identity, head)

    def _must_hold(self, place: Place | None, witness: Witness) -> None:
        if place and not self._entries.holds(place):
            raise put_back(witness.address, place[0])


def required_by_owner(address: pathlib.Path | str | None) -> str:
    """What the owner of the machine says; a ledger that was put back may know of no witness."""
    pin = pins.found() if address is not None else None
    named = pin.witness if pin and pins.same(str(address), pin.ledger) else ""
    return os.environ.get("FEDLENS_WITNESS") or named
