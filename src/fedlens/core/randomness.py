"""Cryptographic randomness for noise and cohorts.

Every draw is an AES-256 counter stream whose key is derived from the run's secret and a label that names the
release *and the question asked*. Asking the same question again (after a crash) gives the same answer, which
tells nobody anything new; another question never meets the same noise.
"""

import dataclasses
import hashlib
import hmac
import math
import os
import pathlib

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_ZEROS = bytes(2**18)


@dataclasses.dataclass(frozen=True)
class Randomness:
    """A secret, or in simulations a seed; `simulated` travels into every guarantee.

    >>> Randomness.seeded(1).uniform("cohort", 3).shape
    (3,)
    >>> Randomness.seeded(1).simulated
    True
    """

    key: bytes = dataclasses.field(repr=False)
    simulated: bool

    @classmethod
    def secret(cls) -> "Randomness":
        return cls(os.urandom(32), simulated=False)

    @classmethod
    def seeded(cls, seed: int) -> "Randomness":
        return cls(hashlib.sha256(f"fedlens simulation {seed}".encode()).digest(), simulated=True)

    @classmethod
    def kept_in(cls, path: pathlib.Path) -> "Randomness":
        """A secret that lies in a file: created once, readable by its owner only."""
        draft = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(os.urandom(32))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # whole or not at all, and never over one that is there
        except FileExistsError:
            pass
        finally:
            draft.unlink()
        return cls.opened(path)

    @classmethod
    def opened(cls, path: pathlib.Path) -> "Randomness":
        """One that was created before."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            raise ValueError("Expected the run's secret beside the ledger; it is gone. Start a new run.") from None
        with os.fdopen(handle, "rb") as file:
            key = file.read(33)
        if len(key) != 32:
            raise ValueError(f"Expected 32 bytes in the run's secret, found {len(key)}; start a new run.")
        return cls(key, simulated=False)

    def tag(self, text: str) -> str:
        """A name for `text` that nobody without the secret can compute or test a guess against."""
        return hmac.new(self.key, f"tag {text}".encode(), hashlib.sha256).hexdigest()

    def _words(self, label: str, count: int, pinned: bool = False) -> torch.Tensor:
        """Piece by piece into memory that is used again where it can be: fresh pages cost more than the cipher."""
        key = hmac.new(self.key, f"draw {label}".encode(), hashlib.sha256).digest()
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        words = torch.empty(count + 2, dtype=torch.int64, pin_memory=pinned)  # the library asks for a block at the end
        room = words.view(torch.uint8).numpy().data
        for at in range(0, 8 * count, len(_ZEROS)):
            size = min(len(_ZEROS), 8 * count - at)
            stream.update_into(_ZEROS[:size], room[at : at + size + 15])
        return words[:count]

    def uniform(self, label: str, count: int) -> np.ndarray:
        """Doubles in (0, 1), each from 53 fresh bits."""
        return _unit_interval(self._words(label, count)).numpy()

    def normal(self, label: str, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Standard normal doubles (Box-Muller on 53-bit uniforms), computed where they are needed."""
        half = (count + 1) // 2
        pinned = str(device).startswith("cuda")
        bits = self._words(label, 2 * half, pinned).to(device, non_blocking=pinned)
        radius = _unit_interval(bits[:half]).log_().mul_(-2).sqrt_()
        angle = _unit_interval(bits[half:]).mul_(2 * math.pi)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]


def _unit_interval(bits: torch.Tensor) -> torch.Tensor:
    return ((bits >> 11) & (2**53 - 1)).double().add_(0.5).mul_(2.0**-53)
