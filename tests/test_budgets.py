"""Budgets and reviews: what is spent or reserved never exceeds them, and nothing runs without the leave they ask."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import datetime
import itertools
import json
import math
import threading
import types
from typing import NamedTuple

import hypothesis
import pytest
import toys
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import strategies as st
from scipy import optimize, stats
from toys import DELTA, START, account, budget, created, days, entries, item, plan, raw, releases, spent

from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import (
    Item,
    Ledger,
    LedgerError,
    NotApprovedError,
    RunClosedError,
    Spending,
    budgets,
    guarantee,
    keys,
    spending,
)
from fedlens.privacy import Balanced, Everyone, FixedSize, L2Clip, Neighbours, Plan, Poisson, Unit, accounting
from fedlens.recipes.recipe import Recipe
from fedlens.runs import run as runs


def standing(book, population="users", unit=Unit.USER, neighbours=Neighbours.ADD_REMOVE):
    return book.standing(population, (unit, neighbours))


@pytest.fixture
def book(address):
    """A ledger with a budget of epsilon 2.2: seven releases at noise 5 fit into it, eight do not."""
    ledger = Ledger(address, who="modeler")
    ledger.set_budget(budget())
    return ledger


def fitting(noise=5.0, epsilon=2.2):
    """How many releases to everyone fit into a budget, by the textbook."""
    return next(n for n in itertools.count() if textbook((n + 1) / noise**2) > epsilon)


def textbook(squares, delta=DELTA):
    """The epsilon of Gaussians whose 1/z^2 add up to `squares` (Balle and Wang 2018), without the project's code."""
    mu = math.sqrt(squares)
    if mu == 0:
        return 0.0

    def excess(epsilon):
        upper = stats.norm.cdf(mu / 2 - epsilon / mu)
        return upper - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu) - delta

    return optimize.brentq(excess, 0.0, 100.0, xtol=1e-10) if excess(0.0) > 0 else 0.0


