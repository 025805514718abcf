"""The command line, run in this process."""

import contextlib
import io
import json
import sys
import types

import pytest

from fedlens import cli


def fedlens(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patched.setattr(sys, "argv", ["fedlens", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
    return types.SimpleNamespace(code=left.value.code or 0, out=out.getvalue(), err=err.getvalue())


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
