"""Two looks: a test whose false alarms are counted, differences in words, faults with amounts, four verdicts."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import torch
from command_line import answer, fedlens

from fedlens.experiments import findings as trials
from fedlens.experiments.findings import People, Planted
from fedlens.media import looked
from fedlens.media.images import against_public, differences, tracing
from fedlens.media.images.families import FAMILIES, blurred, covered, families, turned
from fedlens.media.images.public import PublicSet
from fedlens.media.looked import Judged
from fedlens.models.classifier import ConvClassifier, Primary
from fedlens.models.looks import explaining, resembling, two_sample
from fedlens.models.looks.embedding import Embedding, _layers, _projection, _typical
from fedlens.models.looks.explaining import Candidate, Explanation
from fedlens.models.looks.fitting import Release
from fedlens.models.looks.moments import Moments
from fedlens.models.looks.psi import BODY, LABELS, PREDICTED, SIZE, SPREAD, Psi, centres
from fedlens.models.looks.shapes import drawn, strokes
from fedlens.models.looks.statistics import READABLE
from fedlens.models.looks.two_sample import COUNT, Block, Group
from fedlens.report.report import DIFFERENT, FOUND, INCONCLUSIVE, NOTHING

USERS, EACH, SIDE = 200, 5, 8
INVERTED = Planted(name="inverted", change=torch.neg, kinds=("inverted",), amount=(-1.0,))


@functools.cache
def people(seed=0):
    """Strokes; each user draws them with a brightness of their own."""
    rng, images = np.random.default_rng(seed), strokes(USERS * EACH, SIDE, 1)[:, 0].numpy()
    owners = np.arange(len(images)) % USERS
    images = (images + rng.uniform(-0.3, 0.3, USERS)[owners][:, None, None]).clip(-1, 1)
    bytes_ = (images * 127.5 + 127.5).round().astype(np.uint8)
    return People(name=f"strokes {seed}", images=bytes_, labels=np.arange(len(images)) // USERS, owners=owners)


@pytest.fixture(scope="module")
def setting():
    return trials.Setting.of(people(), 8.0, people(1))


@pytest.fixture(scope="module")
def rows(setting):
    every = {fault: trials.per_image(people(), fault) for fault in (None, INVERTED)}
    return {fault: trials.sent(setting.psi, trials.summed(people(), numbers)) for fault, numbers in every.items()}


# What units send


@pytest.mark.parametrize("body", [Moments(side=8, frequencies=8), Embedding(side=8, channels=3, features=42)])
def test_what_units_send_besides_is_bounded_whatever_their_images_and_labels(body):
    psi = Psi(body=body, classes=3, judged=True, readable=0.6, radius=0.2)
    assert sum(weight**2 for weight in psi.weights.values()) == pytest.approx(1)
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        images = torch.randint(0, 256, (4, body.channels, 8, 8), generator=rng).to(torch.uint8)
        labels, taken = torch.randint(-2, 6, (2, 4), generator=rng)
        mask = (torch.rand(4, generator=rng) < 0.7).float()
        sent = psi({"x": images, "y": labels, PREDICTED: taken, "mask": mask})
        for name, block in sent.items():
            assert block.norm() <= psi.weights[name] * (1 + 1e-5), name
    empty = psi({"x": images, "y": labels, PREDICTED: taken, "mask": torch.zeros(4)})
    assert all(not block.any() for block in empty.values())


def test_units_are_vectorised_over_from_the_first_on():
    """What psi is made of may be drawn while they are; a contribution that fails would run one by one, and slowly."""
    for cached in (_layers, _projection, _typical, centres, drawn):
        cached.cache_clear()
    examples = {"x": torch.zeros(3, 2, 1, 8, 8, dtype=torch.uint8), "mask": torch.ones(3, 2)}
    sent = torch.func.vmap(Psi(body=Embedding(side=8, features=42), readable=0.3))(examples)
    assert sent["picture"].shape == (3, 64)


def test_an_image_of_no_numbers_fails_nobody_else():
    """Others of its chunk are still vectorised over; its own contribution becomes zero at the bound."""
    images = torch.zeros(2, 1, 1, 8, 8)
    images[1] = torch.nan
    psi = Psi(body=Moments(side=8, frequencies=8), readable=0.6)
    sent = torch.func.vmap(psi)({"x": images, "mask": torch.ones(2, 1)})
    assert all(bool(block[0].isfinite().all()) for block in sent.values())


def test_levels_are_counted_between_two_bins_and_add_up_to_one():
    levels = READABLE["intensity"](torch.linspace(-1, 1, 64).reshape(1, 1, 8, 8))
    assert float(levels.sum()) == 1  # exactly, in any order: parts are whole 256ths
    grey = READABLE["intensity"](torch.full((1, 1, 8, 8), -1 + 2 * 3.5 / 15))
    assert grey[0, 3:5].tolist() == [0.5, 0.5]


def test_blocks_of_many_units_are_those_of_each():
    psi, means = Psi(body=Moments(side=8, frequencies=8), readable=0.5), torch.rand(3, 64)
    together = psi.readable_of({"picture": means}, torch.ones(3))
    for row in range(3):
        alone = psi.readable_of({"picture": means[row]}, torch.tensor(1.0))
        assert all(torch.equal(together[name][row], alone[name]) for name in ("picture", SPREAD))


class Alternating:
    """Takes images for class 0 and 1 in turn."""

    def predictions(self, images):
        return torch.arange(len(images)) % 2


def test_what_is_counted_is_what_a_look_sends():
    known = people().part(people().owners < 7)
    psi = Psi(body=Moments(side=8, frequencies=8), classes=EACH, judged=True, readable=0.6, radius=0.3)
    rows = trials.sent(psi, trials.summed(known, trials.per_image(known, None, Alternating())))
    whole = torch.from_numpy(known.images[known.places])[:, None]
    taken, labels = torch.arange(len(whole)) % 2, torch.from_numpy(known.labels[known.places])
    for user in range(7):
        mine = torch.from_numpy(known.whose == user)
        held = {"x": whole[mine], "y": labels[mine], PREDICTED: taken[mine], "mask": torch.ones(int(mine.sum()))}
        for name, block in psi(held).items():
            if name != BODY:
                assert rows[name][user] == pytest.approx(block.flatten().numpy(), abs=1e-5), name


def test_users_without_an_image_on_a_side_are_not_there(setting):
    numbers = trials.per_image(people(), None)
    seen = people().whose >= 50
    assert len(trials.sent(setting.psi, trials.summed(people(), numbers, seen))["picture"]) == USERS - 50


def test_what_was_counted_is_kept_and_not_counted_again(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(trials, "rows_of", lambda part: [row("none"), row("inverted")])
    monkeypatch.setattr(trials.ImageBench, "outcomes", lambda self, one: asked.append(one.fault.name) or [])
    bench = trials.ImageBench(folder=tmp_path, out=tmp_path, say=lambda line: None)
    assert [line.fault for line in bench.kept("power")] == ["none", "inverted"]
    assert bench.kept("power") == bench.kept("power")
    assert asked == ["none", "inverted"]


def row(name):
    return trials.ImageRow(data="writers", by=trials.RELEASE, epsilon=1.0, share=1.0, draws=2, fault=Planted(name=name))


def test_left_slanted_strokes_are_told_by_a_public_rule():
    images = np.zeros((2, 8, 8), np.uint8)
    images[0][np.arange(8), np.arange(8)] = 255  # from the upper left to the lower right
    images[1] = images[0][:, ::-1]
    known = People(name="two", images=images, labels=np.zeros(2, int), owners=np.arange(2))
    assert trials.left_slanted(known).tolist() == trials.of_left_slanted_writers(known).tolist() == [True, False]


# The test


def test_clean_splits_rarely_differ_and_never_have_a_name(setting, rows):
    outcomes = [trials.planted(setting, rows[None], rows[None], 0.0, seed) for seed in range(100)]
    assert sum(outcome.differ for outcome in outcomes) <= 4  # one is expected at most; five would be 1 in 250
    assert not any(outcome.names(trials.NO_FAULT) != "nothing" for outcome in outcomes)


def test_who_the_users_are_is_allowed_for(setting, rows, monkeypatch):
    """The guarantee broken once: without the spread of users, clean splits differ all the time at a large epsilon."""
    plain = two_sample.Group.of
    monkeypatch.setattr(setting.psi.__class__, "weights", setting.psi.__class__.weights)
    quiet = dataclasses.replace(setting, noise=0.02)
    alarms = [trials.planted(quiet, rows[None], rows[None], 0.0, seed).differ for seed in range(20)]

    def blind(release):
        group = plain(release)
        blocks = {name: dataclasses.replace(block, spread=0.0) for name, block in group.blocks.items()}
        return dataclasses.replace(group, blocks=blocks)

    monkeypatch.setattr(trials.Group, "of", staticmethod(blind))
    blinded = [trials.planted(quiet, rows[None], rows[None], 0.0, seed).differ for seed in range(20)]
    assert sum(alarms) <= 2
    assert sum(blinded) >= 15


def test_a_fault_is_found_and_named_with_its_share(setting, rows):
    for seed in range(4):
        outcome = trials.planted(setting, rows[None], rows[INVERTED], 0.5, seed)
        assert outcome.differ
        assert outcome.names(INVERTED) == "right"
        assert 0.3 < outcome.explanation.named.share < 0.75


def test_p_values_are_exact_where_they_can_be():
    """Against draws: normal noise on five numbers, of which one varies more."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2_000_000, 5))
    x[:, 0] *= 2.0  # a spread of 3 beside a noise of 1
    for square in (10.0, 20.0, 40.0):
        measured = float(((x**2).sum(1) > square).mean())
        assert two_sample.exceeded(square, 5, 1.0, 3.0) == pytest.approx(measured, rel=0.02, abs=1.2e-4)


