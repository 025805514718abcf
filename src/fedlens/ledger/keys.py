"""Ed25519 keys of those who sign: a private key in a file, its public half in hexadecimal."""

import os
import pathlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedlens.core import files

_MOST = 2**16  # bytes of a key's file: one has 119


def created(path: pathlib.Path) -> Ed25519PrivateKey:
    """A new key in a file that only its owner can read."""
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise ValueError(f"Expected no file at {path}; a key would be overwritten.") from None
    with os.fdopen(handle, "wb") as file:
        file.write(text)
    return key


def opened(path: pathlib.Path) -> Ed25519PrivateKey:
    with files.damage(f"Expected an Ed25519 private key (PEM, no password) in {path}."):
        key = serialization.load_pem_private_key(files.content(path, _MOST), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"Expected an Ed25519 private key in {path}, found another kind.")
    return key


def public(key: Ed25519PrivateKey) -> str:
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return raw.hex()


def signed(key: Ed25519PrivateKey, text: str) -> str:
    return key.sign(text.encode()).hex()


def verified(signer: str, signature: str, text: str) -> bool:
    try:
        sign = bytes.fromhex(signature)
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer)).verify(sign, text.encode())
    except (InvalidSignature, ValueError):
        return False
    return sign.hex() == signature  # written in one way only: anything else was edited
