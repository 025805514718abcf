"""The demo, from end to end: it finds the bug that was planted, and claims nothing where none was."""

import contextlib
import io
import json
import os
import subprocess
import sys

import pytest

from fedlens import cli


def demo(folder, *options):
    """The demo in this process; its answer and what it said on the way."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patched.setattr(sys, "argv", ["fedlens", "demo", "images", "--json", "--out", str(folder), *options])
        with pytest.raises(SystemExit) as left:
            cli.main()
    assert not left.value.code, err.getvalue()
    return json.loads(out.getvalue()), err.getvalue()


def assert_promised(guarantee):
    assert 7 < guarantee["epsilon"] <= 8
    assert guarantee["delta"] <= 1e-5
    assert (guarantee["unit"], guarantee["neighbours"]) == ("user", "add/remove")


def assert_inverted(report):
    (finding,) = report["findings"]
    assert finding["kind"] == "inverted"
    assert "inverted pixels" in finding["summary"]
    assert 0.4 < finding["score"] <= 1
    assert [run["label"] for run in report["runs"]] == ["low", "high"]
    assert report["hypotheses"][0]["kind"] == "inverted"


def test_the_planted_bug_is_found_in_a_process_of_its_own(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fedlens.cli", "demo", "images", "--json", "--simulate", "0"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert_inverted(report)
    assert_promised(report["guarantee"])
    assert report["guarantee"]["simulated"] is True
    assert report["guarantee"].keys() >= {"sampling", "accountant", "not_covered"}
    (run,) = (tmp_path / "runs").glob("demo-images-*")
    assert json.loads((run / "report.json").read_text()) == report
    assert 10_000 < (run / "report.html").stat().st_size < 3_000_000
    assert all((run / image["file"]).exists() for image in report["images"])


def test_the_planted_bug_is_found_under_real_noise(tmp_path):
    report, said = demo(tmp_path)
    assert_inverted(report)
    assert_promised(report["guarantee"])
    assert report["guarantee"]["simulated"] is False
    assert "SIMULATED" not in said
    assert not list((tmp_path / ".private").iterdir())


def test_nothing_is_claimed_where_no_bug_was_planted(tmp_path):
    report, _ = demo(tmp_path, "--no-bug", "--simulate", "0")
    assert report["findings"] == []
    assert_promised(report["guarantee"])
    assert report["runs"]