def test_looks_that_ask_otherwise_are_not_tested_against_each_other():
    one, other = (Psi(body=Moments(side=8, frequencies=8), radius=radius) for radius in (0.2, 0.3))
    with pytest.raises(ValueError, match="asked the same"):
        two_sample.check_alike(one, other)


def test_power_by_formula_is_that_of_draws(setting, rows):
    """What is said to be found with 95% power is found; what is hardly ever found is not said to be."""
    halves = [{name: block[at::2] for name, block in rows[None].items()} for at in (0, 1)]
    left, right = (
        Group.of(trials.released(setting.psi, half, setting.noise, np.random.default_rng(at)))
        for at, half in enumerate(halves)
    )
    tested = two_sample.two_groups((left, right), setting.psi.views)
    weights = setting.psi.weights
    change = {name: (rows[INVERTED][name] - rows[None][name]).mean(0) / weights[name] for name in setting.psi.varying}
    least = next(share for share in np.linspace(0.02, 1, 50) if two_sample.power(change, share, tested) >= 0.95)
    assert least < 0.7
    hits = [trials.planted(setting, rows[None], rows[INVERTED], least + 0.1, seed).differ for seed in range(20)]
    assert sum(hits) >= 16
    misses = [trials.planted(setting, rows[None], rows[INVERTED], least / 4, seed).differ for seed in range(20)]
    assert sum(misses) <= 4
    assert two_sample.power(change, least / 4, tested) < 0.2


