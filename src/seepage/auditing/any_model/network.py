"""A trained network as an estimator, from which shadow models can be cloned.

An attack with shadow models runs the same training procedure on other records. A network does not
record how it was trained. Its owner therefore passes a training function. Without one, copies are
trained with Adam until they fit their records as well as the given network fits all records, for at
most 200 epochs.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.metaestimators import available_if
from torch import Tensor, nn
from torch.nn import functional

from seepage.errors import InputError
from seepage.tables.source import as_numpy

Train = Callable[[Tensor, Tensor], Any]


class NetworkEstimator(BaseEstimator):  # type: ignore[misc]
    """A network with ``fit`` and ``predict``, and ``predict_proba`` if its targets are classes.

    Parameters
    ----------
    net
        The trained network; it is not changed.
    shape
        The shape of a single record.
    loss
        The network's mean loss on its records; copies with new weights are trained until their own
        records give the same loss.
    train
        The owner's training function, used instead of Adam: it takes inputs and targets, and
        returns a network.
    seed
        The seed of new weights and batches.
    epochs, batch_size
        The largest number of epochs, for copies that do not reach that loss, and the number of
        records per step.
    """

    def __init__(
        self,
        net: nn.Module,
        shape: tuple[int, ...],
        loss: float,
        train: Train | None,
        seed: int,
        epochs: int = 200,
        batch_size: int = 64,
    ) -> None:
        self.net = net
        self.shape = shape
        self.loss = loss
        self.train = train
        self.seed = seed
        self.epochs = epochs
        self.batch_size = batch_size

    @property
    def called(self) -> str:
        """The name of the model in the report."""
        return f"{type(self.net).__name__} of torch"

    def fit(self, X: Any, y: Any) -> Self:
        """Train a copy of the network from new weights."""
        x, target = self._tensors(X, y)
        # Every half of the records has weights and batches of its own.
        own = hashlib.sha256(np.ascontiguousarray(X).tobytes() + str(self.seed).encode()).digest()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(own[:4], "big"))
            net = (self.train or self._train)(x, target)
        if not isinstance(net, nn.Module):
            raise InputError(
                "train(X, y) must return a trained network, but it returned an object of type "
                f"{type(net).__name__}."
            )
        return self._as_fitted(net, y)

    def as_given(self, X: Any, y: Any) -> Self:
        """Return the network with its given weights, as if it had been fitted."""
        return copy.copy(self)._as_fitted(self.net, y)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class, or the output if the targets are numbers."""
        if not hasattr(self, "classes_"):
            return self._outputs(X).reshape(len(X))
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    @available_if(lambda self: hasattr(self, "classes_"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the class probabilities; raise an error for a regression network."""
        return np.asarray(torch.exp(log_probabilities(torch.as_tensor(self._outputs(X)))))

    def _as_fitted(self, net: nn.Module, y: Any) -> Self:
        self.net_ = net
        numbers = [as_numpy(p.detach().cpu()) for p in net.parameters()]
        self.coefs_ = numbers  # as in scikit-learn's networks: what has been learnt
        if np.asarray(y).dtype.kind in "iu":
            outputs = self._outputs(np.zeros((1, int(np.prod(self.shape))))).shape[-1]
            self.classes_ = np.arange(max(2, outputs))
        return self

    def _outputs(self, X: Any) -> np.ndarray:
        x, _ = self._tensors(X)
        mode = self.net_.training
        self.net_.eval()
        try:
            with torch.no_grad():
                parts = [self.net_(part) for part in x.split(64 * self.batch_size)]
        finally:
            self.net_.train(mode)
        return np.asarray(torch.cat(parts).cpu().double())

    def _tensors(self, X: Any, y: Any = None) -> tuple[Tensor, Tensor]:
        like = next(self.net.parameters())
        x = torch.tensor(np.asarray(X)).reshape(-1, *self.shape).to(like)
        target = torch.tensor(np.zeros(len(x)) if y is None else np.asarray(y))
        if target.is_floating_point():
            target = target.to(like.dtype)
        return x, target.to(like.device)

    def _train(self, x: Tensor, target: Tensor) -> nn.Module:
        net = _with_new_weights(self.net)
        net.train()
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(self.epochs):
            for rows in torch.randperm(len(x)).split(self.batch_size):
                optimizer.zero_grad()
                mean_loss(net(x[rows]), target[rows]).backward()
                optimizer.step()
            if self._loss_of(net, x, target) <= self.loss:
                break
        return net

    @staticmethod
    def _loss_of(net: nn.Module, x: Tensor, target: Tensor) -> float:
        mode = net.training
        net.eval()
        with torch.no_grad():
            loss = float(mean_loss(net(x), target))
        net.train(mode)
        return loss


def mean_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of classes, or the mean squared error of numbers.

    >>> import torch
    >>> float(mean_loss(torch.zeros(2, 4), torch.tensor([0, 3])).exp().round())
    4.0
    """
    if target.is_floating_point():
        return functional.mse_loss(output.reshape(target.shape), target)
    return functional.nll_loss(log_probabilities(output), target)


def log_probabilities(output: Tensor) -> Tensor:
    """Return the log-probabilities of the classes, (n, K).

    The outputs may be probabilities, one score per class, or one score for the second of two
    classes.
    """
    output = output.reshape(len(output), -1)
    share = bool(((output >= 0) & (output <= 1)).all())
    tiny = torch.finfo(output.dtype).tiny
    if output.shape[1] == 1:
        if share:
            return torch.log(torch.cat([1 - output, output], dim=1).clamp_min(tiny))
        return torch.cat([functional.logsigmoid(-output), functional.logsigmoid(output)], dim=1)
    if share and bool(torch.isclose(output.sum(1), torch.ones_like(output[:, 0])).all()):
        return torch.log(output.clamp_min(tiny))
    return functional.log_softmax(output, dim=1)


def as_estimator(
    net: nn.Module, X: Any, y: Any, *, train: Train | None, seed: int
) -> tuple[NetworkEstimator, np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return a trained network as an estimator, its records as a table, and notes on both."""
    table, labels = as_numpy(X), as_numpy(y)
    if y is None or labels.ndim != 1 or table.ndim < 2 or len(table) != len(labels):
        raise InputError(
            "To audit a network, pass inputs and targets, one target per record: sp.audit(net, X, "
            "y). To measure what the gradient of a batch leaks: sp.leakage(net, X, y, "
            "noise_multiplier=1.0, max_grad_norm=1.0)."
        )
    if labels.dtype.kind not in "biuf":
        raise InputError("A network's targets must be numbers; number the classes from 0 to K − 1.")
    if labels.dtype.kind in "bu":
        labels = labels.astype(np.int64)
    if not any(True for _ in net.parameters()):
        raise InputError(
            "The network has no parameters, so it has learnt nothing; pass a trained network."
        )
    if train is None:
        _with_new_weights(net)  # refused before any work
    estimator = NetworkEstimator(net, table.shape[1:], 0.0, train, seed)
    x, target = estimator._tensors(table, labels)
    try:
        estimator.loss = estimator._loss_of(net, x, target)
    except (RuntimeError, IndexError, ValueError) as problem:
        raise InputError(
            f"The network cannot predict these records ({str(problem).splitlines()[0]}); pass the "
            "inputs it was trained on, and classes as whole numbers from 0."
        ) from problem
    steps = ("The attacked and the shadow networks were trained by the given training function.",)
    if train is None:
        how = (
            "with Adam until their loss on their records is at most that of the given network, "
            f"{estimator.loss:.3g}, or for {estimator.epochs} epochs. Pass train= to train them "
            "like your network"
        )
        steps = (
            f"The attacked and the shadow networks are copies with new weights, trained {how}.",
        )
    return estimator, table.reshape(len(table), -1), labels, steps


def _with_new_weights(net: nn.Module) -> nn.Module:
    """Return a copy with newly drawn parameters in every layer."""
    net = copy.deepcopy(net)
    for name, module in net.named_modules():
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if reset is not None:
            reset()
        elif any(True for _ in module.parameters(recurse=False)):
            raise InputError(
                f"The layer {name or type(module).__name__!r} of this network has no "
                "reset_parameters(), so shadow models cannot start from new weights. Pass train=, "
                "a function of X and y that returns a network trained like this one."
            )
    return net
