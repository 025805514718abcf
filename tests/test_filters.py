"""Plans chosen after looking: whoever picks the next plan by earlier answers gets no more than the budget.

What adversaries really reach is computed here by numerical integration over all answers, without the project's code.
"""

import dataclasses
import datetime
import functools
import itertools
import math
import types

import numpy as np
import pytest
import toys
from scipy import stats
from toys import DELTA, account, plan

from fedlens.curators.protocol import PrivacySpentError
from fedlens.ledger import Budget, Item, Ledger, Spending, guarantee, storage
from fedlens.ledger.allowance import Rule
from fedlens.privacy import Balanced, FixedSize, MatrixPlan, Neighbours, Poisson, accounting, filters
from fedlens.privacy.losses import ExchangedGaussian, SampledGaussian
from fedlens.privacy.matrix import Banded
from fedlens.recipes.recipe import Recipe
from fedlens.runs import planning

EPSILON = 1.0
RARELY = Poisson(rate=2e-5, population=100_000, capped=False)


def sampled(rate, noise, releases=1):
    return plan(releases, noise, sampling=Poisson(rate=rate, population=100_000, capped=False))


def spending(asked, run="next", **options):
    return Spending(account=account(run, **options), plans=(asked,))


def book_of(*first, address=None, epsilon=EPSILON, **options):
    """A ledger whose first plans are carried out, each as far as it goes."""
    book = Ledger(address)
    book.set_budget(Budget(population="users", epsilon=epsilon, delta=DELTA, **options))
    book.reserve([Item(account=account(f"run {n}"), stage="train", plan=asked) for n, asked in enumerate(first)])
    for number, asked in enumerate(first):
        spend(book, f"run {number}", asked, asked.releases)
    return book


def spend(book, run, asked, releases):
    for release in range(releases):
        assert book.charge(account(run), "train", asked, release=release, query=f"{release}")


def strongest(fits, made, low=0.05, high=1e4):
    """The plan with the least noise, to within a thousandth, that fits."""
    while high > low * 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(made(middle)) else (middle, high)
    return made(high)


# The worst that can be done, by integration


@functools.lru_cache
def answers(rate, noise, removed, points=6001):
    """Of one release: how likely each answer is where the unit is (or is not), and the loss it makes."""
    x, step = np.linspace(-12 * noise, 12 * noise + 1, points, retstep=True)
    without, drawn = stats.norm.pdf(x, 0, noise) * step, stats.norm.pdf(x, 1, noise) * step
    loss = np.log(1 - rate + rate * np.exp((2 * x - 1) / (2 * noise**2)))
    return ((1 - rate) * without + rate * drawn, loss) if removed else (without, -loss)


def of(asked, removed, points=6001):
    assert asked.releases == 1
    return answers(getattr(asked.sampling, "rate", 1.0), asked.noise_multiplier, removed, points)


def delta_of(asked, epsilons, removed):
    """The delta of one release at many epsilons."""
    chances, losses = of(asked, removed)
    order = np.argsort(losses)
    losses, chances = losses[order], chances[order]
    behind = [np.append(np.cumsum(weights[::-1])[::-1], 0.0) for weights in (chances, chances * np.exp(-losses))]
    first = np.searchsorted(losses, epsilons, side="right")
    return behind[0][first] - np.exp(epsilons) * behind[1][first]


def worst_of_two(first, seconds, removed=True, epsilon=EPSILON):
    """The delta of an adversary who picks, by the first answer, the second plan that suits it best."""
    chances, losses = of(first, removed)
    return float(chances @ np.max([delta_of(asked, epsilon - losses, removed) for asked in seconds], axis=0))


def worst_of_three(first, paths, removed=True):
    """The same with a third step: `paths` are the second plans with the thirds that are open after each."""
    lattice = np.linspace(-3.0, 3.0, 2401)  # losses after two answers that are looked up; beyond lies next to nothing
    values = []
    for second, thirds in paths:
        best = np.max([delta_of(asked, EPSILON - lattice, removed) for asked in thirds], axis=0)
        chances, losses = of(second, removed, points=1501)
        ahead = lattice[:, None] + losses
        # Left of the lattice nothing is left to gain, right of it all; the value is convex there, so chords lie above.
        value = np.where(ahead > lattice[-1], 1.0, np.interp(ahead, lattice, best))
        values.append(value @ chances)
    chances, losses = of(first, removed)
    return float(chances @ np.interp(losses, lattice, np.max(values, axis=0)))


