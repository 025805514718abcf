"""Published epsilons, what they were meant to be, and what holds: the project's reference values, digit by digit.

Expected numbers are strings, because they are compared in the digits they were printed with.
"""

import dataclasses
import functools
import json
import math
import os
import pathlib

import numpy as np
import pytest
import scipy.stats
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from fedlens.core import files
from fedlens.privacy import Everyone, L2Clip, Plan, Poisson, UpdateAndBit, accounting, papers, rdp
from fedlens.privacy.losses import ExchangedGaussian, Gaussian, SampledGaussian
from fedlens.privacy.sampling import FixedSize

KEYS = ["paper", "row", "published", "reproduced", "valid", "verdict"]


def printed(value, like):
    """The value in as many digits as the string `like` shows."""
    mantissa, exponent, _ = like.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return f"{value:.{decimals}e}".replace("e+0", "e").replace("e-0", "e-") if exponent else f"{value:.{decimals}f}"


def shows(value, like):
    return printed(value, like) == like


@functools.cache
def pld(loss, releases, grid):
    with np.errstate(over="ignore", invalid="ignore"):
        return loss.pld(grid).self_compose(releases)


def epsilon(loss, releases, delta, grid):
    """On a grid of one's own choice, where `accounting` takes the noise's."""
    return pld(loss, releases, grid).get_epsilon_for_delta(delta)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """By paper and row without its delta; the slow part of this file, so computed once, also for another worker."""
    own = tmp_path_factory.getbasetemp()
    kept = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "rows.json"
    if not kept.exists():
        files.write(kept, json.dumps([dataclasses.asdict(row) for row in papers.rows()]))
    every = [papers.PaperRow(**row) for row in json.loads(kept.read_text())]
    return {(row.paper, row.row.partition(", delta ")[0]): row for row in every}


# The shape of what is printed


def test_every_row_is_plain_json(rows):
    for row in rows.values():
        values = json.loads(json.dumps(row.to_dict(), allow_nan=False))
        assert list(values) == KEYS
        assert values["valid"]
        assert all(isinstance(number, float) for number in [values["published"], values["reproduced"]])


def test_an_infinite_epsilon_is_spelled_out():
    row = papers.PaperRow(paper="p", row="r", published=1.0, reproduced=math.inf, valid={"x": math.inf}, verdict="v")
    assert row.to_dict()["valid"] == {"x": "infinity"}
    json.dumps(row.to_dict(), allow_nan=False)


def in_the_docs(row):
    valid = "; ".join(f"{reading} {epsilon:.4g}" for reading, epsilon in row.valid.items())
    return f"| {row.row} | {row.published:.4g} | {row.reproduced:.4g} | {valid} |"


def test_the_docs_show_the_rows(rows):
    page = (pathlib.Path(__file__).parents[1] / "docs" / "papers.md").read_text()
    assert [row.row for row in rows.values() if in_the_docs(row) not in page] == []
    assert [reading for reading, text in papers.READINGS.items() if f"| {reading} | {text} |" not in page] == []


def test_every_paper_and_every_reading_is_explained(rows):
    assert {paper for paper, _ in rows} == set(papers.NAMES)
    assert {reading for row in rows.values() for reading in row.valid} == set(papers.READINGS)
    assert len(rows) == 15 + 2 + 5 + 4 + 11


@pytest.mark.parametrize(
    ("paper", "opening"),
    [
        ("augenstein2020", "wrong"),
        ("chen2020", "wrong"),
        ("wang2021", "valid analysis, code breaks it"),
        ("triastcyn2022", "not a DP statement"),
        ("xin2022", "wrong"),
    ],
)
def test_a_wrong_guarantee_is_called_wrong(rows, paper, opening):
    verdicts = [row.verdict for row in rows.values() if row.paper == paper]
    assert any(verdict.startswith(opening) for verdict in verdicts)
    assert all(verdict.endswith(".") and "\n" not in verdict for verdict in verdicts)


def test_a_row_that_is_not_called_valid_is_below_what_holds_for_its_algorithm(rows):
    for row in rows.values():
        readings = [name for name in ("fixed-size-pld", "tail-capped-exact-gaussian") if name in row.valid]
        if row.verdict.startswith("wrong") and readings:
            assert row.published < row.valid[readings[0]]
        if row.verdict.startswith("valid by accident"):
            assert row.published > row.valid["fixed-size-replace-one-pld"]


# Augenstein et al. 2020

