"""What a recipe gets where it leaves settings open: from epsilon and users alone, never over what it says itself."""

import pytest

from fedlens.recipes.recipe import Recipe

OPEN = """
name = "open"
task = "T4"
side = 28
[data]
source = "npz"
path = "phones.npz"
[primary]
model = "cnn.safetensors"
[selections.low]
by = "accuracy"
below = 0.7
[selections.high]
by = "accuracy"
at_least = 0.7
[privacy]
epsilon = 8.0
delta = 1e-5
users = 255
population = 600
"""


def opened(*sets):
    return Recipe.parsed(OPEN, sets)


@pytest.mark.parametrize(
    ("epsilon", "rounds", "critic", "steps"),
    [
        (8, 105, (24, 48), 8),
        (2, 35, (24, 48), 20),
        (1, 20, (24, 48), 20),
        (0.5, 11, (16, 32), 20),
        (0.25, 8, (8, 16), 20),
    ],
)
def test_settings_follow_from_epsilon(epsilon, rounds, critic, steps):
    recipe = opened(f"privacy.epsilon={epsilon}")
    assert recipe.privacy.rounds == rounds
    assert recipe.model.critic_widths == critic
    assert recipe.training.generator_steps == steps
    assert recipe.guarantee(recipe.spendings()).epsilon <= epsilon


def test_more_users_carry_a_larger_critic_and_fewer_a_smaller_one():
    weights = [
        sum(opened("privacy.epsilon=1", f"privacy.users={users}").model.critic_widths) for users in (60, 150, 500)
    ]
    assert weights == sorted(weights)
    assert weights[0] < weights[-1]


@pytest.mark.parametrize("epsilon", [0.1, 1, 8])
def test_a_group_of_nobody_passes_in_fewer_than_one_of_a_hundred_runs(epsilon):
    privacy = opened(f"privacy.epsilon={epsilon}").privacy
    assert privacy.minimum_units >= 2.33 * privacy.count_noise
    assert opened("privacy.count_noise=50").privacy.minimum_units == 120


def test_what_a_recipe_says_itself_stays():
    assert opened("privacy.rounds=30").privacy.rounds == 30
    assert opened("privacy.rounds=30").privacy.clip == 0.1
    assert opened("privacy.clip=0.7").privacy.clip == 0.7
    assert opened("training.batch=7").training.batch == 7
    assert opened("model.critic_widths=[4]").model.critic_widths == (4,)
    small = opened("model.size=small").model
    assert (small.size, small.critic_widths, small.generator_widths) == ("small", None, None)
    adaptive = opened("privacy.adaptive_clip={ start = 0.2 }").privacy
    assert (adaptive.clip, adaptive.adaptive_clip.start) == (None, 0.2)


def test_a_recipe_that_says_rounds_and_clip_is_left_alone():
    recipe = opened("privacy.rounds=30", "privacy.clip=0.5")
    assert recipe.model.critic_widths is None
    assert recipe.privacy.count_noise == 4.0


def test_a_resolved_recipe_stays_as_it_is():
    """Or a resumed run would find another one."""
    from fedlens.recipes.toml import to_toml

    for sets in ((), ("privacy.epsilon=0.3",), ("model.size=small",), ("privacy.adaptive_clip={ start = 0.2 }",)):
        recipe = opened(*sets)
        again = Recipe.parsed(to_toml(recipe))
        assert again == recipe
        assert again.digest == recipe.digest


@pytest.mark.parametrize(("side", "start"), [(8, 2), (28, 7), (32, 8), (64, 8), (128, 8)])
def test_larger_images_take_more_steps_not_a_larger_start(side, start):
    generator = (recipe := opened(f"side={side}")).medium.network(recipe).generator
    assert side >> (len(generator.widths) - 1) == start


@pytest.mark.parametrize("wrong", ["privacy.epsilon=-1", "privacy.epsilon=1e9", "privacy.rounds=x", "training=3"])
def test_wrong_settings_are_told_not_settled(wrong):
    with pytest.raises(ValueError, match="problem"):
        opened(wrong)