def test_an_adversary_who_picks_the_second_plan_by_the_first_answer_would_get_twice_the_delta_and_is_refused():
    """Each pair of plans is priced within epsilon 1.00; picked after looking, they cost 1.17, or 1.9 deltas."""
    first = plan(1, 4.6)

    def priced_within(asked):
        return accounting.epsilon([first, asked], DELTA) <= EPSILON

    everyone = strongest(priced_within, lambda noise: plan(1, noise))
    rarely = strongest(priced_within, lambda noise: plan(1, noise, sampling=RARELY))
    for second in (everyone, rarely):  # fixed beforehand, each is what it is priced at
        assert worst_of_two(first, [second]) <= DELTA
    assert worst_of_two(first, [everyone, rarely]) > 1.9 * DELTA
    assert worst_of_two(first, [everyone, rarely], epsilon=1.15) > DELTA

    book = book_of(first)
    with pytest.raises(PrivacySpentError, match=r"chosen after looking; planned all at once, it would be 1\.00"):
        book.reserve([Item(account=account("rarely"), stage="train", plan=rarely)])
    state = book.allowance("users")
    accepted = [
        strongest(lambda asked: state.fits([spending(asked)]), lambda noise, s=sampling: plan(1, noise, sampling=s))
        for sampling in (first.sampling, RARELY, dataclasses.replace(RARELY, rate=1e-3))
    ]
    for removed in (True, False):
        assert worst_of_two(first, accepted, removed) <= DELTA
    assert worst_of_two(first, accepted) > 0.97 * DELTA  # no more is asked than must be


@pytest.mark.parametrize("seed", range(4))
def test_no_strategy_of_three_steps_exceeds_the_budget_however_its_plans_are_sampled(seed):
    random = np.random.default_rng(seed)

    def rate():
        return float(random.choice([1.0, 0.5, 0.1, 1e-2, 1e-4]))

    def made(rate):
        return lambda noise: sampled(rate, noise) if rate < 1 else plan(1, noise)

    first = made(rate())(float(random.choice([5.0, 8.0])))
    book, paths = book_of(first), []
    state = book.allowance("users")
    for share in (1.5, 1.0):
        full = strongest(lambda asked: state.fits([spending(asked)]), made(rate()))
        second = dataclasses.replace(full, noise_multiplier=full.noise_multiplier * share)  # some leave a rest
        after = book_of(first)
        after.reserve([Item(account=account("second"), stage="train", plan=second)])
        spend(after, "second", second, 1)
        later = after.allowance("users")
        thirds = [
            strongest(lambda asked, state=later: state.fits([spending(asked)]), made(rate())) for rate in (rate, rate)
        ]
        paths.append((second, thirds))
    for removed in (True, False):
        assert worst_of_three(first, paths, removed) <= DELTA


def test_gaussians_alone_are_exact_however_they_are_chosen():
    first = plan(1, 6.0)
    book = book_of(first)
    paths = []
    for noise in (6.0, 9.0, 20.0):
        second = plan(1, noise)
        after = book_of(first)
        after.reserve([Item(account=account("second"), stage="train", plan=second)])
        spend(after, "second", second, 1)
        state = after.allowance("users")
        paths.append((second, [strongest(lambda a, s=state: s.fits([spending(a)]), lambda noise: plan(1, noise))]))
    assert book.allowance("users").rule is Rule.FILTER
    assert 0.99 * DELTA < worst_of_three(first, paths) <= DELTA


# What a plan is charged as

LOSSES = {
    "sampled": SampledGaussian(multiplier=2.0, rate=0.1),
    "rarely": SampledGaussian(multiplier=0.8, rate=1e-3),
    "capped": SampledGaussian(multiplier=2.0, rate=0.1, population=400, cap=60),
    "replaced": SampledGaussian(multiplier=4.0, rate=0.2, replaced=True),
    "of a fixed size": ExchangedGaussian(multiplier=3.0, size=20, population=100),
}