ROUNDS = {
    rounds.row.replace("table 3, ", "").replace("table 13, ", "").replace(", realistic", ""): rounds
    for rounds in papers.ROUNDS
    if rounds.noise == 1.0
}
SIMULATIONS = [rounds for rounds in papers.ROUNDS if rounds.noise == 0.01]

# published, WOR RDP + classic, WOR + improved, Poisson + classic, Poisson + improved, WOR at z / 2
RENYI = {
    "section 5": ("9.22", "9.2223", "8.4725", "5.2201", "4.617", "58.76"),
    "3a": ("2.38", "2.3797", "2.0185", "2.0509", "1.647", "18.78"),
    "3b": ("1.48", "1.4825", "1.2054", "1.4537", "1.1766", "9.51"),
    "6": ("1.79", "1.7874", "1.4745", "1.6745", "1.3616", "10.817"),
    "7a": ("1.47", "1.4718", "1.1947", "1.4526", "1.1855", "8.5443"),
    "7b": ("1.40", "1.398", "1.1356", "1.379", "1.1166", "7.6618"),
    "8a": ("1.39", "1.3935", "1.131", "1.3775", "1.115", "7.5816"),
    "8b": ("1.40", "1.4041", "1.1417", "1.3814", "1.119", "7.7467"),
}


def improved_without_replacement(rounds):
    loss = ExchangedGaussian(multiplier=rounds.noise, size=rounds.size, population=rounds.population)
    return rdp.epsilon({loss: rounds.releases}, rounds.delta, rdp.improved, rdp.WHOLE_ORDERS)


@pytest.mark.parametrize("name", RENYI)
def test_the_published_rounds_come_out_of_the_authors_method(rows, name):
    row, rounds = rows["augenstein2020", ROUNDS[name].row], ROUNDS[name]
    found = [row.reproduced, row.reproduced, improved_without_replacement(rounds)]
    found += [row.valid[reading] for reading in ("poisson-rdp-classic", "poisson-rdp-improved", "wor-rdp-doubled")]
    assert [printed(value, like) for value, like in zip(found, RENYI[name], strict=True)] == list(RENYI[name])
    assert row.published == float(RENYI[name][0])


def test_the_simulated_rounds_come_out_of_the_authors_method(rows):
    found = [rows["augenstein2020", rounds.row] for rounds in SIMULATIONS]
    assert len(found) == 7
    assert (
        {printed(row.reproduced, "9.99e6") for row in found}
        == {"9.99e6"}
        == {printed(r.published, "9.99e6") for r in found}
    )
    columns = {
        ("9.989e6", "9.9932e6"): [row.reproduced for row in found],
        ("9.9890e6", "9.9932e6"): [improved_without_replacement(rounds) for rounds in SIMULATIONS],
        ("6.2209e6", "6.2313e6"): [row.valid["poisson-rdp-classic"] for row in found],
        ("5.436e6", "5.4588e6"): [row.valid["poisson-rdp-improved"] for row in found],
        ("3.9989e7", "3.9993e7"): [row.valid["wor-rdp-doubled"] for row in found],
    }
    for (least, most), values in columns.items():
        assert (printed(min(values), least), printed(max(values), most)) == (least, most)


def test_the_simulated_value_is_that_of_order_two():
    for rounds in SIMULATIONS:
        of_order_two = rounds.releases * (2 * math.log(rounds.rate) + math.log(2) + 1e4) - math.log(rounds.delta)
        assert papers.without_replacement(rounds) == pytest.approx(of_order_two, rel=1e-9)


# Poisson add/remove and replace-one, fixed size add/remove and replace-one, and a lower bound on the last two
LOSSES = {
    "section 5": ("4.2232", "6.8796", "27.4747", "32.1174", 27.3755),
    "3a": ("1.0324", "1.4010", "10.1467", "10.5640", 10.0981),
    "3b": ("0.2488", "0.2906", "5.7513", "5.7871", 5.7105),
    "6": ("0.5646", "0.7077", "7.4924", "7.6431", 7.4466),
    "7a": ("0.1861", "0.2144", "5.3726", "5.3936", 5.3282),
    "7b": ("0.1632", "0.1871", "5.2164", "5.2328", 5.1677),
    "8a": ("0.1604", "0.1839", "5.1969", "5.2128", 5.1595),
    "8b": ("0.1659", "0.1904", "5.2357", "5.2526", 5.1819),
}
PLD_READINGS = ("poisson-pld", "poisson-replace-one-pld", "fixed-size-pld", "fixed-size-replace-one-pld")


