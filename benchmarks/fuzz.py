"""Damaged and hostile files, many of them: what is opened, by whom, what escaped, at what price.

    python benchmarks/fuzz.py 100000                  # inputs for each reader and opener
    python benchmarks/fuzz.py 1000 npz model          # of these only
    python benchmarks/fuzz.py 1000 --first 100000     # other inputs than those before

Every reader and opener runs in a process of its own, so that its peak memory is its own, and so that a process which
a library ends is counted and not lost. An escape is an exception that is none of ours, a message that quotes private
data, or a process that ended. Input k of a reader is always the same: `--first k` makes it again.
"""

import argparse
import collections
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
SECONDS, MEGABYTES = 5.0, 1000  # what no input may take


def work(name: str, first: int, inputs: int, folder: pathlib.Path, room: int) -> None:
    """Opens the inputs and prints what happened; notes which is next, should the process not survive it."""
    import torch
    from fuzzing import Fuzzer

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    fuzzer, note = Fuzzer(name, folder / "files"), folder / "next"
    start = _peak()
    escapes: collections.Counter[str] = collections.Counter()
    accepted, slowest, where = 0, 0.0, first
    for seed in range(first, first + inputs):
        note.write_text(str(seed))
        outcome = fuzzer.tried(seed)
        accepted += outcome.accepted
        if outcome.escaped:
            escapes[f"{outcome.escaped} (input {seed})" if not escapes[outcome.escaped] else outcome.escaped] += 1
        if outcome.seconds > slowest:
            slowest, where = outcome.seconds, seed
    outcomes = {
        "accepted": accepted,
        "slowest": slowest,
        "where": where,
        "escapes": escapes,
        "peak": _peak(),
        "start": start,
    }
    print(json.dumps(outcomes))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(name: str, first: int, inputs: int) -> dict[str, Any]:
    """Of one reader; after a process that ended, another goes on behind the input that ended it."""
    total: dict[str, Any] = {"inputs": inputs, "accepted": 0, "slowest": 0.0, "where": first}
    total |= {"escapes": {}, "peak": 0.0, "start": 0.0}
    done = first
    while done < first + inputs:
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "files").mkdir()
            command = [sys.executable, "-W", "ignore", __file__, str(first + inputs - done), name]
            command += ["--first", str(done), "--worker", folder]
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode == 0:
                part = json.loads(ran.stdout.splitlines()[-1])
                total["accepted"] += part["accepted"]
                total["peak"], total["start"] = max(total["peak"], part["peak"]), part["start"]
                if part["slowest"] > total["slowest"]:
                    total["slowest"], total["where"] = part["slowest"], part["where"]
                total["escapes"] |= part["escapes"]
                break
            note = pathlib.Path(folder) / "next"
            if not note.exists():
                raise SystemExit(f"{name} did not start:\n{ran.stderr}")
            at = int(note.read_text())
            total["escapes"][f"process ended with {ran.returncode} (input {at})"] = 1
            done = at + 1
    return total


def main() -> None:
    from fuzzing import TARGETS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", type=int, help="for each reader and opener")
    parser.add_argument("names", nargs="*", help=", ".join(TARGETS))
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--room", type=int, default=16, help="GiB of address space: beyond, memory cannot be had")
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        return work(asked.names[0], asked.first, asked.inputs, asked.worker, asked.room * 2**30)
    print("| reader or opener | inputs | opened | refused by us | escapes | peak MB (before) | slowest s (input) |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    bad = 0
    for name in asked.names or TARGETS:
        total = measured(name, asked.first, asked.inputs)
        escapes = sum(total["escapes"].values())
        refused = total["inputs"] - total["accepted"] - escapes
        peak, slowest = f"{total['peak']:.0f} ({total['start']:.0f})", f"{total['slowest']:.2f} ({total['where']})"
        row = (name, f"{total['inputs']:,}", f"{total['accepted']:,}", f"{refused:,}", escapes, peak, slowest)
        print(f"| {' | '.join(map(str, row))} |", flush=True)
        for escape, count in total["escapes"].items():
            print(f"  {count} x {escape}", file=sys.stderr, flush=True)
        bad += escapes or total["slowest"] > SECONDS or total["peak"] > MEGABYTES
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