@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("name", LOSSES)
def test_a_plan_gives_away_no_more_than_its_gaussian_at_any_epsilon(name, count):
    loss, left = LOSSES[name], filters.slack(1, DELTA)
    mu = filters.equivalent(loss, count, left)
    pld = loss.pld(3e-4).self_compose(count)
    epsilons = np.concatenate([np.linspace(0, 8, 4001), np.linspace(8, 40, 401)])  # below 0 it follows by symmetry
    given = np.array(pld.get_delta_for_epsilon(epsilons))

    def covers(mu):
        gaussian = np.array([accounting.gaussian_delta(mu, float(epsilon)) for epsilon in epsilons])
        return np.all(given <= left + (1 - left) * gaussian + 1e-13)

    assert covers(mu)
    assert not covers(0.97 * mu)  # and no smaller one would do
    assert filters.square(loss, count, left) <= mu**2 * (1 + 1e-9)


def test_the_slack_of_all_sampled_plans_together_is_a_thousandth_of_delta():
    assert sum(filters.slack(number, DELTA) for number in range(1, 5000)) < filters.SLACK * DELTA
    with pytest.raises(ValueError, match="number=0"):
        filters.slack(0, DELTA)


def test_where_numbers_are_too_small_to_compute_with_a_plan_is_charged_as_if_nobody_were_sampled():
    loss = SampledGaussian(multiplier=2.0, rate=0.1)
    assert filters.square(loss, 100, filters.slack(1000, 1e-12)) == 100 / 4
    assert filters.square(dataclasses.replace(loss, replaced=True), 100, 1e-20) == 4 * 100 / 4
    assert filters.square(loss, 100, filters.slack(1, DELTA)) < 1
    assert filters.square(SampledGaussian(multiplier=0.0, rate=0.1), 1, DELTA) == math.inf


def test_many_sampled_plans_one_after_the_other_cost_little_more_than_planned_at_once():
    """The price of looking, where noise is large: a few percent."""
    asked = sampled(0.1, 5.0, releases=100)
    book = book_of(asked, asked, asked, epsilon=3.0)
    state = book.allowance("users")
    assert state.planned() < state.counted() < 1.03 * state.planned()


# The ledger


@pytest.mark.parametrize("kind", ["gaussian", "sampled", "in turn", "correlated"])
def test_what_is_planned_before_the_first_answer_costs_what_it_costs_at_once(address, kind):
    asked = {
        "gaussian": plan(4, 6.0),
        "sampled": sampled(1e-3, 0.7, 4),
        "in turn": plan(8, 6.0, sampling=Balanced(groups=2, population=9)),
        "correlated": MatrixPlan(
            strategy=Banded(bands=2),
            bound=plan().bound,
            noise_multiplier=9.0,
            releases=4,
            expected_contributors=9.0,
            participations=4,
            separation=1,
        ),
    }[kind]
    book = Ledger(address)
    epsilon = guarantee([spending(asked)], DELTA).epsilon
    book.set_budget(Budget(population="users", epsilon=epsilon, delta=DELTA))
    book.reserve([Item(account=account("run"), stage="train", plan=asked)])  # a budget of exactly what it costs
    for release in range(asked.releases):
        assert book.charge(account("run"), "train", asked, release=release, query=f"a/{release}")
    with pytest.raises(PrivacySpentError):
        book.reserve([Item(account=account("one more"), stage="train", plan=plan(1, 60.0))])


def test_what_fits_only_as_planned_may_be_carried_out_and_nothing_else_may_follow(address):
    """Else one could look and then choose between the two rules, and lose delta twice."""
    asked = sampled(1e-3, 0.7, 4)
    book = Ledger(address)
    epsilon = 1.05 * guarantee([spending(asked)], DELTA).epsilon
    book.set_budget(Budget(population="users", epsilon=epsilon, delta=DELTA))
    book.reserve([Item(account=account("run"), stage="train", plan=asked)])
    assert book.allowance("users").rule is Rule.BEFOREHAND
    spend(book, "run", asked, 1)
    assert book.allowance("users").rule is Rule.AS_PLANNED
    book.close("run")  # three releases are given back: but for more of the same only
    other = plan(1, 90.0)
    assert guarantee([spending(sampled(1e-3, 0.7)), spending(other)], DELTA).epsilon < epsilon
    with pytest.raises(PrivacySpentError, match="only because it was planned at once"):
        book.reserve([Item(account=account("other"), stage="train", plan=other)])
    with pytest.raises(PrivacySpentError):
        book.reserve([Item(account=account("more"), stage="train", plan=sampled(1e-3, 0.7, 4))])
    book.reserve([Item(account=account("same"), stage="train", plan=sampled(1e-3, 0.7, 3))])
    spend(book, "same", sampled(1e-3, 0.7, 3), 3)
    standing = book.standings()[0]
    assert standing.to_dict()["filter"]["rule"] == "as planned"
    assert "nothing else may be added" in "\n".join(standing.lines())


