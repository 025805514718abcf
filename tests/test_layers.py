"""Imports go downwards, nothing public reaches private data, and starting up stays cheap."""

import ast
import dataclasses
import fnmatch
import os
import pathlib
import re
import subprocess
import sys
import typing

import pytest

import fedlens
from fedlens import algorithms

ROOT = pathlib.Path(fedlens.__file__).parent

# The house of docs/design.md, lowest floor first. A module may import the floors below its own, and its own room.
FLOORS = (
    ("version", "core"),
    ("privacy", "curators.protocol"),
    ("models", "ledger"),
    ("data", "report"),
    ("algorithms",),
    ("media", "media.faults", "media.*.faults"),  # the table of media, and what can be wrong with each
    ("recipes.tables",),
    ("media.*",),
    ("evaluation",),
    ("recipes",),
    ("curators",),
    ("owner",),
    ("runs",),
    ("experiments",),
    ("cli",),
)
# What holds private data, by where it lies: whole rooms, and the half of a medium that reads.
PRIVATE = ("data", "data.*", "owner", "owner.*", "curators.*", "media.reading", "media.*.reading")
PUBLIC_ALL_THE_SAME = ("curators.protocol",)
MAY_SEE_BOTH = ("runs", "experiments", "cli")  # what brings the two together
# What users name; the parts of media; the files of algorithms; exports.
FINDS_MODULES_BY_NAME = ("core.functions", "media", "algorithms", "__init__")


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def floor(name):
    """By the most telling of the patterns that fit: the longest, without a * if there is one. None if none fits."""
    fitting = [
        (len(pattern.split(".")), "*" not in pattern, level)
        for level, rooms in enumerate(FLOORS)
        for pattern in rooms
        if fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
    ]
    return max(fitting)[-1] if fitting else None


def private(name):
    matches = any(fnmatch.fnmatchcase(name, pattern) for pattern in PRIVATE)
    return matches and name not in PUBLIC_ALL_THE_SAME


def public(name):
    return not private(name) and name.split(".")[0] not in MAY_SEE_BOTH


def imported(name, source):
    """What a module of fedlens imports from fedlens, anywhere in its text: full names below `fedlens`."""
    here = ["fedlens", *name.split(".")]
    package = here if MODULES.get(name, pathlib.Path()).name == "__init__.py" else here[:-1]
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            names |= {_of(base, alias.name) for alias in node.names}
    return {full.removeprefix("fedlens").removeprefix(".") for full in names if full.split(".")[0] == "fedlens"}


def _of(base, name):
    """The module that `from base import name` reads: a module of that name, or the base itself."""
    if base == "fedlens":
        return f"fedlens.{fedlens._HOMES.get(name, name)}"
    full = f"{base}.{name}"
    return full if full.removeprefix("fedlens.") in MODULES else base


def violations(name, source):
    """Why this module, with this text, breaks the rules of the house."""
    problems = []
    own = floor(name)
    for other in sorted(imported(name, source)):
        if other == "":
            problems.append(f"{name} imports the whole package, and with it every name")
        elif floor(other) is None:
            problems.append(f"{name} imports {other}, which no floor lists")
        elif public(name) and private(other):
            problems.append(f"{name} is public and imports {other}, which is private")
        elif floor(other) > own or (floor(other) == own and other.split(".")[0] != name.split(".")[0]):
            problems.append(f"{name} imports {other}, which is not below it")
    dynamic = {"import_module", "__import__", "exec", "spec_from_file_location"}
    if names_in(source) & dynamic and name not in FINDS_MODULES_BY_NAME:
        problems.append(f"{name} imports by other means, which nobody can check")
    return problems