@pytest.mark.parametrize("name", LOSSES)
def test_what_the_published_noise_costs(rows, name):
    valid = rows["augenstein2020", ROUNDS[name].row].valid
    found = [printed(valid[reading], like) for reading, like in zip(PLD_READINGS, LOSSES[name], strict=False)]
    assert found == list(LOSSES[name][:4])


@pytest.mark.parametrize("name", ["section 5", "3a", "8a"])
def test_an_explicit_pair_refutes_the_published_value(name):
    """All others send -S and one user +S: rounded down, the epsilon of this pair bounds the true one from below."""
    rounds = ROUNDS[name]
    pair = privacy_loss_distribution.from_gaussian_mechanism(
        rounds.noise / 2,
        sampling_prob=rounds.rate,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-4,
    )
    least = pair.self_compose(rounds.releases).get_epsilon_for_delta(rounds.delta)
    assert least == pytest.approx(LOSSES[name][4], abs=1.5e-4)  # rounding down leaves it this much room
    assert least > rounds.published


@pytest.mark.parametrize(("at", "delta"), [(2.38, "9.492e-3"), (5.0, "1.853e-4"), (8.0, "1.466e-6")])
def test_the_delta_of_fixed_rounds_is_the_one_that_was_simulated(at, delta):
    """200,000 runs by Monte Carlo gave 9.617e-3 +- 1.7e-4, 1.912e-4 +- 2.3e-5 and 1.2e-6 +- 1.2e-6."""
    composed = pld(SampledGaussian(multiplier=0.5, rate=0.004), 1000, 1e-4)
    assert shows(composed.get_delta_for_epsilon(at), delta)


# Poisson add/remove and replace-one, fixed size add/remove and replace-one: the noise that the published epsilon needs
NOISE_NEEDED = {
    "section 5": (0.7173, 0.8381, 1.4346, 1.5461),
    "3a": (0.7882, 0.8134, 1.5764, 1.6011),
    "3b": (0.7219, 0.7233, 1.4438, 1.4456),
    "6": (0.7700, 0.7778, 1.5401, 1.5486),
    "8a": (0.6955, 0.6963, 1.3911, 1.3919),
}


@pytest.mark.parametrize("name", NOISE_NEEDED)
def test_the_noise_that_the_published_value_needs(name):
    """The values were searched for and are good to 2.5e-4; our roots lie up to 2.1e-4 below them, and 3e-5 above."""
    rounds = ROUNDS[name]
    samplers = [Poisson(rate=rounds.rate, population=rounds.population, capped=False)] * 2
    samplers += [FixedSize(size=rounds.size, population=rounds.population)] * 2
    for sampling, replaced, noise in zip(samplers, [False, True] * 2, NOISE_NEEDED[name], strict=True):
        around = [sampling.loss(noise + step, replaced) for step in (-2.5e-4, 2.5e-4)]
        costs = [epsilon(loss, rounds.releases, rounds.delta, grid=5e-4) for loss in around]
        assert costs[0] > rounds.published > costs[1]


# the cap is m + k sqrt(m), for k = 2, 3, 4, 5, 6, 7; the last is the cost without one
CAPPED = {  # by how many deviations the cap is above the size
    "3a": {2: "5.9391", 3: "4.7272", 4: "2.9770", 5: "1.0751", 6: "1.0326", 7: "1.0324"},
    "3b": {2: "4.2108", 4: "1.5316", 6: "0.2489"},
    "section 5": {2: "8.4787", 4: "4.3202", 6: "4.2232"},
}


def capped(rounds, cap, coarse=1.0):
    """By the library's own bound."""
    loss = privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
        rounds.population, rounds.rate, cap, 1.0, value_discretization_interval=1e-4 * coarse
    )
    return loss.self_compose(rounds.releases).get_epsilon_for_delta(rounds.delta)


@pytest.mark.parametrize("name", CAPPED)
def test_what_a_cap_costs(rows, name):
    rounds = ROUNDS[name]
    caps = {k: math.ceil(rounds.size + k * math.sqrt(rounds.size)) for k in CAPPED[name]}
    # Where a cap costs much, half the grid's resolution does not show in the digits.
    costs = {k: capped(rounds, cap, coarse=2.0 if k < 6 else 1.0) for k, cap in caps.items()}
    assert {k: printed(costs[k], like) for k, like in CAPPED[name].items()} == CAPPED[name]
    # Ours does without the library's credit for our being pushed out ourselves; at six deviations it does not show.
    assert rows["augenstein2020", rounds.row].valid["truncated-poisson-pld"] == pytest.approx(costs[6], abs=2e-4)