def test_a_sampled_plan_that_was_begun_is_owed_whole_and_one_that_was_not_is_returned(address):
    """When it stops may depend on its answers; the price of fewer releases was fixed by nobody."""
    asked = sampled(0.1, 4.0, releases=50)
    book = book_of(plan(1, 30.0), address=address)
    before = book.allowance("users").counted()
    for run, releases in (("never begun", 0), ("begun", 1)):
        book.reserve([Item(account=account(run), stage="train", plan=asked)])
        promised = book.allowance("users").counted()
        assert promised > before
        spend(book, run, asked, releases)
        book.close(run)
        assert book.allowance("users").counted() == pytest.approx(promised if releases else before)
    returned = {e.run: e.facts["returned"] for e in book.entries() if e.kind == "close"}
    assert returned == {"never begun": {"train": 50}, "begun": {"train": 0}}


def test_a_gaussian_plan_that_ends_early_gives_back_the_rest(address):
    book = book_of(plan(1, 30.0), address=address)
    book.reserve([Item(account=account("run"), stage="train", plan=plan(10, 20.0))])
    spend(book, "run", plan(10, 20.0), 4)
    book.close("run")
    assert book.allowance("users").counted() == pytest.approx(
        accounting.gaussian_epsilon(math.sqrt(1 / 900 + 4 / 400), DELTA * (1 - filters.SLACK)), rel=1e-9
    )


def test_of_groups_that_share_nobody_the_dearest_counts_also_after_looking(address):
    book = book_of(plan(1, 30.0), address=address)
    alone = book.allowance("users").counted([spending(sampled(0.1, 4.0, 50))])
    pair = [spending(sampled(0.1, noise, 50), f"n/{noise}", partition="n", part=f"{noise}") for noise in (4.0, 6.0)]
    both = [spending(sampled(0.1, noise, 50), f"n/{noise}") for noise in (4.0, 6.0)]
    state = book.allowance("users")
    assert alone == pytest.approx(state.counted(pair), rel=1e-3)
    assert state.counted(both) > 1.05 * alone


def test_groups_add_up_after_looking_when_users_are_replaced(address):
    replaced = {"neighbours": Neighbours.REPLACE_ONE}
    first = plan(1, 600.0, **replaced)
    book = book_of(first, address=address, neighbours=Neighbours.REPLACE_ONE)
    asked = plan(20, 30.0, sampling=FixedSize(size=10, population=100), **replaced)
    pair = [spending(asked, f"n/{part}", partition="n", part=part) for part in "ab"]
    state = book.allowance("users")
    assert state.counted(pair) > 1.2 * state.counted(pair[:1])


def test_within_a_window_the_filter_counts_from_the_first_run_on(address, monkeypatch):
    hands = types.SimpleNamespace(now=datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC))
    for store in (storage.Sqlite, storage.Postgres):
        monkeypatch.setattr(store, "now", lambda self: hands.now)
        monkeypatch.setattr(store, "running", lambda self: None)
    asked = sampled(0.1, 4.0, 100)
    book = Ledger(address)
    book.set_budget(Budget(population="users", epsilon=0.99, delta=DELTA, window=30.0))
    assert asked.epsilon(DELTA) < 0.99 < book.allowance("users").counted([spending(asked)])
    with pytest.raises(PrivacySpentError):
        book.reserve([Item(account=account("run"), stage="train", plan=asked)])
    asked = sampled(0.1, 4.2, 100)
    book.reserve([Item(account=account("run"), stage="train", plan=asked)])
    spend(book, "run", asked, 1)
    hands.now += datetime.timedelta(days=31)
    spent = book.allowance("users").counted()
    for release in range(1, 100):
        assert book.charge(account("run"), "train", asked, release=release, query=f"{release}")
    assert book.allowance("users").counted() == spent  # what is left of it is owed whole
    hands.now += datetime.timedelta(days=31)
    assert book.allowance("users").counted() == 0.0
    book.reserve([Item(account=account("later"), stage="train", plan=asked)])


def test_simulated_runs_are_no_look_and_no_cost(address):
    book = Ledger(address)
    asked = sampled(0.1, 4.0, 100)
    book.set_budget(Budget(population="users", epsilon=asked.epsilon(DELTA), delta=DELTA))
    book.charge(account("free", simulated=True), "train", asked, release=0, query="a")
    assert book.allowance("users").rule is Rule.BEFOREHAND
    book.reserve([Item(account=account("run"), stage="train", plan=asked)])


