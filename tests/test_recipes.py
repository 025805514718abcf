"""Recipes: every problem at once, overrides, and costs that follow from who may share users."""

import dataclasses
import gzip
import itertools
import os
import pathlib
import re

import numpy as np
import pytest
from dp_accounting.pld import pld_privacy_accountant

from fedlens.ledger import Budget, Ledger, guarantee
from fedlens.media.images.faults import FAULTS
from fedlens.privacy import Everyone, L2Clip, Poisson, UpdateAndBit, accounting
from fedlens.recipes import templates
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.toml import RecipeError, to_toml
from fedlens.runs import planning
from fedlens.runs.run import Run

FILES = sorted(pathlib.Path(templates.__file__).with_name("files").glob("*.toml"))
TABLES = {
    "": 'name = "tiny"\ntask = "T4"\nside = 8',
    "data": 'source = "digits"\ndeal_to = 30',
    "primary": "epochs = 1",
    "selections.low": 'by = "accuracy"\nbelow = 0.6',
    "selections.high": 'by = "accuracy"\nat_least = 0.6',
    "privacy": "epsilon = 8.0\ndelta = 1e-5\nrounds = 3\nusers = 15\npopulation = 40\nclip = 0.1",
}


def text(**changes):
    """A recipe that is right, with whole tables replaced; dots of a table's name become __, None leaves it out."""
    tables = TABLES | {key.replace("__", ".").removeprefix("top"): value for key, value in changes.items()}
    return "\n".join(f"[{name}]\n{body}" if name else body for name, body in tables.items() if body is not None)


def problems(written, overrides=()):
    """The lines of the error, without the first, which counts them."""
    with pytest.raises(RecipeError) as caught:
        Recipe.parsed(written, overrides)
    first, *lines = str(caught.value).splitlines()
    assert first.split()[0] == str(len(lines))
    return [line.strip() for line in lines]


def privacy(**changes):
    values = {"delta": "1e-5", "epsilon": "8.0", "rounds": "3", "users": "15", "population": "40", "clip": "0.1"}
    return "\n".join(f"{key} = {value}" for key, value in (values | changes).items() if value is not None)


def selections(left, right):
    return text(selections__low=left, selections__high=right)


def by_version(low, high, other="version"):
    return text(
        data='source = "npz"\npath = "x.npz"\nattributes = ["version", "release"]',
        primary='model = "cnn.safetensors"',
        selections__low=f'by = "attribute"\nattribute = "version"\nvalues = {low}',
        selections__high=f'by = "attribute"\nattribute = "{other}"\nvalues = {high}',
    )


def cost(recipe, names=None):
    chosen = [spending for spending in recipe.spendings() if names is None or spending.account.part in names]
    return guarantee(chosen, recipe.privacy.delta).epsilon


# Problems


def test_all_problems_are_named_at_once_with_the_allowed_names():
    told = problems(
        text(
            top='name = "no spaces here"\ntask = "T9"\nside = 8',
            data='source = "digits"\ndeal_to = 30\nbug = { kind = "purple", colour = 1 }',
            selections__low='by = "luck"',
            privacy=privacy(rounds="0", round="3"),
        )
    )
    places = {line.partition(":")[0] for line in told}
    assert places == {
        "name",
        "task",
        "data.bug.kind",
        "data.bug.colour",
        "selections.low.by",
        "privacy.rounds",
        "privacy.round",
    }
    by_place = dict(line.split(": ", 1) for line in told)
    assert all(name in by_place["task"] for name in ("T1", "T2", "T4"))
    assert all(name in by_place["data.bug.kind"] for name in FAULTS.known)
    assert all(name in by_place["selections.low.by"] for name in ("everyone", "accuracy", "right", "wrong"))