@pytest.mark.parametrize(("name", "cost"), [("3a", "1.0325"), ("8a", "0.1605")])
def test_a_cap_of_a_fifth_more_is_free(name, cost):
    assert shows(capped(ROUNDS[name], round(1.2 * ROUNDS[name].size)), cost)


# What dp_accounting 0.6.0 accepts, and its traps

ONE = dp_event.GaussianDpEvent(1.0)
REMOVED, REPLACED, ZEROED = (
    NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.REPLACE_ONE,
    NeighboringRelation.REPLACE_SPECIAL,
)
COLUMNS = [(kind, relation) for kind in (RdpAccountant, PLDAccountant) for relation in (REMOVED, REPLACED, ZEROED)]
ANSWER = dp_event.RandomizedResponseDpEvent(0.1, 2)
ACCEPTED = {  # ten compositions at delta 1e-5
    "gaussian": (ONE, "19.054 19.054 19.054 17.857 46.211 17.857"),
    "poisson": (dp_event.PoissonSampledDpEvent(0.01, ONE), "1.035 - 1.035 0.380 0.408 0.380"),
    "without replacement": (dp_event.SampledWithoutReplacementDpEvent(1000, 10, ONE), "- 1.092 - - - -"),
    "with replacement": (dp_event.SampledWithReplacementDpEvent(1000, 10, ONE), "- - - - - -"),
    "truncated": (dp_event.TruncatedSubsampledGaussianDpEvent(1000, 0.01, 15, 1.0), "- - - 2.722 2.725 2.722"),
    "mixture": (
        dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0, 2.0], [0.9, 0.09, 0.01]),
        "- - - 5.032 - 5.032",
    ),
    "tree": (dp_event.SingleEpochTreeAggregationDpEvent(1.0, 8), "- - 48.802 - - -"),
    "concentrated": (dp_event.ZCDpEvent(0.5), "19.054 19.054 19.054 - - -"),
    "two at once": (
        dp_event.PoissonSampledDpEvent(0.01, dp_event.ComposedDpEvent([ONE, dp_event.GaussianDpEvent(2.0)])),
        "1.358 - 1.358 - - -",
    ),
    "answers": (ANSWER, "- 29.447 23.016 - 2.944 2.303"),
}


def library(kind, relation, *events, count=10, delta=1e-5, grid=1e-4):
    options = {"value_discretization_interval": grid} if kind is PLDAccountant else {}
    accountant = kind(neighboring_relation=relation, **options)
    if not all(accountant.supports(event) for event in events):
        return None
    for event in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_the_library_accepts_and_what_it_says(name):
    event, expected = ACCEPTED[name]
    grid = 1e-3 if name in ("mixture", "truncated") else 1e-4  # they are slow, and need no finer one
    found = [library(kind, relation, event, grid=grid) for kind, relation in COLUMNS]
    assert ["-" if value is None else f"{value:.3f}" for value in found] == expected.split()


def test_trap_replace_one_means_another_multiplier_to_each_accountant():
    """Renyi takes the noise over the distance between neighbours, PLD takes it over the clip and doubles by itself."""
    halved = library(RdpAccountant, REPLACED, dp_event.GaussianDpEvent(0.5))
    assert library(RdpAccountant, REPLACED, ONE) == library(RdpAccountant, REMOVED, ONE)
    exact = accounting.gaussian_epsilon(math.sqrt(10) / 0.5, 1e-5)
    assert library(PLDAccountant, REPLACED, ONE) == pytest.approx(exact, rel=1e-3)
    assert library(RdpAccountant, REPLACED, ONE) < exact < halved


def test_trap_the_count_of_randomized_responses_is_ignored():
    one_by_one = library(PLDAccountant, REPLACED, *[ANSWER] * 10, count=1)
    assert f"{one_by_one:.3f}" == "29.445"
    assert library(PLDAccountant, REPLACED, ANSWER, count=10) == library(PLDAccountant, REPLACED, ANSWER, count=1)


def test_trap_whole_numbers_hide_all_but_the_first_of_composed_gaussians():
    """A multiplier of 1 instead of 1.0 is taken for the answer, and the rest of a composed event for nothing."""
    inside = [dp_event.GaussianDpEvent(1), dp_event.GaussianDpEvent(1)]
    whole = dp_event.PoissonSampledDpEvent(0.01, dp_event.ComposedDpEvent(inside))
    alone = dp_event.PoissonSampledDpEvent(0.01, ONE)
    assert library(RdpAccountant, REMOVED, whole) == library(RdpAccountant, REMOVED, alone)


