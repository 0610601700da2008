"""Stores each reference model's predictions in a folder, so that an attack can be resumed.

Each model has one safetensors file, which contains its predictions, a digest that identifies the
attack, and a checksum. Only the owner can read the files. A file is written completely or not at
all, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seepage.attacks.membership.signals import ModelAnswers
from seepage.errors import InputError
from seepage.support.files import write_private


def write_answer(path: Path, answer: ModelAnswers, facts: Mapping[str, Any]) -> None:
    """Write one model's predictions."""
    from safetensors.numpy import save

    text = json.dumps(dict(facts) | {"residual": answer.residual}, sort_keys=True)
    values = np.ascontiguousarray(answer.values, dtype=np.float64)
    metadata = {"facts": text, "sha256": _checksum(values, text)}
    content = save({"answers": values}, metadata=metadata)
    write_private(path, lambda file: file.write(content))


def read_answer(path: Path, facts: Mapping[str, Any]) -> ModelAnswers | None:
    """Return one model's predictions, or None if the file does not exist yet."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as file:
            about = file.metadata()
            values = file.get_tensor("answers")
        if values.dtype != np.float64 or about["sha256"] != _checksum(values, about["facts"]):
            raise ValueError("its checksum does not match its content")
        stored = json.loads(about["facts"])
        residual = bool(stored.pop("residual"))
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is damaged, or was not written by this attack; delete it to train that "
            "reference model again."
        ) from error
    if stored != json.loads(json.dumps(dict(facts))):
        raise InputError(
            f"{path} belongs to another attack (other records, halves or settings); choose another "
            "folder, or delete the file to start again."
        )
    return ModelAnswers(values, residual)


def digest_of_records(*parts: Any) -> str:
    """Return the SHA-256 digest of records: arrays, tensors, data frames or mappings of these."""
    digest = hashlib.sha256()
    for part in parts:
        _update(digest, part)
    return digest.hexdigest()


def _update(digest: Any, part: Any) -> None:
    if isinstance(part, Mapping):
        for name in sorted(part):
            digest.update(str(name).encode())
            _update(digest, part[name])
        return
    if hasattr(part, "detach"):
        part = part.detach().cpu()
    if hasattr(part, "columns") and not isinstance(part, np.ndarray):
        digest.update(json.dumps([str(name) for name in part.columns]).encode())
    array = np.asarray(part)
    if array.dtype.kind == "O":
        digest.update(json.dumps(array.tolist(), default=str).encode())
        return
    digest.update(json.dumps([str(array.dtype), list(array.shape)]).encode())
    digest.update(np.ascontiguousarray(array).tobytes())


def _checksum(values: np.ndarray, facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    digest.update(json.dumps(list(values.shape)).encode())
    digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
