"""How rare a bug of the tokenizer may be, and how small epsilon, for it to be named? On text that may be seen.

A tenth of the speakers, chosen by a hash of their names, are taken as public: their words are the known ones, but for a
tenth of them, whose sentences nobody learns from and which say how often a model names the next word. All other
speakers are the users. Chat about Ubuntu is searched for its words that the speakers, public here, do not use.
"""

import collections
import dataclasses
import gzip
import hashlib
import json
import math
import pathlib
import statistics
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch

from fedlens.core import files, trees
from fedlens.experiments.drawing import COLOURS, Plot, markdown
from fedlens.experiments.trials import SUSPICIOUS, Row, Trial, trials
from fedlens.media.text import wordings
from fedlens.media.text.public import sentences_of
from fedlens.media.text.samples import TextModel, Texts
from fedlens.models import words
from fedlens.recipes.stages import TRAIN

SPEAKERS, CHAT = "scotus_speakers.jsonl.gz", "ubuntu_irc_by_nick.jsonl.gz"
PUBLIC_SHARE, HELD_OUT_SHARE = 0.1, 0.01
UNPROTECTED = 1e4  # an epsilon with no noise to speak of
# Of the users in a round: a tenth at a small epsilon costs 3% more noise than everyone and a tenth of the time; a fifth
# at epsilon 8 costs 10% more.
RATES, RARER = {0.25: 0.1, 0.5: 0.1, 1.2: 0.1}, 0.2
TOP = 100
SHOWN, LISTED, BEAMS = 20, 1000, 2000  # words compared, those searched for (known ones among them), and beams
POSITIONS = 6
BUG = "concatenated"
PLOT = Plot(
    width=520,
    height=296,
    across=lambda place: 80 + 80 * place,
    down=lambda rate: 240 - 200 * math.log(max(rate, 0.005) / 0.005) / math.log(200),  # from 0.5% up
)


def split(source: pathlib.Path, out: pathlib.Path) -> None:
    """Into out/public.txt and out/held_out.txt, one sentence a line, and out/users.jsonl, unless they are there."""
    if all((out / name).exists() for name in ("held_out.txt", "public.txt", "users.jsonl")):
        return
    donors: dict[str, list[str]] = {"held_out.txt": [], "public.txt": []}
    users = []
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        for line in lines:
            speaker = json.loads(line)
            drawn = int.from_bytes(hashlib.sha256(speaker["user"].encode()).digest()[:7], "big") / 2**56
            if drawn < PUBLIC_SHARE:
                donors["held_out.txt" if drawn < HELD_OUT_SHARE else "public.txt"] += speaker["text"]
            else:
                users.append(json.dumps({"user": speaker["user"], "text": speaker["text"]}))
    for name, said in donors.items():
        files.write(out / name, "".join(f"{' '.join(sentence.split())}\n" for sentence in said))
    files.write(out / "users.jsonl", "".join(f"{user}\n" for user in users))


def rows(out: pathlib.Path) -> tuple[Row, ...]:
    """Rows that share a plan side by side, so that they share models."""
    where = (
        "privacy.units=8300",
        f"data.path={json.dumps(str(out / 'users.jsonl'))}",
        f"text.public={json.dumps(str(out / 'public.txt'))}",
    )
    of_words = (*where, "text.model=words", "text.width=20", "text.samples=100000")

    def row(fraction: float, epsilon: float, sets: Sequence[str] = where, kind: str = BUG, **changes: Any) -> Row:
        model = "words-" if sets is of_words else ""
        name = f"{model}{kind if fraction else 'clean'}-{_percent(fraction)}-{epsilon:g}"
        recipe, sampled = "speakers_sensitivity.toml", f"privacy.rate={RATES.get(epsilon, RARER)}"
        jointly = 'selections.before={by="everyone"}'  # the same users are in both models that are compared
        return Row(
            name=name,
            kind=kind,
            fraction=fraction,
            epsilon=epsilon,
            sets=(*sets, sampled, jointly),
            recipe=recipe,
            apart=True,
            how="words" if model else "spelling",
            **changes,
        )

    return (
        row(0.1, 1.2, wanted="5 of 5"),
        row(1.0, 1.2, seeds=3, wanted="all top 20"),
        row(0.01, 1.2),
        row(0.0, 1.2, seeds=12, wanted="at most 5%"),
        row(0.01, 0.5),
        row(0.0, 0.5, seeds=12, wanted="at most 5%"),
        row(0.1, 0.25),
        row(0.0, 0.25, seeds=12, wanted="at most 5%"),
        row(0.01, 8.0, wanted="4 of 5"),
        row(0.001, 8.0),
        *(row(0.1, 8.0, kind=kind, seeds=2) for kind in ("spaceless", "wrong-case", "truncated")),
        row(0.0, 8.0, seeds=12, wanted="at most 5%"),
        *(row(share, 8.0, of_words, seeds=seeds) for share, seeds in ((0.01, 3), (0.1, 1), (1.0, 1))),
        row(0.0, 8.0, of_words, seeds=8, wanted="at most 5%"),
        row(0.0, UNPROTECTED, of_words, seeds=1),
        _chat(8.0, seeds=3),
        _chat(UNPROTECTED, seeds=1),
    )


