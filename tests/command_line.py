"""The command line, run in this process or in one of its own, and what it printed."""

import contextlib
import functools
import io
import json
import os
import subprocess
import sys
import types

import pytest
import typer.main

from fedlens import cli
from fedlens.runs import folder as run_folders

GUARANTEE = {"epsilon", "delta", "unit", "neighbours", "sampling", "accountant", "not_covered"}
SECRET = "987654321"  # an id that nobody may quote


made_once = functools.cache(typer.main.get_command)  # of sixty commands, most of which nobody calls


def fedlens(*arguments, err=None):
    """Runs the command line in this process."""
    out, err = io.StringIO(), err or io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patched.setattr(sys, "argv", ["fedlens", *map(str, arguments)])
        patched.setattr(typer.main, "get_command", made_once)
        with pytest.raises(SystemExit) as left:
            cli.main()
    return types.SimpleNamespace(code=left.value.code or 0, out=out.getvalue(), err=err.getvalue())


def process(*arguments, cwd=None, **options):
    """Starts the command line in a process of its own."""
    surroundings = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedlens.cli", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, env=surroundings, **pipes | options)


def answer(*arguments):
    """What a command prints with --json, which must be all it prints."""
    done = fedlens(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def written(folder, text, name="recipe.toml"):
    path = folder / name
    path.write_text(text)
    return path


def ran(folder, *options):
    """`fedlens run` of the recipe in a folder."""
    return fedlens("run", folder / "recipe.toml", "--out", folder / "out", *options)


def standing(folder):
    """(epsilon spent, epsilon spent or reserved) of the population `crowd`; zeros where nothing is."""
    done = fedlens("ledger", "show", "--ledger", folder / "out" / "ledger.sqlite", "--json")
    assert done.code == 0, done.err
    found = [p for p in json.loads(done.out)["populations"] if p["population"] == "crowd"]
    kinds = "spent", "spent_and_reserved"
    return tuple((found[0][kind] or {"epsilon": 0})["epsilon"] if found else 0 for kind in kinds)


def run_folder(folder):
    """Of the one run in it."""
    (found,) = (folder / "out").glob("*/run.json")
    return found.parent


def interrupted(monkeypatch, owner, name, when=lambda *given, **named: True, after=False):
    """Presses Ctrl-C once, when `owner.name` is called (or has answered)."""
    plain, pressed = getattr(owner, name), []

    def call(*given, **named):
        if pressed or not when(*given, **named):
            return plain(*given, **named)
        pressed.append(True)
        if after:
            plain(*given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, call)


def stopped_after_a_round(monkeypatch, *arguments):
    """Presses Ctrl-C after the first round; the command that is said to go on."""
    facts = run_folders.facts

    def pressed(recipe, selection, done, charged, simulated):
        if done == 1:
            raise KeyboardInterrupt
        return facts(recipe, selection, done, charged, simulated=simulated)

    with monkeypatch.context() as patched:
        patched.setattr(run_folders, "facts", pressed)
        done = fedlens(*arguments)
    assert (done.code, done.out) == (130, "")
    (line,) = [line for line in done.err.splitlines() if "Go on with: " in line]
    return line.partition("Go on with: ")[2]
