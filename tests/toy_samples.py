"""As if models had drawn them: pictures, words and sentences, with and without a fault, that carry what they cost."""

import dataclasses
import random

import numpy as np
import torch
import torch.nn.functional as F

from fedlens.ledger import Account, Spending
from fedlens.media.images.samples import Samples
from fedlens.media.text.faults import FAULTS
from fedlens.media.text.samples import Texts
from fedlens.models.words import Vocabulary, spelled
from fedlens.privacy import Everyone, L2Clip, Plan

PLAN = Plan(sampling=Everyone(), bound=L2Clip(norm=0.1), noise_multiplier=5.0, releases=10, expected_contributors=9)
KNOWN = (
    "the . , a to of and in is that it i we you not be on have this for court are was he with well if there would "
    "question under think case what no state but law from do which because right your can say about then statute said "
    "could honor your's between argument whether congress federal evidence does other justice first second question's "
    "people government different trial jury after before against opinion judgment decision section standard district"
)
VOCABULARY = Vocabulary(words=tuple(dict.fromkeys(KNOWN.split())), provenance="made up")
STRANGE = (
    "regex xcode jsfiddle divs gradle nginx postgres mutex sudo xpath grep bool async scala kotlin numpy pandas tuple "
    "varchar popup admin config json yaml linux ubuntu debian kernel http café"
)
WIDTH = 16


# Pictures


def letters(count, seed, side=8):
    """Bright, trembling letters F on a dark ground: no transform leaves an F as it is."""
    rng = torch.Generator().manual_seed(seed)
    letter = torch.zeros(side, side)
    letter[1:7, 2] = letter[1, 2:6] = letter[3, 2:5] = 1.0
    shifts = torch.randint(-1, 2, (count,), generator=rng).tolist()
    strokes = torch.stack([letter.roll(shift, 1) for shift in shifts])
    brightness = 0.7 + 0.3 * torch.rand(count, 1, 1, generator=rng)
    noise = 0.1 * torch.randn(count, side, side, generator=rng)
    return (2 * brightness * strokes - 1 + noise).clamp(-1, 1)[:, None]


def framed(x):
    """A white frame."""
    return F.pad(x[..., 1:-1, 1:-1], (1, 1, 1, 1), value=1.0)


def samples(images, label="left", *, partition="all", plan=PLAN, population="crowd", simulated=False):
    account = Account(run=f"run/{label}", population=population, partition=partition, part=label, simulated=simulated)
    return Samples(images=images, label=label, spending=Spending(account=account, plans=(plan,)), delta=1e-5)


def pair(left, right, **changes):
    return samples(left, "left", **changes), samples(right, "right", **changes)


# Words and sentences


def sentences(seed, kind=None, share=0.0, count=600):
    """Words of a Zipf law whose weights tremble, as those of a noisy model do; some of them with a fault."""
    rng = random.Random(seed)
    tremble = [rng.gauss(1, 0.15) for _ in range(len(VOCABULARY) + 1)]
    pool = [*VOCABULARY.words, "unknown"]
    weights = [max(0.0, t) / (rank + 3) for rank, t in enumerate(tremble)]
    weights[-1] = 0.06 * sum(weights)
    drawn = []
    for _ in range(count):
        words = rng.choices(pool, weights, k=rng.randint(4, 11))
        words = [rng.choice(STRANGE.split()) if word == "unknown" else word for word in words]
        drawn.append(FAULTS.named(kind).change(words) if kind and rng.random() < share else words)
    return drawn


def garbled(word, rng):
    return "".join(rng.choice("etaoinshr") if rng.random() < 0.05 else letter for letter in word)


def texts(kind, rows, label, **changes):
    account = Account(run=f"run/{label}", population="crowd", partition="sides", part=label)
    made = Texts(
        kind=kind,
        sequences=torch.tensor(np.stack(rows)),
        log_probability=torch.zeros(len(rows)),
        vocabulary=VOCABULARY.words,
        label=label,
        spending=Spending(account=account, plans=(PLAN,)),
        delta=1e-6,
    )
    return dataclasses.replace(made, **changes)


def of_words(words, label="left"):
    """With the probability that fits how often each came."""
    chance = torch.tensor([words.count(word) / len(words) for word in words]).log()
    return texts("spelling", [spelled(word, WIDTH) for word in words], label, log_probability=chance)


def spelling(seed, kind=None, share=0.0, label="left"):
    rng = random.Random(seed)
    unknown = [word for words in sentences(seed, kind, share, 1500) for word in words if word not in VOCABULARY]
    return of_words([garbled(word, rng) for word in unknown[:700]], label)


def written(seed, kind=None, share=0.0, label="left"):
    return texts("words", [VOCABULARY.numbered(row, 14) for row in sentences(seed, kind, share)], label)