def names_in(source):
    nodes = list(ast.walk(ast.parse(source)))
    plain = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return (
        plain | attributes | {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    )


def test_every_module_lies_on_a_floor_and_every_floor_exists():
    assert [name for name in MODULES if name != "__init__" and floor(name) is None] == []
    patterns = {room for level in FLOORS for room in level}
    assert [p for p in patterns if not any(fnmatch.fnmatchcase(name, p) for name in MODULES)] == []
    assert {"core.trees", "curators.simulated", "algorithms.fedavg_gan", "privacy.plan"} <= MODULES.keys()


def test_private_modules_are_found_by_where_they_lie():
    assert private("data.population")
    assert private("data.readers.parquet")
    assert private("curators.simulated")
    assert private("media.images.reading")
    assert private("media.reading")
    assert private("owner.prints")
    assert [name for name in ("media.images", "recipes.recipe", "curators.protocol", "runs.run") if private(name)] == []
    says_so = {name for name, path in MODULES.items() if path.read_text().startswith('"""PRIVATE')}
    assert {name for name in MODULES if private(name)} - says_so - {"owner.registration", "curators"} == set()


def test_imports_go_downwards_and_nothing_public_reaches_private_data():
    problems = [p for name, path in MODULES.items() if name != "__init__" for p in violations(name, path.read_text())]
    assert problems == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("algorithms.new", "from fedlens.data.population import Population"),
        ("algorithms.new", "from fedlens.data import population"),
        ("algorithms.new", "from fedlens.curators import protocol, simulated as s"),
        ("algorithms.new", "from fedlens import Population"),
        ("algorithms.new", "import fedlens.data.readers"),
        ("algorithms.new", "import fedlens"),
        ("algorithms.new", "from ..data.selection import with_accuracy"),
        ("algorithms.new", "from ..curators import simulated"),
        ("algorithms.new", "def f():\n    from fedlens.curators.simulated import SimulatedCurator"),
        ("algorithms.new", "if TYPE_CHECKING:\n    from fedlens.data.population import Population"),
        ("algorithms.new", "import importlib\nimportlib.import_module('fedlens.data.population')"),
        ("algorithms.new", "from importlib import import_module as load\nload('fedlens.data.population')"),
        ("algorithms.new", "__import__('fedlens.data.population')"),
        ("algorithms.new", "from fedlens.media.images.contrast import contrast"),
        ("media.images.new", "from fedlens.runs.run import Run"),
        ("media.images.new", "from fedlens.media.images.reading import opened"),
        ("media.images.new", "from fedlens.recipes.recipe import Recipe"),
        ("media.images.reading", "from fedlens.recipes.recipe import Recipe"),
        ("recipes.new", "from fedlens.data.readers import sentences_of"),
        ("recipes.new", "from fedlens.owner.registration import Registration"),
        ("owner.new", "from fedlens.runs.run import Run"),
        ("runs.new", "from fedlens.cli import main"),
        ("experiments.new", "from fedlens.cli.options import say"),
        ("models.new", "from fedlens.data.population import Population"),
        ("core.trees", "from fedlens.data.population import Population"),
        ("privacy.new", "from fedlens.ledger import Ledger"),
        ("curators.protocol", "from fedlens.curators.simulated import SimulatedCurator"),
        ("core.randomness", "from fedlens.models.gan import Gan"),
        ("ledger", "from fedlens.recipes.recipe import Recipe"),
        ("ledger", "from fedlens.data.selection import classified"),
        ("curators.simulated", "from fedlens.cli import main"),
        ("data.population", "from fedlens.media.images.reading import opened"),
        ("algorithms.new", "from fedlens.unheard import of"),
    ],
)
def test_the_rules_catch_those_who_break_them(name, source):
    assert len(violations(name, source)) >= 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("algorithms.new", "from fedlens.core import trees\nfrom fedlens.models.gan import Gan\nimport torch"),
        ("algorithms.new", "from . import optimizers\nfrom fedlens.algorithms.optimizers import Sgd"),
        ("algorithms.new", "from fedlens.curators.protocol import Curator"),
        ("curators.simulated", "from fedlens.data.population import Population\nfrom fedlens.ledger import Ledger"),
        ("media.images.reading", "from fedlens.data.population import Population"),
        ("media.images.new", "from fedlens.recipes.tables import Table"),
        ("cli.new", "from fedlens.runs.run import Run"),
    ],
)
def test_the_rules_let_the_others_pass(name, source):
    assert violations(name, source) == []