# What may be a budget


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"delta": 1.0}, "0 < delta=1.0 < 1"),
        ({"delta": 1.5}, "0 < delta=1.5 < 1"),
        ({"delta": 0.0}, "0 < delta"),
        ({"delta": math.nan}, "0 < delta"),
        ({"epsilon": 0.0}, "epsilon=0.0 > 0"),
        ({"epsilon": -1.0}, "epsilon=-1.0 > 0"),
        ({"epsilon": math.inf}, "finite"),
        ({"epsilon": math.nan}, "finite"),
        ({"size": 0}, "size=0 >= 1"),
        ({"window": 0.0}, "window=0.0"),
        ({"window": -3.0}, "window=-3.0"),
        ({"window": math.nan}, "window=nan"),
        ({"reviewers": ("nonsense",)}, "reviewer"),
        ({"reviewers": ("ab" * 31,)}, "reviewer"),
        ({"reviewers": ("",)}, "reviewer"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(change, told):
    with pytest.raises(ValueError, match=rf"^Expected .*{told}"):
        budget(**change)


def test_a_public_key_in_capitals_names_the_same_reviewer():
    key = Ed25519PrivateKey.generate()
    book = Ledger(key=key)
    book.set_budget(budget(reviewers=(keys.public(key).upper(),)))
    book.set_budget(budget(3.0, reviewers=(keys.public(key),)))
    assert book.budget("users").epsilon == 3.0


def test_a_budget_survives_the_ledger(address):
    public = keys.public(Ed25519PrivateKey.generate())
    whole = budget(
        size=100,
        unit=Unit.EXAMPLE,
        neighbours=Neighbours.REPLACE_ONE,
        window=30.0,
        review=True,
        reviewers=(public,),
    )
    Ledger(address).set_budget(whole, why="agreed in the meeting")
    assert Ledger(address).budget("users") == whole
    assert Ledger(address).budget("others") is None


def test_the_latest_budget_counts(book):
    book.reserve([item(plan=plan(7))])
    book.set_budget(budget(0.5))
    with pytest.raises(PrivacySpentError, match=r"budget is 0\.5"):
        book.reserve([item("more", plan=plan(1))])
    book.set_budget(budget(9.0))
    book.reserve([item("more", plan=plan(1))])


def test_a_population_without_a_budget_is_recorded_and_not_refused(book):
    book.reserve([item(population="others", plan=plan(1000))])
    assert standing(book, "others").budget is None
    assert standing(book, "others").promised.epsilon > 40
    assert standing(book).promised is None


@pytest.mark.parametrize(
    "change",
    [
        {"unit": Unit.EXAMPLE},
        {"unit": Unit.SILO},
        {"neighbours": Neighbours.REPLACE_ONE},
        {"sampling": Poisson(rate=0.1, population=101)},
        {"sampling": FixedSize(size=10, population=101)},
        {"sampling": Balanced(groups=10, population=101)},
    ],
)
def test_a_plan_that_protects_something_else_is_refused_and_nothing_is_written(address, change):
    book = Ledger(address)
    book.set_budget(budget(1000.0, size=100))
    before = entries(address)
    other = plan(noise=50.0, **change)
    with pytest.raises(ValueError, match="Expected a plan"):
        book.reserve([item(plan=other)])
    with pytest.raises(ValueError, match="Expected a plan"):
        book.charge(account(), "train", other, release=0, query="a")
    assert entries(address) == before


def test_a_plan_for_fewer_units_than_the_budget_allows_is_fine(address):
    book = Ledger(address)
    book.set_budget(budget(1000.0, size=100))
    book.reserve([item(plan=plan(noise=50.0, sampling=Balanced(groups=10, population=100)))])
    assert [run["run"] for run in book.runs()] == ["run"]


# Reserve, spend, return


def test_the_whole_plan_is_reserved_before_the_first_release(address, book):
    with pytest.raises(PrivacySpentError, match="would take 'users' to epsilon"):
        book.charge(account(), "train", plan(8), release=0, query="a")
    assert entries(address) == 1
    assert book.charge(account(), "train", plan(7), release=0, query="a")
    kinds = raw(address, "select kind, stage, release from entries order by id")
    assert kinds == [("budget", "", -1), ("reserve", "train", -1), ("release", "train", 0)]


def test_a_run_is_reserved_in_one_piece_or_not_at_all(address, book):
    with pytest.raises(PrivacySpentError):
        book.reserve([item(stage="count", plan=plan(1)), item(plan=plan(7))])
    assert entries(address) == 1
    book.reserve([item(stage="count", plan=plan(1)), item(plan=plan(6))])
    assert entries(address) == 3


def test_a_refusal_says_how_it_stands(book):
    book.reserve([item(plan=plan(4))])
    with pytest.raises(PrivacySpentError) as refused:
        book.reserve([item("more", plan=plan(4))])
    assert str(refused.value) == (
        "This run would take 'users' to epsilon 2.29 at delta 1e-05; its budget is 2.2, and 1.56 is spent or reserved."
    )


def test_what_is_reserved_binds_others_as_if_it_were_spent(book):
    book.reserve([item(plan=plan(7))])
    with pytest.raises(PrivacySpentError):
        book.reserve([item("other", plan=plan(1))])
    for release in range(7):
        assert book.charge(account(), "train", plan(7), release=release, query="a")
    with pytest.raises(PrivacySpentError):
        book.reserve([item("other", plan=plan(1))])


def test_closing_a_run_returns_what_it_did_not_use(book):
    book.reserve([item(plan=plan(7))])
    for release in range(3):
        book.charge(account(), "train", plan(7), release=release, query="a")
    number = book.close("run")
    assert book.close("run") == number
    assert [spending.plans for spending in book.spendings("users", reserved=True)] == [(plan(3),)]
    with pytest.raises(PrivacySpentError):
        book.reserve([item("more", plan=plan(5))])
    book.reserve([item("more", plan=plan(4))])


def test_the_entry_of_a_close_says_what_was_returned_and_names_the_model(book):
    book.reserve([item(stage="count", plan=plan(1)), item(plan=plan(5))])
    book.charge(account(), "train", plan(5), release=0, query="a")
    book.close("run", model="ab" * 32)
    *_, closed = book.entries()
    assert closed.facts == {"model": "ab" * 32, "returned": {"count": 1, "train": 4}}


def test_a_closed_run_cannot_spend(address, book):
    book.reserve([item(plan=plan(7))])
    book.charge(account(), "train", plan(7), release=0, query="a")
    book.close("run")
    before = entries(address)
    for release, query in ((1, "a"), (0, "b")):
        with pytest.raises(PrivacySpentError, match="'run' is closed"):
            book.charge(account(), "train", plan(7), release=release, query=query)
    with pytest.raises(PrivacySpentError, match="'run' is closed"):
        book.charge(account(), "another stage", plan(1), release=0, query="a")
    assert entries(address) == before


def test_a_closed_run_reserves_nothing_more(address, book):
    book.reserve([item()])
    book.close("run")
    before = entries(address)
    with pytest.raises(PrivacySpentError, match="'run' is closed"):
        book.reserve([item(stage="another stage")])
    assert entries(address) == before


def test_a_run_that_crashed_while_it_closed_can_ask_for_what_it_had(address, book):
    """Its folder is not finished; going on asks for the same once more, and nothing is written twice."""
    book.reserve([item()])
    book.close("run")
    before = entries(address)
    book.reserve([item()])
    book.close("run")
    assert entries(address) == before


def test_a_repeated_question_stays_free_after_the_close(address, book):
    book.charge(account(), "train", plan(), release=0, query="a")
    book.close("run")
    before = entries(address)
    assert book.charge(account(), "train", plan(), release=0, query="a") is False
    assert entries(address) == before


def test_a_run_nobody_knows_cannot_be_closed(address, book):
    with pytest.raises(ValueError, match="'nobody'"):
        book.close("nobody")
    assert entries(address) == 1


def test_a_crash_between_reserve_and_first_release_costs_budget_and_is_made_good_by_going_on(address, book):
    book.reserve([item(plan=plan(7))], recipe="digest", why="because")
    book.close_file()
    again = Ledger(address)
    with pytest.raises(PrivacySpentError):
        again.reserve([item("other", plan=plan(1))])
    again.reserve([item(plan=plan(7))], recipe="digest")
    assert entries(address) == 2
    assert again.charge(account(), "train", plan(7), release=0, query="a")
    again.close("run")
    again.reserve([item("other", plan=plan(6))])


def test_a_crash_between_reserve_and_release_of_the_whole_budget_is_undone_by_closing(address, book):
    book.reserve([item(plan=plan(7))])
    book.close_file()
    Ledger(address).close("run")
    Ledger(address).reserve([item("other", plan=plan(7))])
    assert "other" in {run["run"] for run in Ledger(address).runs()}


def test_two_runs_with_the_same_name_and_another_plan_are_refused(address, book):
    book.reserve([item(plan=plan(2))])
    before = entries(address)
    for other in (plan(3), plan(2, noise=9.0), plan(2, sampling=Balanced(groups=1, population=9))):
        with pytest.raises(ValueError, match="'run' began with"):
            book.reserve([item(plan=other)])
        with pytest.raises(ValueError, match="'run' began with"):
            book.charge(account(), "train", other, release=0, query="a")
    assert entries(address) == before


def named(monkeypatch, digits="abcdef"):
    monkeypatch.setattr(runs, "secrets", types.SimpleNamespace(token_hex=lambda size: digits))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_two_runs_with_the_same_name_are_refused_and_the_first_goes_on(address, tmp_path, monkeypatch, elsewhere):
    """The second must not take the reservation of the first for its own, and return it."""
    named(monkeypatch)
    first = created(tmp_path / "runs", address=address, seed=None)
    before = entries(address)
    with pytest.raises((ValueError, OSError)):
        created(tmp_path / ("others" if elsewhere else "runs"), address=address, seed=None)
    assert entries(address) == before
    book, count, train = Ledger(address), first.recipe.plans["count"], first.recipe.plans["train"]
    assert book.charge(first.recipe.account(first.name, "all", False), "count", count, release=0, query="a")
    assert book.charge(first.recipe.account(first.name, "all", False), "train", train, release=0, query="a")


def test_a_run_whose_folder_cannot_be_made_returns_what_it_reserved(address, tmp_path):
    (tmp_path / "runs").write_text("a file")
    book = Ledger(address)
    book.set_budget(budget(9.0, population="digits"))
    for _ in range(3):
        with pytest.raises(OSError, match="runs"):
            created(tmp_path / "runs", address=address, seed=None)
    assert standing(book, "digits").promised is None
    created(tmp_path / "elsewhere", address=address, seed=None)


# Budgets that renew themselves


def test_what_is_older_than_the_window_no_longer_counts(address, clock):
    book = Ledger(address)
    book.set_budget(budget(window=30.0))
    for release in range(7):
        book.charge(account(), "train", plan(7), release=release, query="a")
    clock.now = START + days(29.9)
    with pytest.raises(PrivacySpentError):
        book.reserve([item("next", plan=plan(1))])
    clock.now = START + days(30.4)  # the day of the releases is not over a window ago: they are dated by the day
    with pytest.raises(PrivacySpentError):
        book.reserve([item("next", plan=plan(1))])
    clock.now = START + days(30.5)
    book.reserve([item("next", plan=plan(7))])
    assert standing(book).spent is None


def test_what_is_reserved_counts_however_old_the_reservation_is(address, clock):
    """It may still be spent tomorrow."""
    book = Ledger(address)
    book.set_budget(budget(window=30.0))
    book.reserve([item(plan=plan(7))])
    clock.now = START + days(300)
    with pytest.raises(PrivacySpentError):
        book.reserve([item("next", plan=plan(1))])
    book.close("run")
    book.reserve([item("next", plan=plan(7))])


def test_half_of_a_run_can_be_older_than_the_window(address, clock):
    book = Ledger(address)
    book.set_budget(budget(window=30.0))
    for release in range(4):
        book.charge(account(), "train", plan(7), release=release, query="a")
    clock.now = START + days(20)
    for release in range(4, 6):
        book.charge(account(), "train", plan(7), release=release, query="a")
    clock.now = START + days(40)
    assert [spending.plans for spending in book.spendings("users", budget=book.budget("users"))] == [(plan(2),)]
    assert [spending.plans for spending in book.spendings("users")] == [(plan(6),)]
    book.reserve([item("next", plan=plan(4))])  # two of the last 30 days, one still reserved, and four
    with pytest.raises(PrivacySpentError):
        book.reserve([item("one more", plan=plan(1))])


class Looked(NamedTuple):
    """A run: after how many days, how large, how much of it was spent, whether it was closed then."""

    wait: int
    size: int
    spent: int
    closed: bool


@hypothesis.given(
    looks=st.lists(
        st.builds(Looked, st.integers(0, 7), st.integers(1, 7), st.integers(1, 7), st.booleans()),
        min_size=2,
        max_size=9,
    )
)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], max_examples=100)
def test_no_window_of_time_ever_holds_more_than_the_budget(clock, looks):
    clock.now = START
    book = Ledger()
    book.set_budget(budget(window=10.0))
    made = []
    for number, look in enumerate(looks):
        clock.now += days(look.wait)
        for run, old in enumerate(looks[: number + 1]):  # an old run may have something left to spend
            with contextlib.suppress(PrivacySpentError):
                for _ in range(old.spent if run == number else 1):
                    assert book.charge(account(f"{run}"), "train", plan(old.size), release=len(made), query="a")
                    made.append(clock.now)
                if run == number and look.closed:
                    book.close(f"{run}")
    for end in made:
        within = sum(end - days(10) < at <= end for at in made)
        assert textbook(within / 25) <= 2.2 * (1 + 1e-6)


