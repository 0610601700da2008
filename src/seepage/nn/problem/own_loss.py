"""Computes a model's own loss, one number per record, from the labels in the batch.

Hugging Face models return a ``loss`` with their outputs. This loss is an average over the batch; a
language model, for example, averages over all tokens except padding. A record's own loss is the
loss that the model would return for that record alone. To compute it, the model is run on the whole
batch, and the torch loss functions that the model calls are made to average over each record, not
over the batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from seepage.errors import InputError
from seepage.tables.names import counted

IGNORED = -100  # the class number of ignored targets, in torch and Hugging Face
LABELS = ("labels", "label", "label_ids", "start_positions")
_OF_CLASSES = (functional.cross_entropy, functional.nll_loss)
_AVERAGED = {
    function: inspect.signature(function)
    for function in (
        *_OF_CLASSES,
        functional.mse_loss,
        functional.l1_loss,
        functional.smooth_l1_loss,
        functional.huber_loss,
        functional.binary_cross_entropy,
        functional.binary_cross_entropy_with_logits,
        functional.kl_div,
    )
}


class OwnLoss:
    """The model's own loss, computed for each record separately.

    The inputs are the mapping that a data collator returns, including the labels.
    """

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """Return the loss of each record, from the model's output in a run in :meth:`by_record`."""
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if loss is None and isinstance(output, tuple) and output:
            loss = output[0]
        if not isinstance(loss, Tensor):
            raise InputError(
                "The model returns no loss for this batch; give it the labels it expects, or "
                "name a loss: sp.nn.leakage(model, loss, x, y, …)."
            )
        if loss.shape != (len(target),):
            raise InputError(
                f"The model's own loss has the shape {tuple(loss.shape)} and cannot be split into "
                f"losses of {counted(len(target), 'record')}. Give a function of output and target "
                "that returns one loss per record: sp.nn.leakage(model, loss, x, y, …)."
            )
        return loss

    @contextmanager
    def by_record(self, x: Any, labels: Tensor, target: Tensor) -> Iterator[Any]:
        """Yield the model's inputs, for a run in which every loss is computed per record.

        A different ``target`` replaces the ``labels``. If the labels are class numbers, ``target``
        must be soft targets, with one probability per class.
        """
        soft = None
        if target is not labels and labels.is_floating_point():
            x = {**x, _key_of(x): target}
        elif target is not labels:
            soft = target
        with _ByRecord(labels, soft):
            yield x


def labels_of(batch: Mapping[str, Any]) -> Tensor:
    """Return the labels of a batch from a data collator."""
    labels: Tensor = batch[_key_of(batch)]
    return labels


def _key_of(batch: Mapping[str, Any]) -> str:
    """Return the key under which the batch stores its labels."""
    for name in LABELS:
        if isinstance(batch.get(name), Tensor):
            return name
    raise InputError(
        "The model cannot compute its loss, because the batch has no labels, only "
        f"{', '.join(map(str, batch)) or 'nothing'}. Add 'labels' as the model expects them (for a "
        "language model: its input_ids, with -100 for tokens to ignore)."
    )


def target_weights(
    target: Tensor, weight: Tensor | None, ignored: int, dtype: torch.dtype
) -> Tensor:
    """Return the weight of each target in torch's mean; ignored targets have weight zero."""
    kept = target != ignored
    if weight is None:
        return kept.to(dtype)
    return kept * weight.to(dtype)[torch.where(kept, target.long(), 0)]


class _ByRecord(TorchFunctionMode):  # type: ignore[misc]
    """Makes torch's loss functions average over each record's entries."""

    def __init__(self, labels: Tensor, soft: Tensor | None) -> None:
        super().__init__()
        self.labels, self.soft, self.records = labels, soft, len(labels)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function not in _AVERAGED:
            return function(*args, **kwargs)
        given = _AVERAGED[function].bind(*args, **kwargs)
        given.apply_defaults()
        options = given.arguments
        reduction, options["reduction"] = options["reduction"], "none"
        entries = self._entries(function, options, given)
        if reduction == "none" or entries.numel() % self.records:
            return function(*args, **kwargs)
        total = entries.reshape(self.records, -1).sum(1)
        if reduction == "sum":
            return total
        if reduction == "batchmean":
            return total / (len(entries) / self.records)
        if function in _OF_CLASSES and not options["target"].is_floating_point():
            target = options["target"].reshape(self.records, -1)
            weight, ignored = options["weight"], options["ignore_index"]
            shares = target_weights(target, weight, ignored, total.dtype).sum(1)
            return total / shares.clamp(min=torch.finfo(total.dtype).tiny)
        return total / (entries.numel() // self.records)

    def _entries(self, function: Any, options: dict[str, Any], given: Any) -> Tensor:
        """Return the losses of all entries; soft targets, if set, replace class numbers."""
        target: Any = options.get("target")
        if self.soft is None or function not in _OF_CLASSES or target.is_floating_point():
            entries: Tensor = function(*given.args, **given.kwargs)
            return entries
        logits = options["input"]
        if logits.dim() != 2 or options["weight"] is not None or options.get("label_smoothing"):
            raise InputError(
                "The label of this model cannot be the view, because its loss is not the plain "
                "cross-entropy of one row of logits per label. Use the input as the view."
            )
        logs = torch.log_softmax(logits, -1) if function is functional.cross_entropy else logits
        ignored = options["ignore_index"]
        rows = self._aligned(target.reshape(self.records, -1), ignored).reshape(logits.shape)
        return -(rows * logs).sum(-1) * (target != ignored)

    def _aligned(self, target: Tensor, ignored: int) -> Tensor:
        """Return the soft target for each row of the loss, ``(B, rows, classes)``.

        A causal model compares its output at each token with the next token. The output at the last
        token is not used.
        """
        soft = self.soft
        assert soft is not None  # noqa: S101 - that is where it is called
        labels = self.labels.reshape(self.records, -1)
        soft = soft.reshape(self.records, labels.shape[1], -1)
        if target.shape == labels.shape and torch.equal(target, labels):
            return soft
        shift = labels.shape[1] - target.shape[1]
        followed, last = target.tensor_split([labels.shape[1] - 1], 1)
        ends = bool((last == ignored).all())
        if shift in (0, 1) and ends and torch.equal(followed, labels[:, 1:]):
            return functional.pad(soft[:, 1:], (0, 0, 0, 1 - shift))
        raise InputError(
            "The label of this model cannot be the view, because the rows of its loss cannot be "
            "matched to labels; use the input as the view."
        )
