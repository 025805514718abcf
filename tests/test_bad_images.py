"""The image workflow under careless and hostile hands: clear errors, nothing lost, nothing spent, nothing told."""

import errno
import json
import re
import sqlite3
import statistics
import sys
import types

import numpy as np
import pytest
import torch
import toys
from command_line import fedlens, interrupted, ran, run_folder, standing
from safetensors import safe_open
from safetensors.torch import save_file
from toy_images import BOTH, EACH, EXAMPLES, ROWS, SECRET, SIDE, USERS, classifier, columns, written
from toys import with_one

from fedlens.algorithms import HeadCount
from fedlens.core import files
from fedlens.curators.simulated import SimulatedCurator
from fedlens.curators.site import Site
from fedlens.data import selection
from fedlens.data.population import DataError, Population
from fedlens.ledger import Account, Ledger, Spending
from fedlens.media.images import reading as data
from fedlens.media.images.contrast import contrast
from fedlens.media.images.faults import FAULTS
from fedlens.media.images.medium import Images
from fedlens.media.images.samples import Model, Samples
from fedlens.models.classifier import Primary
from fedlens.privacy import Everyone, L2Clip, Plan
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.tables import Bug
from fedlens.recipes.toml import RecipeError
from fedlens.runs import preparation
from fedlens.runs import reporting as run_reports
from fedlens.runs import run as runs
from fedlens.runs.run import Run

LEARNT = BOTH.replace("0.5", "{{ quantile = 0.5 }}")
AUTOMATIC = """
name = "auto"
task = "T1"
side = {side}
[data]
source = "npz"
path = "d.npz"
[selections.all]
by = "everyone"
[privacy]
epsilon = {epsilon}
delta = 1e-5
users = 30
population = 60
"""


steady = toys.steady()


def charges(folder):
    with sqlite3.connect(folder / "out" / "ledger.sqlite") as book:
        rows = book.execute("select run, stage, count(*) from entries where kind = 'release' group by run, stage")
        return sorted((run.partition("/")[2], stage, count) for run, stage, count in rows)


def assert_refused(done, *told):
    """One clear line, with exit code 2, that quotes nobody."""
    assert done.code == 2, (done.code, done.err)
    last = done.err.strip().splitlines()[-1]
    assert last.startswith("Expected "), done.err
    assert all(re.search(words, last) for words in told), last
    assert SECRET not in done.err + done.out


def members(monkeypatch):
    """Spies on the selections: by name, where the rows of their users begin."""
    begins, plain = {}, Site.asked

    def asked(site, stage, thresholds):
        chosen = plain(site, stage, thresholds)
        begins[stage.group] = set(chosen.starts.tolist())
        return chosen

    monkeypatch.setattr(Site, "asked", asked)
    return begins


def letters(count, seed):
    """Bright, trembling letters F on a dark ground."""
    rng = torch.Generator().manual_seed(seed)
    letter = torch.zeros(SIDE, SIDE)
    letter[1:7, 2] = letter[1, 2:6] = letter[3, 2:5] = 1.0
    strokes = torch.stack([letter.roll(step, 1) for step in torch.randint(-1, 2, (count,), generator=rng).tolist()])
    return (2 * strokes - 1 + 0.1 * torch.randn(count, SIDE, SIDE, generator=rng)).clamp(-1, 1)[:, None]


def samples(images, label):
    plan = Plan(sampling=Everyone(), bound=L2Clip(norm=0.1), noise_multiplier=5.0, releases=10, expected_contributors=9)
    account = Account(run=f"run/{label}", population="crowd", partition="all", part=label)
    return Samples(images=images, label=label, spending=Spending(account=account, plans=(plan,)), delta=1e-5)


@pytest.fixture
def foreign(monkeypatch):
    """A module of transforms of somebody else's."""
    module = types.ModuleType("somebodys")

    def raising(x):
        raise RuntimeError(f"{SECRET} {x.mean()}")

    def shrinking(x):
        return x[..., 1:]

    def nan(x):
        """\x1b[31mAll <script>alert(1)</script> NaN."""
        return x * float("nan")

    def whole(x):
        return x.long()

    def nothing(x):
        return None

    def loud(x):
        print(f"{SECRET} {float(x.mean())}")
        return -x

    def in_place(x):
        """Inverted in place."""
        return x.mul_(-1)

    def blank(x):
        """ """
        return -x

    for transform in (raising, shrinking, nan, whole, nothing, loud, in_place, blank):
        setattr(module, transform.__name__, transform)
    monkeypatch.setitem(sys.modules, "somebodys", module)
    return module


