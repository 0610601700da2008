"""Ed25519 signatures, which prove who signed a folder; checksums do not prove its origin.

Keys are PEM files in the format of OpenSSL. ``openssl genpkey -algorithm ed25519 -out key.pem``
makes a private key, and ``openssl pkey -in key.pem -pubout -out public.pem`` extracts the public
key that recipients need. Send the public key to recipients separately from the folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from seepage.errors import InputError

Sign = Callable[[bytes], "Signature"]


@dataclass(frozen=True)
class Signature:
    """A signature, with the public key that verifies it."""

    key: bytes
    value: bytes

    def fits(self, message: bytes) -> bool:
        """Return whether this message was signed with the private key for this public key."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.key).verify(self.value, message)
        except (InvalidSignature, ValueError):  # the latter if these bytes are no key
            return False
        return True

    @property
    def signer(self) -> str:
        """The SHA-256 of the public key, for people to compare."""
        return hashlib.sha256(self.key).hexdigest()


def signing_with(path: Path) -> Sign:
    """Return a function that signs with the private key in a PEM file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content, make = _bytes_of(path), "make one with `openssl genpkey -algorithm ed25519`"
    try:
        key = load_pem_private_key(content, password=None)
    except TypeError as error:  # it has a password
        raise InputError(
            f"The private key {path.name!a} has a password; use a key file that has no password "
            "and that only you can read."
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path.name!a} contains no private key; {make}.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"The key {path.name!a} is not an Ed25519 key; {make}.")
    public = key.public_key().public_bytes_raw()
    return lambda message: Signature(public, key.sign(message))


def public_key(path: Path) -> bytes:
    """Return the 32 bytes of the public key in a PEM file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    content, key = _bytes_of(path), None
    with suppress(ValueError, UnsupportedAlgorithm):
        key = load_pem_public_key(content)
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(
            f"{path.name!a} contains no public Ed25519 key; extract it with `openssl pkey -in "
            "key.pem -pubout -out public.pem`."
        )
    return key.public_bytes_raw()


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(10**5)  # a key has some hundred bytes
    except OSError as error:
        raise InputError(
            f"The key {path.name!a} cannot be read: {error.strerror or error}; check the path."
        ) from error