# Never above the budget: random sequences, recomputed without the project's code

ACCOUNTS = (
    {"partition": "accuracy", "part": "low"},
    {"partition": "accuracy", "part": "high"},
    {"partition": "all", "part": "all"},
)
NOISES = 5.0, 4.0, 7.0


def worst(held):
    """The epsilon of the unluckiest user; `held` are numbers of releases by run. Every user is in one part of each."""
    squares = [held[run] / NOISES[run] ** 2 for run in range(3)]
    return textbook(max(squares[0], squares[1]) + squares[2])


def recomputed(address, population):
    """Releases made and still reserved, by run, from the entries as they lie in the store."""
    made, left = collections.Counter(), collections.Counter()
    found = raw(address, "select kind, run, body from entries where population = ? order by id", (population,))
    for kind, run, body in found:
        number = int(run.split()[-1]) if run else None
        if kind == "reserve":
            left[number] += json.loads(body)["plan"]["releases"]
        elif kind == "release":
            made[number] += 1
            left[number] -= 1
        elif kind == "close":
            left[number] = 0
    return made, made + left


@hypothesis.given(
    epsilon=st.floats(0.5, 4.0),
    moves=st.lists(
        st.tuples(
            st.sampled_from(["reserve", "spend", "spend", "spend", "close"]), st.integers(0, 2), st.integers(1, 9)
        ),
        min_size=3,
        max_size=20,
    ),
)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], max_examples=30)
def test_whatever_runs_do_nothing_beyond_the_budget_is_ever_released(address, epsilon, moves):
    book = Ledger(address)
    population = f"users {len(book.populations())}"
    book.set_budget(budget(epsilon, population=population))
    planned, closed = {}, set()
    for number, (move, run, count) in enumerate(moves):
        name, where = f"{population}: run {run}", {"population": population} | ACCOUNTS[run]
        asked = plan(planned.get(run, count), noise=NOISES[run])
        made, promised = recomputed(address, population)
        try:
            if move == "reserve":
                book.reserve([item(name, plan=asked, **where)])
            elif move == "spend":
                assert book.charge(account(name, **where), "train", asked, release=number, query="a")
            elif run in planned:
                book.close(name)
                closed.add(run)
            if move != "close":
                planned.setdefault(run, count)
        except PrivacySpentError:
            if run not in planned:  # refused for a reason: it would not have fitted; a thousandth of delta is set aside
                assert worst(promised + collections.Counter({run: count})) > epsilon * 0.999
            else:  # its plan is spent, or it is closed
                assert run in closed or made[run] >= planned[run]
        released, promised = recomputed(address, population)
        assert worst(released) <= worst(promised) <= epsilon * (1 + 1e-6)
        told = standing(book, population)
        for found, expected in ((told.spent, released), (told.promised, promised)):
            assert (found.epsilon if found else 0.0) == pytest.approx(worst(expected), rel=1e-6, abs=1e-6)
    assert book.verify() == []
    book.close_file()


