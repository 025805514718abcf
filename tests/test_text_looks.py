"""One look at text: bounded whatever sentences hold, compared with another look, and explained by faults."""

import dataclasses
import json
import math

import hypothesis
import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
import toy_texts
import toys
import typer.testing
from hypothesis import strategies as st

from fedlens.algorithms import OneLook, rebuilt, settings
from fedlens.cli import app
from fedlens.core import tensorfiles
from fedlens.ledger import Ledger
from fedlens.media import opening
from fedlens.media.looks import FILE
from fedlens.media.text import differences, families, findings, tracing
from fedlens.media.text.families import FAMILIES
from fedlens.media.text.looks import TextLook, rows_of
from fedlens.models.looks.explaining import explained
from fedlens.models.looks.sentences import TEXT_BLOCKS, WIDTH, as_symbols, numbers_of, text_sizes
from fedlens.models.looks.texts import TextPsi, TextRelease, typical
from fedlens.models.looks.two_sample import COUNT, SPREAD, compared
from fedlens.models.words import Vocabulary
from fedlens.recipes.recipe import Recipe, RecipeError
from fedlens.report import report as report_module
from fedlens.runs import comparing, vouching

COMMON = ("the", "a", "of", "to", "it", "is", "we", "in", "that", "and")
RARE = tuple(
    f"{one}{two}{three}"
    for one in ("court", "motion", "state")
    for two in ("", "ing", "al")
    for three in ("", "s", "ly")
)
KNOWN = Vocabulary(words=(*COMMON, ",", ".", "?", *RARE[:20]), provenance="made up")
BYTES = arrays.arrays(np.uint8, (3, 24))


