"""Reference models, either given or trained on halves of the records.

The model for a half is a fitted clone of a scikit-learn estimator or the result of a training
function ``train(X, y)`` (``train(X)`` if the labels are among the inputs). Only the predictions of
a model are stored, not the model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seepage.attacks.halves import fit_halves, rows_of
from seepage.attacks.membership.kept_answers import (
    digest_of_records,
    read_answer,
    write_answer,
)
from seepage.attacks.membership.signals import ModelAnswers, Questions
from seepage.errors import InputError
from seepage.support.chunks import progress
from seepage.support.files import make_folders
from seepage.support.library_classes import is_network
from seepage.tables.source import as_numpy


def trained_answers(
    source: Any,
    questions: Questions,
    inside: np.ndarray,
    *,
    jobs: int = 1,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> list[ModelAnswers]:
    """Train a model on each half that has no stored predictions, and return all predictions."""
    from sklearn.utils.parallel import Parallel, delayed

    home = None if folder is None else Path(folder)
    facts: list[dict[str, Any]] = [{} for _ in inside]
    if home is not None:
        make_folders(home)
        records = digest_of_records(questions.X, () if questions.y is None else questions.y)
        facts = [
            {
                "records": records,
                "members": digest_of_records(half),
                "model": _name_of(source),
                "loss": str(questions.loss),
                "queries": [_name_of(query) for query in questions.queries],
                "seed": seed,
            }
            for half in inside
        ]
    answers = [
        None if home is None else read_answer(_file(home, k), facts[k]) for k in range(len(inside))
    ]
    missing = [k for k, answer in enumerate(answers) if answer is None]
    # One after another in the order of the halves, each written as soon as it is there
    found = Parallel(n_jobs=jobs, return_as="generator")(
        delayed(_trained)(source, questions, inside[k], seed + k) for k in missing
    )
    for k, answer in zip(progress(missing, "reference models"), found, strict=True):
        if home is not None:
            write_answer(_file(home, k), answer, facts[k])
        answers[k] = answer
    return [answer for answer in answers if answer is not None]


def given_answers(
    references: Sequence[Any],
    questions: Questions,
    load: Callable[[Path], Any] | None,
    like: Any,
) -> list[ModelAnswers]:
    """Return the predictions of given models; checkpoints are loaded one at a time."""
    answers = []
    for reference in progress(list(references), "reference models"):
        model = reference
        if isinstance(reference, str | os.PathLike):
            path = Path(reference)
            if not path.exists():
                raise InputError(
                    f"The checkpoint {path} does not exist; give the path of a checkpoint."
                )
            if load is None:
                from seepage.attacks.membership.networks import load_reference

                model = load_reference(path, like)
            else:
                model = load(path)
        answers.append(questions(model))
    return answers


def _trained(source: Any, questions: Questions, half: np.ndarray, seed: int) -> ModelAnswers:
    rows = np.flatnonzero(half)
    if hasattr(source, "fit"):
        labels = as_numpy(questions.y)
        (answer,) = fit_halves(source, questions.X, labels, half[None], questions)
        return answer
    _seed_torch(seed)
    own = rows_of(questions.X, rows)
    model = source(own) if questions.y is None else source(own, rows_of(questions.y, rows))
    if not (is_network(model) or hasattr(model, "predict")):
        raise InputError(
            f"The training function returned an object of type {type(model).__name__}; it must "
            "return the trained model: a torch module, or an object with predict."
        )
    return questions(model)


def _seed_torch(seed: int) -> None:
    """Seed NumPy, and torch if loaded: the number of processes must not change the results."""
    import sys

    np.random.seed(seed)  # noqa: NPY002 - what training functions of others draw from
    if "torch" in sys.modules:
        import torch

        torch.manual_seed(seed)


def _name_of(source: Any) -> str:
    return repr(source) if hasattr(source, "fit") else getattr(source, "__qualname__", "function")


def _file(home: Path, place: int) -> Path:
    return home / f"reference-{place:04d}.safetensors"
