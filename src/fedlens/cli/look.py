"""The shortest way from data to pictures: one release, and generators that are fitted to it."""

import dataclasses
import pathlib
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer import Argument, Option

from fedlens.cli.data import owner_if_there
from fedlens.cli.options import Device, Json, LedgerPath, Out, Sets, Simulate, Why, modelers, say
from fedlens.cli.runs import created, execute

look_app = typer.Typer()
FAMILIES = "moments", "embedding"
JUDGED = "right", "accuracy"  # by a primary model
LOW, HIGH = 0.3, 0.7  # of the users, by accuracy: who is weak, and who is not


@look_app.command()
@modelers
def look(
    data: Annotated[str, Argument(help="digits; a registered population; .npz or population folder.")],
    epsilon: Annotated[float, Option(help="What the look may cost.")] = 1.0,
    delta: Annotated[float, Option(help="Well below 1 / units.")] = 1e-5,
    unit: Annotated[str, Option(help="Who is protected: user, silo or example.")] = "user",
    units: Annotated[int | None, Option(help="How many there are at most; not asked of registered data.")] = None,
    side: Annotated[int | None, Option(help="Images are side x side; known of registered data.")] = None,
    channels: Annotated[int | None, Option(help="1 for grey, 3 for colour; known of registered data.")] = None,
    classes: Annotated[int, Option(help="Look class by class, at labels below this; 0: without labels.")] = 0,
    family: Annotated[str | None, Option(help="moments or embedding. Default: by the device.")] = None,
    by: Annotated[
        str | None,
        Option(help="Compare two groups: accuracy, right, or an attribute of users; needs --model but for attributes."),
    ] = None,
    values: Annotated[
        tuple[int, int], Option(help="--by an attribute: its values, that of the suspicious group first.")
    ] = (1, 0),
    public: Annotated[
        pathlib.Path | None,
        Option(help=".npz of public images: what do the private ones have that these lack? With --by: images alike."),
    ] = None,
    public_users: Annotated[str | None, Option(help="The array of --public that says whose each image is.")] = None,
    model: Annotated[pathlib.Path | None, Option(help="A classifier, for --by accuracy and right.")] = None,
    images: Annotated[str, Option(help=".npz: the array of images.")] = "x",
    labels: Annotated[str, Option(help=".npz: the array of labels.")] = "y",
    users: Annotated[str, Option(help=".npz: the array that says whose each image is.")] = "user",
    sets: Sets = None,
    out: Out = pathlib.Path("runs"),
    ledger: LedgerPath = None,
    simulate: Simulate = None,
    device: Device = None,
    why: Why = "",
    as_json: Json = False,
) -> None:
    """Look at images once: statistics, and a generator to draw from, for one bounded release."""
    from fedlens.recipes.recipe import Recipe
    from fedlens.runs.run import chosen_device

    beside = out / "ledger.sqlite"
    owner = owner_if_there(ledger or (str(beside) if beside.exists() else None))
    registered = owner.known(data) if owner else None
    known: dict[str, Any] = dict(_facts(data))
    if registered:
        known = {**registered.facts, "units": registered.examples if unit == "example" else registered.population}
    given = {"side": side, "channels": channels, "units": units, "classes": classes or None}
    facts = {"channels": 1, "classes": 0, **known, **{name: value for name, value in given.items() if value}}
    missing = [f"--{name}" for name in ("side", "units") if not facts.get(name)]
    if missing:
        raise ValueError(f"Expected {' and '.join(missing)}: nothing about {data} is registered.")
    where = chosen_device(device)
    chosen = family or (FAMILIES[1] if where.startswith("cuda") else FAMILIES[0])
    of_look: dict[str, Any] = {"family": chosen}
    if public:
        columns = {"path": str(public), "images": images, "labels": labels, "users": public_users}
        of_look["public"] = {name: value for name, value in columns.items() if value}
    data_table = _data(data, registered is not None, facts["classes"], images=images, labels=labels, users=users)
    task, selections = _groups(by, values, compared=public is not None)
    if by in JUDGED and not model:
        raise ValueError(f"Expected --model with --by {by}: a classifier judges.")
    if by and by not in JUDGED and "path" in data_table:
        data_table["attributes"] = [by]
    settings = {
        "name": "look",
        "task": task,
        "algorithm": "look",
        "side": facts["side"],
        "channels": facts["channels"],
        "data": data_table,
        "selections": selections,
        "privacy": {
            "epsilon": epsilon,
            "delta": delta,
            "unit": unit,
            "units": facts["units"],
            "population": facts["units"],
        },
        "model": {"classes": facts["classes"]},
        "look": of_look,
    }
    if model:
        settings["primary"] = {"model": str(model)}
    execute(created(Recipe.validated(settings, sets or []), out, ledger, simulate, where, why), as_json)