def test_we_price_fixed_sizes_where_the_library_has_no_loss_distribution():
    event = dp_event.SampledWithoutReplacementDpEvent(1000, 10, ONE)
    assert not any(PLDAccountant(neighboring_relation=relation).supports(event) for relation in (REMOVED, REPLACED))
    plan = Plan(
        sampling=FixedSize(size=10, population=1000),
        bound=L2Clip(norm=1.0),
        noise_multiplier=1.0,
        releases=10,
        expected_contributors=10.0,
    )
    assert plan.epsilon(1e-5) > library(PLDAccountant, REMOVED, dp_event.PoissonSampledDpEvent(0.01, ONE))


# Chen, Orekondy, Fritz 2020


def critics(**changes):
    return papers.Critics(**{"critics": 1000, "releases": 20_000, "delta": 1e-5} | changes)


def test_the_rows_of_gs_wgan(rows):
    central, federated = (row for row in rows.values() if row.paper == "chen2020")
    assert (printed(central.reproduced, "9.9926"), central.published) == ("9.9926", 10.0)
    assert (printed(federated.reproduced, "598.57"), federated.published) == ("598.57", 599.0)
    expected = {"hidden-index-pld": "329.422", "hidden-index-replace-one-pld": "346.656"}
    assert {name: printed(central.valid[name], like) for name, like in expected.items()} == expected
    expected = {"hidden-index-pld": "404.10", "hidden-index-replace-one-pld": "434.08"}
    expected |= {"tail-capped-exact-gaussian": "895.1"}
    assert {name: printed(federated.valid[name], like) for name, like in expected.items()} == expected
    assert "from memory" in federated.row


@pytest.mark.parametrize(
    ("batch", "cost"), [(1, "1.5722"), (8, "4.6196"), (16, "6.7325"), (32, "9.9926"), (64, "14.9713")]
)
def test_each_image_amplified_on_its_own_is_the_published_ten(batch, cost):
    assert shows(papers.each_image_amplified(critics(batch=batch)), cost)


def test_the_theorem_taken_literally_has_half_the_noise():
    assert shows(papers.each_image_amplified(critics(noise=1.07 / 2)), "53.635")


@pytest.mark.parametrize(
    ("batch", "removed", "replaced", "coarse"),  # as coarse as the digits allow
    [
        (1, "0.610", "0.787", 1.0),
        (4, "4.903", "5.585", 1.0),
        (8, "21.579", "24.107", 0.4),
        (16, "93.220", "102.056", 0.15),
    ],
)
def test_the_right_order_of_gs_wgan(batch, removed, replaced, coarse):
    drawn = critics(batch=batch)
    assert shows(papers.hidden_index(drawn, replaced=False, coarse=coarse), removed)
    assert shows(papers.hidden_index(drawn, replaced=True, coarse=0.25), replaced)


def test_the_published_ten_is_refuted():
    """Rounded down, the explicit pair still costs hundreds; delta at 10 is next to 1, and one step alone costs 18.5."""
    noise = papers.CENTRAL.step_noise
    pair = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        sampling_prob=1e-3,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-3,
    )
    assert shows(pair.self_compose(20_000).get_epsilon_for_delta(1e-5), "311.6")
    above = pld(SampledGaussian(multiplier=noise, rate=1e-3), 20_000, 1e-3)
    assert shows(above.get_delta_for_epsilon(10.0), "0.99992")
    assert shows(above.get_delta_for_epsilon(100.0), "0.759")
    assert shows(papers.hidden_index(critics(releases=1), replaced=True), "18.5")


def test_renyi_bounds_say_nothing_in_the_right_order():
    loss = ExchangedGaussian(multiplier=papers.CENTRAL.step_noise, size=1, population=1000)
    assert shows(rdp.epsilon({loss: 20_000}, 1e-5, rdp.classic, rdp.WHOLE_ORDERS), "296565")


@pytest.mark.parametrize(
    ("users", "code", "code_pld", "average", "tail"),
    [(866, "12.600", "4.4561", "598.57", "895.1"), (2136, "4.443", "1.6235", "273.86", "503.9")],
)
def test_the_federated_readings(users, code, code_pld, average, tail):
    drawn = critics(critics=users, releases=30_000, delta=1 / users)
    each = SampledGaussian(multiplier=1.07, rate=1 / users)
    assert shows(papers.each_image_amplified(drawn), code)
    assert shows(accounting.epsilon_of({each: 30_000 * 32}, drawn.delta, coarse=0.2), code_pld)
    assert shows(papers.expected_turns(drawn), average)
    assert shows(papers.tail_capped(drawn), tail)


