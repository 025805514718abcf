"""What is registered of a population: the latest counts, and reviewers sign it where the budget has any."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from toys import budget, forged, problems, unguarded

from fedlens.ledger import Ledger, LedgerError, NotApprovedError, keys


def told(book):
    return {entry.population: entry.facts for entry in book.registrations()}


def test_the_latest_registration_of_each_population_counts(address):
    book = Ledger(address)
    assert book.registrations() == []
    book.register("users", {"size": 9})
    book.register("others", {"size": 7})
    assert book.register("users", {"size": 11}) == 3
    assert told(Ledger(address)) == {"others": {"size": 7}, "users": {"size": 11}}
    assert problems(address) == []


def test_where_the_budget_has_reviewers_they_sign_what_is_registered(address):
    key = Ed25519PrivateKey.generate()
    Ledger(address).register("users", {"size": 9})
    Ledger(address).set_budget(budget(9.0, reviewers=(keys.public(key),)))
    with pytest.raises(NotApprovedError, match="registration"):
        Ledger(address).register("users", {"size": 900})
    assert told(Ledger(address)) == {"users": {"size": 9}}
    Ledger(address, key=key).register("users", {"size": 10})
    assert told(Ledger(address)) == {"users": {"size": 10}}
    assert problems(address) == []


@pytest.mark.parametrize("signer", ["", "somebody else's"])
def test_a_forged_registration_is_neither_believed_nor_overlooked(address, signer):
    key = Ed25519PrivateKey.generate()
    Ledger(address).set_budget(budget(9.0, reviewers=(keys.public(key),)))
    Ledger(address, key=key).register("users", {"size": 10})
    unguarded(address)
    signer = signer and keys.public(Ed25519PrivateKey.generate())
    forged(address, kind="register", body='{"size": 900}', signer=signer)
    with pytest.raises(LedgerError, match="entry 3, a register, signed by a reviewer"):
        Ledger(address).registrations()
    assert any("entry 3, a register, is not signed by a reviewer" in line for line in problems(address))
