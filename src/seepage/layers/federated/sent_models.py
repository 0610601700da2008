"""The models that a server sent to its clients, stored with the recorded updates.

An attacker who has seen these models can train shadow clients from them
(:class:`seepage.attacks.ShadowClients`). In a recorder's folder, every round and run has one file,
``model-of-round-000003-run-7.safetensors``. A recording in a single file stores the models as
further arrays. The files are readable only by their owner, and nothing is pickled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.support.files import write_private

_FILE = re.compile(r"model-of-round-(-?\d+)-run-(\d+)\.safetensors")
_ARRAY = re.compile(r"model (-?\d+) (\d+) (.*)", re.DOTALL)


class Sent(NamedTuple):
    """The round and the run in which a model was sent; a run of 0 means unknown."""

    round: int
    run: int = 0

    @staticmethod
    def of(key: Any) -> Sent:
        """Return the round and run of a key: a round, or a pair of round and run."""
        return Sent(*map(int, key)) if isinstance(key, tuple) else Sent(int(key))


Models = dict[Sent, dict[str, Tensor]]


def store_model(folder: Path, sent: Sent, state: Mapping[str, Tensor]) -> None:
    """Write the model of a round and run to a recorder's folder, unless it is already there.

    Examples
    --------
    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from seepage.layers.federated.sent_models import Sent, models_of_folder, store_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store_model(Path(folder), Sent(3), torch.nn.Linear(2, 1).state_dict())
    ...     {sent.round: list(state) for sent, state in models_of_folder(Path(folder)).items()}
    {3: ['bias', 'weight']}
    """
    from safetensors.torch import save

    path = folder / f"model-of-round-{sent.round:06d}-run-{sent.run}.safetensors"
    if not path.exists():
        # Tied weights share memory, which the format refuses.
        content = save({name: value.detach().cpu().clone() for name, value in state.items()})
        write_private(path, lambda file: file.write(content))


def model_arrays(models: Mapping[Any, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return models, by round or by round and run, as the arrays of a recording in one file."""
    arrays = {}
    for key, state in models.items():
        sent = Sent.of(key)
        for name, value in state.items():
            tensor = torch.as_tensor(value).detach().cpu()
            # NumPy has no bfloat16.
            whole = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            arrays[f"model {sent.round} {sent.run} {name}"] = whole.numpy()
    return arrays


def models_of_folder(folder: Path) -> Models:
    """Return the models in a recorder's folder, by round and run."""
    from safetensors.torch import load_file

    found: Models = {}
    for file in sorted(folder.iterdir()):
        name = _FILE.fullmatch(file.name)
        if name:
            try:
                found[Sent(int(name[1]), int(name[2]))] = load_file(file)
            except Exception as error:
                raise InputError(
                    f"{file} is not a complete model ({error}); record the run again."
                ) from error
    return found


def models_of_arrays(arrays: Mapping[str, np.ndarray]) -> Models:
    """Return the models among the arrays of a recording in one file, by round and run."""
    found: Models = {}
    for entry, values in arrays.items():
        match = _ARRAY.fullmatch(entry)
        if match:
            state = found.setdefault(Sent(int(match[1]), int(match[2])), {})
            state[match[3]] = torch.from_numpy(np.array(values))
    return found


def model_of(models: Models, sent: Sent) -> dict[str, Tensor]:
    """Return the model of a round and run; an unknown run matches if the round has one model."""
    if sent in models:
        return models[sent]
    same = [state for key, state in models.items() if key.round == sent.round]
    unknown = sent.run == 0 or any(key.run == 0 for key in models)
    if len(same) != 1 or not unknown:
        raise InputError(
            f"The recording lacks the model sent in round {sent.round}; record the models too: "
            "UpdateRecorder(…, models=True), or save_gradients(…, models=run.snapshots)."
        )
    return same[0]