def test_the_right_order_for_more_users():
    drawn = critics(critics=2136, releases=30_000, delta=1 / 2136)
    assert shows(papers.hidden_index(drawn, replaced=False, coarse=0.2), "200.83")
    assert shows(papers.hidden_index(drawn, replaced=True), "212.50")


@pytest.mark.parametrize(("users", "turns"), [(866, 55), (2136, 29)])
def test_the_most_turns_that_half_of_delta_pays_for(users, turns):
    assert scipy.stats.binom.isf(1 / users / 2, 30_000, 1 / users) == turns


def test_the_average_user_is_not_everybody():
    """With random turns that are known, delta at the published epsilon is far over 1/866."""
    counts = np.arange(1, 100)
    chances = scipy.stats.binom.pmf(counts, 30_000, 1 / 866)
    costs = [accounting.gaussian_delta(math.sqrt(n) / papers.FEDERATED.step_noise, 599.0) for n in counts.tolist()]
    assert chances @ np.array(costs) > 20 / 866


def each_with_its_draw(noise, replaced):
    if replaced:
        return ExchangedGaussian(multiplier=noise, size=1, population=1000), 20_000 * 32
    return SampledGaussian(multiplier=noise, rate=1e-3), 20_000 * 32


def one_draw(noise, replaced):
    loss, _ = each_with_its_draw(noise / math.sqrt(32), replaced)
    return loss, 20_000


@pytest.mark.parametrize(
    ("mechanism", "replaced", "noise", "unit"),
    [
        (one_draw, False, 2.556, 1e-3),
        (one_draw, True, 2.629, 1e-3),
        (each_with_its_draw, False, 0.7132, 1e-4),
        (each_with_its_draw, True, 0.8154, 1e-4),
    ],
)
def test_repairs_of_gs_wgan_reach_ten(mechanism, replaced, noise, unit):
    """To one unit of the last digit."""
    costs = []
    for loss, releases in (mechanism(noise + step, replaced) for step in (-unit, unit)):
        costs.append(accounting.epsilon_of({loss: releases}, 1e-5, coarse=0.5))
    assert costs[0] > 10 > costs[1]


@pytest.mark.parametrize(("replaced", "cost"), [(False, "4.115"), (True, "5.51")])
def test_a_draw_for_each_image_would_make_the_code_right(replaced, cost):
    loss, releases = each_with_its_draw(1.07, replaced)
    assert shows(accounting.epsilon_of({loss: releases}, 1e-5, coarse=0.2), cost)


# Wang et al. 2021

# queries, their code, its order, improved, exact, queries allowed by exact composition
VOTES = {
    "MNIST and Fashion-MNIST, epsilon 1": (1290, "0.9957", 25, "0.8080", "0.7381", 2245),
    "CelebA gender and hair, epsilon 1": (1200, "0.9982", 25, "0.8101", "0.7401", 2078),
    "MNIST, epsilon 10": (1620, "9.9126", 4, "9.0775", "8.4489", 2134),
    "Fashion-MNIST, epsilon 10": (2190, "9.9696", 4, "9.1286", "8.4969", 2858),
    "CelebA gender and hair, epsilon 10": (750, "9.9601", 4, "9.1201", "8.4889", 980),
}


@pytest.mark.parametrize("votes", papers.VOTES, ids=lambda votes: votes.row)
def test_the_votes_of_datalens(rows, votes):
    queries, code, order, improved, exact, _ = VOTES[votes.row]
    row = rows["wang2021", votes.row]
    readings = ("rdp-classic", "rdp-improved", "exact-gaussian")
    assert [printed(row.valid[reading], code) for reading in readings] == [code, improved, exact]
    assert (row.reproduced, row.published) == (row.valid["rdp-classic"], votes.published)
    assert row.valid["exact-gaussian"] < row.reproduced <= row.published
    orders = np.array(papers.DATALENS_ORDERS)
    costs = rdp.classic(queries * rdp.of(Gaussian(multiplier=votes.multiplier), orders), orders, 1e-5)
    assert (votes.queries, orders[costs.argmin()]) == (queries, order)