# Who shares users with whom


def groups(noises, **options):
    return [
        spent(part, partition="accuracy", part=part, noise=noise, **options)
        for part, noise in zip(("low", "high", "middle"), noises, strict=False)
    ]


def test_groups_that_share_no_user_cost_the_dearest_of_them_when_users_come_and_go(book):
    for group in groups((5.0, 4.0, 9.0), releases=4):
        book.reserve([Item(account=group.account, stage="train", plan=group.plans[0])])
    assert standing(book).promised.epsilon == pytest.approx(textbook(4 / 16), rel=1e-6)


def test_groups_that_share_no_user_add_up_when_users_are_replaced(address):
    """Who is replaced may leave one group and enter another."""
    book = Ledger(address)
    book.set_budget(budget(50.0, neighbours=Neighbours.REPLACE_ONE))
    for group in groups((5.0, 4.0, 9.0), releases=4, neighbours=Neighbours.REPLACE_ONE):
        book.reserve([Item(account=group.account, stage="train", plan=group.plans[0])])
    whole = 4 * sum(4 / noise**2 for noise in (5.0, 4.0, 9.0))  # by twice the bound
    assert standing(book, neighbours=Neighbours.REPLACE_ONE).promised.epsilon == pytest.approx(
        textbook(whole), rel=1e-6
    )


def selections(*lines):
    head, tail = toys.TINY.split('[selections.all]\nby = "everyone"')
    return head + "[primary]\nepochs = 1\nwidths = [4]\n" + "\n".join(lines) + tail


ACCURACY = selections(
    "[selections.low]\nby = 'accuracy'\nbelow = 0.6", "[selections.high]\nby = 'accuracy'\nat_least = 0.6"
)
OVERLAPPING = ACCURACY.replace("at_least = 0.6", "at_least = 0.5")