def _groups(by: str | None, values: tuple[int, int], compared: bool) -> tuple[str, dict[str, Any]]:
    """The task, and who is looked at: the suspicious group first. Thresholds of accuracy are learnt, at a price."""
    if by is None:
        return "T6" if compared else "T1", {"all": {"by": "everyone"}}
    if by == "right":
        return "T2", {"wrong": {"by": "wrong"}, "right": {"by": "right"}}
    if by == "accuracy":
        ends = {"low": {"below": {"quantile": LOW}}, "high": {"at_least": {"quantile": HIGH}}}
        return "T4", {name: {"by": by, **end} for name, end in ends.items()}
    names = [f"{by}-{value}" for value in values]
    chosen = [{"by": "attribute", "attribute": by, "values": [value]} for value in values]
    return "T4", dict(zip(names, chosen, strict=True))


def _facts(data: str) -> Mapping[str, int]:
    """What is known of data that are on every machine; of others, nothing."""
    from fedlens import media

    return media.sources()[data].facts if data in media.built_in() else {}


def _data(data: str, registered: bool, classes: int, **columns: str) -> dict[str, Any]:
    if registered:
        return {"population": data}
    if known := _facts(data):
        return {"source": data, "deal_to": known["units"]}
    if not classes:
        del columns["labels"]
    if data.endswith(".npz"):
        return {"source": "npz", "path": data, **columns}
    return {"source": "population", "path": data}


@look_app.command()
@modelers
def fit(
    release: Annotated[pathlib.Path, Argument(help="The look.safetensors of a run.")],
    to: Annotated[pathlib.Path, Option(help="The folder to write model.safetensors to.")] = pathlib.Path("fitted"),
    steps: Annotated[int, Option(min=1, help="Of the fit.")] = 2000,
    batch: Annotated[int, Option(min=2, help="Images in a step.")] = 1000,
    rate: Annotated[float, Option(min=1e-6, max=1, help="Of the fit.")] = 1e-3,
    seed: Annotated[int, Option(help="Of the weights.")] = 0,
    keep: Annotated[
        float, Option(min=0.01, max=1, help="Share of a network's images that are kept: those the release likes most.")
    ] = 1.0,
    unseen: Annotated[
        float, Option(min=0, max=1, help="Moments: how much is drawn of variance whose directions noise hides.")
    ] = 1.0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Fit another generator to a look that was released before: free."""
    from fedlens.media import opening
    from fedlens.privacy.guarantee import UNVERIFIED
    from fedlens.runs.run import chosen_device, memory_of

    where = chosen_device(device)
    fit = {"steps": steps, "batch": batch, "rate": rate, "seed": seed, "keep": keep, "unseen": unseen}
    model = opening.refitted(release, where, memory_of(where), **fit)
    if (path := to / model.file).exists():
        raise ValueError(f"Expected no file at {path}; it would be overwritten.")
    to.mkdir(parents=True, exist_ok=True)
    model.save(path)
    promise = dataclasses.replace(
        model.guarantee, unverified=UNVERIFIED
    )  # the ledger knows a run's model, not its look
    text = f"Wrote {path}: {promise.headline}. Next: fedlens sample {shlex.quote(str(to))}"
    say({"model": str(path), "guarantee": promise.to_dict()}, text, as_json)
