"""Processes that have torch loaded already and fedlens not: one that tests a copy of the code starts at once."""

import multiprocessing
import os
import pathlib
import sys
import types

import pytest

LOADED = (  # what takes seconds; never this project
    *("cryptography.hazmat.primitives.asymmetric.ed25519", "dp_accounting.pld.privacy_loss_distribution", "hypothesis"),
    *("jinja2", "numpy", "psycopg", "PIL.Image", "pydantic", "rich.progress", "scipy.optimize", "scipy.signal"),
    *("scipy.stats", "sklearn.datasets", "torch", "torch.func", "typer", "typer.testing"),
)


def context():
    """Whose processes are new, and soon ready."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([__name__, *LOADED])
    return made


def pytest_on(source, *arguments, folder, timeout=240):
    """Runs pytest with this copy of the package in front of the installed one."""
    said = pathlib.Path(folder) / "said"
    process = context().Process(target=_pytest, args=(str(source), str(said), arguments))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
    return types.SimpleNamespace(returncode=process.exitcode, stdout=said.read_text())


def _pytest(source, said, arguments):
    if any(name.partition(".")[0] == "fedlens" for name in sys.modules):
        raise RuntimeError("Expected no fedlens before the copy.")
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.path.insert(0, source)
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    raise SystemExit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=line", *arguments])))