def pickles(source):
    """What would write or read a pickle."""
    nodes = list(ast.walk(ast.parse(source)))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    allowed = [node for node in nodes if isinstance(node, ast.keyword) and node.arg == "allow_pickle"]
    return [
        *sorted(modules & {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}),
        *sorted(called & {"torch.load", "torch.save", "pickle.load", "pickle.loads", "joblib.load"}),
        *("allow_pickle" for node in allowed if ast.unparse(node.value) != "False"),
    ]


def test_nothing_is_ever_pickled():
    assert {name: found for name, path in MODULES.items() if (found := pickles(path.read_text()))} == {}
    for bad in ("import pickle", "from joblib import load", "torch.load(p)", "np.load(p, allow_pickle=True)"):
        assert len(pickles(bad)) == 1


def test_nobody_knows_the_federation_library_yet():
    """When somebody does, it will be one folder: curators/flower."""
    text = {name: path.read_text() for name, path in MODULES.items()}
    assert [name for name, source in text.items() if "flwr" in source and not name.startswith("curators.flower")] == []


HEAVY = ("torch", "dp_accounting", "sklearn", "scipy", "numpy")


def loaded_by(statement):
    script = f"import sys\n{statement}\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def test_the_probe_sees_what_is_loaded():
    assert "numpy" in loaded_by("import numpy")


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import fedlens") == []


def test_importing_the_command_line_loads_nothing_heavy():
    assert loaded_by("import fedlens.cli") == []


def threads(statement, **surroundings):
    """What the threads of torch do while they wait, by their own word: how many turns they spin, before they sleep."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    said = subprocess.run(
        [sys.executable, "-c", f"{statement}; import torch"],
        env=kept | {"OMP_DISPLAY_ENV": "verbose"} | surroundings,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (turns,) = set(re.findall(r"GOMP_SPINCOUNT = '(\w+)'", said.stderr))
    return turns


def test_threads_sleep_while_they_wait_unless_somebody_wants_them_to_spin():
    """Beside one other busy process, threads that spin took more than twenty times as long."""
    assert threads("import fedlens") == "0"
    assert threads("pass") != "0"
    assert threads("import fedlens", OMP_WAIT_POLICY="active") != "0"


def test_every_public_name_is_where_the_package_says():
    """The package loads its names late, so a wrong home would be noticed late as well."""
    missing = [name for name in fedlens.__all__ if not hasattr(fedlens, name)]
    assert missing == []
    assert {kind.__name__ for kind in algorithms.ALGORITHMS.values()} <= set(fedlens.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        fedlens.nonsense  # noqa: B018


def classes_of(hint):
    """Those that an annotation names."""
    return {hint}.union(*map(classes_of, typing.get_args(hint))) if isinstance(hint, typing.Hashable) else set()


def made_of(kind):
    """What of ours must be handed to a dataclass to make one."""
    named = set().union(*(classes_of(field.type) for field in dataclasses.fields(kind) if field.init))
    ours = {one for one in named if isinstance(one, type) and one.__module__.startswith("fedlens.")}
    return {one.__name__ for one in ours if not getattr(one, "_is_protocol", False)}


def test_what_public_settings_are_made_of_is_public():
    """What stands in files only, and is opened and not made, needs no name."""
    kinds = [getattr(fedlens, name) for name in fedlens.__all__]
    needed = set().union(
        *(made_of(kind) for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind))
    )
    assert needed - set(fedlens.__all__) == {"Gaussian", "Network", "Picked", "Release", "TextRelease"}
    assert {"AdaptiveClip", "ConvCritic", "Sgd", "Psi", "TextPsi", "Banded"} <= needed
