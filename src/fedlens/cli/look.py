"""The shortest way from data to pictures: one release, and generators that are fitted to it."""

import dataclasses
import pathlib
import shlex
from typing import Annotated, Any

import typer
from typer import Argument, Option

from fedlens.cli.data import owner_if_there
from fedlens.cli.options import Device, Json, LedgerPath, Out, Sets, Simulate, Why, modelers, say
from fedlens.cli.runs import created, execute

look_app = typer.Typer()
FAMILIES = "moments", "embedding"
DIGITS = {"side": 8, "units": 100, "classes": 10}  # what is publicly known of scikit-learn's digits


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
    known: dict[str, Any] = DIGITS if data == "digits" else {}
    if registered:
        known = {**registered.facts, "units": registered.examples if unit == "example" else registered.population}
    given = {"side": side, "channels": channels, "units": units, "classes": classes or None}
    public = {"channels": 1, "classes": 0, **known, **{name: value for name, value in given.items() if value}}
    missing = [f"--{name}" for name in ("side", "units") if not public.get(name)]
    if missing:
        raise ValueError(f"Expected {' and '.join(missing)}: nothing about {data} is registered.")
    where = chosen_device(device)
    chosen = family or (FAMILIES[1] if where.startswith("cuda") else FAMILIES[0])
    values = {
        "name": "look",
        "task": "T1",
        "algorithm": "look",
        "side": public["side"],
        "channels": public["channels"],
        "data": _data(data, registered is not None, public["classes"], images=images, labels=labels, users=users),
        "selections": {"all": {"by": "everyone"}},
        "privacy": {
            "epsilon": epsilon,
            "delta": delta,
            "unit": unit,
            "units": public["units"],
            "population": public["units"],
        },
        "model": {"classes": public["classes"]},
        "look": {"family": chosen},
    }
    execute(created(Recipe.validated(values, sets or []), out, ledger, simulate, where, why), as_json)


def _data(data: str, registered: bool, classes: int, **columns: str) -> dict[str, Any]:
    if registered:
        return {"population": data}
    if data == "digits":
        return {"source": "digits", "deal_to": DIGITS["units"]}
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
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Fit another generator to a look that was released before: free."""
    from fedlens.core.tensorfiles import header
    from fedlens.media import opening
    from fedlens.media.images import looks
    from fedlens.models.looks import room
    from fedlens.models.looks.fitting import Fit
    from fedlens.privacy.guarantee import UNVERIFIED
    from fedlens.runs.run import chosen_device, memory_of

    if (name := opening.chosen(lambda medium: medium.owns(header(release))).name) != looks.Look.medium:
        raise ValueError(f"Expected a look at {looks.Look.medium}: no generator is fitted to one at {name}.")
    opened = looks.Look.open(release)
    settings, where = Fit(steps=steps, batch=batch, rate=rate, seed=seed), chosen_device(device)
    room.check(opened.release.psi, batch, memory_of(where))
    model = looks.refitted(opened, looks.drawing_for(opened), settings, where)
    if (path := to / model.file).exists():
        raise ValueError(f"Expected no file at {path}; it would be overwritten.")
    to.mkdir(parents=True, exist_ok=True)
    model.save(path)
    promise = dataclasses.replace(
        model.guarantee, unverified=UNVERIFIED
    )  # the ledger knows a run's model, not its look
    text = f"Wrote {path}: {promise.headline}. Next: fedlens sample {shlex.quote(str(to))}"
    say({"model": str(path), "guarantee": promise.to_dict()}, text, as_json)
