"""What the house promises about itself: a third medium is a folder and a line, a new algorithm a file and a line."""

import ast
import collections
import json
import pathlib
import re
import shutil
import tomllib

import numpy as np
import pytest
import warm_python
from toy_texts import PAIR

import fedlens
from fedlens import media
from fedlens.data.population import Population
from fedlens.media import MEDIA

SOURCE, TESTS = pathlib.Path(fedlens.__file__).parent, pathlib.Path(__file__).parent
RECIPE = """
name = "levels"
task = "T1"
[data]
source = "population"
path = "{data}"
attributes = ["version"]
[levels]
samples = 400
{selections}
[privacy]
epsilon = 8.0
delta = 1e-5
rounds = 12
units = 60
population = 130
clip = 1.0
minimum_units = 2
[training]
batch = 8
local_steps = 1
local_rate = 2.0
"""
ALGORITHM = '''"""DP-FedAvg-GAN whose users send half of their update."""

import dataclasses
from typing import ClassVar

from fedlens.algorithms.fedavg_gan import FedAvgGan
from fedlens.core import trees
from fedlens.core.trees import Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class HalvedGan(FedAvgGan):
    name: ClassVar[str] = "halved-gan"

    def critic_update(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        update, memory = super().critic_update(message, examples, memory)
        return trees.scaled(update, 0.5), memory
'''


@pytest.fixture
def house(tmp_path):
    """A copy of the package, to build on."""
    shutil.copytree(SOURCE, tmp_path / "fedlens")
    return tmp_path / "fedlens"


def with_line(path, after, line):
    """One more line in a table."""
    text = path.read_text()
    assert text.count(after) == 1
    path.write_text(text.replace(after, after + line))


def touched(house):
    """How the copy differs: new files, or the folder that all of them are in, and how many lines elsewhere."""
    before, after = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.py")} for root in (SOURCE, house)
    )
    folders = {path.parent for path in after.keys() - before.keys()}
    added = [
        len(after[path].splitlines()) - len(text.splitlines()) for path, text in before.items() if text != after[path]
    ]
    return [str(folder) for folder in folders], added


def command(house, *arguments):
    done = warm_python.module("fedlens.cli", *arguments, folder=house.parent, source=house.parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def people(folder):
    """The new release counts levels from the top."""
    rng = np.random.default_rng(0)
    users = 120
    versions = np.repeat(np.arange(users) % 2, 8)
    levels = rng.binomial(9, 0.15, users * 8)
    Population.from_arrays(
        "levels", {"level": np.where(versions, 9 - levels, levels), "version": versions}, np.full(users, 8)
    ).save(folder)


def test_a_third_medium_is_one_folder_and_one_line(house, tmp_path):
    """It is read, trained on, sampled, compared, reported and registered, and its fault is named."""
    shutil.copytree(TESTS / "toy_medium", house / "media" / "levels")
    with_line(
        house / "media" / "__init__.py",
        '    "text": "fedlens.media.text",\n',
        '    "levels": "fedlens.media.levels",\n',
    )
    assert touched(house) == (["media/levels"], [1])
    people(tmp_path / "levels")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(data=tmp_path / "levels", selections=PAIR))
    report = command(house, "run", "recipe.toml", "--out", "runs", "--json")
    assert [finding["kind"] for finding in report["findings"]] == ["upended"]
    assert report["guarantee"]["epsilon"] == pytest.approx(8.0, rel=1e-3)
    (folder,) = (tmp_path / "runs").glob("levels-*")
    assert command(house, "sample", folder / "new", "--count", 5, "--json")["count"] == 5
    compared = command(house, "compare", folder / "new", folder / "old", "--json")
    assert [finding["kind"] for finding in compared["findings"]] == ["upended"]
    (tmp_path / "shop.tally").write_text("".join(f"{line % 30} {line % 7}\n" for line in range(90)))
    book = ("--ledger", "runs/ledger.sqlite", "--json")
    command(house, "data", "register", "shop", "shop.tally", "--population", 40, *book)
    registered = command(house, "data", "show", *book)["populations"]
    assert [(known["name"], known["medium"]) for known in registered] == [("levels", "levels"), ("shop", "levels")]


def test_a_new_algorithm_is_one_file_and_one_line(house, tmp_path):
    (house / "algorithms" / "halved_gan.py").write_text(ALGORITHM)
    with_line(house / "algorithms" / "__init__.py", '    "ngrams": "Ngrams",\n', '    "halved_gan": "HalvedGan",\n')
    assert touched(house) == (["algorithms"], [1])
    demo = (SOURCE / "recipes" / "files" / "digits_gan.toml").read_text()
    (tmp_path / "recipe.toml").write_text('algorithm = "halved-gan"\n' + demo)
    settings = ["privacy.rounds=2", "privacy.minimum_units=1", "privacy.count_noise=1.0", "primary.epochs=3"]
    small = [word for setting in settings for word in ("--set", setting)]
    report = command(house, "run", "recipe.toml", "--out", "runs", *small, "--json")
    assert len(report["runs"]) == 2
    assert "halved-gan" in report["provenance"]["recipe"]


