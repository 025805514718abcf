"""An option that a run would ignore is refused before anything is spent; one that is used, or left open, never is."""

import pytest
from toys import PAIR, TINY

from fedlens.recipes import problems as recipe_problems
from fedlens.recipes.recipe import Recipe
from fedlens.recipes.toml import RecipeError, to_toml

TEXT = """
name = "sentences"
task = "T3"
[data]
source = "docstrings"
[text]
{text}
[selections.all]
by = "everyone"
[privacy]
epsilon = {epsilon}
delta = 1e-5
users = 300
population = 1000
"""
SPELLING, WORDS, NGRAMS = (
    TEXT.format(text=f'model = "{model}"', epsilon=8.0) for model in ("spelling", "words", "ngrams")
)
OPEN = 'name = "open"\ntask = "T1"\nside = 8' + SPELLING[SPELLING.index("\n[data]") :].replace(
    '"docstrings"\n[text]\nmodel = "spelling"', '"digits"'
)
NPZ = TINY.replace('source = "digits"\ndeal_to = 30', 'source = "npz"\npath = "people.npz"')
BUG = "data.bug={kind='inverted',%s}"
FAULT = "data.bug={kind='doubled',%s}"


def told(recipe, *sets):
    """What is said about a recipe; nothing where all is well."""
    try:
        Recipe.parsed(recipe, sets)
    except RecipeError as error:
        return str(error)
    return ""


@pytest.fixture
def listed(tmp_path):
    """Puts files in place of LIST (of words), SAID (public sentences) and NONE."""
    (tmp_path / "known.txt").write_text("the\ncourt\n")
    (tmp_path / "public.txt").write_text("the court is here\n")
    places = {"LIST": tmp_path / "known.txt", "SAID": tmp_path / "public.txt", "NONE": tmp_path / "absent"}

    def named(setting):
        for name, path in places.items():
            setting = setting.replace(name, f'"{path}"')
        return setting

    return named


UNUSED = [  # a recipe, settings with one too many, and the option that is told
    (SPELLING, "training.decay=0.1", "training.decay"),
    (SPELLING, "training.generator_steps=2", "training.generator_steps"),
    (SPELLING, "training.generator_batch=2", "training.generator_batch"),
    (SPELLING, "training.generator.rate=0.1", "training.generator"),
    (SPELLING, "model.size=paper", "model.size"),
    (SPELLING, "model.critic_widths=[4,8]", "model.critic_widths"),
    (WORDS, "model.classes=10", "model.classes"),
    (NGRAMS, "model.generator_latent=4", "model.generator_latent"),
    (SPELLING, "data.images=pictures", "data.images"),
    (SPELLING, "data.labels=digits", "data.labels"),
    (SPELLING, "data.text=said", "data.text"),
    (SPELLING, "data.users=speaker", "data.users"),
    (SPELLING, FAULT % "classes=10", "data.bug.classes"),
    (SPELLING, FAULT % "of='examples',share=0.5", "data.bug.share"),
    (SPELLING, "selections.all.minimum_examples=2", "selections.all.minimum_examples"),
    (SPELLING, "text.order=2", "text.order"),
    (WORDS, "text.order=2", "text.order"),
    *((NGRAMS, f"text.{name}=4", f"text.{name}") for name in ("embedding", "units", "projection", "layers")),
    (NGRAMS, "text.size=paper", "text.size"),
    (NGRAMS, "text.warm_steps=4", "text.warm_steps"),
    *((NGRAMS, f"training.{name}=4", f"training.{name}") for name in ("batch", "epochs", "local_steps", "local_rate")),
    (NGRAMS, "training.server.rate=0.5", "training.server"),
    (SPELLING, "text.vocabulary=LIST text.vocabulary_size=9", "text.vocabulary_size"),
    (SPELLING, "text.vocabulary=LIST text.public=SAID", "text.public"),
    (NGRAMS, "text.vocabulary=LIST text.public=SAID", "text.public"),
    (WORDS, "text.vocabulary=LIST text.public=SAID text.warm_steps=0", "text.public"),
    (TINY, "training.server={kind='adam',rate=0.1,momentum=0.9}", "training.server.momentum"),
    (TINY, "training.generator.nesterov=true", "training.generator.nesterov"),
    (TINY, "training.server={rate=0.1,nesterov=true}", "training.server.nesterov"),
    (TINY, "training.server={rate=0.1,beta1=0.5}", "training.server.beta1"),
    (SPELLING, "training.server={rate=0.1,beta2=0.5}", "training.server.beta2"),
    (TINY, "privacy.capped=false", "privacy.capped"),
    (SPELLING, "privacy.size_is_public=true", "privacy.size_is_public"),
    (TINY, "training.epochs=2", "training.epochs"),
    (TINY, BUG % "of='examples',share=0.5", "data.bug.share"),
    (TINY, BUG % "classes=10", "data.bug.classes"),
    (TINY, "data.images=pictures", "data.images"),
    (NPZ, "data.deal_to=30 data.users=writer", "data.users"),
    (PAIR, "primary.values=bytes", "primary.values"),
    (PAIR, "primary.network=paper", "primary.widths"),
    (PAIR, "primary.public={path='p.npz',users='writer'}", "primary.public.users"),
]
USED = [
    (SPELLING, "training.epochs=2"),
    (SPELLING, FAULT % "share=0.5"),
    (TINY, BUG % "share=0.5"),
    (SPELLING, FAULT % "of='examples',fraction=0.5"),
    (SPELLING, "text.embedding=4 text.warm_steps=4 text.size=paper training.batch=4"),
    (SPELLING, "text.vocabulary_size=9"),
    (SPELLING, "text.public=SAID text.vocabulary_size=9"),
    (WORDS, "text.vocabulary=LIST text.public=SAID"),
    (NGRAMS, "text.order=2"),
    (NGRAMS, "text.width=12 text.samples=100"),
    (TINY, "training.decay=0.1"),
    (TINY, "training.server={rate=0.1,momentum=0.9,nesterov=true}"),
    (TINY, "training.server={kind='adam',rate=0.1,beta1=0.5,beta2=0.9}"),
    (TINY, "privacy.sampling=poisson privacy.rate=0.5 privacy.capped=false"),
    (TINY, "privacy.sampling=fixed-size privacy.size=10 privacy.size_is_public=true"),
    (TINY, "data.bug={kind='swapped-labels',classes=10}"),
    (NPZ, "data.images=pictures data.labels=digits data.users=writer"),
    (SPELLING, "data.source=jsonl data.path=d.jsonl data.text=said data.users=speaker text.vocabulary=LIST"),
    (PAIR, "primary.model=cnn.pt primary.values=bytes primary.channels_last=true"),
]