@pytest.mark.parametrize(
    ("recipe", "sets", "models"),
    [
        (ACCURACY, [], 1),
        (ACCURACY, ["privacy.neighbours=replace-one"], 2),
        (OVERLAPPING, [], 2),
        (toys.PAIR, [], 2),
        (toys.PAIR, ["privacy.unit=example"], 2),
    ],
    ids=["users by accuracy", "users replaced", "intervals that overlap", "examples right and wrong", "per example"],
)
def test_a_recipe_pays_once_for_groups_of_users_and_for_every_selection_of_examples(address, recipe, sets, models):
    parsed = Recipe.parsed(recipe, sets)
    book = Ledger(address)
    book.reserve(parsed.items("run", simulated=False))
    whole = [plan for plan in parsed.plans.values() for _ in range(models)]
    assert standing(book, "digits", parsed.privacy.unit, parsed.privacy.neighbours).promised.epsilon == pytest.approx(
        accounting.epsilon(whole, DELTA), rel=1e-6
    )


def test_the_groups_of_two_runs_are_not_the_same_groups(address):
    """By the next run a user's data, and with them the group, may have changed."""
    parsed = Recipe.parsed(ACCURACY)
    book = Ledger(address)
    for run in ("one", "two"):
        book.reserve(parsed.items(run, simulated=False))
    assert standing(book, "digits").promised.epsilon == pytest.approx(
        accounting.epsilon([*parsed.plans.values(), *parsed.plans.values()], DELTA), rel=1e-6
    )


def worlds(spendings):
    """Every choice of one part in each partition: the users there may be."""
    parts = collections.defaultdict(lambda: collections.defaultdict(list))
    for found in spendings:
        parts[found.account.partition][found.account.part] += found.plans
    for choice in itertools.product(*(list(held.values()) for held in parts.values())):
        yield [plan for plans in choice for plan in plans]


@hypothesis.given(
    cells=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 9), st.sampled_from([2.0, 3.5, 6.0, 11.0])),
        min_size=1,
        max_size=9,
    )
)
def test_gaussians_cost_exactly_what_the_unluckiest_user_suffers(cells):
    found = [
        spent(f"run {number}", partition=f"p{partition}", part=f"{part}", releases=releases, noise=noise)
        for number, (partition, part, releases, noise) in enumerate(cells)
    ]
    exact = max(textbook(sum(plan.releases / plan.noise_multiplier**2 for plan in world)) for world in worlds(found))
    assert guarantee(found, DELTA).epsilon == pytest.approx(exact, rel=1e-6)


SAMPLED = Poisson(rate=0.05, population=200, capped=False)
TURNS = Balanced(groups=3, population=30)
INCOMPARABLE = {
    "sampled or not": [("p", "a", plan(30, 1.5, sampling=SAMPLED)), ("p", "b", plan(3, 6.0))],
    "sampled at two rates": [
        ("p", "a", plan(30, 1.5, sampling=SAMPLED)),
        ("p", "b", plan(9, 1.2, sampling=dataclasses.replace(SAMPLED, rate=0.1))),
    ],
    "mixed, in two partitions": [
        ("p", "a", plan(20, 1.5, sampling=SAMPLED)),
        ("p", "a", plan(1, 8.0)),
        ("p", "b", plan(40, 1.5, sampling=SAMPLED)),
        ("q", "a", plan(5, 7.0)),
        ("q", "b", plan(10, 2.0, sampling=SAMPLED)),
    ],
    "taking turns": [("p", "a", plan(7, 6.0, sampling=TURNS)), ("p", "b", plan(2, 5.0)), ("all", "all", plan(2, 9.0))],
    "no noise somewhere": [("p", "a", plan(1, 0.0)), ("p", "b", plan(1, 9.0))],
}


@pytest.mark.parametrize("name", INCOMPARABLE)
def test_parts_that_cannot_be_compared_are_never_under_priced(name):
    found = [
        Spending(account=account(f"run {number}", partition=partition, part=part), plans=(held,))
        for number, (partition, part, held) in enumerate(INCOMPARABLE[name])
    ]
    exact = max(accounting.epsilon(world, DELTA) for world in worlds(found))
    everything = accounting.epsilon([plan for one in found for plan in one.plans], DELTA)
    assert exact * (1 - 1e-6) <= guarantee(found, DELTA).epsilon <= everything * (1 + 1e-6)


def test_many_runs_on_two_groups_each_are_priced_in_one_go(monkeypatch):
    """Choosing a part of each partition, there would be 2^50 users to look at."""
    priced = []
    epsilon_of = accounting.epsilon_of
    monkeypatch.setattr(spending.accounting, "epsilon_of", lambda *given: priced.append(given) or epsilon_of(*given))
    found = [
        spent(f"run {run}/{part}", partition=f"run {run}", part=part, noise=100.0 + run + ord(part), releases=3)
        for run in range(50)
        for part in "ab"
    ]
    exact = textbook(sum(3 / (100.0 + run + ord("a")) ** 2 for run in range(50)))
    assert guarantee(found, DELTA).epsilon == pytest.approx(exact, rel=1e-6)
    assert len(priced) == 1
    assert len(priced[0][0]) <= 100


def test_what_cannot_be_added_up_is_counted_apart(address):
    book = Ledger(address)
    book.charge(account("a"), "train", plan(), release=0, query="a")
    book.charge(account("b"), "train", plan(unit=Unit.EXAMPLE), release=0, query="a")
    found = book.standings()
    assert [(told.population, told.spent.unit, told.runs) for told in found] == [
        ("users", "example", 1),
        ("users", "user", 1),
    ]
    assert found[0].spent.epsilon == pytest.approx(textbook(1 / 25), rel=1e-6)