@pytest.mark.parametrize(
    ("override", "place", "allowed", "not_here"),
    [
        ("hue=1", "hue", "privacy", "epsilon"),
        ("privacy.hue=1", "privacy.hue", "noise_multiplier", "selections"),
        ("privacy.adaptive_clip.hue=1", "privacy.adaptive_clip.hue", "quantile", "noise_multiplier"),
        ("data.hue=1", "data.hue", "deal_to", "epsilon"),
        ("primary.hue=1", "primary.hue", "epochs", "deal_to"),
        ("primary.public.hue=1", "primary.public.hue", "images", "epochs"),
        ("selections.low.hue=1", "selections.low.hue", "at_least", "selections"),
        ("selections.low.below={quantile = 0.5, hue = 1}", "selections.low.below.hue", "quantile", "below"),
        ("data.bug={kind = 'inverted', hue = 1}", "data.bug.hue", "mark", "attributes"),
        ("model.hue=1", "model.hue", "critic_widths", "local_steps"),
        ("training.generator.hue=1", "training.generator.hue", "beta1", "local_steps"),
    ],
)
def test_an_unknown_name_is_answered_with_the_names_of_its_own_table(override, place, allowed, not_here):
    (line,) = [line for line in problems(text(), [override]) if line.startswith(f"{place}: unknown")]
    names = line.partition("allowed here: ")[2].split(", ")
    assert allowed in names
    assert not_here not in names


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (text(privacy=privacy(epsilon=None)), "give epsilon or noise_multiplier, one of them"),
        (text(privacy=privacy(noise_multiplier="2.0")), "give epsilon or noise_multiplier, one of them"),
        (
            text(privacy=privacy(clip=None, epsilon=None, noise_multiplier="2.0")),
            "give clip, top_k or [privacy.adaptive_clip], one of them",
        ),
        (
            text(privacy=privacy(adaptive_clip="{ start = 0.1 }")),
            "give clip, top_k or [privacy.adaptive_clip], one of them",
        ),
        (text(privacy=privacy(sampling='"poisson"')), "rate goes with sampling = 'poisson', which needs it"),
        (text(privacy=privacy(rate="0.5")), "rate goes with sampling = 'poisson', which needs it"),
        (text(privacy=privacy(users="41")), "units=41 exceeds population=40"),
        (text(selections__low='by = "accuracy"\nat_least = 0.7\nbelow = 0.2'), "expected at_least=0.7 < below=0.2"),
        (text(selections__low='by = "accuracy"\nat_least = 0.7\nbelow = 0.7'), "expected at_least=0.7 < below=0.7"),
        (
            text(selections__low='by = "accuracy"\nat_least = { quantile = 0.7 }\nbelow = { quantile = 0.7 }'),
            "expected at_least=quantile 0.7 < below=quantile 0.7",
        ),
        (text(selections__low='by = "accuracy"\nbelow = { quantile = 1.0 }'), "selections.low.below.quantile: "),
        (text(selections__low='by = "accuracy"\nbelow = {}'), "selections.low.below.quantile: missing"),
        (text(selections__low='by = "accuracy"\nbelow = 1.5'), "selections.low.below: input should be less than"),
        (
            text(selections__low='by = "accuracy"\nbelow = "low"'),
            "selections.low.below: input should be a valid number",
        ),
        (
            text(selections__low='by = "wrong"\nbelow = { quantile = 0.5 }'),
            "at_least and below go with by = 'accuracy'",
        ),
        (text(selections__low='by = "class"'), "classes goes with by = 'class', which needs it"),
        (text(selections__low='by = "class"\nclasses = []'), "selections.low.classes: "),
        (text(selections__low='by = "class"\nclasses = [-1]'), "selections.low.classes.0: "),
        (text(selections__low='by = "wrong"\nclasses = [1]'), "classes goes with by = 'class', which needs it"),
        (text(selections__low='by = "attribute"\nattribute = "a"'), "attribute and values go with by = 'attribute'"),
        (text(selections__low='by = "attribute"\nvalues = [1]'), "attribute and values go with by = 'attribute'"),
        (text(selections__low='by = "everyone"\nvalues = [1]'), "attribute and values go with by = 'attribute'"),
        (
            text(selections__low='by = "attribute"\nattribute = "hsf"\nvalues = [1]'),
            "selection low: data.attributes does not name 'hsf'",
        ),
        (
            text(selections__low=None, selections__thresholds='by = "right"'),
            "another name for the selection thresholds",
        ),
        (text(data='source = "digits"\nattributes = ["hsf"]'), "attributes goes with source npz, jsonl or population"),
        (text(data='source = "npz"\npath = "x"\nattributes = ["y"]'), "data.attributes.0: expected a column's name"),
        (text(data='source = "npz"\npath = "x"\nattributes = ["a b"]'), "data.attributes.0: expected a column's name"),
        (text(data='source = "npz"\npath = "x"\nattributes = ["a", "a"]'), "attributes names a column twice"),
        (
            text(data='source = "npz"\npath = "x"\nattributes = ["a"]\nbug = { kind = "inverted", mark = "a" }'),
            "bug.mark='a' is one of the attributes already",
        ),
        (text(data='source = "digits"\nbug = { kind = "inverted", mark = "x" }'), "data.bug.mark: expected a column"),
        (text(data='source = "digits"\nbug = { kind = "inverted", seed = -1 }'), "data.bug.seed: "),
        (
            text(data='source = "digits"\nbug = { kind = "no.such:thing" }'),
            "data.bug.kind: expected a function 'thing'",
        ),
        (text(selections__low='by = "accuracy"'), "at_least and below go with by = 'accuracy', which needs one"),
        (text(selections__low='by = "wrong"\nbelow = 0.5'), "at_least and below go with by = 'accuracy'"),
        (text(selections__more='by = "everyone"'), "expected one or two selections, got 3"),
        (text(primary=None), "need a [primary] model"),
        (text(top='name = "tiny"\ntask = "T4"\nside = 7'), "side=7 divisible by"),
        (text(data='source = "npz"'), "path goes with source npz, jsonl or population"),
        (text(data='source = "digits"\npath = "x.npz"'), "path goes with source npz, jsonl or population"),
    ],
)
def test_settings_that_contradict_each_other_are_named(written, expected):
    assert expected in "\n".join(problems(written))


