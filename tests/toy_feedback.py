"""A small feedback GAN, the plan of its shards, and a recipe of one."""

from fedlens.algorithms.feedback_gan import FeedbackGan
from fedlens.algorithms.optimizers import Adam
from fedlens.models.gan import Gan
from fedlens.models.projection import ProjectionCritic, ResidualGenerator
from fedlens.privacy import Plan, RowClip, Unit

SHARDS = 6
PROJECTED = Gan(
    generator=ResidualGenerator(side=8, latent=4, width=6, classes=3),
    critic=ProjectionCritic(side=8, widths=(4, 6), classes=3),
)
ALGORITHM = FeedbackGan(gan=PROJECTED, batch=6, examples=8, local_steps=2, warm_steps=1, local=Adam(rate=1e-2))
RECIPE = """
name = "gs"
task = "T1"
algorithm = "feedback-gan"
side = 8
[data]
source = "digits"
deal_to = 100
[selections.all]
by = "everyone"
[privacy]
unit = "example"
epsilon = 50.0
delta = 1e-5
rounds = 8
units = 1797
population = 1797
sampling = "balanced"
groups = 5
shards = 5
[model]
size = "gs-wgan"
classes = 10
critic_widths = [4, 6]
generator_hidden = 6
[training]
batch = 10
examples = 12
local_steps = 1
warm_steps = 1
"""


def plan_of(sampling, bound=None, noise=0.0, releases=4):
    return Plan(
        sampling=sampling,
        bound=bound or RowClip(row_norm=1.0, rows=6),
        noise_multiplier=noise,
        releases=releases,
        expected_contributors=1.0,
        unit=Unit.EXAMPLE,
        shards=SHARDS,
    )


def written(folder, text=RECIPE):
    (folder / "gs.toml").write_text(text)
    return folder / "gs.toml"
