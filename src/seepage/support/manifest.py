"""The manifest of a folder: its files with their SHA-256 digests and, if signed, a signature."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seepage.support.signatures import Sign, Signature
from seepage.support.strict_json import TEXT, check_fields, is_digest, is_text, read_json

MANIFEST = "manifest.json"
_FORMAT = "seepage-folder/1"


@dataclass(frozen=True)
class Manifest:
    """The files of a folder and its kind; the kind is ``None`` if there is no valid manifest."""

    kind: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    signature: Signature | None = None

    @classmethod
    def of(cls, folder: Path) -> Manifest:
        """Return the manifest of a folder, which is empty if there is no valid manifest file."""
        path = folder / MANIFEST
        if path.is_symlink() or not path.is_file():
            return cls()
        try:
            content = read_json(path)
            check_fields(content, _FIELDS, "the manifest", optional=("signature",))
        except (OSError, ValueError):
            return cls()
        signed = content.get("signature")
        signature = signed and Signature(*(bytes.fromhex(signed[k]) for k in ("key", "value")))
        return cls(content["kind"], content["files"], signature)

    @property
    def signed_bytes(self) -> bytes:
        """The signed bytes: format, kind and files as JSON, with sorted keys and no spaces."""
        return json.dumps(self._plain(), sort_keys=True, separators=(",", ":")).encode()

    def signed(self, sign: Sign) -> Manifest:
        """Return this manifest with a signature."""
        return replace(self, signature=sign(self.signed_bytes))

    def text(self) -> str:
        """Return the contents of the manifest file."""
        content = self._plain()
        if self.signature is not None:
            signed = {"key": self.signature.key.hex(), "value": self.signature.value.hex()}
            content["signature"] = signed
        return json.dumps(content, indent=2) + "\n"

    def _plain(self) -> dict[str, Any]:
        return {"format": _FORMAT, "kind": self.kind, "files": dict(self.files)}


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _are_files(value: Any) -> bool:
    """Return whether all names have digests, and no name leads out of the folder on any system."""
    if not isinstance(value, dict) or not all(map(is_digest, value.values())):
        return False
    parts = {part for name in value for part in name.split("/")}
    inside = parts.isdisjoint(("", ".", "..")) and "\\" not in "".join(parts)
    return inside and all(map(is_text, value))


def _is_signature(value: Any) -> bool:
    try:
        sizes = {name: len(bytes.fromhex(part)) for name, part in value.items()}
    except (AttributeError, TypeError, ValueError):
        return False
    return sizes == {"key": 32, "value": 64}


_FIELDS = {
    "format": (lambda value: value == _FORMAT, f"{_FORMAT!r}"),
    "kind": TEXT,
    "files": (_are_files, "names in the folder with their SHA-256 digests"),
    "signature": (_is_signature, "a key and a value in hexadecimal digits"),
}
