"""One look at any medium, as it is asked for and kept.

look.safetensors holds all that was ever released, with its noise and its guarantee.
"""

import dataclasses
import pathlib
from typing import Any, ClassVar, Self

from fedlens.algorithms.look import OneLook
from fedlens.algorithms.rebuilding import from_settings, settings
from fedlens.core import files, tensorfiles
from fedlens.core.trees import Tree
from fedlens.ledger.provenance import damage_of
from fedlens.media.protocol import Trained
from fedlens.models.sizes import fitting
from fedlens.recipes.tables import Settings

FILE = "look.safetensors"


def problems(recipe: Settings) -> list[str]:
    """What a plan of one release that everybody is in says otherwise."""
    p = recipe.privacy
    wanted = {"rounds": (p.rounds, 1), "clip": (p.clip, 1.0), "sampling": (p.sampling, "everyone")}
    return [
        f"privacy.{name} is {given}: a look is one release that everybody is in, of norm 1; leave it out"
        for name, (given, expected) in wanted.items()
        if given != expected
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptLook(Trained):
    """The release, with its guarantee: the content of look.safetensors."""

    file: ClassVar[str] = FILE
    sent: ClassVar[type]  # what every unit sends, by its settings
    answer: ClassVar[type]  # the noisy mean of that
    release: Any

    def save(self, path: pathlib.Path) -> None:
        kept = self.release
        about = {"psi": settings(kept.psi), "noise": kept.noise, "units": kept.units}
        tensorfiles.write(path, kept.blocks, self._header() | about)

    @classmethod
    def open(cls, path: pathlib.Path) -> Self:
        blocks, about = tensorfiles.read(path)
        cls._check_header(about, path, ["psi", "noise", "units"])
        with damage_of(path):
            noise, units = about["noise"], about["units"]
            if not files.finite(noise) or noise < 0 or not files.finite(units) or units <= 0:
                raise ValueError
            psi = from_settings(cls.sent, about["psi"])
            release = cls.answer(psi=psi, blocks=blocks, noise=float(noise), units=float(units))
            opened = cls(release=release, **cls._stated(about))
        if not fitting(blocks, psi.shapes) or not all(leaf.isfinite().all() for leaf in blocks.values()):
            raise ValueError(f"Expected the blocks that its psi describes in {path.name}; some are of another size.")
        return opened

    @classmethod
    def of_state(cls, algorithm: OneLook, state: Tree, **about: Any) -> Self:
        """The release in a state, with the noise that its plan gave it."""
        if not about["rounds"]:  # what was charged, and not answered, would pass for one of zeros
            raise ValueError(
                f"Expected the answer to the look at {about['label']}: it is spent, and its checkpoint is gone or of"
                f" another machine. Where there is a {FILE}, it holds the answer; else start a new run."
            )
        plan = about["spending"].plans[-1]
        units = plan.expected_contributors
        blocks = {name: leaf.float().cpu() for name, leaf in algorithm.result(state).items()}
        release = cls.answer(psi=algorithm.psi, blocks=blocks, noise=plan.stddev / units, units=units)
        return cls(release=release, **about)