@pytest.mark.parametrize("votes", papers.VOTES, ids=lambda votes: votes.row)
def test_training_stops_where_the_next_iteration_would_pass_the_budget(votes):
    loss = Gaussian(multiplier=votes.multiplier)
    one_more = rdp.epsilon({loss: votes.queries + 30}, votes.delta, rdp.classic, papers.DATALENS_ORDERS)
    assert one_more > votes.published


@pytest.mark.parametrize("votes", papers.VOTES, ids=lambda votes: votes.row)
def test_exact_composition_allows_more_queries(votes):
    allowed = VOTES[votes.row][5]
    costs = [accounting.gaussian_epsilon(math.sqrt(n) / votes.multiplier, 1e-5) for n in (allowed, allowed + 1)]
    assert costs[0] <= votes.published < costs[1]


# Triastcyn and Faltings 2022

DISTANCES = {  # steps, d* in deviations, d* for noise of 0.01 and of 0.005
    64: (375_200, "0.2177", "2.18e-3", "1.09e-3"),
    256: (94_000, "0.1107", "1.11e-3", "5.53e-4"),
    1024: (23_600, "0.0554", "5.54e-4", "2.77e-4"),
}


@pytest.mark.parametrize("batch", DISTANCES)
def test_the_distance_at_which_the_bayesian_accountant_says_one(batch):
    steps, deviations, wide, narrow = DISTANCES[batch]
    distance = papers.constant_distance(batch)
    assert papers.steps_of(batch) == steps
    assert printed(distance, deviations) == deviations
    assert (printed(0.01 * distance, wide), printed(0.005 * distance, narrow)) == (wide, narrow)


@pytest.mark.parametrize(("batch", "noise", "times"), [(64, 0.01, "459"), (1024, 0.005, "3607")])
def test_the_worst_distance_is_hundreds_of_times_larger(batch, noise, times):
    assert shows(1.0 / (noise * papers.constant_distance(batch)), times)


def test_the_classical_epsilon_of_the_bayesian_gan(rows):
    found = [row for row in rows.values() if row.paper == "triastcyn2022"]
    assert [printed(row.reproduced, "1.00") for row in found[:3]] == ["1.00"] * 3
    assert (
        printed(found[2].valid["poisson-rdp-classic"], "2.01e7") == "2.01e7" == printed(found[3].reproduced, "2.01e7")
    )
    assert all(min(row.valid.values()) > 5e5 for row in found)
    assert all(9e6 < row.valid["batch-mean-clip-pld"] < 1e7 for row in found)


# Xin et al. 2022

# generator steps for epsilon 4, 6, 8: theorem 1, Poisson RDP classic, improved, PLD, WOR RDP at z, PLD replace-one
STEPS = {
    0.8: "1357/3053/5428 694/1680/2934 997/2150/3577 1258/2586/4215 283/673/1133 0/6/21",
    1.0: "2120/4771/8482 1896/4068/6828 2503/5062/8211 2972/5909/9478 604/1275/2145 19/82/174",
    1.2: "3053/6870/12214 3382/7135/11858 4409/8820/14232 5181/10220/16329 847/1758/2955 143/359/627",
}
CELLS = [
    (noise, target, tuple(int(column.split("/")[place]) for column in STEPS[noise].split()))
    for noise in STEPS
    for place, target in enumerate(papers.EPSILONS)
]
RATE, DELTA = 64 / 10_000, 1e-4


def renyi_steps(loss, orders, conversion, target):
    """The most generator steps, of five releases each; a Renyi bound is linear in them, order by order."""
    each, orders = 5 * rdp.of(loss, orders), np.array(orders, dtype=float)
    room = target - conversion(np.zeros(len(orders)), orders, DELTA)
    return max(0, math.floor((room / each).max()))


@pytest.mark.parametrize(("noise", "target", "steps"), CELLS)
def test_the_steps_that_theorem_and_renyi_bounds_allow(noise, target, steps):
    poisson = SampledGaussian(multiplier=noise, rate=RATE)
    fixed = ExchangedGaussian(multiplier=noise, size=64, population=10_000)
    found = (
        papers.theorem_steps(noise, target),
        renyi_steps(poisson, rdp.TF_PRIVACY_ORDERS, rdp.classic, target),
        renyi_steps(poisson, rdp.ORDERS, without_floor, target),
        renyi_steps(fixed, rdp.WHOLE_ORDERS, rdp.classic, target),
    )
    assert found == (steps[0], steps[1], steps[2], steps[4])


def without_floor(renyi, orders, delta):
    """`rdp.improved` before it is cut off at zero: what is left for the divergence."""
    return rdp.improved(renyi + 100.0, orders, delta) - 100.0