def test_contradictions_of_one_table_are_all_named():
    (line,) = problems(text(privacy=privacy(epsilon=None, clip=None, rate="0.5", users="50")))
    assert all(word in line for word in ("noise_multiplier", "adaptive_clip", "poisson", "exceeds"))


@pytest.mark.parametrize("setting", ["privacy.clip", "privacy.epsilon", "training.local_rate", "privacy.count_noise"])
def test_numbers_that_are_not_finite_are_refused_by_name(setting):
    assert any(line.startswith(setting) for line in problems(text(), [f"{setting}=inf"]))


@pytest.mark.parametrize(
    "chosen", ['by = "accuracy"\nbelow = 0.6', 'by = "wrong"\nminimum_examples = 5'], ids=["accuracy", "five wrong"]
)
def test_example_level_privacy_is_refused_where_one_example_decides_about_the_users_others(chosen):
    """One example more may flip the verdict on its user, and with it move all the user's other examples."""
    written = text(selections__low=chosen, selections__high=None, privacy=privacy(unit='"example"'))
    assert "example" in "\n".join(problems(written))


def test_one_mistake_in_a_threshold_is_one_line():
    assert len(problems(text(selections__low='by = "accuracy"\nbelow = 1.5'))) == 1
    assert len(problems(text(selections__low='by = "accuracy"\nbelow = { quantile = 2.0 }'))) == 1


@pytest.mark.parametrize(
    ("chosen", "refused"),
    [
        ('by = "accuracy"\nbelow = { quantile = 0.5 }', True),
        ('by = "attribute"\nattribute = "version"\nvalues = [1]', True),
        ('by = "class"\nclasses = [1]\nminimum_examples = 2', True),
        ('by = "class"\nclasses = [1]\nminimum_examples = 1', False),
    ],
)
def test_with_example_level_privacy_an_example_decides_about_itself_alone(chosen, refused):
    written = text(
        data='source = "npz"\npath = "data.npz"\nattributes = ["version"]',
        primary="model = 'm.pt'",
        selections__low=chosen,
        selections__high=None,
        privacy=privacy(unit='"example"'),
    )
    if refused:
        assert "one example would decide about its user's others" in "\n".join(problems(written))
    else:
        assert Recipe.parsed(written).privacy.unit == "example"


def test_with_example_level_privacy_no_bug_is_planted():
    """Whom it hits follows from all of a user's images."""
    written = text(
        data='source = "digits"\nbug = { kind = "inverted" }',
        selections__low='by = "everyone"',
        selections__high=None,
        privacy=privacy(unit='"example"'),
    )
    assert "one example would decide what its user's others hold" in "\n".join(problems(written))


@pytest.mark.parametrize("sampling", ['"balanced"\ngroups = 2', '"fixed-size"\nsize = 5'])
@pytest.mark.parametrize("chosen", ['by = "class"\nclasses = [1]', 'by = "attribute"\nattribute = "v"\nvalues = [1]'])
def test_samplers_that_need_public_numbers_are_refused_for_the_new_selections_too(chosen, sampling):
    data = 'source = "digits"\nbug = { kind = "inverted", mark = "v" }'
    written = text(data=data, selections__low=chosen, selections__high=None, privacy=privacy(sampling=sampling))
    assert "selection low with" in "\n".join(problems(written))


def test_classes_and_attributes_need_no_primary_model():
    written = text(
        data='source = "npz"\npath = "x.npz"\nattributes = ["hsf"]',
        primary=None,
        selections__low='by = "attribute"\nattribute = "hsf"\nvalues = [0]',
        selections__high='by = "class"\nclasses = [3]',
    )
    recipe = Recipe.parsed(written)
    assert recipe.reads_labels
    assert not recipe.asks_primary


@pytest.mark.parametrize(
    ("changes", "reads"),
    [
        ({}, False),
        ({"data": 'source = "digits"\nbug = { kind = "inverted" }'}, False),
        ({"data": 'source = "digits"\nbug = { kind = "swapped-labels", classes = 10 }'}, True),
        ({"selections__low": 'by = "class"\nclasses = [1]'}, True),
        ({"primary": "epochs = 1"}, True),
    ],
)
def test_labels_are_read_where_something_needs_them(changes, reads):
    everyone = {"primary": None, "selections__low": 'by = "everyone"', "selections__high": None}
    assert Recipe.parsed(text(**everyone | changes)).reads_labels == reads