def test_a_budget_that_came_after_the_first_answer_promises_no_price_at_once(address):
    asked = sampled(1e-3, 0.7, 4)
    book = Ledger(address)
    book.reserve([Item(account=account("run"), stage="train", plan=asked)])
    spend(book, "run", asked, 1)
    book.close("run")
    book.set_budget(Budget(population="users", epsilon=1.05 * asked.epsilon(DELTA), delta=DELTA))
    assert book.allowance("users").rule is Rule.FILTER
    with pytest.raises(PrivacySpentError):
        book.reserve([Item(account=account("same"), stage="train", plan=sampled(1e-3, 0.7, 3))])


def test_show_says_what_looking_costs(address):
    book = book_of(sampled(0.1, 4.0, 50), plan(1, 20.0), address=address)
    told = book.standings()[0]
    counted = book.allowance("users").counted()
    assert f"at least as much: epsilon {math.ceil(counted * 100) / 100:.2f} of 1" in told.lines()[-1]
    assert told.to_dict()["filter"] | {"text": ""} == {"rule": "filter", "epsilon": counted, "text": ""}
    assert told.promised.epsilon < counted
    gaussians = book_of(plan(1, 20.0)).standings()[0]
    assert len(gaussians.lines()) == 2  # exact: nothing to explain


def test_a_joint_guarantee_of_several_runs_says_what_it_takes_for_granted():
    one, two = spending(plan(), "a/low"), spending(plan(), "b/low")
    alone, joint = guarantee([one, spending(plan(), "a/high")], DELTA), guarantee([one, two], DELTA)
    looked = [text for text in joint.not_covered if "planned beforehand" in text]
    assert len(looked) == 1
    assert looked[0] in joint.statement()
    assert not any("planned beforehand" in text for text in alone.not_covered)


# Plan and ledger agree

TINY = toys.TINY.replace("epsilon = 8.0", "epsilon = 0.8\ncount_noise = 50.0")
POISSON = TINY.replace("clip = 0.1", "clip = 0.1\nsampling = 'poisson'\nrate = 0.2\ncapped = false")
STATES = {
    "nothing released": (1.0, ()),
    "a little": (1.0, ("privacy.epsilon=0.2",)),
    "much": (1.0, ("privacy.epsilon=0.7",)),
    "as planned": (0.801, ("privacy.epsilon=0.8",)),
}


@pytest.mark.parametrize("state", STATES)
def test_what_plan_says_fits_is_accepted_and_what_it_says_does_not_is_refused(state):
    epsilon, sets = STATES[state]
    book = Ledger()
    book.set_budget(Budget(population="digits", epsilon=epsilon, delta=DELTA))
    recipe = Recipe.parsed(POISSON)
    for begun in [recipe.changed(sets)] if sets else []:
        items = begun.items("first", simulated=False)
        book.reserve(items)
        for item in items:
            for release in range(item.plan.releases):
                book.charge(item.account, item.stage, item.plan, release=release, query=f"{release}")
    said = set()
    for target, sampling in itertools.product([0.15, 0.5, 0.99], ["poisson", "everyone"]):
        changes = [f"privacy.epsilon={target}"]
        asked = (recipe if sampling == "poisson" else Recipe.parsed(TINY)).changed(changes)
        forecast = planning.forecast(asked, book)
        said.add(forecast.fits)
        assert forecast.to_dict()["fits"] == forecast.fits
        assert (forecast.runs_left >= 1) == forecast.fits
        for found in forecast.alternatives:
            assert planning.forecast(asked.changed(found.sets), book).fits, found
        name = f"{target} {sampling}"
        if forecast.fits:
            book.reserve(asked.items(name, simulated=False))
            for run in {item.account.run for item in asked.items(name, simulated=False)}:
                book.close(run)
        else:
            with pytest.raises(PrivacySpentError):
                book.reserve(asked.items(name, simulated=False))
        if sampling == "poisson" and state in ("a little", "much"):
            assert "plans may be chosen after looking" in forecast.text()
            assert forecast.to_dict()["filter"]["epsilon"] > forecast.after.epsilon
    assert said == {"nothing released": {True}, "as planned": {False}}.get(state, {True, False})