@pytest.mark.parametrize(("noise", "target", "steps"), CELLS)
def test_the_steps_that_loss_distributions_allow(noise, target, steps):
    """The reference was made on a grid of 1e-3, which costs up to a half percent of the steps."""
    losses = [
        (SampledGaussian(multiplier=noise, rate=RATE), steps[3]),
        (ExchangedGaussian(multiplier=noise / 2, size=64, population=10_000), steps[5]),
    ]
    for loss, allowed in losses:
        most, more = (epsilon(loss, 5 * n, DELTA, grid=1e-3) if n else 0.0 for n in (allowed, allowed + 1))
        assert most <= target < more


def test_the_rows_of_fl_gan_hold_where_the_theorem_allows_fewer_steps_than_loss_distributions(rows):
    found = [row for row in rows.values() if row.paper == "xin2022"][:9]
    for row, (_, target, steps) in zip(found, CELLS, strict=True):
        assert f"{steps[0]:,} generator steps" in row.row
        assert target * (1 - 1e-3) < row.reproduced <= row.published == target
        assert row.verdict.startswith("wrong") == (row.valid["poisson-pld"] > target) == (steps[0] > steps[3])


@pytest.mark.parametrize(("target", "grid"), [(4.0, 2.5e-5), (8.0, 5e-5)])
def test_theorem_one_is_refuted_at_weak_noise(target, grid):
    """Rounded down, the worst pair of Poisson batches still costs more than the theorem says."""
    pair = privacy_loss_distribution.from_gaussian_mechanism(
        0.8, sampling_prob=RATE, pessimistic_estimate=False, use_connect_dots=False, value_discretization_interval=grid
    )
    steps = papers.theorem_steps(0.8, target)
    assert pair.self_compose(5 * steps).get_epsilon_for_delta(DELTA) > target


def test_the_text_of_fl_gan_read_literally(rows):
    per_coordinate, on_the_mean = [row for row in rows.values() if row.paper == "xin2022"][9:]
    assert all(1e4 < value < 1e9 for value in per_coordinate.valid.values())
    assert shows(on_the_mean.valid["mean-noise-pld"], "0.05")


# Adaptive clipping


def update_noise(cohort):
    """What is left for the update when the bit is noised by cohort / 20, at a joint multiplier of 1."""
    left = 1.0 - (2 * cohort / 20) ** -2
    return left**-0.5 if left > 0 else math.inf


@pytest.mark.parametrize(
    ("cohort", "inflation"),
    [(10, "inf"), (20, "15.47"), (50, "2.06"), (100, "0.50"), (1000, "0.0050"), (5000, "0.0002")],
)
def test_the_bit_of_adaptive_clipping_inflates_the_noise(cohort, inflation):
    found = 100 * (update_noise(cohort) - 1)
    assert (f"{found}" if math.isinf(found) else printed(found, inflation)) == inflation
    if math.isfinite(found):
        bound = UpdateAndBit(bit=1 / math.sqrt(4 * (cohort / 20) ** 2 - 1))
        assert bound.norm == pytest.approx(update_noise(cohort), rel=1e-12)


def test_update_and_bit_together_cost_what_one_gaussian_does():
    both = [dp_event.GaussianDpEvent(update_noise(1000)), dp_event.GaussianDpEvent(2 * 1000 / 20)]
    event = dp_event.PoissonSampledDpEvent(0.004, dp_event.ComposedDpEvent(both))
    assert shows(library(RdpAccountant, REMOVED, event, count=1000, delta=4e-8), "1.64696")
    assert not PLDAccountant().supports(event)


@pytest.mark.parametrize(
    ("noise", "discrete", "continuous"), [(2, "2.0113", "1.9931"), (5, "0.7266", "0.7255"), (20, "0.1601", "0.1600")]
)
def test_discrete_gaussians_cost_a_little_more(noise, discrete, continuous):
    kinds = (
        privacy_loss_distribution.from_discrete_gaussian_mechanism,
        privacy_loss_distribution.from_gaussian_mechanism,
    )
    found = [kind(noise).get_epsilon_for_delta(1e-5) for kind in kinds]
    assert [printed(value, discrete) for value in found] == [discrete, continuous]
    assert Plan(
        sampling=Everyone(),
        bound=L2Clip(norm=1.0),
        noise_multiplier=noise,
        releases=1,
        expected_contributors=1.0,
    ).epsilon(1e-5) == pytest.approx(float(continuous), abs=6e-5)