@pytest.fixture(scope="module")
def pair(tmp_path_factory, steady):
    """A finished run of two models, low and high."""
    folder = written(tmp_path_factory.mktemp("pair"), EXAMPLES)
    assert ran(folder, "--simulate", 0).code == 0
    return run_folder(folder)


def copied(model, to, *, tensors=None, header=None):
    """The model's file in a folder of its own, changed on the way."""
    with safe_open(model / "model.safetensors", "pt") as file:
        about, leaves = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    (tensors or (lambda leaves: None))(leaves)
    about |= header or {}
    to.mkdir()
    save_file(leaves, to / "model.safetensors", about)
    return to


# Data that cannot be used


def mixed_sizes():
    images = np.empty(ROWS, object)
    images[:] = [np.zeros((SIDE + row % 2, SIDE + row % 2)) for row in range(ROWS)]
    return images


LABELS = columns()["y"]
ATTRIBUTE = '[selections.new]\nby = "attribute"\nattribute = "version"\nvalues = [1]'
VERSION = {"more": 'attributes = ["version"]'}
BAD_DATA = {
    "images of mixed sizes": ({"x": mixed_sizes()}, ["d.npz"]),
    "colour": ({"x": np.zeros((ROWS, 3, SIDE, SIDE), np.uint8)}, ["channels 3"]),
    "colour, channels last": ({"x": np.zeros((ROWS, SIDE, SIDE, 3), np.uint8)}, [r"\(8, 8, 3\)"]),
    "another size": ({"x": np.zeros((ROWS, 12, 12), np.uint8)}, ["side"]),
    "a label no conditional model knows": ({"model": "classes = 10", "y": with_one(LABELS, 10)}, ["their owner says"]),
    "a negative label": ({"selections": BOTH, "y": with_one(LABELS, -1)}, ["fedlens data check d.npz"]),
    "an attribute of floats": ({"selections": ATTRIBUTE, "version": np.ones(ROWS), **VERSION}, ["version"]),
    "an attribute of NaN": ({"selections": ATTRIBUTE, "version": np.full(ROWS, np.nan), **VERSION}, ["version"]),
    "columns of different lengths": ({"selections": BOTH, "y": np.zeros(3, np.int64)}, ["one length"]),
    "more users than declared": ({"user": np.arange(ROWS)}, ["their owner says"]),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_data_that_cannot_be_used_are_named_and_cost_nothing(tmp_path, name):
    changes, told = BAD_DATA[name]
    done = ran(written(tmp_path, **changes))
    assert_refused(done, *told)
    assert "row 17" not in done.err  # that is for the owner: fedlens data check
    assert standing(tmp_path) == (0, 0)


def test_after_the_data_are_repaired_the_recipe_runs(tmp_path):
    written(tmp_path, x=np.zeros((ROWS, 3, SIDE, SIDE), np.uint8))
    assert_refused(ran(tmp_path, "--ledger", tmp_path / "b.db"))
    written(tmp_path)
    assert ran(tmp_path, "--ledger", tmp_path / "b.db").code == 0


def test_a_cut_population_is_named_and_costs_nothing(tmp_path):
    written(tmp_path, source="population")
    column = tmp_path / "people" / "x.npy"
    column.write_bytes(column.read_bytes()[:-100])
    assert_refused(ran(tmp_path), "fedlens data check people")
    assert "x.npy" in fedlens("data", "check", tmp_path / "people").err
    assert standing(tmp_path) == (0, 0)


def test_ids_of_ten_thousand_letters_are_ids(tmp_path):
    long = np.array(["z" * 10_000 + name for name in columns()["user"]])
    assert ran(written(tmp_path, user=long)).code == 0


@pytest.mark.parametrize("users", [0, 1])
def test_almost_nobody_gets_no_model_and_is_not_counted_aloud(tmp_path, users):
    few = {name: column[: users * EACH] for name, column in columns().items()}
    done = ran(written(tmp_path, **few), "--set", "privacy.minimum_users=20")
    assert done.code == 0
    assert "noisy head count found fewer than 20" in done.out
    assert not (run_folder(tmp_path) / "all" / "model.safetensors").exists()


def test_images_without_a_difference_between_pixels_end_in_a_report(tmp_path):
    assert ran(written(tmp_path, x=np.full((ROWS, SIDE, SIDE), 9, np.uint8))).code == 0


IMAGES = columns()["x"][:, None]
BAD_PIXELS = {
    "NaN": np.where(np.arange(ROWS)[:, None, None, None] == 3, np.nan, IMAGES / 127.5 - 1).astype(np.float32),
    "floats up to 255": IMAGES.astype(np.float32),
    "int32": IMAGES.astype(np.int32),
    "uint16": IMAGES.astype(np.uint16),
    "bool": IMAGES > 100,
    "another byte order": (IMAGES / 127.5 - 1).astype(">f4"),
}


@pytest.mark.parametrize("name", list(BAD_PIXELS))
def test_pixels_of_a_population_folder_are_checked_before_they_cost(tmp_path, name):
    done = ran(written(tmp_path, source="population", x=BAD_PIXELS[name]))
    assert_refused(done)
    assert standing(tmp_path) == (0, 0)


@pytest.mark.parametrize("kind", ["uint16", ">i8"])
@pytest.mark.parametrize(
    "asked", [{"selections": LEARNT}, {"selections": BOTH}, {"model": "classes = 10"}], ids=["learnt", "fixed", "gan"]
)
def test_labels_of_any_whole_type_can_be_used(tmp_path, kind, asked):
    done = ran(written(tmp_path, source="population", y=columns()["y"].astype(kind), **asked))
    assert done.code == 0, done.err


def test_offsets_that_fall_are_found_whatever_their_type(tmp_path):
    written(tmp_path, source="population")
    np.save(tmp_path / "people" / "offsets.npy", np.array([0, 60, 30, ROWS], np.uint64))
    with pytest.raises(DataError, match="damaged"):
        Population.open(tmp_path / "people")


def test_missing_user_ids_are_refused(tmp_path):
    ids = np.repeat(np.arange(USERS, dtype=float), EACH)
    ids[5] = np.nan
    assert_refused(ran(written(tmp_path, user=ids)))


@pytest.mark.parametrize("sampling", ['"fixed-size"\nsize = 5', '"balanced"\ngroups = 3'])
def test_a_declared_size_that_is_wrong_costs_nothing(tmp_path, sampling):
    assert_refused(ran(written(tmp_path, privacy=f"sampling = {sampling}")))
    assert standing(tmp_path) == (0, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"head": f"seed = {10**30}"},
        {"selections": f'[selections.a]\nby = "class"\nclasses = [{10**30}]'},
        {"selections": ATTRIBUTE.replace("[1]", f"[{10**30}]"), "version": np.ones(ROWS, int), **VERSION},
    ],
    ids=["seed", "class", "attribute"],
)
def test_numbers_beyond_sixty_four_bits_are_refused_by_the_recipe(tmp_path, changes):
    done = ran(written(tmp_path, **changes))
    assert done.code == 2
    assert "problem" in done.err
    assert not (tmp_path / "out").exists()