def test_what_is_not_toml_is_refused_with_the_line():
    with pytest.raises(RecipeError, match=r"Expected TOML: .*line 2"):
        Recipe.parsed("name = 'x'\nside = = 8")


def test_a_missing_file_a_folder_and_a_binary_file_are_refused(tmp_path):
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(RecipeError, match="no such file"):
        Recipe.open(tmp_path / "absent.toml")
    with pytest.raises(RecipeError, match="no such file"):
        Recipe.open(tmp_path)
    with pytest.raises(RecipeError, match="Expected a TOML text file"):
        Recipe.open(tmp_path / "image.png")


# Overrides


def test_overrides_reach_nested_settings_and_are_read_as_toml_or_else_as_text():
    recipe = Recipe.parsed(
        text(),
        [
            "privacy.rounds=7",
            "privacy.epsilon = 2.5",
            "model.critic_widths=[4, 6]",
            "data.bug.kind=mirrored",
            'data.bug.fraction="0.25"',
            "training.generator={kind = 'adam', rate = 0.5}",
            "name=renamed",
            "selections.low.below=0.3",
        ],
    )
    assert (recipe.privacy.rounds, recipe.privacy.epsilon, recipe.name) == (7, 2.5, "renamed")
    assert recipe.model.critic_widths == (4, 6)
    assert (recipe.data.bug.kind, recipe.data.bug.fraction) == ("mirrored", 0.25)
    assert (recipe.training.generator.kind, recipe.training.generator.rate) == ("adam", 0.5)
    assert recipe.selections["low"].below == 0.3
    assert recipe.selections["high"].at_least == 0.6


def test_the_last_of_two_overrides_wins():
    assert Recipe.parsed(text(), ["privacy.rounds=7", "privacy.rounds=9"]).privacy.rounds == 9


def test_an_override_can_add_a_table():
    assert Recipe.parsed(text(primary=None), ["primary.epochs=3"]).primary.epochs == 3


@pytest.mark.parametrize("override", ["privacy.rounds", "name.first=1", "privacy.rounds.more=1"])
def test_an_override_that_cannot_be_applied_is_quoted(override):
    with pytest.raises(RecipeError) as caught:
        Recipe.parsed(text(), [override])
    assert override in str(caught.value)


def test_an_override_of_the_wrong_kind_is_a_problem_of_that_setting():
    assert problems(text(), ["privacy.rounds=many"])[0].startswith("privacy.rounds: ")


def test_an_environment_variable_stands_for_a_path(monkeypatch):
    monkeypatch.setenv("FEDLENS_TEST_PLACE", "/somewhere")
    recipe = Recipe.parsed(text(data='source = "npz"\npath = "$FEDLENS_TEST_PLACE/x.npz"', primary='model = "m"'))
    assert recipe.data.path == "/somewhere/x.npz"


def test_a_primary_model_needs_a_file_or_public_data_unless_the_data_brings_its_own():
    (line,) = problems(text(data='source = "npz"\npath = "x.npz"'))
    assert "[primary] needs model" in line
    assert Recipe.parsed(text()).primary is not None


# The same recipe again


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_recipe_of_the_package_parses_and_survives_being_written(path):
    recipe = Recipe.open(path)
    again = Recipe.parsed(to_toml(recipe))
    assert again == recipe
    assert again.digest == recipe.digest


def test_a_recipe_with_all_the_new_settings_survives_being_written():
    recipe = Recipe.parsed(
        text(
            data='source = "npz"\npath = "x.npz"\nattributes = ["hsf", "version"]\n'
            'bug = { kind = "rotated-90", of = "examples", seed = 3, mark = "release" }',
            primary='model = "cnn.safetensors"',
            selections__low='by = "accuracy"\nat_least = 0.1\nbelow = { quantile = 0.25 }',
            selections__high='by = "attribute"\nattribute = "hsf"\nvalues = [-1, 4]',
        )
    )
    again = Recipe.parsed(to_toml(recipe))
    assert again == recipe
    assert again.digest == recipe.digest
    assert again.selections["low"].below.quantile == 0.25


@pytest.mark.parametrize("name", ["café.npz", "a 'b' \"c\".npz", "back\\slash.npz", "tab\there.npz", "\U0001f600.npz"])
def test_a_written_recipe_keeps_every_letter_of_a_path(name):
    recipe = Recipe.parsed(text(data='source = "npz"\npath = "x.npz"', primary='model = "cnn.safetensors"'))
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"path": name})})
    again = Recipe.parsed(to_toml(recipe))
    assert again.data.path == name
    assert again.digest == recipe.digest


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "privacy.epsilon=4.0",
        "data.bug.kind=mirrored",
        "training.decay=0.1",
        "selections.low.below=0.5",
        "privacy.unit=user",
    ],
)
def test_the_digest_changes_exactly_when_a_setting_does(override):
    changed = override != "privacy.unit=user"  # which is the default
    assert (Recipe.parsed(text(), [override]).digest != Recipe.parsed(text()).digest) == changed


