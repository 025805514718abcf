"""Recipes that are carried out in a second: one model, and a pair."""

TINY = """
name = "tiny"
task = "T1"
side = 8
[data]
source = "digits"
deal_to = 30
[selections.all]
by = "everyone"
[privacy]
epsilon = 8.0
delta = 1e-5
rounds = 4
users = 30
population = 40
clip = 0.1
minimum_users = 5
[model]
critic_widths = [4, 6]
generator_latent = 4
generator_hidden = 12
generator_widths = [8, 4]
[training]
batch = 4
local_steps = 2
generator_steps = 1
generator_batch = 8
generator = { kind = "adam", rate = 1e-3 }
"""
PAIR = TINY.replace(
    '[selections.all]\nby = "everyone"',
    '[primary]\nepochs = 1\nwidths = [4]\n[selections.low]\nby = "wrong"\nminimum_examples = 1\n'
    '[selections.high]\nby = "right"\nminimum_examples = 1',
)