def said(count, seed):
    """Sentences of made-up tokens: frequent words, rarer ones, marks and numbers."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        middle = [
            str(rng.integers(10, 2000))
            if rng.random() < 0.03
            else str(rng.choice(COMMON if rng.random() < 0.6 else RARE))
            for _ in range(rng.integers(2, 14))
        ]
        made.append([*middle, str(rng.choice([".", "?", ","]))])
    return made


PUBLIC = said(1024, 1)


@pytest.fixture(scope="module")
def psi():
    centres, scales = typical(rows_of(PUBLIC, KNOWN))
    return TextPsi(words=KNOWN.digest, examples=16, centres=centres, scales=scales)


def shown(rows, mask=None):
    rows = torch.as_tensor(rows)
    return {"x": rows, "mask": torch.ones(len(rows)) if mask is None else torch.as_tensor(mask).float()}


def norm(tree):
    return math.sqrt(sum(float(leaf.double().square().sum()) for leaf in tree.values()))


def sent(psi, units):
    """[units, numbers] of users, each with sixteen sentences."""
    rows = torch.stack([rows_of(unit, KNOWN) for unit in units])
    blocks = torch.func.vmap(lambda x: psi(shown(x)))(rows)
    return torch.cat([blocks[name] for name in psi.shapes], 1).numpy()


def released(psi, rows, noise, rng):
    total = rows.mean(0, dtype=np.float64) + noise * rng.standard_normal(rows.shape[1])
    parts = torch.from_numpy(total).float().split([size for (size,) in psi.shapes.values()])
    return TextRelease(psi=psi, blocks=dict(zip(psi.shapes, parts, strict=True)), noise=noise, units=len(rows))


# What a unit sends


def test_the_squares_of_the_weights_add_up_to_one(psi):
    assert math.fsum(weight**2 for weight in psi.weights.values()) == pytest.approx(1, abs=1e-12)
    assert psi.weights.keys() == psi.shapes.keys() == psi(shown(rows_of(PUBLIC[:2], KNOWN))).keys()


@hypothesis.given(rows=BYTES, mask=arrays.arrays(bool, 3))
def test_whatever_bytes_a_unit_holds_no_block_exceeds_its_weight(psi, rows, mask):
    blocks = psi(shown(rows, mask))
    for name, block in blocks.items():
        assert norm({name: block}) <= psi.weights[name] * (1 + 1e-6), name
        assert block.isfinite().all()
    assert norm(blocks) <= 1 + 1e-6


@hypothesis.given(rows=BYTES)
def test_whatever_bytes_a_sentence_holds_its_numbers_are_shares(rows):
    for name, numbers in numbers_of(torch.from_numpy(rows)).items():
        assert numbers.shape == (3, text_sizes()[name])
        assert float(numbers.abs().max()) <= 1 + 1e-6, name


@pytest.mark.parametrize(
    "tokens",
    [
        ["a" * 1_000_000],
        ["\udcff\ud800", "\0", "\0\0", ""],
        ["\x00\x01\x7f\x80", "\U0010ffff" * 99, "\ufffd"],
        ["the"] * 5000,
        ["é" * 40, "ü"] * 40,
    ],
)
def test_a_hostile_sentence_is_a_row_like_any_other(psi, tokens):
    row = as_symbols(tokens, KNOWN)
    assert row.shape == (WIDTH,)
    assert row.dtype == np.uint8
    letters = bytes(row[row < 0xF8]).replace(b"\0", b"")
    assert letters.decode("utf-8") or not row.any()  # no letter passes for the end of a token
    assert norm(psi(shown(row[None]))) <= 1 + 1e-6


def test_the_end_of_a_token_tells_its_rank():
    known = Vocabulary(words=tuple(f"w{number}" for number in range(2000)), provenance="")
    row = as_symbols(["w9", "w10", "w99", "w100", "w999", "w1000", "w1999", "other"], known)
    assert (row[row >= 0xF8] - 0xF8).tolist() == [0, 1, 1, 2, 2, 3, 3, 4]


def number(spoken, block, says):
    """One number of one sentence, in the unit that people read."""
    at = next(at for at, one in enumerate(TEXT_BLOCKS[block].numbers) if one.says == says)
    made = numbers_of(rows_of([spoken], KNOWN))[block]
    return round(float(made[0, at]) * TEXT_BLOCKS[block].numbers[at].unit, 2)


@pytest.mark.parametrize(
    ("spoken", "block", "says", "value"),
    [
        ("the court is in", "length", "tokens in a sentence", 4),
        ("the court is in", "length", "sentences of 3 to 6 tokens", 100),
        ("the zebra , 12", "words", "characters in a word", 4),
        ("the zebra , 12", "words", "words of 5 characters", 50),
        ("the zebra , 12", "unknown", "unknown words among the tokens", 25),
        ("the zebra , 12", "unknown", "sentences whose second token is an unknown word", 100),
        ("the zebra , 12", "unknown", "sentences whose first token is an unknown word", 0),
        ("the court zebra", "unknown", "sentences whose last token is an unknown word", 100),
        ("the zebra , 12", "ranks", "tokens that are a punctuation mark", 25),
        ("the zebra , 12", "ranks", "tokens that are a number", 25),
        ("the zebra , 12", "first", "sentences that begin with one of the 10 most frequent words", 100),
        ("the zebra , 12", "last", "sentences that end with a number", 100),
        ("the zebra , 12", "digits", "tokens with a digit", 25),
        ("the zebra , 12", "digits", "digits among the characters", 18.18),
        ("the zebra , 12", "marks", "sentences with a comma", 100),
        ("the court .", "marks", "sentences that end with a mark", 100),
        ("The COURT iS it", "case", "words in title case", 25),
        ("The COURT iS it", "case", "words in upper case", 25),
        ("The COURT iS it", "case", "words in mixed case", 25),
        ("the café is", "scripts", "sentences with accented Latin letters", 100),
        ("the суд is", "scripts", "sentences with Cyrillic letters", 100),
        ("the the court", "repeats", "sentences that begin with the same token twice", 100),
        ("the the court", "repeats", "tokens that repeat the one before", 33.33),
        ("it the it", "repeats", "tokens that repeat the last but one", 33.33),
        ("aeb", "letters", "vowels among the letters", 66.67),
        ("aeb", "letters", "b among the letters", 33.33),
        ("courts motion it", "endings", "words that end in s", 50),
        ("the , the", "pairs", "one of the 10 most frequent words before a punctuation mark", 50),
    ],
)
def test_a_number_is_what_it_is_called(spoken, block, says, value):
    assert number(spoken.split(" "), block, says) == value


def test_tokens_that_hold_a_space_are_seen():
    assert number(["the court", "is"], "spaces", "sentences whose first token holds a space") == 100
    assert number(["the", "court is"], "spaces", "sentences whose first token holds a space") == 0
    assert number(["the", "court is"], "spaces", "tokens that hold a space") == 50


def test_many_units_at_once_are_each_alone(psi):
    rows = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 4, 40), dtype=np.uint8))
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]).float()
    together = torch.func.vmap(lambda x, there: psi(shown(x, there)))(rows, mask)
    for unit in range(5):
        alone = psi(shown(rows[unit], mask[unit]))
        for name, block in alone.items():
            torch.testing.assert_close(together[name][unit], block, rtol=1e-5, atol=1e-6)


def test_a_unit_that_holds_nothing_sends_zero(psi):
    assert norm(psi(shown(np.full((2, 24), 200, np.uint8), [0, 0]))) == 0


def test_a_look_at_text_is_rebuilt_from_plain_settings(psi):
    algorithm = OneLook(psi=psi)
    again = rebuilt("look", json.loads(json.dumps(settings(algorithm))))
    assert again == algorithm
    assert type(again.psi) is TextPsi


@pytest.mark.parametrize(
    "wrong",
    [
        {"radius": 0.0},
        {"radius": math.nan},
        {"examples": 0},
        {"centres": (0.0,)},
        {"centres": (0.0,) * 293},
        {"scales": (1.0,) * 292 + (0.0,), "centres": (0.0,) * 293},
        {"scales": (1.0,) * 293, "centres": (math.inf,) + (0.0,) * 292},
    ],
)
def test_settings_that_bound_nothing_are_refused(wrong):
    assert sum(text_sizes().values()) == 293
    with pytest.raises(ValueError, match="Expected"):
        TextPsi(**wrong)


# Two looks


USERS = 600


@pytest.fixture(scope="module")
def crowd(psi):
    """What users send: as they speak, and by the family of a fault, with it in every fifth of their sentences."""
    spoken = said(16 * USERS, 2)
    units = [spoken[16 * at : 16 * at + 16] for at in range(USERS)]
    made = {"clean": sent(psi, units)}
    for family in FAMILIES:
        hit = [
            [family.change(tokens, family.strengths[0]) if at % 5 == 0 else tokens for at, tokens in enumerate(unit)]
            for unit in units
        ]
        made[family.kind] = sent(psi, hit)
    return made


@pytest.fixture(scope="module")
def traces(psi):
    return tracing.text_traces(psi, PUBLIC, KNOWN, {16: 1.0})


def test_groups_without_a_fault_hardly_ever_differ(psi, crowd, traces):
    """300 splits, at level 1%: ten and more have a chance of less than 1 in 1,000."""
    directions, alarms = tracing.text_directions(traces), 0
    for split in range(300):
        rng = np.random.default_rng(split)
        first = rng.permutation(USERS) < USERS // 2
        pair = (released(psi, crowd["clean"][half], 0.004, rng) for half in (first, ~first))
        alarms += compared(*pair, directions).differ
    assert alarms < 10


# On ASCII that is never misread; and the made-up sentences have no vowels to speak of that others lack.
@pytest.mark.parametrize("kind", [family.kind for family in FAMILIES if family.kind != "mojibake"])
def test_a_fault_is_seen_and_named_with_its_share(psi, crowd, traces, kind):
    rng = np.random.default_rng(3)
    comparison = compared(
        released(psi, crowd[kind], 0.002, rng),
        released(psi, crowd["clean"], 0.002, rng),
        tracing.text_directions(traces),
    )
    assert comparison.differ
    named = explained(comparison, traces).named
    assert named is not None
    assert named.kind == kind
    strength, _, _, affected = named.amount
    assert strength == next(family for family in FAMILIES if family.kind == kind).strengths[0]
    assert 0.15 <= affected <= 0.27  # four of sixteen sentences, and so 0.25, of which some hold nothing to change


def test_what_is_lost_is_told_in_words(psi, crowd):
    rng = np.random.default_rng(3)
    comparison = compared(released(psi, crowd["without-digits"], 1e-4, rng), released(psi, crowd["clean"], 1e-4, rng))
    text = differences.in_words(psi, comparison, comparison.named("digits"))
    assert text.startswith("sentences with a digit: ")
    assert "fewer, plus or minus" in text


def test_every_block_has_words(psi, crowd):
    rng = np.random.default_rng(3)
    comparison = compared(released(psi, crowd["doubled"], 1e-4, rng), released(psi, crowd["clean"], 0.01, rng))
    for difference in comparison.differences:
        assert len(differences.in_words(psi, comparison, difference)) > 10


def test_how_many_sentences_are_shown_is_read_off_the_looks(psi, crowd):
    rng = np.random.default_rng(3)
    look = released(psi, crowd["clean"], 1e-4, rng)
    assert tracing.sizes_shown(compared(look, look)) == {20: 1.0}
    nothing = dataclasses.replace(look, blocks={name: 0 * leaf for name, leaf in look.blocks.items()}, noise=0.1)
    assert tracing.sizes_shown(compared(nothing, nothing)) == {16: 1.0}


def test_looks_that_count_other_things_are_not_compared(psi, crowd):
    rng = np.random.default_rng(3)
    look = released(psi, crowd["clean"], 0.01, rng)
    for other in (
        dataclasses.replace(psi, words="another list"),
        dataclasses.replace(psi, tokenizer="whitespace"),
        dataclasses.replace(psi, radius=0.4),
        dataclasses.replace(psi, centres=(), scales=()),
    ):
        with pytest.raises(ValueError, match="Expected two looks that asked the same"):
            compared(look, dataclasses.replace(look, psi=other))


# Faults


@pytest.mark.parametrize(
    ("fault", "made"),
    [
        (families.stemmed, "the court hold mot under 1983 ."),
        (families.without_vowels, "th crts hldng mtns ndr 1983 ."),
        (families.swapped, "the cuorts hlodings mtoions udner 1893 ."),
        (families.reversed_words, "eht struoc gnidloh snoitom rednu 3891 ."),
        (families.without_digits, "the courts holding motions under ."),
        (families.cut, "the courts holding motions"),
        (families.words_swapped, "courts the motions holding 1983 under ."),
        (families.first_lost, "courts holding motions under 1983 ."),
    ],
)
def test_a_fault_does_what_it_says(fault, made):
    spoken = ["the", "courts", "holding", "motions", "under", "1983", "."]
    if fault is families.stemmed:
        assert fault(spoken)[:3] == ["the", "court", "hold"]
    elif fault is families.swapped:
        assert fault(["court", "the", "it"]) == ["cuort", "the", "it"]
    else:
        assert fault(spoken) == made.split()
    assert fault([]) == []


# What is kept


def look_of(psi, crowd, vocabulary=KNOWN.words):
    release = released(psi, crowd["clean"], 0.01, np.random.default_rng(0))
    paid = toy_texts.price(releases=1)
    return TextLook(
        release=release,
        label="all",
        spending=paid,
        delta=1e-5,
        recipe_sha256="00" * 32,
        rounds=1,
        ledger_head=(1, "11" * 32, "22" * 32),
        vocabulary=vocabulary,
    )


def test_a_look_comes_back_as_it_was_and_draws_nothing(psi, crowd, tmp_path):
    kept = look_of(psi, crowd)
    kept.save(tmp_path / FILE)
    again = opening.opened(tmp_path / FILE)
    assert type(again) is TextLook
    assert again.release.psi == psi
    assert all(torch.equal(again.release.blocks[name], leaf) for name, leaf in kept.release.blocks.items())
    assert again.guarantee == kept.guarantee
    with pytest.raises(ValueError, match="Expected a model to draw from: a look at text holds statistics"):
        again.sampled(1, 0)
    done = typer.testing.CliRunner().invoke(app, ["fit", str(tmp_path / FILE), "--to", str(tmp_path / "fitted")])
    assert done.exit_code == 1
    assert str(done.exception) == "Expected a look that generators are fitted to; none is fitted to one at text."
    assert not (tmp_path / "fitted").exists()


def test_a_look_whose_answer_is_gone_is_not_replaced_by_one_of_zeros(psi, crowd):
    algorithm, kept = OneLook(psi=psi), look_of(psi, crowd)
    about = {name: getattr(kept, name) for name in kept.readers} | {"rounds": 0}
    with pytest.raises(ValueError, match="Expected the answer to the look at all"):
        TextLook.of_state(algorithm, algorithm.start(), **about)


def damaged_looks(path):
    """Each with something that no look holds."""
    tree, about = tensorfiles.read(path)
    plain = about["psi"]
    yield tree, {name: value for name, value in about.items() if name != "spending"}
    yield tree, about | {"noise": -1.0}
    yield tree, about | {"noise": "loud"}
    yield tree, about | {"units": 0}
    yield tree, about | {"psi": plain | {"kind": "Psi"}}
    yield tree, about | {"psi": plain | {"radius": 2.0}}
    yield tree, about | {"psi": plain | {"examples": 2**40}}
    yield tree, about | {"psi": plain | {"scales": [0.0] * 293}}
    yield tree, about | {"psi": plain | {"words": "another list"}}
    yield tree, about | {"psi": []}
    yield tree, about | {"vocabulary": ["the", "the"]}
    yield {name: leaf for name, leaf in tree.items() if name != COUNT}, about
    yield tree | {COUNT: torch.zeros(2)}, about
    yield tree | {COUNT: torch.zeros(1).double()}, about
    yield tree | {SPREAD: torch.full_like(tree[SPREAD], math.nan)}, about
    yield tree | {"more": torch.zeros(1)}, about


def test_a_look_that_was_damaged_is_refused(psi, crowd, tmp_path):
    look_of(psi, crowd).save(tmp_path / FILE)
    seen = 0
    for tree, about in damaged_looks(tmp_path / FILE):
        tensorfiles.write(tmp_path / "bad.safetensors", tree, about)
        with pytest.raises(ValueError, match="Expected"):
            TextLook.open(tmp_path / "bad.safetensors")
        seen += 1
    assert seen == 16


@hypothesis.given(place=st.integers(0, 2**20), byte=st.integers(0, 255), cut=st.booleans())
def test_whatever_lies_in_a_file_it_opens_or_is_refused_in_our_words(psi, crowd, tmp_path_factory, place, byte, cut):
    folder = tmp_path_factory.mktemp("looks")
    look_of(psi, crowd).save(folder / FILE)
    content = bytearray((folder / FILE).read_bytes())
    content[place % len(content)] = byte
    (folder / FILE).write_bytes(content[: place % len(content)] if cut else content)
    try:
        opened = TextLook.open(folder / FILE)
    except ValueError as error:
        assert str(error).startswith("Expected")  # noqa: PT017
    else:
        assert all(leaf.isfinite().all() for leaf in opened.release.blocks.values())


# Recipes


LOOK = """
name = "sentences"
task = "T3"
algorithm = "look"
[data]
source = "docstrings"
[text]
vocabulary_size = 300
{text}
[selections.all]
by = "everyone"
[privacy]
epsilon = 2.0
delta = 1e-5
users = 600
population = 700
"""


def test_a_recipe_of_text_may_take_a_look():
    recipe = Recipe.parsed(LOOK.format(text="examples = 32"))
    asked = recipe.built().psi
    assert isinstance(asked, TextPsi)
    assert asked.examples == 32
    assert len(asked.centres) == len(asked.scales) == 293
    assert recipe.privacy.rounds == 1
    assert recipe.plans["train"].bound.norm == 1
    assert recipe.medium.blank(recipe, 2)["x"].shape == (2, WIDTH)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('model = "words"', "text.model is not used here"),
        ("width = 20", "text.width is not used here"),
        ("units = 8", "text.units is not used here"),
        ("samples = 200", "text.samples is not used here"),
        ("examples = 5000", "text.examples"),
    ],
)
def test_what_a_look_would_ignore_is_refused(text, told):
    with pytest.raises(RecipeError, match=told):
        Recipe.parsed(LOOK.format(text=text))


@pytest.mark.parametrize("change", ["rounds=2", "clip=0.5", "sampling=poisson privacy.rate=0.5"])
def test_a_look_is_one_release_that_everybody_is_in(change):
    with pytest.raises(RecipeError, match="a look is one release that everybody is in"):
        Recipe.parsed(LOOK.format(text=""), [f"privacy.{one.removeprefix('privacy.')}" for one in change.split()])


def test_who_trains_gives_no_number_of_sentences():
    with pytest.raises(RecipeError, match=r"text.examples is not used here"):
        Recipe.parsed(LOOK.format(text="examples = 32").replace('algorithm = "look"\n', ""))


# Runs


def look_recipe(folder, text=""):
    """Users of the odd versions say their first two words as one; a public text is what others say."""
    spoken = [" ".join(tokens) for tokens in said(1200, 5)]
    users = []
    for user in range(40):
        mine = spoken[30 * user : 30 * user + 30]
        if user % 2:
            mine = [sentence.replace(" ", "_", 1) for sentence in mine]
        users.append({"user": f"patient-4711-{user}", "version": user % 2, "text": mine})
    toy_texts.written(folder, users, selections=toy_texts.PAIR)
    (folder / "public.txt").write_text("".join(f"{' '.join(tokens)}\n" for tokens in PUBLIC))
    recipe = (folder / "recipe.toml").read_text()
    for line in (*toy_texts.NETWORK.splitlines(), *toy_texts.TRAINING.splitlines()[1:], "width = 10", "samples = 200"):
        recipe = recipe.replace(f"{line}\n", "").removesuffix(line)
    public = f"tokenizer = 'whitespace'\npublic = '{folder / 'public.txt'}'\n{text}"
    recipe = recipe.replace("rounds = 2\n", "").replace("clip = 0.5\n", "")
    recipe = recipe.replace(f'vocabulary = "{folder / "known.txt"}"', public)
    return f'algorithm = "look"\n{recipe}'.replace("epsilon = 8.0", "epsilon = 4000.0")


def test_a_run_ends_in_looks_and_says_what_differs(tmp_path):
    run = toys.created(tmp_path / "runs", recipe=look_recipe(tmp_path))
    report = run.executed(toys.quiet)
    assert report.verdict.kind in (report_module.FOUND, report_module.DIFFERENT)
    assert report.findings
    assert report.guarantee.epsilon == pytest.approx(run.promised().epsilon)
    for group in ("new", "old"):
        assert not (run.folder / group / "model.safetensors").exists()
        assert opening.result_in(run.folder / group) == run.folder / group / FILE
    assert {"report.html", "report.json", "MANIFEST.json"} <= {path.name for path in run.folder.iterdir()}
    plan = run.recipe.plans["train"]
    look = TextLook.open(run.folder / "new" / FILE)
    assert look.release.noise == pytest.approx(plan.stddev / plan.expected_contributors)
    assert look.release.units == plan.expected_contributors
    content = (run.folder / "report.html").read_text() + (run.folder / "report.json").read_text()
    assert "patient-4711" not in content
    again = comparing.compared(run.folder / "new", run.folder / "old", ledger=run.address)
    assert again.verdict.kind == report_module.DIFFERENT  # no public text, and so no fault is tried
    assert comparing.alone(run.folder / "new", run.address).verdict is None
    book = Ledger(run.address)
    checked = vouching.checked_files(book, tmp_path / "runs", [])
    assert set(checked.hashes) == {f"{run.name}/new", f"{run.name}/old"}
    assert not checked.problems
    with pytest.raises(ValueError, match="Expected a model to draw from"):
        comparing.drawn(run.folder / "new", 3)


def test_a_look_that_was_changed_is_none_of_its_run(tmp_path):
    run = toys.created(tmp_path / "runs", recipe=look_recipe(tmp_path))
    run.executed(toys.quiet)
    (run.folder / "MANIFEST.json").unlink()
    path = run.folder / "new" / FILE
    look = TextLook.open(path)
    changed = look.release.blocks | {COUNT: look.release.blocks[COUNT] + 0.1}
    dataclasses.replace(look, release=dataclasses.replace(look.release, blocks=changed)).save(path)
    with pytest.raises(ValueError, match="it was changed"):
        run.executed(toys.quiet)


def test_where_nothing_differs_a_report_says_what_would_have_been_missed(psi, crowd):
    look = look_of(psi, crowd)
    quiet = dataclasses.replace(look, release=dataclasses.replace(look.release, noise=1e-4))
    again = dataclasses.replace(quiet, label="again")
    report = findings.looked(quiet, again, title="same", public=PUBLIC)
    assert report.verdict.kind == report_module.NOTHING
    assert "half of the kinds of faults would have been found in " in report.verdict.summary
    percents = {row["kind"]: row["percent"] for row in report.coverage}
    assert "mojibake" not in percents  # on ASCII it changes nothing
    assert all(0 < percent <= 100 for percent in percents.values())
    loud = dataclasses.replace(look, release=dataclasses.replace(look.release, noise=10.0))
    blind = findings.looked(loud, dataclasses.replace(loud, label="again"), title="loud", public=PUBLIC)
    assert blind.verdict.kind == report_module.INCONCLUSIVE
    assert all(row["percent"] is None for row in blind.coverage)
    assert "No fault explains any of it." in blind.verdict.summary  # the very same numbers, twice
