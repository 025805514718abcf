"""What documents name exists: files, tests, modules, settings, commands; and prose is wrapped, so that diffs show."""

import ast
import fnmatch
import functools
import importlib.util
import pathlib
import re
import tomllib

import pytest
import typer

import fedlens
from fedlens.cli import app
from fedlens.recipes import toml

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedlens"
PLACES = (ROOT.glob("*.md"), *((ROOT / folder).rglob("*.md") for folder in ("docs", "src", "tests", "examples")))
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for place in PLACES for path in place)
WIDTH = 100
FOLDERS = (".ci", "benchmarks", "docs", "recipes", "src", "tests", "tools")
OF_A_FILE = r".*\.(toml|jsonl?|txt|np[yz]|parquet|pt2|safetensors|html|md|sqlite|pem|py)"
LIBRARIES = ("np", "nn", "package", "torch", "warnings", "x")  # whose names are not ours to check

every_document = pytest.mark.parametrize("document", DOCUMENTS)


def text_of(document):
    return (ROOT / document).read_text(encoding="utf-8")


BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```$|(?<=\n\n)((?:    [^\n]*\n)+)", re.DOTALL | re.MULTILINE)


def prose(text):
    """Without blocks of code, fenced or indented."""
    return BLOCK.sub("", text)


def code(text):
    """Lines of code, those that go on after a backslash as one."""
    return "\n".join(map("".join, BLOCK.findall(text))).replace("\\\n", " ").splitlines()


def spans(text):
    """What stands in backticks, also where a line ends within."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))]


def too_long(text):
    lines = prose(text).splitlines()
    return [line for line in lines if len(line) > WIDTH and not line.startswith(("|", "#")) and not one_link(line)]


def one_link(line):
    return re.fullmatch(r"\s*(- )?(!?\[[^]]*\]\(\S+\)|<?https?://\S+)[.,;]?", line)


@every_document
def test_prose_is_wrapped(document):
    assert too_long(text_of(document)) == []


def test_a_long_line_is_noticed_and_what_cannot_be_wrapped_is_not():
    long = "word " * 25
    exceptions = [f"| {long} |", f"```\n{long}\n```", f"\n\n    {long}\n", f"# {long}", f"![{long}](picture.png)"]
    assert too_long(f"- {long}\n") == [f"- {long}"]
    assert [too_long(f"short\n\n{text}\n") for text in exceptions] == [[]] * len(exceptions)


@every_document
def test_relative_links_lead_somewhere(document):
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(text_of(document)))
    places = [target.split("#")[0] for target in targets if "://" not in target and not target.startswith("#")]
    assert [place for place in places if not (ROOT / document).parent.joinpath(place).exists()] == []


def missing(text):
    """What a text names and nobody has: files of the repository, modules and their names, settings of recipes."""
    return [span for span in spans(text) if not (is_file(span) if "/" in span else is_known(span))]


def is_file(span):
    """A path from the top or from the package exists; paths of data, runs and other machines are not ours."""
    if re.fullmatch(r"[\w./-]+", span) is None:
        return True
    ours = span.split("/")[0] in FOLDERS or span.endswith(".py")
    return not ours or (ROOT / span).exists() or (PACKAGE / span).exists()


def is_known(span):
    """A dotted name is a module's, a setting's or a class's own; anything else is no name."""
    parts = span.removeprefix("fedlens.").removesuffix("()").split(".")
    if re.fullmatch(r"[A-Za-z]\w*(\.\w+)+(\(\))?", span) is None or re.fullmatch(OF_A_FILE, span):
        return True
    return parts[0] in LIBRARIES or is_of_a_module(parts) or is_setting(parts) or is_of_a_class(parts)


def is_of_a_module(parts):
    place = PACKAGE
    while parts and (place / parts[0]).is_dir():
        place, parts = place / parts[0], parts[1:]
    if parts and (place / f"{parts[0]}.py").exists():
        place, parts = place / f"{parts[0]}.py", parts[1:]
    source = place if place.is_file() else place / "__init__.py"
    return place != PACKAGE and set(parts) <= set(re.findall(r"\w+", source.read_text(encoding="utf-8")))


def is_setting(parts):
    """By the tables that a recipe is made of."""
    return all(part in toml.fields(fedlens.Recipe, parts[:at]) for at, part in enumerate(parts))


def is_of_a_class(parts):
    return len(parts) == 2 and parts[1] in members().get(parts[0], ())


@functools.cache
def members():
    """By the name of a class of ours: its methods and fields."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py"))
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {node.name: {name for line in node.body for name in names(line)} for node in classes}


def names(line):
    if isinstance(line, ast.AnnAssign):
        return [line.target.id]
    return [line.name] if isinstance(line, ast.FunctionDef) else []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_modules_and_settings_that_are_named_exist(document):
    assert missing(text_of(document)) == []


def test_names_of_nothing_are_noticed():
    gone = ["tests/test_nothing.py", "models/nothing.py", "inspection.texts", "privacy.nothing", "Plan.nothing"]
    there = ["tests/test_docs.py", "models/operations.py", "core.files.damage", "privacy.epsilon", "Plan.epsilon"]
    assert missing("".join(f"`{span}` " for span in gone + there)) == gone


@functools.cache
def known_tests():
    files = sorted((ROOT / "tests").glob("*.py"))
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return [*(path.stem for path in files), *functions]


def missing_tests(text):
    """A name may be cut short by dots, or stand for several by a star."""
    named = [span for span in spans(text) if re.fullmatch(r"(test_|\.\.\._)[\w.*]+", span)]
    return [name for name in named if not fnmatch.filter(known_tests(), name.replace("...", "*"))]


@every_document
def test_tests_that_are_named_exist(document):
    assert missing_tests(text_of(document)) == []


def test_a_test_that_does_not_exist_is_noticed():
    assert missing_tests("`test_docs`, `test_a_test_that_...`, `test_no_such_test`") == ["test_no_such_test"]


def commands(text):
    """What is typed after `fedlens`, without comments; `a|b` is one command for each."""
    lines = [line.split(" #")[0] for line in [*code(text), *spans(text)]]
    typed = [match[1].split() for line in lines if (match := re.match(r"\s*(?:[A-Z_]+=\S+ )?fedlens (.+)", line))]
    return [[word, *rest] for words in typed for word, rest in alternatives(words)]


def alternatives(words):
    """The words of one or of several commands: a bar stands between names that may be typed."""
    first, *rest = words
    if rest and "|" in rest[0]:
        return [(first, [name, *rest[1:]]) for name in rest[0].split("|")]
    return [(name, rest) for name in first.split("|")]


def problem(words):
    """What of a command line fedlens does not know; None if it knows all of it."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return words[0]
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
    given = [word.split("=")[0] for word in words if word.startswith("--") and word != "--help"]
    return next((option for option in given if option not in known), None)


@every_document
def test_commands_that_are_shown_can_be_typed(document):
    typed = commands(text_of(document))
    assert [" ".join(words) for words in typed if problem(words)] == []


def test_commands_are_found_and_wrong_ones_noticed():
    text = "`fedlens ledger show|nothing`\n\n```\nfedlens plan recipe.toml --nothing 1 # why\n```\n"
    assert [problem(words) for words in commands(text)] == ["--nothing", None, "nothing"]
    assert len(commands(text_of("README.md")) + commands(text_of("docs/quickstart.md"))) > 20


