"""Users per second of the language models' gradients, vectorised over users against per-user loops, in one run.

    python benchmarks/language.py [--device cuda] [--networks paper small] [--users 50 100 1000] [--repeats 7]

Every user has 20 words and weights of its own, as in any local step but the first; one gradient each.
- plain:   what one would write first: a loop over users and steps, differentiated by autograd.
- loop:    one user after the other with `LanguageModel.loss`, whose layers' gradient is written out.
- vmap:    the same loss for all users at once, in chunks; on a CPU of 10 users, which stay near the cache.
- threads: the same chunks in one thread per core, one core each, as the engine does it (CPU only).
Loops cost the same for every user, so on a GPU they are timed on 20 and compared by rate. Timings alternate; medians
are printed, one JSON line per row. The floor is the arithmetic of one user's gradient, counted, at the measured
rate of one large matrix product on all cores.
"""

import fedlens  # noqa: F401, I001  before torch, whose threads then sleep while they wait

import argparse
import concurrent.futures
import json
import os
import platform
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedlens.core import trees
from fedlens.core.trees import Tree
from fedlens.models.lstm import LanguageModel

NETWORKS = {"paper": LanguageModel.spelling(), "small": LanguageModel.small_spelling()}
WORDS, WIDTH = 20, 16
CHUNK = {"cpu": 10, "cuda": 1000}


class Users:
    """Made-up spellings, and one set of weights for each user."""

    def __init__(self, model: LanguageModel, count: int, device: str) -> None:
        self.model, self.count, self.device = model, count, device
        rng = torch.Generator().manual_seed(0)
        rows = torch.randint(97, 123, (count, WORDS, WIDTH), generator=rng)
        at = torch.arange(WIDTH)
        ends = torch.randint(4, WIDTH, (count, WORDS, 1), generator=rng)
        rows = torch.where(at < ends, rows, torch.where(at == ends, model.end, -1))
        rows[..., 0] = model.start
        self.sequences, self.mask = rows.to(device), torch.ones(count, WORDS, device=device)
        params = trees.moved(model.init(0), device)
        self.params = {name: leaf.expand(count, *leaf.shape).clone() for name, leaf in params.items()}

    def plain(self, users: int) -> None:
        for user in range(users):
            params = {name: leaf.detach().requires_grad_() for name, leaf in trees.row(self.params, user).items()}
            torch.autograd.grad(plain_loss(self.model, params, self.sequences[user]), list(params.values()))

    def loop(self, users: int) -> None:
        for user in range(users):
            torch.func.grad(self.model.loss)(trees.row(self.params, user), self.sequences[user], self.mask[user])

    def part(self, first: int) -> None:
        """The gradients of one chunk."""
        rows = slice(first, first + CHUNK[self.device])
        params = {name: leaf[rows] for name, leaf in self.params.items()}
        torch.func.vmap(torch.func.grad(self.model.loss))(params, self.sequences[rows], self.mask[rows])

    def vmap(self) -> None:
        for first in range(0, self.count, CHUNK[self.device]):
            self.part(first)

    def threads(self, pool: concurrent.futures.Executor) -> None:
        list(pool.map(self.part, range(0, self.count, CHUNK[self.device])))

    def flop(self) -> int:
        """Of one user's gradient: products of matrices, as they are run."""
        with FlopCounterMode(display=False) as counter:
            self.loop(1)
        return int(counter.get_total_flops())


def plain_loss(model: LanguageModel, params: Tree, sequences: torch.Tensor) -> torch.Tensor:
    """The same function, step by step."""
    rows, layers = len(sequences), range(model.layers)
    cells = [torch.zeros(rows, model.units, device=sequences.device) for _ in layers]
    shown = [torch.zeros(rows, model.projection, device=sequences.device) for _ in layers]
    logits = []
    for symbols in sequences[:, :-1].T:
        x = F.embedding(symbols.clamp(min=0), params["embedding"])
        for i in layers:
            gates = F.linear(x, params[f"layer{i}.input"], params[f"layer{i}.bias"])
            gates = gates + F.linear(shown[i], params[f"layer{i}.recurrent"])
            forget, output, candidate = gates.chunk(3, -1)
            forget = forget.sigmoid()
            cells[i] = forget * cells[i] + (1 - forget) * candidate.tanh()
            x = shown[i] = F.linear(output.sigmoid() * cells[i].tanh(), params[f"layer{i}.projection"])
        logits.append(F.linear(x, params["output.weight"], params["output.bias"]))
    return F.cross_entropy(torch.stack(logits, 1).flatten(0, 1), sequences[:, 1:].flatten(), ignore_index=-1)


def seconds(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak(device: str, cores: int) -> float:
    """FLOP/s of one large product of matrices: the best of ten."""
    side = 8192 if device == "cuda" else 2048
    matrix = torch.randn(side, side, device=device)
    torch.set_num_threads(cores)
    best = min(seconds(lambda: matrix @ matrix, device) for _ in range(10))
    torch.set_num_threads(1)
    return 2 * side**3 / best


def measured(network: str, count: int, device: str, repeats: int) -> dict[str, object]:
    users, cores = Users(NETWORKS[network], count, device), os.cpu_count() or 1
    few = min(count, 20) if device == "cuda" else count
    with concurrent.futures.ThreadPoolExecutor(cores, "users", torch.set_num_threads, (1,)) as pool:
        ways = {"plain": (lambda: users.plain(few), few), "loop": (lambda: users.loop(few), few)}
        ways["vmap"] = (users.vmap, count)
        if device == "cpu":
            ways["threads"] = (lambda: users.threads(pool), count)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats + 1):  # the first time warms up
            for name, (way, done) in ways.items():
                rates[name].append(done / seconds(way, device))
    medians = {name: statistics.median(values[1:]) for name, values in rates.items()}
    floor = peak(device, cores) / users.flop()
    return {
        "network": network,
        "weights": users.model.weights,
        "users": count,
        "users_per_s": {name: round(rate, 1) for name, rate in medians.items()},
        "vs_plain": {name: round(rate / medians["plain"], 2) for name, rate in medians.items()},
        "gflop_per_user": round(users.flop() / 1e9, 3),
        "floor_users_per_s": round(floor, 1),
        "of_floor": round(max(medians.values()) / floor, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--users", nargs="+", type=int)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(1)  # the loops are slower with more
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} CPU cores"
    about = {"date": time.strftime("%Y-%m-%d"), "machine": machine, "platform": platform.machine()}
    print(json.dumps(about | {"torch": torch.__version__, "load": os.getloadavg()[0]}), flush=True)
    for network in options.networks:
        for users in options.users or ([50] if options.device == "cpu" else [100, 1000]):
            print(json.dumps(measured(network, users, options.device, options.repeats)), flush=True)


if __name__ == "__main__":
    main()