def _chat(epsilon: float, seeds: int) -> Row:
    name, recipe = f"chat-{epsilon:g}", "chat_words.toml"
    return Row(name=name, kind=BUG, fraction=0.0, epsilon=epsilon, recipe=recipe, apart=True, how="chat", seeds=seeds)


def table(results: Sequence[dict[str, Any]]) -> str:
    """As Markdown."""
    about = "bug", "sentences affected", "model", "epsilon", "rounds, weights"
    columns = *about, "named", "first", "scores", "named otherwise", "top 10 with a space", "wanted"
    rows = []
    for r in results:
        clean = r["bug"] == "none"
        named, first = ("-", "-") if clean else (f"{r['named']} of {r['tried']}", f"{r['first']} of {r['tried']}")
        otherwise = f"{r['named_otherwise']} of {r['tried']}" + (" pairs" if clean else "")
        spaces = [sum(pair["top"]) for pair in r["pairs"] if "top" in pair]
        spread = f"{min(spaces)} to {max(spaces)}, median {statistics.median(spaces):g}" if spaces else "-"
        best = [pair["score"] for pair in r["pairs"]]
        scores = f"{min(best):.2f} to {max(best):.2f}" if best else "-"
        size = f"{r['rounds']}, {r['weights']:,}"
        run = [r["bug"], _percent(r["affected"]), r["split"], f"{r['epsilon']:.2f}", size]
        rows.append([*run, named, first, scores, otherwise, spread, r["wanted"]])
    return markdown(columns, rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unknown:
    """How many of the words that models of sentences wrote are unknown, by position: the mean over so many models."""

    affected: float
    epsilon: float
    models: int
    rates: tuple[float, ...]
    first: tuple[float, float]  # at position 1, the lowest and the highest
    overall: float


def unknown(chosen: Sequence[Row], out: pathlib.Path) -> list[Unknown]:
    """Of all models of sentences, those with the bug in more sentences later."""
    there = _of_sentences(chosen, lambda trial: trial.file(out).exists())
    return [_unknown(*key, [trial.file(out) for trial in some]) for key, some in there.items()]


def _of_sentences(
    chosen: Sequence[Row], there: Callable[[Trial], bool]
) -> dict[tuple[float, float], Collection[Trial]]:
    """By the share affected and epsilon, every model once: the same healthy ones stand in several rows."""
    by_cell: dict[tuple[float, float], dict[int, Trial]] = collections.defaultdict(dict)
    for trial in filter(there, trials([row for row in chosen if row.how == "words"])):
        share = trial.row.fraction if trial.group == SUSPICIOUS else 0.0
        by_cell[share, trial.row.epsilon][trial.seed] = trial
    return {key: by_cell[key].values() for key in sorted(by_cell)}


def _unknown(affected: float, epsilon: float, paths: Sequence[pathlib.Path]) -> Unknown:
    rates, overall = [], []
    for path in paths:
        texts = Texts.open(path)
        hits, totals = wordings.unknown_by_position(texts, POSITIONS)
        rates.append(hits / np.maximum(totals, 1))
        overall.append(wordings.unknown_rate(texts))
    first = [rate[0] for rate in rates]
    return Unknown(
        affected=affected,
        epsilon=epsilon,
        models=len(paths),
        rates=tuple(np.mean(rates, 0).tolist()),
        first=(float(min(first)), float(max(first))),
        overall=statistics.fmean(overall),
    )


def by_position(chosen: Sequence[Row], out: pathlib.Path) -> str:
    """As Markdown: figure 4 and table 6 of the paper."""
    places = [f"position {place + 1}" for place in range(POSITIONS)]
    rows = []
    for measured in unknown(chosen, out):
        first, *others = (f"{rate:.2%}" for rate in measured.rates)
        spread = f" ({measured.first[0]:.2%} to {measured.first[1]:.2%})" if measured.models > 1 else ""
        cells = [_percent(measured.affected), f"{measured.epsilon:g}", measured.models, first + spread, *others]
        rows.append([*cells, f"{measured.overall:.2%}"])
    return markdown(["sentences affected", "epsilon", "models", *places, "all"], rows)


def picture(chosen: Sequence[Row], out: pathlib.Path) -> str:
    """The same for the private models as an SVG, on a logarithmic scale from 0.5% to 100%."""
    lines = [measured for measured in unknown(chosen, out) if measured.epsilon != UNPROTECTED]
    levels = {rate: _percent(rate) for rate in (0.01, 0.03, 0.1, 0.3, 1.0)}
    ticks = {float(place): str(place + 1) for place in range(POSITIONS)}
    curves = [_line(measured, colour) for measured, colour in zip(lines, COLOURS, strict=False)]
    axis, title = "position of the word in its sentence", "unknown words, by the share of sentences with joined tokens"
    return PLOT.picture(levels, ticks, curves, axis=axis, title=title)


def _line(measured: Unknown, colour: str) -> str:
    points = [(float(place), rate) for place, rate in enumerate(measured.rates)]
    share = PLOT.label(points[0], _percent(measured.affected), colour, below=-9, anchor="middle")
    return PLOT.curve(points, colour) + share


def _percent(share: float) -> str:
    """
    >>> _percent(0.001), _percent(1.0)
    ('0.1%', '100%')
    """
    return f"{100 * share:g}%"


def unknown_words(path: pathlib.Path, vocabulary: words.Vocabulary, width: int) -> collections.Counter[str]:
    """The true counts of the words outside a vocabulary, cut as a model sees them; of text that may be seen."""
    counts: collections.Counter[str] = collections.Counter()
    for sentence in sentences_of(path):
        counts.update(
            words.unspelled(words.spelled(token, width)) for token in words.tokens(sentence) if token not in vocabulary
        )
    return counts


def precision_and_recall(texts: Texts, true: collections.Counter[str], top: int = TOP) -> tuple[float, float]:
    """Of the likeliest generated words, how many are among the true ones; and of the top true ones, how many appear."""
    likeliest = _likeliest(texts, top)
    wanted = {word for word, _ in true.most_common(top)}
    return len(likeliest & true.keys()) / top, len(likeliest & wanted) / top


def _likeliest(texts: Texts, count: int) -> set[str]:
    """Words outside the vocabulary, as a report shows them."""
    return {row["word"] for row in wordings.table([texts], count, floor=0.0)[0]}


def searched(chosen: Sequence[Row], out: pathlib.Path) -> str:
    """Of the likeliest unknown words by beam search, how many are the samples' likeliest: whether any were missed."""
    title = f"likeliest {SHOWN} by beam search, among those of the samples"
    rows = []
    for trial in trials([row for row in chosen if row.how == "spelling" and not row.clean]):
        if trial.group == SUSPICIOUS and trial.file(out).exists() and trial.model_file(out).exists():
            drawn = _likeliest(Texts.open(trial.file(out)), SHOWN)
            by_search = _likeliest(TextModel.open(trial.model_file(out)).likeliest(LISTED, BEAMS), SHOWN)
            row = trial.row
            rows.append([row.kind, _percent(row.fraction), f"{row.epsilon:g}", trial.seed, len(by_search & drawn)])
    return markdown(["bug", "sentences affected", "epsilon", "seed", title], rows)


def found_words(chosen: Sequence[Row], out: pathlib.Path) -> str:
    """How many of the likeliest words of every model of the chat are words of the chat, and how many frequent ones."""
    shares = f"of its likeliest {TOP}, real", f"of the true top {TOP}", f"in the true top {5 * TOP}"
    rows = []
    true: collections.Counter[str] = collections.Counter()
    for trial in trials([row for row in chosen if row.how == "chat"]):
        if not trial.file(out).exists():
            continue
        texts, path = Texts.open(trial.file(out)), pathlib.Path(trial.recipe.data.path or "")
        known = words.Vocabulary(words=texts.vocabulary, provenance="public")
        true = true or unknown_words(path, known, texts.sequences.shape[1])
        precision, recall = precision_and_recall(texts, true)
        frequent = {word for word, _ in true.most_common(5 * TOP)}
        some = len(_likeliest(texts, TOP) & frequent) / TOP
        rows.append([f"{trial.row.epsilon:g}", trial.seed, f"{precision:.0%}", f"{recall:.0%}", f"{some:.0%}"])
    return markdown(["epsilon", "seed", *shares], rows)


def next_word_accuracy(chosen: Sequence[Row], out: pathlib.Path) -> str:
    """How often the next word is the one that a model of words thinks likeliest, on sentences nobody learnt from.

    Its start, from public words alone, comes first.
    """
    table: list[list[object]] = []
    said = [words.tokens(line) for line in (out / "held_out.txt").read_text().splitlines()]
    there = _of_sentences(chosen, lambda trial: trial.model_file(out).exists())
    for (share, epsilon), some in there.items():
        right = []
        for trial in some:
            model = TextModel.open(trial.model_file(out))
            known = words.Vocabulary(words=model.vocabulary, provenance="public")
            rows = torch.from_numpy(np.stack([known.numbered(sentence, model.width) for sentence in said]))
            if not table:
                start = trees.part(trial.recipe.stage(TRAIN, "all").start(), "model")
                table.append(["public words only", 0, "0%", 1, f"{model.model.accuracy(start, rows):.1%}"])
            right.append(model.model.accuracy(model.parameters, rows))
        spread = f" ({min(right):.1%} to {max(right):.1%})" if len(right) > 1 else ""
        accuracy = f"{statistics.fmean(right):.1%}{spread}"
        table.append(["and users", f"{epsilon:g}", _percent(share), len(right), accuracy])
    return markdown(["trained on", "epsilon", "sentences affected", "models", "next word right"], table)
