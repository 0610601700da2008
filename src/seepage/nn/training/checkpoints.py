"""Writes and reads checkpoints: files of tensors and text, written atomically, without pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seepage.errors import OTHER_NAMES, InputError
from seepage.support.files import write_private
from seepage.support.keyed_stream import KeyedStream
from seepage.tables.names import counted


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and JSON-serialisable facts to one safetensors file.

    The file is written under a temporary name and then renamed, so that killing the process leaves
    the last checkpoint intact. The file has a checksum, and only its owner can read it.
    """
    from safetensors.torch import save

    # Tensors that share memory (tied weights) are written separately.
    apart = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    text = json.dumps(facts)
    content = save(apart, metadata={"facts": text, "sha256": _checksum(apart, text)})
    write_private(path, lambda file: file.write(content))


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts of a checkpoint."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if about["sha256"] != _checksum(tensors, about["facts"]):
                raise ValueError("its checksum does not match its content")
            return tensors, json.loads(about["facts"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is damaged or not a seepage checkpoint; give the path of a checkpoint, or "
            "another path to start a new run."
        ) from error


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Return the SHA-256 of a checkpoint's content."""
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def write_key(path: Path, stream: KeyedStream) -> None:
    """Write a run's key to a file next to its checkpoint; only the file's owner can read it.

    The checkpoint never contains the key, so that a reader of the checkpoint cannot remove the
    noise.
    """
    write_private(_key_file(path), lambda file: file.write(stream.key.hex().encode()))


def read_key(path: Path) -> KeyedStream:
    """Read a checkpoint's key file, and return the run's random stream."""
    try:
        return KeyedStream(bytes.fromhex(_key_file(path).read_text(encoding="ascii")))
    except FileNotFoundError:
        raise InputError(
            f"{_key_file(path)}, the key of the run in {path}, is missing, so the run cannot "
            "resume; restore the key file, or delete the checkpoint to start a new run."
        ) from None
    except ValueError as error:
        raise InputError(
            f"{_key_file(path)} is damaged or not a run's key file; restore it, or delete the "
            "checkpoint to start a new run."
        ) from error


def _key_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.key")


def check_same_run(
    path: Path, stored: Mapping[str, Any], mine: Mapping[str, Any], steps: int
) -> None:
    """Raise an error unless the run can resume from a checkpoint, for ``steps`` steps."""
    stored = {OTHER_NAMES.get(name, name): value for name, value in stored.items()}
    if "loss" not in stored:
        raise InputError(
            f"{path} was written by an earlier version of seepage, which did not store everything "
            "that identifies a run. Name another checkpoint, or delete this one to start a new run."
        )
    for name, value in mine.items():
        if stored.get(name) != value:
            raise InputError(
                f"{path} contains a different run: its {name} is {stored.get(name)!r}, not "
                f"{value!r}. Name another checkpoint, or delete this one to start a new run."
            )
    announced = stored["theorem4_steps"]
    if announced is not None and announced != steps:
        raise InputError(
            f"{path} contains a run that divides the failure probability of theorem 4 among "
            f"{counted(announced, 'step')}, so it cannot be resumed for {counted(steps, 'step')}. "
            f"Give steps={announced}, or start a new run with another checkpoint."
        )
