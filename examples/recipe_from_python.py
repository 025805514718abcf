"""A recipe from Python: planned, carried out on data that are on every machine, and reported."""

import pathlib
import sys

import fedlens

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "recipe-run")
RECIPE = """
name = "digits"
task = "T1"
side = 8
[data]
source = "digits"
deal_to = 60
[selections.all]
by = "everyone"
[privacy]
epsilon = 8.0
delta = 1e-5
units = 60
population = 60
rounds = 5
clip = 0.1
[training]
batch = 8
local_steps = 1
"""
recipe = fedlens.Recipe.parsed(RECIPE, ["seed=7"])  # settings can be changed, as by --set
for stage in recipe.stages:
    print(f"{stage.name} of {stage.group}: {stage.plan.releases} releases")
print(recipe.guarantee(recipe.spendings()).headline)

run = fedlens.Run.created(recipe, out, address=out / "ledger.sqlite", seed=None, device="cpu")
report = run.executed(lambda group, done, rounds, facts: print(f"{group}: {done} of {rounds}"))
print(report.text())
print(run.folder / "report.html")