# Templates


@pytest.mark.parametrize("data", ["data.npz", "folder"])
@pytest.mark.parametrize(("task", "names"), [("T1", {"all"}), ("T2", {"wrong", "right"}), ("T4", {"low", "high"})])
def test_the_template_of_every_task_parses_as_it_is(task, names, data):
    recipe = Recipe.parsed(templates.recipe(task, data))
    assert (recipe.task, set(recipe.selections), recipe.data.path) == (task, names, data)
    assert recipe.data.source == ("npz" if data.endswith(".npz") else "population")
    assert (recipe.primary is None) == (task == "T1")


@pytest.mark.parametrize("name", ['with "quotes"', "back\\slash"])
def test_a_template_keeps_every_letter_of_its_paths(name):
    recipe = Recipe.parsed(templates.recipe("T4", f"{name}.npz", model=f"{name}.safetensors"))
    assert (recipe.data.path, recipe.primary.model) == (f"{name}.npz", f"{name}.safetensors")


@pytest.mark.parametrize("task", ["T1", "T2", "T4"])
def test_the_promise_of_every_template_is_the_epsilon_it_names(task):
    recipe = Recipe.parsed(templates.recipe(task, "data.npz"))
    assert 0.99 * recipe.privacy.epsilon < cost(recipe) <= recipe.privacy.epsilon


@pytest.mark.parametrize("task", ["T1", "T2", "T4"])
def test_what_a_template_shows_as_comments_can_be_used(task):
    """Every commented line, uncommented; the selections shown as an alternative take the place of the others."""
    written = templates.recipe(task, "data.npz")
    head, *tables = re.split(r"\n(?=(?:# )?\[)", re.sub(r"^# fedlens.*\n", "", written, flags=re.M))
    shown = [re.sub(r"^# ", "", table, flags=re.M) for table in tables if table.startswith("# [")]
    kept = [re.sub(r"^# ", "", table, flags=re.M) for table in tables if not table.startswith("# [")]
    assert any(table.startswith("[data.bug]") for table in shown)
    if any(table.startswith("[selections") for table in shown):
        kept = [table for table in kept if not table.startswith("[selections")]
    recipe = Recipe.parsed("\n".join([head, *kept, *shown]))
    assert recipe.data.bug.mark == "release"
    assert recipe.data.attributes == ("version",)
    if task == "T1":
        assert {rule for rule, _ in recipe.partition().values()} == {"attribute"}


def test_the_template_of_weak_users_shows_quantiles():
    written = templates.recipe("T4", "data.npz")
    for constant, quantile in re.findall(r"= (0\.\d+) .*or (\{ quantile = .*? \})", written):
        written = written.replace(f"= {constant} ", f"= {quantile} ", 1)
    recipe = Recipe.parsed(written)
    assert recipe.quantiles == [0.25, 0.75]
    assert cost(recipe) <= recipe.privacy.epsilon


def test_a_template_of_an_unknown_task_names_the_known_ones():
    with pytest.raises(ValueError, match=r"T1, T2, T3, T4.*'T9'"):
        templates.recipe("T9", "data.npz")


# Costs


def test_the_objects_of_a_recipe_are_what_it_says():
    recipe = Recipe.parsed(text(privacy=privacy(epsilon=None, noise_multiplier="2.5", count_noise="3.0")))
    count, train = recipe.plans["count"], recipe.plans["train"]
    assert (train.noise_multiplier, train.releases, train.expected_contributors) == (2.5, 3, 15.0)
    assert (train.bound, train.sampling) == (L2Clip(norm=0.1), Everyone())
    assert (count.noise_multiplier, count.releases, count.bound) == (3.0, 1, L2Clip(norm=1.0))


def test_poisson_and_an_adaptive_clip_reach_the_plan_and_the_algorithm():
    recipe = Recipe.parsed(
        text(
            privacy=privacy(
                epsilon=None,
                noise_multiplier="2.0",
                sampling='"poisson"',
                rate="0.2",
                clip=None,
                adaptive_clip="{ start = 0.3, bit = 0.4, quantile = 0.7 }",
            )
        )
    )
    train = recipe.plans["train"]
    assert train.sampling == Poisson(rate=0.2, population=40)
    assert train.bound == UpdateAndBit(bit=0.4)
    assert train.expected_contributors == pytest.approx(0.2 * 15)
    adaptive = recipe.built().adaptive
    assert (adaptive.start, adaptive.bit, adaptive.quantile) == (0.3, 0.4, 0.7)


def test_groups_by_disjoint_accuracies_cost_as_much_as_the_dearer_one():
    recipe = Recipe.parsed(text())
    alone = cost(recipe, {"low"})
    assert cost(recipe) == alone == cost(recipe, {"high"})
    assert 0.99 * 8.0 < alone <= 8.0


