"""Every script in examples/ runs as it is, and says what it is there to say."""

import pathlib

import pytest
import warm_python

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
SAYS = {
    "arrays_to_report.py": ["two cameras", "inverted", "privacy: epsilon", "simulated"],
    "recipe_from_python.py": ["count of all: 1 releases", "train of all: 5 releases", "all: 5 of 5", "report.html"],
    "ledger.py": ["ten releases cost epsilon", "refused: "],
    "own_fault.py": ["Rows read three lines too late"],
    "text.py": ["privacy: epsilon 8.00", "likeliest words of all"],
}


def test_all_are_tried():
    assert {path.name for path in EXAMPLES.glob("*.py")} == SAYS.keys()


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs(name, tmp_path):
    done = warm_python.script(EXAMPLES / name, tmp_path / "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    missing = [words for words in SAYS[name] if words.lower() not in done.stdout.lower()]
    assert missing == [], done.stdout