# Primary models that cannot be used


def scripted(module, path):
    torch.jit.save(torch.jit.script(module), path)
    return path


class Choking(torch.nn.Module):
    """Fails on images whose first pixel is 77: there is no score with such a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hit = ((x[:, 0, 0, 0] + 1) * 127.5).round() == 77
        return torch.zeros(x.shape[0], 10).gather(1, torch.arange(10) + hit.long()[:, None] * 99)


class Leaning:
    """A model that no file can hold: it answers by chance. What is refused when a file opens is here already inside."""

    kind, side, channels, classes = "toy", SIDE, 1, 2

    def probabilities(self, params, images):
        return torch.rand(len(images), 2)

    def digest(self, params):
        return "leaning"

    def save(self, path, params):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"leaning")


class Turning(Leaning):
    """Sees class 0 in all images until everybody was asked about once, class 1 in all later ones."""

    def __init__(self):
        self.shown = 0

    def probabilities(self, params, images):
        self.shown += len(images)
        return torch.tensor([[1.0, 0.0]] if self.shown <= ROWS else [[0.0, 1.0]]).expand(len(images), 2)


def cut(path):
    classifier(path)
    path.write_bytes(path.read_bytes()[:300])


BAD_MODELS = {
    "another side": lambda path: classifier(path, side=12),
    "one class": lambda path: classifier(path, classes=1),
    "cut short": cut,
    "something else": lambda path: path.write_bytes(b"\0" * 1000),
    "weights alone": lambda path: torch.save({"w": torch.zeros(2)}, path),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_primary_model_that_cannot_be_used_is_named_and_nothing_is_spent(tmp_path, name):
    BAD_MODELS[name](tmp_path / "m.pt")
    assert_refused(ran(written(tmp_path, BOTH)))
    assert standing(tmp_path)[0] == 0


@pytest.mark.parametrize("name", ["another side", "one class", "cut short"])
def test_a_primary_model_that_cannot_be_used_returns_what_was_set_aside(tmp_path, name):
    BAD_MODELS[name](tmp_path / "m.pt")
    ran(written(tmp_path, BOTH))
    assert standing(tmp_path) == (0, 0)


def test_a_primary_model_with_too_few_classes_does_not_tell_which_labels_there_are(tmp_path):
    classifier(tmp_path / "m.pt", classes=5)
    assert ran(written(tmp_path, BOTH)).code == 0


def test_a_primary_model_that_fails_on_one_image_does_not_tell_that_somebody_has_it(tmp_path):
    images = columns()["x"]
    images[:, 0, 0] = 0
    images[50, 0, 0] = 77
    scripted(Choking(), tmp_path / "m.pt")
    assert ran(written(tmp_path, BOTH, x=images)).code == 0


# Groups that share no user: only then may the dearer one alone be paid


def test_a_resumed_pair_shares_no_user(tmp_path, monkeypatch):
    written(tmp_path, LEARNT)
    found = members(monkeypatch)
    interrupted(monkeypatch, Run, "_trained", when=lambda run, name, *rest: name == "high")
    assert ran(tmp_path).code == 130
    assert fedlens("run", "--resume", run_folder(tmp_path)).code == 0
    assert found["low"]
    assert not found["low"] & found["high"]


@pytest.mark.parametrize("kind", [Leaning, Turning])
def test_a_model_that_answers_differently_puts_nobody_into_both_groups(tmp_path, monkeypatch, kind):
    model = Primary(kind())
    monkeypatch.setattr(preparation, "open_primary", lambda path, **options: model)
    found = members(monkeypatch)
    done = ran(written(tmp_path, BOTH, y=np.ones(ROWS, np.int64)))
    assert done.code == 0
    assert found["low"] | found["high"]
    assert not found["low"] & found["high"]


@pytest.mark.parametrize("exchanged", ["data", "model"])
def test_what_is_exchanged_under_an_interrupted_run_puts_nobody_into_both_groups(tmp_path, monkeypatch, exchanged):
    classifier(tmp_path / "m.pt", favourite=0)
    written(tmp_path, BOTH, y=np.ones(ROWS, np.int64))
    found = members(monkeypatch)
    interrupted(monkeypatch, Run, "_trained", when=lambda run, name, *rest: name == "high")
    assert ran(tmp_path).code == 130
    if exchanged == "data":
        np.savez(tmp_path / "d.npz", **columns(y=np.zeros(ROWS, np.int64)))
    else:
        classifier(run_folder(tmp_path) / "primary.safetensors", favourite=1)
    fedlens("run", "--resume", run_folder(tmp_path))
    assert not found["low"] & found.get("high", set())


def population(users=range(USERS), **changes):
    """Some of the users, with what each holds."""
    made = columns(**changes)
    rows = np.concatenate([np.arange(user * EACH, (user + 1) * EACH) for user in users])
    own = {"x": made["x"][rows][:, None], "y": made["y"][rows].astype(np.int64), "version": made["y"][rows] % 2}
    return Population.from_arrays("p", own, np.full(len(rows) // EACH, EACH))


RULES = {
    "accuracy": 'by = "accuracy"\nbelow = 0.26',
    "right": 'by = "right"\nminimum_examples = 1',
    "wrong": 'by = "wrong"\nminimum_examples = 4',
    "class": 'by = "class"\nclasses = [1, 2, 3]\nminimum_examples = 2',
    "attribute": 'by = "attribute"\nattribute = "version"\nvalues = [1]',
}


@pytest.mark.parametrize("rule", RULES)
def test_nobody_decides_whether_another_is_selected(tmp_path, rule):
    selections = f'[primary]\nmodel = "{{model}}"\n[selections.some]\n{RULES[rule]}'
    recipe = Recipe.open(written(tmp_path, selections, **VERSION) / "recipe.toml")
    primary = preparation.open_primary(tmp_path / "m.pt", side=SIDE)

    def images(users):
        """What each selected user holds, as one piece of bytes."""
        held = population(users)
        site = Site(held, primary, selection.accuracies(held, primary))
        chosen = site.asked(recipe.stage("train", "some"), {})
        return {chosen.take(np.array([unit]))["x"].numpy().tobytes() for unit in range(len(chosen))}

    everyone = images(range(USERS))
    assert 0 < len(everyone) < USERS or rule == "wrong"
    for gone in (0, 11, USERS - 1):
        rest = images([user for user in range(USERS) if user != gone])
        assert rest <= everyone
        assert len(everyone - rest) <= 1


@pytest.mark.parametrize("of", ["users", "examples"])
@pytest.mark.parametrize("gone", [0, 11])
def test_one_user_who_leaves_does_not_change_whom_a_planted_bug_hits(of, gone):
    stay = [user for user in range(USERS) if user != gone]
    before = data.planted(population(), Bug(kind="inverted", of=of, mark="hit"))
    after = data.planted(population(stay), Bug(kind="inverted", of=of, mark="hit"))
    rows = np.repeat(np.arange(USERS) != gone, EACH)
    assert np.array_equal(before.columns["x"][rows], after.columns["x"])
    assert np.array_equal(before.columns["hit"][rows], after.columns["hit"])


def test_one_users_label_does_not_change_how_others_are_swapped():
    labels = columns()["y"] % 9
    one = labels.copy()
    one[0] = 9
    bug = Bug(kind="swapped-labels", fraction=1.0, classes=10)
    swapped = [data.planted(population(y=y), bug).columns["y"] for y in (labels, one)]
    assert np.array_equal(swapped[0][EACH:], swapped[1][EACH:])


def test_counting_reads_one_example_of_everybody(tmp_path, monkeypatch):
    widths = []

    def present(self, message, examples, memory):
        widths.append(len(examples["mask"]))
        return {"units": (examples["mask"].sum() > 0).float()}, memory

    monkeypatch.setattr(HeadCount, "contribute", present)
    assert ran(written(tmp_path)).code == 0
    assert set(widths) == {1}


# Transforms of somebody else's


def planting(kind):
    return f'bug = {{ kind = "{kind}" }}'


@pytest.mark.parametrize("name", ["raising", "shrinking", "nan", "whole", "nothing"])
def test_a_bug_that_breaks_images_is_named_quotes_nothing_and_costs_nothing(tmp_path, foreign, name):
    assert_refused(ran(written(tmp_path, more=planting(f"somebodys:{name}")), "--simulate", "1"), f"somebodys:{name}")
    assert standing(tmp_path) == (0, 0)


def test_a_bug_of_ones_own_is_planted_in_simulations_only(tmp_path, foreign):
    """Its code sees every image, and could keep them."""
    done = ran(written(tmp_path, more=planting("somebodys:loud")))
    assert done.code == 2
    assert "--simulate" in done.err
    assert not list((tmp_path / "out").glob("bad-*"))


def test_a_bug_that_prints_leaves_the_answer_clean(tmp_path, foreign):
    done = ran(written(tmp_path, more=planting("somebodys:loud")), "--json", "--simulate", "1")
    json.loads(done.out)
    assert SECRET not in done.out + done.err


@pytest.mark.parametrize("kind", ["broken_module:f", ".relative:f", "somebodys:blank"])
def test_a_transform_that_cannot_be_had_is_refused_by_the_recipe(tmp_path, foreign, monkeypatch, kind):
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('no')")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        Recipe.open(written(tmp_path, more=planting(kind)) / "recipe.toml")
    except RecipeError:
        pass
    else:
        assert kind == "somebodys:blank"


def test_a_hypothesis_that_gives_nan_explains_nothing(foreign):
    report = contrast(samples(-letters(100, 0), "left"), samples(letters(100, 1), "right"), kinds=("somebodys:nan",))
    assert [finding.kind for finding in report.findings] == ["inverted"]


def test_a_hypothesis_that_works_in_place_changes_nothing_else(foreign):
    sides = samples(letters(100, 0).roll(2, 3), "left"), samples(letters(100, 1), "right")
    plain, other = contrast(*sides), contrast(*sides, kinds=("somebodys:in_place",))
    assert plain.numbers == other.numbers


def test_a_hypothesis_named_like_one_of_ours_competes_once():
    report = contrast(samples(-letters(100, 0), "left"), samples(letters(100, 1), "right"), kinds=("inverted",))
    assert [row["kind"] for row in report.hypotheses].count("inverted") == 1


@pytest.mark.parametrize("name", ["raising", "shrinking"])
def test_a_hypothesis_that_fails_does_not_cost_a_run_its_report(tmp_path, foreign, name):
    done = ran(written(tmp_path, EXAMPLES, head=f'hypotheses = ["somebodys:{name}"]'))
    assert done.code == 0, done.err
    assert (run_folder(tmp_path) / "report.json").exists()


def test_compare_with_a_hypothesis_that_fails_says_which(tmp_path, pair, foreign):
    options = "--hypothesis", "somebodys:raising", "--to", tmp_path / "report"
    done = fedlens("compare", pair / "low", pair / "high", *options)
    assert "somebodys:raising" in done.err + done.out


def test_hostile_words_reach_neither_the_page_nor_the_terminal(tmp_path, pair):
    label = json.dumps("<script>alert(1)</script>\x1b[31m")
    hostile = copied(pair / "low", tmp_path / "hostile", header={"label": label})
    book = tmp_path / "another.sqlite"  # which knows neither, and contradicts nobody
    Ledger(book).close_file()
    done = fedlens("compare", hostile, pair / "high", "--to", tmp_path / "report", "--ledger", book)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out
    assert "<script>alert" not in (tmp_path / "report" / "report.html").read_text()


def test_report_sends_no_escape_sequence_to_the_terminal(tmp_path):
    finding = {"kind": "x", "summary": "\x1b[31mred", "score": 0.9, "severity": "high"}
    (tmp_path / "report.json").write_text(json.dumps({"findings": [finding]}))
    assert "\x1b" not in fedlens("report", tmp_path).out


# Models and reports that are damaged


@pytest.mark.parametrize("command", ["sample", "report", "compare"])
def test_a_model_cut_short_is_named(tmp_path, pair, command):
    broken = copied(pair / "low", tmp_path / "broken")
    (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:500])
    more = [pair / "high", "--to", tmp_path / "report"] if command == "compare" else []
    assert_refused(fedlens(command, broken, *more), "model.safetensors")


@pytest.mark.parametrize(
    "damage",
    [
        {"tensors": lambda leaves: leaves.pop("image.bias")},
        {"tensors": lambda leaves: leaves.update({"image.bias": torch.zeros(7)})},
        {"header": {"gan": "{}"}},
        {"header": {"gan": "[]"}},
        {"header": {"spending": "{}"}},
        {"header": {"delta": '"small"'}},
    ],
    ids=["tensor missing", "tensor of another shape", "no gan", "gan a list", "no spending", "delta a word"],
)
def test_a_model_that_does_not_fit_its_header_is_named(tmp_path, pair, damage):
    assert_refused(fedlens("sample", copied(pair / "low", tmp_path / "broken", **damage)), "model.safetensors")


def test_models_of_different_sizes_are_not_compared(tmp_path, pair):
    folder = tmp_path / "large"
    folder.mkdir()
    written(folder, x=np.zeros((ROWS, 16, 16), np.uint8))
    assert ran(folder, "--set", "side=16", "--simulate", 0).code == 0
    done = fedlens("compare", pair / "low", run_folder(folder) / "all", "--to", tmp_path / "report")
    assert_refused(done, "one size")


def test_a_conditional_model_is_compared_with_a_plain_one(tmp_path, pair):
    folder = tmp_path / "conditional"
    folder.mkdir()
    assert ran(written(folder, model="classes = 10"), "--simulate", 0).code == 0
    options = "--model", classifier(tmp_path / "m.pt"), "--to", tmp_path / "report"
    assert fedlens("compare", pair / "low", run_folder(folder) / "all", *options).code == 0


def test_a_model_compared_with_itself_shows_no_finding(tmp_path, pair):
    done = fedlens("compare", pair / "low", pair / "low", "--to", tmp_path / "report", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["findings"] == []


DAMAGED_REPORTS = {
    "cut": b"{",
    "no object": b"[]",
    "nothing found": b'{"findings": null}',
    "no text": b"\xff\xfe\x00",
    "kind a list": b'{"findings": [{"kind": ["x"], "summary": "s", "score": 1, "severity": "high"}]}',
}


@pytest.mark.parametrize(
    ("command", "name"),
    [pytest.param(command, name) for command in ("report", "compare") for name in DAMAGED_REPORTS],
)
def test_a_damaged_report_is_named(tmp_path, pair, command, name):
    before = tmp_path / "before"
    before.mkdir()
    (before / "report.json").write_bytes(DAMAGED_REPORTS[name])
    models = [pair / "low", pair / "high", "--to", tmp_path / "after", "--before"] if command == "compare" else []
    assert_refused(fedlens(command, *models, before), "report.json")


@pytest.fixture
def unreported(tmp_path, monkeypatch):
    """A run that was interrupted when its report was made, with pictures of earlier rounds."""
    with monkeypatch.context() as patched:
        interrupted(patched, Images, "contrast")
        assert ran(written(tmp_path, rounds=10)).code == 130
    folder = run_folder(tmp_path)
    assert len(list((folder / "all" / "rounds").iterdir())) == 4
    return folder


def test_pictures_of_earlier_rounds_may_be_deleted(unreported):
    for path in (unreported / "all" / "rounds").iterdir():
        path.unlink()
    assert fedlens("run", "--resume", unreported).code == 0


@pytest.mark.parametrize("name", ["000001.safetensors", ".000002.safetensors.draft"])
def test_a_damaged_picture_of_an_earlier_round_does_not_cost_the_report(unreported, name):
    (unreported / "all" / "rounds" / name).write_bytes(b"half")
    done = fedlens("run", "--resume", unreported)
    assert done.code == 0, done.err


# Ctrl-C, full disks, two at once


@pytest.fixture(scope="module")
def whole(tmp_path_factory, steady):
    """A run with learnt thresholds that nobody interrupted."""
    folder = written(tmp_path_factory.mktemp("whole"), LEARNT)
    assert ran(folder, "--simulate", 3).code == 0
    return folder


def generators(folder):
    return [Model.open(run_folder(folder) / name / "model.safetensors").generator for name in ("low", "high")]


def asked_for(stage):
    return lambda curator, question: curator._stage == stage


MOMENTS = {
    "thresholds": (SimulatedCurator, "_bounded_sum", asked_for("thresholds"), False),
    "counting": (SimulatedCurator, "_bounded_sum", asked_for("count"), False),
    "training": (SimulatedCurator, "_bounded_sum", asked_for("train"), False),
    "closing, then the report fails": (run_reports, "report_of", lambda *given, **named: True, False),
    "reporting": (Images, "contrast", lambda *groups, **options: True, False),
    "after the report": (runs.Report, "save", lambda *given: True, True),
    "closing": (Ledger, "close", lambda *given: True, True),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_interrupted_at_any_moment_ends_the_same_and_pays_once(tmp_path, monkeypatch, whole, moment):
    owner, name, when, after = MOMENTS[moment]
    interrupted(monkeypatch, owner, name, when, after)
    first = ran(written(tmp_path, LEARNT), "--simulate", 3)
    assert first.code == 130
    assert "--resume" in first.err
    assert fedlens("run", "--resume", run_folder(tmp_path)).code == 0
    assert charges(tmp_path) == charges(whole)
    for mine, theirs in zip(generators(tmp_path), generators(whole), strict=True):
        assert all(torch.equal(mine[leaf], theirs[leaf]) for leaf in theirs)


def test_an_interruption_right_after_the_reservation_returns_it(tmp_path, monkeypatch):
    interrupted(monkeypatch, Ledger, "reserve", after=True)
    assert ran(written(tmp_path)).code == 130
    assert standing(tmp_path) == (0, 0)


def test_secrets_left_by_an_interruption_are_deleted_when_the_run_is_looked_at_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        interrupted(patched, runs.safeguards, "forget_secrets")
        assert ran(written(tmp_path)).code == 130
    assert list((tmp_path / "out" / ".private").iterdir())
    fedlens("run", "--resume", run_folder(tmp_path))
    assert not list((tmp_path / "out" / ".private").iterdir())


def test_a_disk_that_is_full_at_the_start_returns_what_was_set_aside(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write", full)
    done = ran(written(tmp_path))
    assert done.code == 1
    assert "No space left" in done.err
    assert standing(tmp_path) == (0, 0)


def test_a_run_that_is_under_way_is_not_carried_out_twice(tmp_path):
    recipe = Recipe.open(written(tmp_path) / "recipe.toml")
    run = Run.created(recipe, tmp_path / "out", address=tmp_path / "out" / "ledger.sqlite", seed=None, device="cpu")
    refused = []

    def watch(selection, done, rounds, facts):
        if not refused:
            refused.append(None)
            with pytest.raises(ValueError, match="Expected"):
                Run.opened(run.folder).executed(lambda *told: None)

    run.executed(watch)


# Settings chosen from epsilon


def automatic(epsilon, side=8):
    return Recipe.parsed(AUTOMATIC.format(epsilon=epsilon, side=side))


@pytest.mark.parametrize("side", [30, 2])
def test_a_side_that_no_network_halves_is_explained(side):
    with pytest.raises(RecipeError, match=f"side={side} divisible by 4"):
        automatic(1.0, side)


@pytest.mark.parametrize("side", [4, 8, 32])
@pytest.mark.parametrize("epsilon", [0.1, 8])
def test_settings_chosen_from_epsilon_keep_it(side, epsilon):
    recipe = automatic(epsilon, side)
    assert 0.9 * epsilon < recipe.guarantee(recipe.spendings()).epsilon <= epsilon


@pytest.mark.parametrize("epsilon", ["1e-6", "1e-300", "1" + "0" * 400])
def test_an_epsilon_out_of_reach_is_explained(epsilon):
    with pytest.raises(ValueError, match=r"privacy\.epsilon"):
        automatic(epsilon)


def test_a_very_large_epsilon_is_kept_or_refused():
    try:
        recipe = automatic(1e6)
        promised = recipe.guarantee(recipe.spendings()).epsilon
    except ValueError:
        return
    assert promised <= 1e6


@pytest.mark.parametrize("epsilon", [0.2, 1])
def test_a_group_of_nobody_seldom_passes_the_floor(epsilon):
    privacy = automatic(epsilon).privacy
    assert statistics.NormalDist(sigma=privacy.count_noise).cdf(-privacy.minimum_units) < 0.01


@pytest.mark.parametrize("of", ["users", "examples"])
@pytest.mark.parametrize("kind", sorted(FAULTS.known))
def test_one_user_who_leaves_changes_nothing_that_a_planted_fault_does_to_others(kind, of):
    """Also not by what it draws: the noise of a noisy camera must not depend on how many were hit before."""
    bug = Bug(kind=kind, fraction=0.7, of=of, classes=10 if FAULTS.known[kind].labels else None)
    stay = [user for user in range(USERS) if user]
    before, after = data.planted(population(), bug), data.planted(population(stay), bug)
    for name in ("x", "y"):
        np.testing.assert_array_equal(before.columns[name][EACH:], after.columns[name])