@pytest.mark.parametrize(
    "written",
    [
        selections('by = "wrong"', 'by = "right"'),
        selections('by = "accuracy"\nbelow = 0.6', 'by = "accuracy"\nat_least = 0.5'),
        selections('by = "accuracy"\nbelow = 0.6', 'by = "everyone"'),
        selections('by = "everyone"', 'by = "right"'),
        selections('by = "class"\nclasses = [1]', 'by = "class"\nclasses = [2]'),
        by_version("[0]", "[0, 1]"),
        by_version("[0]", "[1]", other="release"),
    ],
    ids=[
        "right and wrong",
        "overlapping accuracies",
        "low and everyone",
        "everyone and right",
        "two classes",
        "overlapping values",
        "two attributes",
    ],
)
def test_groups_that_may_share_users_cost_their_sum_and_still_meet_the_target(written):
    recipe = Recipe.parsed(written)
    count, train = recipe.plans["count"], recipe.plans["train"]
    assert cost(recipe) == pytest.approx(accounting.epsilon([count, train] * 2, 1e-5), rel=1e-9)
    assert 0.99 * 8.0 < cost(recipe) <= 8.0
    assert cost(recipe, {"low"}) < 0.8 * 8.0
    assert train.releases == 3


def test_groups_by_disjoint_values_of_one_attribute_cost_as_much_as_the_dearer_one():
    recipe = Recipe.parsed(by_version("[0]", "[1, 2]"))
    assert cost(recipe) == cost(recipe, {"low"}) == cost(recipe, {"high"})
    assert 0.99 * 8.0 < cost(recipe) <= 8.0


QUANTILES = selections(
    'by = "accuracy"\nbelow = { quantile = 0.25 }', 'by = "accuracy"\nat_least = { quantile = 0.75 }'
)


def test_learnt_thresholds_are_paid_once_by_everybody_and_the_target_is_met():
    recipe = Recipe.parsed(QUANTILES)
    count, train = recipe.plans["count"], recipe.plans["train"]
    whole = accounting.epsilon([recipe.plans["thresholds"], count, train], 1e-5)
    assert cost(recipe) == pytest.approx(whole, rel=1e-9)
    assert 0.99 * 8.0 < cost(recipe) <= 8.0
    assert train.noise_multiplier > Recipe.parsed(text()).plans["train"].noise_multiplier


def test_where_users_are_replaced_both_groups_and_the_thresholds_add_up():
    recipe = Recipe.parsed(QUANTILES, ["privacy.neighbours=replace-one"])
    count, train, thresholds = recipe.plans.values()
    whole = accounting.epsilon([thresholds, count, train, count, train], 1e-5)
    assert cost(recipe) == pytest.approx(whole, rel=1e-9)
    assert 0.99 * 8.0 < cost(recipe) <= 8.0


@pytest.mark.parametrize(
    ("low", "high", "apart"),
    [
        ("below = { quantile = 0.5 }", "at_least = { quantile = 0.5 }", True),
        ("below = { quantile = 0.6 }", "at_least = { quantile = 0.5 }", False),
        ("below = 0.3", "at_least = { quantile = 0.5 }", False),
        ("below = { quantile = 0.3 }", "at_least = 0.9", False),
        ("below = { quantile = 0.3 }", "below = { quantile = 0.2 }", False),
        ("at_least = { quantile = 0.5 }", "at_least = 0.2\nbelow = { quantile = 0.5 }", True),
    ],
)
def test_learnt_thresholds_put_users_apart_where_their_quantiles_do(low, high, apart):
    recipe = Recipe.parsed(selections(f'by = "accuracy"\n{low}', f'by = "accuracy"\n{high}'))
    assert (len({rule for rule, _ in recipe.partition().values()}) == 1) == apart
    models = [recipe.plans["count"], recipe.plans["train"]] * (1 if apart else 2)
    whole = [recipe.plans["thresholds"], *models]
    assert cost(recipe) == pytest.approx(accounting.epsilon(whole, 1e-5))


def test_the_thresholds_have_an_account_a_stage_and_a_partition_of_their_own():
    recipe = Recipe.parsed(QUANTILES, ["privacy.threshold_noise=7.0"])
    (item,) = [item for item in recipe.items("run", simulated=False) if item.stage == "thresholds"]
    assert (item.account.run, item.account.partition) == ("run/thresholds", "run: thresholds")
    assert (item.plan.noise_multiplier, item.plan.releases, item.plan.sampling) == (7.0, 1, Everyone())
    assert len(recipe.items("run", simulated=False)) == 5
    assert recipe.spendings("run")[-1].account == item.account


