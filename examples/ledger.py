"""A ledger that refuses to overspend: a budget, what was spent, and what a refusal says."""

import fedlens

ledger = fedlens.Ledger()  # in memory; give a path to keep it, or postgresql://... for a team
ledger.set_budget(fedlens.Budget(population="people", epsilon=2.0, delta=1e-5, size=1000), why="an example")
plan = fedlens.Plan(
    sampling=fedlens.Poisson(rate=0.1, population=1000),
    bound=fedlens.L2Clip(norm=1.0),
    noise_multiplier=2.0,
    releases=10,
    expected_contributors=100,
)
print(f"ten releases cost epsilon {plan.epsilon(1e-5):.3f} at delta 1e-5")

account = fedlens.Account(run="first look", population="people")
for release in range(plan.releases):
    ledger.charge(account, "train", plan, release=release, query=f"question {release}")  # before any data are read
print(fedlens.guarantee([ledger.spending("first look")], 1e-5).statement())

greedy = fedlens.Account(run="a greedy look", population="people")
dear = fedlens.Plan(
    sampling=fedlens.Everyone(),
    bound=fedlens.L2Clip(norm=1.0),
    noise_multiplier=0.5,
    releases=1,
    expected_contributors=1000,
)
try:
    ledger.charge(greedy, "train", dear, release=0, query="everything")
except fedlens.PrivacySpentError as refusal:
    print(f"refused: {refusal}")