@every_document
def test_targets_of_make_that_are_shown_exist(document):
    targets = set(re.findall(r"^(\w+):", text_of("Makefile"), re.MULTILINE))
    text = text_of(document)
    shown = [match[1] for line in [*code(text), *spans(text)] if (match := re.match(r"\s*make (\w+)", line))]
    assert set(shown) <= targets


def test_the_page_of_the_public_api_is_up_to_date():
    spec = importlib.util.spec_from_file_location("api", ROOT / "tools" / "api.py")
    api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(api)
    assert text_of("docs/api.md") == api.page(), "run `make api`"


def unfinished(text):
    """What is said of methods, where it ends in the middle of a sentence."""
    methods = re.split(r"\n(?=- `|\n|#)", text)
    return [said for said in map(str.strip, methods) if re.match(r"- `[^`]+`: ", said) and said[-1] not in ".:?!"]


def test_the_page_of_the_public_api_speaks_in_whole_sentences():
    assert unfinished(text_of("docs/api.md")) == []
    assert unfinished("- `a()`: One of\n  two.\n- `b() -> int`: One of\n- `c()`\n\n## d") == ["- `b() -> int`: One of"]


def test_the_oldest_versions_that_are_allowed_are_those_that_are_tried():
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["postgres"], *extras["readers"]]
    bounds = dict(re.match(r"([\w-]+)\S*?>=([\d.]+)", dependency).groups() for dependency in wanted)
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", text_of("constraints-oldest.txt").lower(), re.M))
    newest = dict(re.findall(r"^([\w-]+)==(\S+)$", text_of("constraints.txt").lower(), re.M))
    assert pins.pop("torch") == newest["torch"]  # an older one would bring CUDA
    assert {name: pin for name, pin in pins.items() if not f"{pin}.".startswith(f"{bounds.get(name, pin)}.")} == {}
    assert set(bounds) - {"torch"} <= set(pins)


def test_the_design_opens_with_the_whole_house_and_one_run_in_at_most_ten_stops():
    house, run = (part.split("\n## ")[0] for part in text_of("docs/design.md").split("\n## ", 3)[1:3])
    pictured = re.findall(r"[a-z.]+", " ".join(line for line in house.splitlines() if line.startswith("    ")))
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert house.startswith("The house\n")
    assert sorted(rooms - set(pictured)) == []
    assert run.startswith("One run")
    assert 5 <= len(re.findall(r"^\d+\. ", run, re.MULTILINE)) <= 10


def test_the_changelog_knows_this_version():
    assert re.search(rf"^## \[{re.escape(fedlens.__version__)}\] - \d{{4}}-\d\d-\d\d$", text_of("CHANGELOG.md"), re.M)