def test_a_model_owes_the_thresholds_that_decided_who_trained_it():
    recipe = Recipe.parsed(QUANTILES)
    own = recipe.spendings("run")[0]
    owed = recipe.owed(own)
    assert owed.account == own.account
    assert owed.plans == tuple(recipe.plans[name] for name in ("thresholds", "count", "train"))


def test_a_recipe_without_quantiles_learns_nothing():
    recipe = Recipe.parsed(text())
    assert recipe.owed(recipe.spendings()[0]) == recipe.spendings()[0]
    assert (recipe.plans.get("thresholds"), recipe.learning(), recipe.quantiles) == (None, [], [])
    assert {item.stage for item in recipe.items("run", simulated=False)} == {"count", "train"}


@pytest.mark.parametrize("neighbours", ["add/remove", "replace-one"])
@pytest.mark.parametrize("written", [QUANTILES, text()], ids=["quantiles", "constants"])
def test_what_the_ledger_would_hold_is_what_the_recipe_forecasts(written, neighbours):
    recipe = Recipe.parsed(written, [f"privacy.neighbours={neighbours}"])
    book = Ledger()
    book.reserve(recipe.items("run", simulated=False))
    standing = book.standing(recipe.population, (recipe.privacy.unit, recipe.privacy.neighbours), 1e-5)
    assert standing.promised.epsilon == pytest.approx(cost(recipe), rel=1e-9)
    assert recipe.guarantee(recipe.spendings()).epsilon == cost(recipe)


def test_the_release_of_thresholds_is_not_called_a_model():
    recipe = Recipe.parsed(QUANTILES)
    told = recipe.guarantee(recipe.spendings()).composition
    assert "2 models on groups that share no user" in told
    assert "one release of thresholds" in told


def test_a_forecast_tells_what_the_thresholds_cost():
    seen = planning.forecast(Recipe.parsed(QUANTILES), None)
    assert "a noisy histogram of accuracies (standard deviation 4 users in a bin)" in seen.text()
    assert seen.to_dict()["thresholds"]["noise_multiplier"] == 4.0
    assert seen.alone.epsilon == seen.joint.epsilon <= 8.0
    plain = planning.forecast(Recipe.parsed(text()), None)
    assert "histogram" not in plain.text()
    assert plain.to_dict()["thresholds"] is None


def test_what_would_fit_instead_counts_the_thresholds_too():
    recipe = Recipe.parsed(QUANTILES)
    book = Ledger()
    book.set_budget(Budget(population=recipe.population, epsilon=5.0, delta=1e-5))
    found = planning.forecast(recipe, book)
    assert not found.fits
    assert found.alternatives
    for alternative in found.alternatives:
        fresh = Ledger()
        fresh.set_budget(book.budget(recipe.population))
        fresh.reserve(recipe.changed(alternative.sets).items("run", simulated=False))  # or it would raise


def test_groups_that_may_share_users_need_more_noise_for_the_same_target():
    apart = Recipe.parsed(text()).plans["train"]
    shared = Recipe.parsed(selections('by = "wrong"', 'by = "right"')).plans["train"]
    assert shared.noise_multiplier > 1.3 * apart.noise_multiplier


def test_a_poisson_recipe_meets_its_target_jointly_too(monkeypatch):
    exact = pld_privacy_accountant.PLDAccountant

    def coarse(value_discretization_interval):
        """Rounds up twenty times as much, in a tenth of the time."""
        return exact(value_discretization_interval=20 * value_discretization_interval)

    monkeypatch.setattr(pld_privacy_accountant, "PLDAccountant", coarse)
    overrides = ["privacy.sampling=poisson", "privacy.rate=0.21", "privacy.rounds=2", "privacy.epsilon=4.0"]
    recipe = Recipe.parsed(selections('by = "wrong"', 'by = "right"'), overrides)
    assert 0.95 * 4.0 < cost(recipe) <= 4.0
    assert cost(recipe, {"low"}) < 0.8 * 4.0


def test_the_head_count_is_part_of_the_promise():
    recipe = Recipe.parsed(text(privacy=privacy(epsilon=None, noise_multiplier="5.0")))
    train = recipe.plans["train"]
    assert cost(recipe) > accounting.epsilon([train], 1e-5)


def test_a_target_below_the_head_count_alone_is_refused():
    with pytest.raises(ValueError, match=r"epsilon=0\.01 above"):
        _ = Recipe.parsed(text(), ["privacy.epsilon=0.01"]).plans


def test_partitions_of_different_runs_are_different_so_their_costs_add_up():
    recipe = Recipe.parsed(text())
    first, second = recipe.spendings("first"), recipe.spendings("second")
    partitions = [spending.account.partition for spending in (*first, *second)]
    assert partitions[0] == partitions[1] != partitions[2] == partitions[3]
    together = guarantee([*first, *second], 1e-5).epsilon
    assert together == pytest.approx(accounting.epsilon([*recipe.plans.values()] * 2, 1e-5), rel=1e-9)
    assert together > cost(recipe)