def test_a_run_of_two_kinds_is_refused_or_told_about(address):
    book = Ledger(address)
    book.charge(account(), "count", plan(), release=0, query="a")
    try:
        book.charge(account(), "train", plan(unit=Unit.EXAMPLE), release=0, query="a")
    except ValueError:
        return
    assert book.standings()


def test_a_budget_over_runs_of_another_kind_lets_nothing_through(address):
    """An epsilon per example cannot be added to one per user: nobody could say what is left."""
    book = Ledger(address)
    book.charge(account("old"), "train", plan(unit=Unit.EXAMPLE), release=0, query="a")
    book.set_budget(budget(1000.0))
    before = entries(address)
    with pytest.raises(ValueError, match="one unit"):
        book.reserve([item(plan=plan(1, noise=500.0))])
    assert entries(address) == before


# Simulated runs


def test_simulated_runs_are_free_and_marked(address, book):
    book.reserve([item("toy", plan=plan(1000), simulated=True)])
    for release in range(3):
        assert book.charge(account("toy", simulated=True), "train", plan(1000), release=release, query="a")
    assert standing(book).promised is None
    assert book.spendings("users", reserved=True) == []
    book.reserve([item(plan=plan(7))])
    toy, real = book.runs()
    assert (toy["simulated"], real["simulated"]) == (True, False)
    assert "SIMULATED (free)" in toy["told"]
    assert "SIMULATED" not in real["told"]
    assert guarantee([book.spending("toy")], DELTA).simulated
    bodies = raw(address, "select body from entries where run = 'toy' and kind = 'reserve'")
    assert [json.loads(body)["simulated"] for (body,) in bodies] == [True]


def test_simulated_runs_need_no_leave_and_fit_any_budget(address):
    book = Ledger(address)
    book.set_budget(budget(0.01, review=True, size=3))
    book.reserve([item(plan=plan(unit=Unit.EXAMPLE), simulated=True)])
    with pytest.raises((NotApprovedError, PrivacySpentError)):
        book.reserve([item("real", plan=plan(noise=50.0))])


# Reviews


@pytest.fixture
def reviewed(address):
    """A ledger whose budget asks for an approved request."""
    book = Ledger(address, who="modeler")
    book.set_budget(budget(review=True))
    return book


def asked(book, run="look", recipe="digest", **options):
    return book.request(run, [item(run, **options)], recipe=recipe, why="to see")


def start(book, run="look-1", recipe="digest", **options):
    book.reserve([item(run, **options)], recipe=recipe)


def refused(book, address, told, **options):
    before = entries(address)
    with pytest.raises(NotApprovedError, match=told):
        start(book, **options)
    assert entries(address) == before


def test_a_run_without_a_request_is_refused(reviewed, address):
    refused(reviewed, address, "there is no request for it")
    with pytest.raises(NotApprovedError, match="no request"):
        reviewed.charge(account("look-1"), "train", plan(), release=0, query="a")
    assert entries(address) == 1


def test_a_run_whose_request_waits_is_refused(reviewed, address):
    number = asked(reviewed)
    refused(reviewed, address, f"request {number} waits for review")


def test_a_run_whose_request_was_rejected_is_refused_with_the_note(reviewed, address):
    number = asked(reviewed)
    reviewed.review(number, approved=False, note="too many rounds")
    refused(reviewed, address, "was rejected: too many rounds")


def test_an_approved_request_can_be_run_and_resumed(reviewed, address):
    number = asked(reviewed)
    reviewed.review(number, approved=True, note="fine")
    start(reviewed)
    assert reviewed.charge(account("look-1"), "train", plan(), release=0, query="a")
    before = entries(address)
    start(reviewed)
    assert not reviewed.charge(account("look-1"), "train", plan(), release=0, query="a")
    assert entries(address) == before
    (body,) = raw(address, "select body from entries where kind = 'reserve'")[0]
    assert (json.loads(body)["request"], json.loads(body)["recipe"]) == (number, "digest")


def test_a_recipe_edited_after_its_approval_is_refused(reviewed, address):
    number = asked(reviewed)
    reviewed.review(number, approved=True)
    refused(reviewed, address, f"the recipe is not the one of request {number}: it was edited", recipe="another")