@pytest.mark.parametrize(
    ("recipe", "sets", "option"), UNUSED, ids=[f"{option}-{n}" for n, (*_, option) in enumerate(UNUSED)]
)
def test_an_option_that_would_be_ignored_is_refused(listed, recipe, sets, option):
    assert f"{option} is not used here: it goes with " in told(recipe, *listed(sets).split())


@pytest.mark.parametrize(("recipe", "sets"), USED)
def test_an_option_that_is_used_is_not(listed, recipe, sets):
    assert told(recipe, *listed(sets).split()) == ""


def test_every_such_option_is_told_at_once():
    said = told(SPELLING, "training.decay=0.1", "model.size=paper", "privacy.capped=false")
    assert all(option in said for option in ("training.decay", "model.size", "privacy.capped"))


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
@pytest.mark.parametrize("recipe", [SPELLING, WORDS, NGRAMS, OPEN, TINY, PAIR])
def test_what_is_filled_in_is_never_complained_about(recipe, epsilon):
    """Neither where a recipe leaves it open, nor where a run's folder spells it out, nor where a plan is varied."""
    settled = Recipe.parsed(recipe, [f"privacy.epsilon={epsilon}"])
    assert Recipe.parsed(to_toml(settled)) == settled
    for change in ("privacy.epsilon=3", "privacy.noise_multiplier=2"):
        assert settled.changed([change]).changed(["seed=1"]).seed == 1


@pytest.mark.parametrize("rule", recipe_problems.RULES, ids=lambda rule: f"{rule[0].__name__}: {rule[1]}")
def test_a_rule_is_about_options_that_may_be_left_out(rule):
    table, names, *_ = rule
    assert names
    assert not any(table.model_fields[name].is_required() for name in names.split())


@pytest.mark.parametrize("option", ["beta1", "beta2", "momentum"])
@pytest.mark.parametrize("place", ["server", "generator"])
def test_an_optimizer_forgets(option, place):
    kind = "sgd" if option == "momentum" else "adam"
    said = [told(TINY, f"training.{place}={{kind='{kind}',rate=0.1,{option}={value}}}") for value in (1.0, 0.999)]
    assert f"training.{place}.{option}: input should be less than 1" in said[0]
    assert said[1] == ""


@pytest.mark.parametrize("recipe", [SPELLING, NGRAMS])
def test_a_row_is_no_wider_than_a_sentence(recipe):
    assert "text.width: input should be less than or equal to 256" in told(recipe, "text.width=257")
    assert told(recipe, "text.width=256") == ""


@pytest.mark.parametrize(
    ("recipe", "setting"),
    [(SPELLING, "text.vocabulary=NONE"), (WORDS, "text.vocabulary=NONE"), (WORDS, "text.public=NONE")],
)
def test_a_file_that_is_missing_is_named_with_its_option(listed, tmp_path, recipe, setting):
    said = told(recipe, listed(setting))
    assert "expected " in said
    assert f"{setting.partition('=')[0]} = '{tmp_path / 'absent'}'" in said
    assert "rrno" not in said
    assert len(said.splitlines()) == 2  # how many problems, and the one


def test_a_folder_is_no_vocabulary(tmp_path):
    said = told(SPELLING, f"text.vocabulary={tmp_path}")
    assert "expected a list of words, a file, at text.vocabulary" in said
    assert "rrno" not in said