def test_accounts_say_whether_the_noise_is_simulated():
    recipe = Recipe.parsed(text())
    assert {spending.account.simulated for spending in recipe.spendings("run", simulated=True)} == {True}
    assert {spending.account.simulated for spending in recipe.spendings("run")} == {False}


# Every recipe of the package runs


def finished(recipe, folder):
    run = Run.created(recipe, folder, address=folder / "ledger.sqlite", seed=0, device="cpu")
    return run.executed(lambda *facts: None)


def test_the_recipe_of_trained_digits_runs_a_few_rounds(tmp_path):
    (path,) = [path for path in FILES if path.stem == "digits_gan"]
    report = finished(Recipe.open(path, ["privacy.rounds=2"]), tmp_path)
    assert {run["label"] for run in report.runs} == {"low", "high"}
    assert [run["releases"] for run in report.runs] == [3, 3]
    assert report.guarantee.epsilon <= 8.0


OF_PEOPLE = {"speakers_sensitivity": "scotus_speakers.jsonl.gz", "chat_words": "ubuntu_irc_by_nick.jsonl.gz"}
OF_WRITERS = [path for path in FILES if "FEDLENS_DATA" in path.read_text() and path.stem not in OF_PEOPLE]


@pytest.mark.parametrize("path", OF_WRITERS, ids=lambda p: p.stem)
def test_the_recipes_on_real_data_run_a_round(path, tmp_path):
    source = pathlib.Path(os.environ.get("FEDLENS_DATA", "")) / "mnist_by_writer.npz"
    if "FEDLENS_DATA" not in os.environ or not source.exists():
        pytest.skip("needs FEDLENS_DATA, the folder of mnist_by_writer.npz")
    few = tmp_path / "few_writers.npz"
    np.savez(few, **few_writers(source))
    overrides = [f"data.path={few}", "privacy.rounds=1", "privacy.minimum_users=1"]
    overrides += [f"primary.public.path={few}"] if "[primary]" in path.read_text() else []
    overrides += ["data.deal_to=10"] if "deal_to" in path.read_text() else []
    text = path.read_text()
    if 'algorithm = "look"' in text:
        overrides += ["model.classes=0"]
    elif 'algorithm = "feedback-gan"' in text:
        overrides += ["privacy.shards=5", *(["privacy.groups=5"] if "groups" in text else [])]
        overrides += ["training.warm_steps=0", "training.local_steps=1", "model.critic_widths=[4,6]"]
        overrides += ["model.generator_hidden=8"]
    else:
        overrides += ["training.generator_batch=8", "training.generator_steps=1"]
    report = finished(Recipe.open(path, overrides), tmp_path)
    assert report.guarantee.epsilon <= 8.0
    assert report.to_dict()["images"]


@pytest.mark.parametrize("name", OF_PEOPLE)
def test_the_recipes_of_what_real_people_said_run_a_round(tmp_path, name):
    source = pathlib.Path(os.environ.get("FEDLENS_DATA", "")) / OF_PEOPLE[name]
    if "FEDLENS_DATA" not in os.environ or not source.exists():
        pytest.skip(f"needs FEDLENS_DATA, the folder of {OF_PEOPLE[name]}")
    with gzip.open(source, "rt") as lines:
        (tmp_path / "few.jsonl").write_text("".join(itertools.islice(lines, 30)))
    (tmp_path / "public.txt").write_text("the court may hear it\nwell , that is so\n")
    sets = [f"data.path={tmp_path / 'few.jsonl'}", f"text.public={tmp_path / 'public.txt'}", "text.samples=200"]
    sets += ["privacy.rounds=1", "privacy.minimum_users=1", "text.warm_steps=5"]
    recipe = Recipe.open(next(path for path in FILES if path.stem == name), sets)
    report = finished(recipe, tmp_path)
    assert report.guarantee.epsilon <= recipe.privacy.epsilon
    assert report.to_dict()["words"]


def few_writers(path, writers=10):
    """The first examples of a few writers, and some public ones."""
    with np.load(path) as whole:
        ids = whole["writer_train"]
        rows = np.concatenate([np.flatnonzero(ids == writer)[:20] for writer in np.unique(ids)[:writers]])
        train = {name: whole[name][rows] for name in ("x_train", "y_train", "writer_train")}
        return train | {name: whole[name][:300] for name in ("x_test", "y_test")}


def test_a_recipe_is_frozen():
    with pytest.raises((dataclasses.FrozenInstanceError, ValueError), match="frozen"):
        Recipe.parsed(text()).name = "other"


def test_a_former_name_beside_its_new_one_is_refused():
    with pytest.raises(RecipeError, match=r"privacy\.units once; it is also given as users"):
        Recipe.parsed(text().replace("[privacy]", "[privacy]\nunits = 7"))
