"""Made-up users, a vocabulary of twenty words and recipes of text that are carried out in seconds."""

import json
import math
import statistics

from fedlens.ledger import Account, Spending
from fedlens.models.words import Vocabulary
from fedlens.privacy import Everyone, L2Clip, Plan

KNOWN = (  # most frequent first
    *("the", "a", "it", "is", "and", "of", "to", "in", "we", "that"),
    *("was", "for", "on", "he", "they", "with", "court", "said", "not", "you"),
)
UNKNOWN = ("lattice", "orbit", "quarry", "walnut", "ember")
RECIPE = """
name = "toy"
task = "T3"
[data]
source = "jsonl"
path = "{data}"
name = "crowd"
{more}
[text]
vocabulary = "{vocabulary}"
width = 10
samples = 200
{text}
{selections}
[privacy]
epsilon = 8.0
delta = 1e-5
rounds = 2
users = 20
population = 60
clip = 0.5
minimum_users = 1
count_noise = 2.0
{training}
"""
NETWORK = "embedding = 4\nunits = 6\nprojection = 4\nwarm_steps = 2\n"
TRAINING = "[training]\nbatch = 4\nlocal_steps = 2\nlocal_rate = 0.5"
ALL = '[selections.all]\nby = "everyone"'
PAIR = """
[selections.new]
by = "attribute"
attribute = "version"
values = [1]
[selections.old]
by = "attribute"
attribute = "version"
values = [0]
"""


def lines(users=24):
    """A user a line: three sentences, each of known words with an unknown one, and a version of 0 or 1."""
    return [
        {
            "user": f"patient-4711-{user:03d}",
            "version": user % 2,
            "text": [
                f"{KNOWN[(user + place) % 20]} {UNKNOWN[(user + place) % 5]} {KNOWN[(3 * user + place) % 20]}"
                for place in range(3)
            ],
        }
        for user in range(users)
    ]


def written(folder, found=None, *, selections=ALL, more="", text="", known=KNOWN):
    """Data, a vocabulary and a recipe for them in `folder`."""
    content = found if isinstance(found, bytes) else "".join(f"{json.dumps(line)}\n" for line in found or lines())
    (folder / "d.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "known.txt").write_text("".join(f"{word}\n" for word in known))
    if selections == PAIR and not more:
        more = 'attributes = ["version"]'
    counts = "ngrams" in text  # without a network
    recipe = RECIPE.format(
        data=folder / "d.jsonl",
        vocabulary=folder / "known.txt",
        selections=selections,
        more=more,
        text=text if counts else NETWORK + text,
        training="" if counts else TRAINING,
    )
    (folder / "recipe.toml").write_text(recipe)
    return folder


def price(run="vocabulary-1a2b3c", simulated=False, **changes):
    """Of a vocabulary that was learnt before."""
    facts = {"noise_multiplier": 3.0, "releases": 11, "expected_contributors": 20} | changes
    plan = Plan(sampling=Everyone(), bound=L2Clip(norm=1.0), **facts)
    return Spending(account=Account(run=run, population="crowd", partition=run, simulated=simulated), plans=(plan,))


def learnt(path, paid):
    """The known words, as if they had been learnt at this price."""
    facts = {"spending": paid.to_dict()}
    Vocabulary(words=KNOWN, provenance="charged release of frequent words", facts=facts).save(path)


def by_hand(plans, delta):
    """The epsilon of Gaussian releases that everybody is in: together one Gaussian (Balle and Wang 2018, theorem 8)."""
    shift = math.sqrt(sum(plan.releases / plan.noise_multiplier**2 for plan in plans))
    cdf, low, high = statistics.NormalDist().cdf, 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        lost = cdf(shift / 2 - middle / shift) - math.exp(middle) * cdf(-shift / 2 - middle / shift)
        low, high = (middle, high) if lost > delta else (low, middle)
    return high