@pytest.mark.parametrize(
    "options",
    [
        {"plan": plan(noise=4.0)},
        {"plan": plan(3)},
        {"stage": "another"},
        {"part": "low"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_plan_edited_after_its_approval_is_refused_whatever_the_recipe_says(reviewed, address, options):
    reviewed.review(asked(reviewed), approved=True)
    refused(reviewed, address, "need an approved request", **options)


def test_an_approval_is_used_once(reviewed, address):
    number = asked(reviewed)
    reviewed.review(number, approved=True)
    start(reviewed, "look-1")
    reviewed.charge(account("look-1"), "train", plan(), release=0, query="a")
    reviewed.close("look-1")
    refused(reviewed, address, rf"request {number} was used by another run \(look-1\); make a new one", run="look-2")
    assert reviewed.requests()[0]["verdict"] == "approved by modeler, used by run look-1"
    again = asked(reviewed)
    reviewed.review(again, approved=True)
    start(reviewed, "look-2")


def test_an_approval_survives_a_run_that_ended_without_a_release(reviewed, address):
    reviewed.review(asked(reviewed), approved=True)
    for run in ("look-1", "look-2"):
        start(reviewed, run)
        reviewed.close(run)
        assert reviewed.requests()[0]["verdict"] == "approved by modeler"
    start(reviewed, "look-3")
    refused(reviewed, address, "used by another run", run="look-4")
    with pytest.raises(RunClosedError):
        reviewed.charge(account("look-1"), "train", plan(), release=0, query="a")


def test_a_run_that_was_interrupted_keeps_its_approval(reviewed, address):
    reviewed.review(asked(reviewed), approved=True)
    start(reviewed, "look-1")
    reviewed.close_file()
    later = Ledger(address, who="modeler")
    refused(later, address, "used by another run", run="look-2")
    assert later.charge(account("look-1"), "train", plan(), release=0, query="a")


@pytest.mark.parametrize("left", ["open", "released"])
def test_an_approval_is_used_as_long_as_one_part_of_its_run_is(reviewed, address, left):
    parts = "low", "high"
    asked_for = [item("look", part=part, partition="halves") for part in parts]
    reviewed.review(reviewed.request("look", asked_for, recipe="digest"), approved=True)
    reviewed.reserve([item(f"look-1/{part}", part=part, partition="halves") for part in parts], recipe="digest")
    if left == "released":
        own = account("look-1/high", part="high", partition="halves")
        reviewed.charge(own, "train", plan(), release=0, query="a")
        reviewed.close("look-1/high")
    reviewed.close("look-1/low")
    refused(reviewed, address, r"used by another run \(look-1\)", run="look-2/low", part="low", partition="halves")


def test_of_runs_that_race_for_an_approval_that_was_given_back_one_gets_it(reviewed, address):
    reviewed.review(asked(reviewed), approved=True)
    start(reviewed, "look-0")
    reviewed.close("look-0")
    together = threading.Barrier(8)

    def begins(number):
        book = Ledger(address)
        together.wait()
        with contextlib.suppress(NotApprovedError):
            start(book, f"look-{number}")
            book.charge(account(f"look-{number}"), "train", plan(), release=0, query="a")
        book.close_file()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(begins, range(1, 9)))
    assert raw(address, "select count(*) from entries where kind = 'release'") == [(1,)]


LIVES = ("start", "charge", "close"), ("start", "close", "charge")


@pytest.mark.parametrize("second", LIVES)
@pytest.mark.parametrize("first", LIVES)
def test_however_two_runs_take_turns_one_releases_by_one_approval(first, second):
    for turns in itertools.combinations(range(6), 3):
        book = Ledger()
        book.set_budget(budget(epsilon=100, review=True))
        book.review(asked(book), approved=True)
        lives = {"look-1": iter(first), "look-2": iter(second)}
        for turn in range(6):
            run = "look-1" if turn in turns else "look-2"
            with contextlib.suppress(NotApprovedError, PrivacySpentError, ValueError):
                {"start": start, "charge": charged, "close": Ledger.close}[next(lives[run])](book, run)
        assert not (book.spent("look-1", "train") and book.spent("look-2", "train"))


def charged(book, run):
    book.charge(account(run), "train", plan(), release=0, query="a")


def test_an_approval_for_another_population_does_not_count(reviewed, address):
    reviewed.set_budget(budget(population="others", review=True))
    reviewed.review(asked(reviewed, population="others"), approved=True)
    refused(reviewed, address, "there is no request")


def test_over_budget_is_refused_though_it_was_approved(reviewed, address):
    reviewed.review(asked(reviewed, plan=plan(8)), approved=True)
    before = entries(address)
    with pytest.raises(PrivacySpentError):
        start(reviewed, plan=plan(8))
    assert entries(address) == before


def test_a_request_is_reviewed_once(reviewed, address):
    number = asked(reviewed)
    reviewed.review(number, approved=False)
    before = entries(address)
    with pytest.raises(ValueError, match="reviewed already"):
        reviewed.review(number, approved=True)
    for nothing in (number + 40, 1, -1):
        with pytest.raises(ValueError, match="number of a request"):
            reviewed.review(nothing, approved=True)
    assert entries(address) == before


def test_a_number_beyond_all_bounds_is_no_request(reviewed):
    with pytest.raises(ValueError, match="number of a request"):
        reviewed.review(10**30, approved=True)


def test_requests_tell_who_asked_why_and_what_became_of_them(address):
    modeler, reviewer = Ledger(address, who="Ada"), Ledger(address, who="Ben")
    modeler.set_budget(budget(review=True))
    numbers = [asked(modeler, run) for run in ("one", "two", "three")]
    reviewer.review(numbers[0], approved=True, note="go ahead")
    reviewer.review(numbers[1], approved=False)
    found = modeler.requests()
    assert [request["number"] for request in found] == numbers
    assert [request["verdict"] for request in found] == ["approved by Ben (go ahead)", "rejected by Ben", "waiting"]
    assert {(request["who"], request["why"], request["population"]) for request in found} == {
        ("Ada", "to see", "users")
    }
    assert found[0]["asked"][0]["plan"] == plan().to_dict()


@pytest.fixture
def signed(address):
    """A budget that one reviewer guards with a key: the ledger as seen by the reviewer, a stranger, and one without."""
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    seen = types.SimpleNamespace(
        key=key,
        reviewer=Ledger(address, who="Ben", key=key),
        stranger=Ledger(address, who="Eve", key=other),
        nobody=Ledger(address, who="Ada"),
    )
    seen.nobody.set_budget(budget(review=True, reviewers=(keys.public(key),)))
    return seen


def test_only_a_reviewers_signature_approves(signed, address):
    number = asked(signed.nobody)
    before = entries(address)
    for ledger in (signed.nobody, signed.stranger):
        with pytest.raises(NotApprovedError, match="signed by one of the reviewers"):
            ledger.review(number, approved=True)
    assert entries(address) == before
    signed.reviewer.review(number, approved=True)
    start(signed.nobody)


def test_only_a_reviewers_signature_changes_the_budget(signed, address):
    before = entries(address)
    for ledger in (signed.nobody, signed.stranger):
        with pytest.raises(NotApprovedError, match="signed by one of the reviewers"):
            ledger.set_budget(budget(1000.0))
    assert entries(address) == before
    assert signed.nobody.budget("users").epsilon == 2.2
    signed.reviewer.set_budget(budget(3.0))
    assert signed.nobody.budget("users").epsilon == 3.0
    signed.nobody.set_budget(budget(4.0))  # the reviewer let go of it


def test_an_approval_from_before_the_reviewers_were_named_does_not_count(address):
    key = Ed25519PrivateKey.generate()
    book = Ledger(address)
    book.set_budget(budget(review=True))
    number = asked(book)
    book.review(number, approved=True)
    book.set_budget(budget(review=True, reviewers=(keys.public(key),)))
    refused(book, address, f"the approval of request {number} is not signed by a reviewer")


def test_a_reviewer_who_was_replaced_no_longer_approves(signed, address):
    number = asked(signed.nobody)
    signed.reviewer.review(number, approved=True)
    new = Ed25519PrivateKey.generate()
    signed.reviewer.set_budget(budget(review=True, reviewers=(keys.public(new),)))
    refused(signed.nobody, address, "not signed by a reviewer")


def test_another_population_is_not_guarded_by_these_reviewers(signed):
    signed.nobody.set_budget(budget(population="others"))
    signed.nobody.reserve([item(population="others")])
    assert [run["population"] for run in signed.nobody.runs()] == ["others"]


# Bad surroundings: nothing is written, nothing is released


def test_a_clock_that_goes_back_is_refused_and_nothing_is_written(address, clock):
    book = Ledger(address)
    book.set_budget(budget())
    book.reserve([item()])
    before = entries(address)
    clock.now = START - days(1)
    calls = [
        lambda: book.set_budget(budget(9.0)),
        lambda: book.reserve([item("other")]),
        lambda: book.charge(account(), "train", plan(), release=0, query="a"),
        lambda: asked(book),
        lambda: book.close("run"),
    ]
    for call in calls:
        with pytest.raises(LedgerError, match="clock that goes forward"):
            call()
    assert entries(address) == before
    clock.now = START + days(1)
    assert book.charge(account(), "train", plan(), release=0, query="a")


def test_a_clock_set_right_by_a_second_is_no_reason_to_stop(address, clock):
    book = Ledger(address)
    book.charge(account(), "train", plan(), release=0, query="a")
    clock.now = START - datetime.timedelta(seconds=1)
    book.charge(account(), "train", plan(), release=1, query="a")
    times = [at[:10] for (at,) in raw(address, "select at from entries order by id")]
    assert times == ["2030-01-01"] * 3
    book.reserve([item("other")])  # is dated by the second, and no earlier than what was before the clock was set
    assert raw(address, "select at from entries where id = 4") == [("2030-01-01T12:00:00.000000+00:00",)]
    assert book.verify() == []


def test_whether_a_budget_is_exceeded_leaves_room_for_rounding_only():
    assert not budgets.over(budget(2.0), 2.0)
    assert not budgets.over(budget(2.0), 2.0 * (1 + 1e-10))
    assert budgets.over(budget(2.0), 2.0 * (1 + 1e-8))


def test_seven_fit_and_eight_do_not(book):
    """What the tests above count on."""
    assert fitting() == 7
    book.reserve([item(plan=plan(7))])
    with pytest.raises(PrivacySpentError):
        book.reserve([item("one more", plan=plan(1))])


def test_the_clipping_norm_costs_nothing_and_the_noise_does(book):
    with pytest.raises(PrivacySpentError):
        book.reserve([item(plan=plan(8))])
    with pytest.raises(PrivacySpentError):
        book.reserve([item(plan=plan(8, bound=L2Clip(norm=0.01)))])
    book.reserve([item(plan=plan(8, noise=6.0))])


def test_releases_at_a_budget_fit_however_the_budget_was_computed(address):
    """A budget of exactly what a plan costs must hold that plan."""
    whole = Plan(
        sampling=Everyone(), bound=L2Clip(norm=1.0), noise_multiplier=3.3, releases=17, expected_contributors=5.0
    )
    book = Ledger(address)
    book.set_budget(budget(whole.epsilon(DELTA)))
    book.reserve([item(plan=whole)])
    assert releases(address) == 0
    for number in range(17):
        assert book.charge(account(), "train", whole, release=number, query="a")
