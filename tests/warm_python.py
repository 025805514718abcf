"""Processes that have torch loaded already and fedlens not: one that tests a copy of the code starts at once."""

import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
import runpy
import sys
import types

import pytest

LOADED = (  # what takes seconds; never this project
    *("cryptography.hazmat.primitives.asymmetric.ed25519", "dp_accounting.pld.privacy_loss_distribution", "hypothesis"),
    *("jinja2", "numpy", "psycopg", "PIL.Image", "pydantic", "rich.progress", "scipy.optimize", "scipy.signal"),
    *("scipy.stats", "sklearn.datasets", "torch", "torch.func", "typer", "typer.testing"),
)


def context(*loaded):
    """Whose processes are new, and soon ready."""
    made, wanted = multiprocessing.get_context("forkserver"), [*(loaded or (__name__, *LOADED)), "frozen"]
    if (server := multiprocessing.forkserver._forkserver)._preload_modules != wanted:
        server._stop()  # Python keeps one server, with whatever the first to ask has loaded
        made.set_forkserver_preload(wanted)
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # or it would look elsewhere
            server.ensure_running()
    return made


def pytest_on(source, *arguments, folder, timeout=240):
    """Runs pytest with this copy of the package in front of the installed one."""
    return _done(_pytest, arguments, folder=folder, source=source, timeout=timeout)


def script(path, *arguments, folder, source=None, timeout=300):
    """As `python path arguments`, in a folder."""
    return _done(_script, (str(path), *arguments), folder=folder, source=source, timeout=timeout)


def module(name, *arguments, folder, source=None, timeout=300):
    """As `python -m name arguments`, in a folder."""
    return _done(_module, (name, *arguments), folder=folder, source=source, timeout=timeout)


def _done(work, arguments, *, folder, source, timeout):
    source = source and str(source)
    process = context().Process(target=_alone, args=(work, [*map(str, arguments)], str(folder), source))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
    out, err = (pathlib.Path(folder, name).read_text() for name in ("stdout", "stderr"))
    return types.SimpleNamespace(returncode=process.exitcode, stdout=out, stderr=err)


def _alone(work, arguments, folder, source):
    if any(name.partition(".")[0] == "fedlens" for name in sys.modules):
        raise RuntimeError("Expected no fedlens before the copy.")
    for number, name in ((1, "stdout"), (2, "stderr")):
        with open(os.path.join(folder, name), "wb") as file:
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    if source:
        sys.path.insert(0, source)
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    work(folder, *arguments)


def _pytest(folder, *arguments):
    plain = ["-x", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "--no-header", "--tb=line"]
    raise SystemExit(int(pytest.main([*plain, *arguments])))


def _script(folder, path, *arguments):
    os.chdir(folder)
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")


def _module(folder, name, *arguments):
    os.chdir(folder)
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)