# Faults, and what they do


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_families_keep_images_images_and_say_what_they_do(family):
    images = drawn(6, 16, 3 if family.colour else 1)
    for amount in family.amounts[:: max(1, len(family.amounts) // 4)]:
        changed = family.change(images, amount)
        assert changed.shape == images.shape
        assert float(changed.abs().max()) <= 1 + 1e-5
        assert family.says(amount)
    if family.nothing is not None:
        assert torch.allclose(family.change(images, (family.nothing,)), images, atol=0.02)


def test_faults_do_what_their_words_say():
    images = drawn(4, 16, 1)
    assert torch.equal(turned(images, (90.0,)), images.rot90(1, (2, 3)))
    assert float(covered(images, (0.0, 0.0, 0.5, 1.0, 1.0))[..., :8].min()) == 1
    assert blurred(images, (8.0,)).var() < images.var()
    assert [family.kind for family in families(1) if family.colour] == []


def test_swapped_labels_and_missing_classes_are_told_from_what_the_groups_say():
    psi = Psi(body=Moments(side=8, frequencies=8), classes=3, judged=True)
    shares = np.array([0.8, 0.6, 0.0])
    confused = np.array([[0.7, 0.1, 0.0], [0.1, 0.5, 0.0], [0.0, 0.0, 0.2]]).flatten()
    blocks = {
        LABELS: Block(mean=shares, noise=0.01, spread=0.0),
        PREDICTED: Block(mean=confused, noise=0.01, spread=0.0),
    }
    traces = tracing.of_labels(psi, [Group(blocks=blocks, count=10, count_error=0.1)] * 2)
    swapped = next(trace for trace in traces if trace.kind == "labels-swapped")
    at = swapped.amounts.index((0.0, 1.0))
    assert (shares + swapped.moves[LABELS][at]).tolist() == pytest.approx([0.6, 0.8, 0.0])
    assert (confused + swapped.moves[PREDICTED][at]).reshape(3, 3)[0].tolist() == pytest.approx([0.1, 0.5, 0.0])
    assert [trace.kind for trace in traces] == ["labels-swapped"]  # a model that judges may have chosen the classes
    del blocks[PREDICTED]
    traces = tracing.of_labels(psi, [Group(blocks=blocks, count=10, count_error=0.1)] * 2)
    more = next(trace for trace in traces if trace.kind == "class-share")
    at = more.amounts.index((2.0, 0.2))
    scaled = shares + more.moves[LABELS][at]
    assert scaled[2] / scaled.sum() == pytest.approx(0.2)
    assert np.linalg.norm(scaled) == pytest.approx(1)


def test_labels_that_all_units_of_a_group_have_swapped_are_told_from_the_other_where_a_model_judges():
    """Halfway between the two groups nothing changes when it is swapped."""
    psi = Psi(body=Moments(side=8, frequencies=8), classes=2, judged=True)
    healthy, swapped = (
        {
            LABELS: Block(mean=np.array(shares), noise=0.01, spread=0.0),
            PREDICTED: Block(mean=np.array(confused), noise=0.01, spread=0.0),
        }
        for shares, confused in (([0.7, 0.7], [0.6, 0.1, 0.1, 0.6]), ([0.7, 0.7], [0.1, 0.6, 0.6, 0.1]))
    )
    groups = [Group(blocks=blocks, count=10, count_error=0.1) for blocks in (swapped, healthy)]
    for fitted, moved in ((True, [-0.5, 0.5, 0.5, -0.5]), (False, [0, 0, 0, 0])):
        trace = tracing.of_labels(psi, groups, fitted)[0]
        assert trace.moves[PREDICTED][trace.amounts.index((0.0, 1.0))].tolist() == pytest.approx(moved)


def test_amounts_near_the_best_are_tried_themselves():
    psi = Psi(body=Moments(side=8, frequencies=8), readable=0.6)
    tried = tracing.Tried(psi, drawn(40, 8, 1), 4)
    near = tried.refined(candidate(kind="brightness", amount=(0.15,)))[0]
    assert (near.amounts[0][0], near.amounts[-1][0]) == (0.08, 0.25)
    assert len(near.amounts) == tracing.FINER
    corner = tried.refined(candidate(kind="region", amount=(0.0, 0.0, 0.5, 0.5, 1.0)))[0]
    assert {amount[:2] for amount in corner.amounts} == {(0.0, 0.0)}
    assert len(corner.amounts) == len(tracing.STEPS) ** 2


def test_blocks_that_one_group_does_not_have_are_left_out_of_what_is_tried():
    group = Group(blocks={"picture": Block(mean=np.ones(4), noise=0.1, spread=0.0)}, count=10, count_error=0.1)
    none = dataclasses.replace(group, blocks={"picture": Block(mean=np.zeros(4), noise=0.1, spread=0.0)})
    tested = two_sample.two_groups((group, none), {"picture": ()})
    moves = {"picture": np.ones((1, 4)), LABELS: np.ones((1, 3))}
    trace = explaining.Trace(kind="x", amounts=((1.0,),), moves=moves, says=lambda _: "x")
    assert explaining.explained(tested, [trace]).fits[0].share == 1


def test_a_public_set_is_held_against_by_shares_of_classes_and_not_by_how_it_was_collected():
    psi = Psi(body=Moments(side=8, frequencies=8), classes=2, readable=0.6)
    images, labels = drawn(40, 8, 1), torch.arange(40) % 2
    many = against_public.sent(psi, PublicSet(images=images, labels=labels, owners=torch.arange(40) // 20))
    few = against_public.sent(psi, PublicSet(images=images, labels=labels, owners=torch.arange(40)))
    assert SIZE not in many
    private = Group.seen(many)
    beside = against_public.beside(private, psi, few)
    assert np.linalg.norm(few[LABELS].mean(0)) < 0.8
    assert beside.blocks[LABELS].mean == pytest.approx(private.blocks[LABELS].mean)


# Words and verdicts


def candidate(**about):
    usual = {"kind": "inverted", "summary": "inverted pixels", "amount": (-1.0,), "interval": ((-1.0,), (-1.0,))}
    usual |= {"share": 0.5, "share_interval": (0.4, 0.6), "explains": 0.98, "weight": 0.99, "left_p": 0.5}
    return Candidate(**usual | about)


def judged(p, *fits, missed=({"kind": "x", "summary": "x", "percent": 20.0},)):
    group = Group(blocks={}, count=10, count_error=0.1)
    tested = two_sample.Tested(groups=(group, group), views={}, differences=(), along_faults=p, rows=1)
    return Judged(
        tested=tested,
        explanation=Explanation(fits=fits, other=0.0),
        labels=("new", "old"),
        sentences=(),
        missed=missed,
        tells=lambda one: f"{one.summary}, on {one.share:.0%}",
    )


@pytest.mark.parametrize(
    ("p", "fits", "missed", "verdict"),
    [
        (1e-9, [candidate()], 20.0, FOUND),
        (1e-9, [candidate(explains=0.6, left_p=1e-9)], 20.0, DIFFERENT),  # it leaves too much
        (1e-9, [candidate(weight=0.6), candidate(weight=0.4)], 20.0, DIFFERENT),  # another does as well
        (1e-9, [], 20.0, DIFFERENT),
        (0.5, [candidate()], 20.0, NOTHING),
        (0.05, [candidate()], 20.0, INCONCLUSIVE),
        (0.5, [candidate()], None, INCONCLUSIVE),  # it would have been missed
    ],
)
def test_there_are_four_verdicts(p, fits, missed, verdict):
    said = judged(p, *fits, missed=({"kind": "x", "summary": "x", "percent": missed},))
    assert said.verdict.kind == verdict
    assert bool(said.findings) == (p < 0.01)
    if verdict == FOUND:
        assert said.findings[0].kind == "inverted"
    elif said.findings:
        assert said.findings[0].kind == looked.KIND
    if verdict in (DIFFERENT, INCONCLUSIVE) and fits:
        assert "Not claimed: inverted pixels" in said.verdict.summary


def test_a_fault_that_shows_nothing_explains_nothing():
    group = Group(blocks={"picture": Block(mean=np.zeros(4), noise=0.1, spread=0.0)}, count=10, count_error=0.1)
    tested = two_sample.two_groups((group, group), {"picture": ()})
    trace = explaining.Trace(kind="x", amounts=((1.0,),), moves={"picture": np.ones((1, 4))}, says=lambda _: "x")
    assert explaining.explained(tested, [trace]).fits == ()


def test_differences_are_told_in_words_with_their_size():
    psi = Psi(body=Moments(side=8, frequencies=8), readable=0.6, radius=0.5)
    plain = torch.full((1, 1, 8, 8), 0.0)
    darker = plain.clone()
    darker[..., :3, :3] = -1.0  # half the range
    sent = [READABLE["picture"](images)[0].double() for images in (darker, plain)]
    groups = tuple(
        Group(
            blocks={
                "picture": Block(mean=psi.around("picture", mean.float()).double().numpy(), noise=1e-4, spread=0.0)
            },
            count=100,
            count_error=0.0,
        )
        for mean in sent
    )
    tested = two_sample.two_groups(groups, {"picture": ()})
    best = differences.read(psi, tested, "picture")[0]
    assert best.words.startswith("darker at the upper left, by 50% plus or minus")
    picture = differences.clear_difference(psi, tested)[0, 0]
    assert float(picture[:3, :3].max()) < -0.9
    assert not picture[4:, 4:].any()


# Images that stand in, and weights


def release_of(images, noise=0.01):
    psi = Psi(body=Moments(side=8, frequencies=8), several=False, readable=0.6, radius=0.5)
    sent = torch.func.vmap(psi)({"x": images[:, None], "mask": torch.ones(len(images), 1)})
    blocks = {name: block.mean(0) for name, block in sent.items()}
    assert {COUNT, SPREAD, BODY} <= blocks.keys()
    return Release(psi=psi, blocks=blocks, noise=noise / len(images), units=len(images))


def test_public_images_are_weighted_until_they_look_like_a_release():
    bright, dark = drawn(200, 8, 1) / 3 + 0.5, drawn(200, 8, 1) / 3 - 0.5
    release = release_of(bright)
    means = {
        name: release.psi.around(name, rows.float()).double().mean(0).numpy()
        for name, rows in resembling.per_image(torch.cat([bright, dark]), release.psi.varying).items()
    }
    weights = resembling.weighted(release, torch.cat([bright, dark]), None, means).weights
    assert weights.sum() == pytest.approx(1)
    assert weights[:200].sum() > 0.9
    even = resembling.weighted(release_of(torch.cat([bright, dark])), torch.cat([bright, dark]), None, means)
    assert even.effective > 300  # nothing to mend


# From the command line


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, known = tmp_path_factory.mktemp("data"), people()
    release = (known.owners % 2).astype(int)
    images = np.where(release[:, None, None] == 1, 255 - known.images, known.images)
    about = {"y": known.labels, "user": known.owners}
    np.savez(folder / "private.npz", x=images, release=release, **about)
    other = people(1)
    seen = other.labels != 2
    np.savez(folder / "public.npz", x=other.images[seen], y=other.labels[seen], user=other.owners[seen])
    np.savez(folder / "large.npz", x=np.zeros((3, 16, 16), np.uint8), y=np.zeros(3, int), user=np.arange(3))
    np.savez(folder / "more.npz", x=other.images, y=other.labels + 3, user=other.owners)
    return folder


LOOK = "--units", USERS, "--side", SIDE, "--epsilon", 8, "--simulate", 0


def test_groups_by_an_attribute_are_compared_and_the_fault_is_named(data, tmp_path):
    told = answer("look", data / "private.npz", *LOOK, "--by", "release", "--out", tmp_path / "runs")
    assert told["verdict"]["kind"] == FOUND
    assert told["findings"][0]["kind"] == "inverted"
    assert told["differences"][0]["differs"]
    assert told["explanations"][0]["named"]
    missed = {row["kind"]: row for row in told["coverage"]}
    assert missed["inverted"]["weakest"] is None  # it has no strength
    assert missed["brightness"]["weakest"].startswith(("brighter by 0.", "darker by 0."))
    assert "stand in" in " ".join(told["warnings"])
    run = next((tmp_path / "runs").glob("look-*"))
    again = answer("compare", run / "release-1", run / "release-0", "--to", tmp_path / "again")
    assert again["verdict"]["kind"] == FOUND
    page = (run / "report.html").read_text()
    assert page.index("In what they differ") < page.index("Why") < page.index("Synthetic examples")


def test_a_public_set_without_a_class_is_told_so_with_weights(data, tmp_path):
    given = "--classes", EACH, "--public", data / "public.npz", "--public-users", "user", "--out", tmp_path / "runs"
    told = answer("look", data / "private.npz", *LOOK, *given)
    assert told["verdict"]["kind"] in (FOUND, DIFFERENT)
    shares = {row["name"]: (row["left"], row["right"]) for row in told["numbers"]}
    assert shares["class 2"][0] == pytest.approx(0.2, abs=0.1)
    assert shares["class 2"][1] == 0
    assert [row["label"] for row in told["lacking"]] == ["all", "public"]
    kept = json.loads(next((tmp_path / "runs").glob("look-*/weights.json")).read_text())
    assert len(kept["weights"]) == kept["images"] == (people(1).labels != 2).sum()
    assert sum(kept["weights"]) == pytest.approx(1, abs=1e-4)
    assert 1 <= kept["effective"] <= kept["images"]


@pytest.mark.parametrize(
    ("public", "more", "says"),
    [
        ("large.npz", ("--public-users", "user"), "images of (1, 8, 8) in look.public"),
        ("more.npz", ("--classes", EACH, "--public-users", "user"), "labels of look.public from 0 to 4"),
        ("none.npz", ("--public-users", "user"), "missing"),
        ("public.npz", (), "whose each is"),
        ("public.npz", ("--public-users", "whose"), "whose"),
    ],
)
def test_public_sets_that_do_not_fit_cost_nothing(data, tmp_path, public, more, says):
    given = "--public", data / public, *more, "--out", tmp_path / "runs"
    done = fedlens("look", data / "private.npz", *LOOK, *given)
    assert done.code == 2
    assert says in done.err
    assert not list((tmp_path / "runs").glob("look-*/all/look.safetensors"))


def test_groups_that_a_model_chose_say_so(data, tmp_path):
    network = ConvClassifier(side=SIDE, classes=EACH, widths=(4,))
    Primary(network, network.init(0)).save(tmp_path / "cnn.safetensors")
    asked = "--classes", EACH, "--by", "right", "--model", tmp_path / "cnn.safetensors", "--out", tmp_path / "runs"
    few = [word for name in ("right", "wrong") for word in ("--set", f"selections.{name}.minimum_examples=1")]
    told = answer("look", data / "private.npz", *LOOK, *asked, *few)
    warnings = " ".join(told["warnings"])
    assert "the model chose the groups" in warnings
    assert "is a guess" in warnings
    assert told["differences"][0]["block"] == PREDICTED
    assert not any(row["kind"] == tracing.CLASS_SHARE for row in told["explanations"])


def test_accuracy_needs_a_model_that_judges(data, tmp_path):
    done = fedlens("look", data / "private.npz", *LOOK, "--by", "accuracy", "--out", tmp_path / "runs")
    assert (done.code, "--model" in done.err) == (2, True)
