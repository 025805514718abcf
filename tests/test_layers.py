"""Imports go downwards, nothing public reaches private data, and starting up stays cheap."""

import ast
import pathlib
import subprocess
import sys

import pytest

import fedlens

ROOT = pathlib.Path(fedlens.__file__).parent

# The table of docs/design.md, lowest first. A module may import the layers below its own, and its own package.
LAYERS = (
    {"version", "trees", "randomness", "files"},
    {"arrayfiles", "tensorfiles", "replay", "pins"},
    {"functions"},
    {"transforms", "words", "misprints"},
    {"privacy", "models", "curator", "population"},
    {"ledger", "selection", "data", "readers", "prints"},
    {"algorithms", "inspection", "evaluation", "simulation", "flower", "audit"},
    # These may import everything.
    {
        "defaults",
        "recipe_tables",
        "recipe_problems",
        "recipes",
        "registration",
        "owner",
        "admission",
        "templates",
        "planning",
        "preparation",
        "text_preparation",
        "vocabularies",
        "experiments",
        "text_experiments",
        "run_reports",
        "runs",
        "safeguards",
        "demo",
        "cli",
        "web",
        "__init__",
        "__main__",
    },
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
TOP = len(LAYERS) - 1
PRIVATE = {"population", "selection", "data", "readers", "prints", "simulation", "flower", "audit"}
PUBLIC = {name for name, level in LEVEL.items() if level < TOP} - PRIVATE


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imported(name, source):
    """What a module of fedlens imports from fedlens, anywhere in its text: full names below `fedlens`."""
    package = ["fedlens", *name.split(".")[:-1]]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            found |= (
                {f"fedlens.{fedlens._HOMES.get(alias.name, alias.name)}" for alias in node.names}
                if (base == "fedlens")
                else {base}
            )
    return {full for full in found if full.split(".")[0] == "fedlens"}


def violations(name, source):
    """Why this module, with this text, breaks the rules of the layers."""
    own = name.split(".")[0]
    if LEVEL[own] == TOP:
        return []
    problems = []
    for full in sorted(imported(name, source)):
        other = full.split(".")[1] if "." in full else "fedlens"
        if other == "fedlens":
            problems.append(f"{name} imports the whole package, and with it every name")
        elif other not in LEVEL:
            problems.append(f"{name} imports {other}, which no layer lists")
        elif own in PUBLIC and other in PRIVATE:
            problems.append(f"{name} is public and imports {other}, which is private")
        elif other != own and LEVEL[other] >= LEVEL[own]:
            problems.append(f"{name} imports {other}, which is not below it")
    dynamic = {"import_module", "__import__", "exec", "spec_from_file_location"}
    if names_in(source) & dynamic and name != "functions":  # which opens those that users name
        problems.append(f"{name} imports by other means, which nobody can check")
    return problems


def names_in(source):
    nodes = list(ast.walk(ast.parse(source)))
    plain = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return (
        plain | attributes | {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    )


def test_every_module_belongs_to_a_layer():
    assert {name for name in MODULES if name.split(".")[0] not in LEVEL} == set()
    assert {"trees", "simulation", "algorithms.fedavg_gan", "privacy.plan", "population"} <= MODULES.keys()


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_downwards_and_nothing_public_reaches_private_data(name):
    assert violations(name, MODULES[name].read_text()) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("algorithms.new", "from fedlens.population import Population"),
        ("algorithms.new", "from fedlens import population"),
        ("algorithms.new", "from fedlens import trees, simulation as s"),
        ("algorithms.new", "from fedlens import Population"),
        ("algorithms.new", "import fedlens.data"),
        ("algorithms.new", "import fedlens"),
        ("algorithms.new", "from ..selection import AccuracyBetween"),
        ("algorithms.new", "from .. import simulation"),
        ("algorithms.new", "def f():\n    from fedlens.simulation import Engine"),
        ("algorithms.new", "if TYPE_CHECKING:\n    from fedlens.population import Population"),
        ("algorithms.new", "import importlib\nimportlib.import_module('fedlens.population')"),
        ("algorithms.new", "from importlib import import_module as load\nload('fedlens.population')"),
        ("algorithms.new", "__import__('fedlens.population')"),
        ("algorithms.new", "from fedlens.inspection import contrast"),
        ("inspection.new", "from fedlens.runs import Run"),
        ("models.new", "from fedlens.population import Population"),
        ("trees", "from fedlens.population import Population"),
        ("privacy.new", "from fedlens.ledger import Ledger"),
        ("curator", "from fedlens.simulation import Engine"),
        ("randomness", "from fedlens.data import digits"),
        ("ledger", "from fedlens.recipes import Recipe"),
        ("ledger", "from fedlens.selection import Classified"),
        ("simulation", "from fedlens.cli import main"),
        ("population", "from fedlens.ledger import Ledger"),
        ("algorithms.new", "from fedlens.unheard import of"),
    ],
)
def test_the_rules_catch_those_who_break_them(name, source):
    assert len(violations(name, source)) >= 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("algorithms.new", "from fedlens import trees\nfrom fedlens.models.gan import Gan\nimport torch"),
        ("algorithms.new", "from . import optimizers\nfrom fedlens.algorithms.optimizers import Sgd"),
        ("simulation", "from fedlens.population import Population\nfrom fedlens.ledger import Ledger"),
        ("cli", "from fedlens.runs import Run\nimport importlib"),
    ],
)
def test_the_rules_let_the_others_pass(name, source):
    assert violations(name, source) == []


@pytest.mark.parametrize("name", MODULES)
def test_nothing_is_ever_pickled(name):
    tree = ast.parse(MODULES[name].read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not modules & {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not called & {"torch.load", "torch.save", "pickle.load", "pickle.loads", "joblib.load"}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert ast.unparse(node.value) == "False"


@pytest.mark.parametrize("name", MODULES)
def test_only_one_package_knows_the_federation_library(name):
    tree = ast.parse(MODULES[name].read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert name.split(".")[0] == "flower" or not any(module.split(".")[0] == "flwr" for module in modules)


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


def test_every_public_name_is_where_the_package_says():
    """The package loads its names late, so a wrong home would be noticed late as well."""
    missing = [name for name in fedlens.__all__ if not hasattr(fedlens, name)]
    assert missing == []
    with pytest.raises(AttributeError, match="nonsense"):
        fedlens.nonsense  # noqa: B018
