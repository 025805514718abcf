"""What is done with trained models: compare two, report on one, draw from it. Costs no privacy, reads no private data.

A page can do what the command line does: all of it is here, and `cli` only reads options and prints.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedlens.core import files, pins
from fedlens.ledger import guarantee
from fedlens.media import opening
from fedlens.media.protocol import Samples, Trained
from fedlens.privacy import Guarantee
from fedlens.privacy.guarantee import UNVERIFIED
from fedlens.report.report import Finding, Report, Verdict
from fedlens.report.values import printable
from fedlens.runs.null import null
from fedlens.runs.reporting import marked, releases_in
from fedlens.runs.vouching import Vouched, vouched


def opened(folder: pathlib.Path) -> Trained:
    """The model of a model folder."""
    if not (result := opening.result_in(folder)).exists():
        hint = f"; is the run finished? fedlens run --resume {folder}" if (folder / "run.json").exists() else ""
        raise ValueError(f"Expected a trained model in {folder}: model.safetensors is missing{hint}.")
    return opening.opened(result)


def compared(
    left: pathlib.Path,
    right: pathlib.Path,
    *,
    ledger: str | None = None,
    before: pathlib.Path | None = None,
    kinds: Sequence[str] = (),
    primary: pathlib.Path | None = None,
    pairs: int = 0,
    device: str = "cpu",
    say: Callable[[str], None] = lambda line: None,
    **expects: Any,
) -> Report:
    """Two model folders by what their models draw; `primary` is a file with a model that tells classes apart.

    So many `pairs` of models are trained for a null: how far apart are two that differ by no cause?
    """
    models = [opened(left), opened(right)]
    voucher = vouched(ledger, [left, right])
    if models[0].label == models[1].label:  # of two runs, whose names tell them apart
        runs = [folder.resolve().parent.name for folder in (left, right)]
        models = [dataclasses.replace(m, label=f"{m.label}, {run}") for m, run in zip(models, runs, strict=True)]
    if type(models[0]) is not type(models[1]):
        raise ValueError("Expected two models of one kind.")
    medium = opening.medium(models[0].medium)
    title = f"{models[0].label} vs {models[1].label}"
    if looked := medium.looked(models, recipe=None, title=title):
        if pairs:
            raise ValueError("Expected no --null: the noise of looks is known, and no models are trained to learn it.")
        return marked(looked, voucher.statement, voucher.unverified)
    groups = [model.sampled(medium.drawn, 0) for model in models]
    releases: Any = releases_in(medium, [left, right])
    expected = null([left, right], models, medium, pairs, kinds=kinds, device=device, say=say) if pairs else None
    report = medium.contrast(
        groups,
        **({"releases": releases} if releases else {}),
        title=title,
        kinds=kinds,
        before=findings(before) if before else (),
        primary=medium.primary(primary, groups[0], **expects) if primary else None,
        null=expected,
    )
    return marked(report, voucher.statement, voucher.unverified)


def alone(folder: pathlib.Path, ledger: str | None = None) -> Report:
    """A report on a single model: a sanity check."""
    model, voucher = opened(folder), vouched(ledger, [folder])
    medium = opening.medium(model.medium)
    looked = medium.looked([model], recipe=None, title=folder.name)
    report = looked or medium.contrast([model.sampled(medium.drawn, 0)], title=folder.name)
    return marked(report, voucher.statement, voucher.unverified)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
    """Samples on disk, with a file to look at."""

    samples: Samples
    file: pathlib.Path
    shown: pathlib.Path
    guarantee: Guarantee
    voucher: Vouched


def drawn(
    folder: pathlib.Path,
    count: int,
    *,
    seed: int = 0,
    beams: int | None = None,
    to: pathlib.Path | None = None,
    ledger: str | None = None,
) -> Drawn:
    """Samples of a model, or with `beams` what it thinks likeliest: a file with its guarantee, and one to look at."""
    model, voucher = opened(folder), vouched(ledger, [folder])
    samples = model.sampled(count, seed) if beams is None else model.likeliest(count, beams)
    path = to or folder / f"{f'samples-{seed}' if beams is None else 'likeliest'}.safetensors"
    ending, content = opening.medium(model.medium).shown(samples)
    shown = path.with_suffix(ending)
    if path == shown:
        raise ValueError(f"Expected --to with another ending than {ending}: it is written beside the samples.")
    pins.check_below(path)
    samples.save(path)
    files.write(shown, content)
    promise = dataclasses.replace(samples.guarantee, unverified=voucher.unverified)
    return Drawn(samples=samples, file=path, shown=shown, guarantee=promise, voucher=voucher)


def saved(report: Report, folder: pathlib.Path) -> None:
    pins.check_below(folder)  # also one that was not named, and may lead elsewhere
    report.save(folder)


def findings(folder: pathlib.Path) -> list[Finding]:
    """Of the report in a folder."""
    try:
        with files.damage(f"Expected a whole report.json in {folder}; it is damaged."):
            rows = files.json_in(folder / "report.json", {"findings": list})["findings"]
            if not all(isinstance(f["kind"], str) and isinstance(f["severity"], str) for f in rows):
                raise TypeError
            return [
                Finding(kind=f["kind"], summary=str(f["summary"]), score=float(f["score"]), severity=f["severity"])
                for f in rows
            ]
    except FileNotFoundError:
        raise ValueError(f"Expected the folder of a report, found no report.json in {folder}.") from None


def verdict(answer: Mapping[str, Any]) -> str:
    """What a report.json says first; empty for reports of one group."""
    try:
        return Verdict(kind=answer["verdict"]["kind"], summary=str(answer["verdict"]["summary"])).line
    except (KeyError, TypeError, ValueError):
        return ""


def confirmed(folder: pathlib.Path, ledger: str | None) -> tuple[dict[str, Any], str]:
    """What a report.json says, with a word if no ledger confirms it; refuses one that says less than its models."""
    answer = files.json_in(folder / "report.json")
    single = opening.result_in(folder).exists()
    parts = [folder] if single else [part for part in sorted(folder.glob("*")) if opening.result_in(part).exists()]
    try:
        stated, voucher = Guarantee.from_dict(answer["guarantee"]), vouched(ledger, parts)
        spent = (opened(folder).spending,) if single else voucher.spent
        true = guarantee(spent, stated.delta) if spent else stated
        same = (stated.unit, stated.neighbours, stated.simulated) == (true.unit, true.neighbours, true.simulated)
        if not same or not stated.epsilon >= true.epsilon * (1 - 1e-6):
            raise ValueError(
                f"Expected report.json in {folder} to promise no more than the ledger does; it was edited."
            )
        stated = dataclasses.replace(stated, unverified=voucher.unverified or ("" if parts else UNVERIFIED))
        headline = printable(f"privacy: {stated.headline}")
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"Expected a whole report.json in {folder}; it is damaged.") from None
    return answer | {"guarantee": stated.to_dict()}, headline