def asking(source):
    """Where a text branches on a medium: by its name or a source of its, by what is its own, or by asking for that."""
    nodes = list(ast.walk(ast.parse(source)))
    borrowed = {alias.asname or alias.name for node in nodes if _from_a_medium(node) for alias in node.names}
    tests = [test for node in nodes for test in _tests(node)]
    asked = [test for test in tests if any(_of_a_medium(node, borrowed) for node in ast.walk(test))]
    return list(map(ast.unparse, asked + [node for node in nodes if _looks_for_its_own(node)]))


def _from_a_medium(node):
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith(tuple(MEDIA.values()))


def _tests(node):
    """What decides where this goes on."""
    if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    return [node.subject] if isinstance(node, ast.Match) else [node] if isinstance(node, ast.BoolOp) else []


def _of_a_medium(node, borrowed):
    if isinstance(node, ast.Name) and node.id in borrowed:
        return True
    if isinstance(node, ast.Compare):
        compared = [part for side in (node.left, *node.comparators) for part in getattr(side, "elts", [side])]
        return any(isinstance(one, ast.Constant) and one.value in {*MEDIA, *SOURCES} for one in compared)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {"isinstance", "issubclass"}:
        return re.search(r"Text|Image|Gan|Ngram|LanguageModel", ast.unparse(node.args[1])) is not None
    return isinstance(node, ast.Attribute) and node.attr in {"text", "images", "gan", "vocabulary"}


def _looks_for_its_own(node):
    """getattr and hasattr, with a name that stands in the classes of one medium only."""
    asks = isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "hasattr"}
    return asks and isinstance(node.args[1], ast.Constant) and node.args[1].value in OWN


def members(paths):
    """What stands in the classes of some files: methods and fields."""
    classes = [
        node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    ]
    lines = [line for node in classes for line in node.body]
    fields = {line.target.id for line in lines if isinstance(line, ast.AnnAssign)}
    return fields | {line.name for line in lines if isinstance(line, ast.FunctionDef)}


SOURCES = {source for name in MEDIA for source in media.sources_of(name)}
OWN = members((SOURCE / "media").glob("*/*.py")) - members((SOURCE / "media").glob("*.py"))


def test_nobody_outside_media_asks_which_medium_it_is():
    """Evaluation is of images throughout, and a network's own settings are no question about a medium."""
    inside = ("media.", "evaluation.")
    modules = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    outside = {name: path.read_text() for name, path in modules.items() if not name.startswith(inside)}
    asked = {name: places for name, source in outside.items() if (places := asking(source))}
    assert asked == {"algorithms.fedavg_gan": ["self.gan.classes"]}
    assert len(outside) > 140


@pytest.mark.parametrize(
    "source",
    [
        "if recipe.text: pass",
        "x = 1 if kind == 'images' else 2",
        "[one for one in all if one.medium in ('text', 'sound')]",
        "known and made.medium != 'images'",
        "match recipe.images:\n    case None: pass",
        "if isinstance(model, TextModel): pass",
        "if data.source == 'digits': pass",
        "from fedlens.media.images import looks\nif name != looks.Look.medium: pass",
        "words = getattr(model, 'vocabulary', ())",
    ],
)
def test_whoever_asks_for_the_medium_is_noticed(source):
    assert len(asking(source)) == 1
    assert asking("if medium.measured or row['text'] == said: pass") == []


def test_one_name_is_one_class():
    """But for samples of images, the first of their kind, and two of what is fitted to a look."""
    trees = [ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")]
    names = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert {name for name, count in collections.Counter(names).items() if count > 1} <= {
        "Samples",
        "Gaussian",
        "Network",
    }


def test_no_variable_says_only_that_it_was_told_or_found():
    trees = [(path.name, ast.parse(path.read_text())) for path in SOURCE.rglob("*.py")]
    nodes = [(file, node) for file, tree in trees for node in ast.walk(tree)]
    names = {(file, node.id) for file, node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {(file, node.arg) for file, node in nodes if isinstance(node, ast.arg)}
    assert {(file, name) for file, name in names if name in {"told", "found", "felt"}} == set()
    assert ("recipe.py", "overrides") in names


def test_types_are_checked_everywhere_but_in_tests_and_others_are_told_so():
    root = TESTS.parent
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["mypy"]
    scripts = {path.parts[0] for path in (path.relative_to(root) for path in root.glob("[a-z]*/*.py"))} - {"tests"}
    assert settings["strict"] is True
    assert set(settings["files"]) == {"src/fedlens", *scripts}
    assert scripts == {"benchmarks", "examples", "tools"}
    assert (SOURCE / "py.typed").exists()


def test_the_top_of_the_package_is_a_list_of_rooms():
    assert {path.name for path in SOURCE.glob("*.py")} == {"__init__.py", "version.py"}
