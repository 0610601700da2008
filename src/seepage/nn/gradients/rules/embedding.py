"""Per-record gradients of embeddings: ``g = Σ_s e_s δ_sᵀ`` over the positions of a record.

``e`` are the tokens' one-hot vectors and ``δ`` the gradients at the layer's outputs.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from seepage.nn.gradients.per_record_gradients import GradientTerm, OneHot, OuterProducts
from seepage.nn.gradients.watching import Arguments, LayerCall, Layout, Rule


class EmbeddingRule(Rule):
    """The rule for a table indexed by tokens, or by positions that all records share."""

    def bind(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Arguments | None:
        """Return tokens and table, or ``None`` with ``max_norm`` or with scaling by frequency."""
        if max_norm is not None or scale_grad_by_freq:
            return None
        if padding_idx is not None and padding_idx < 0:
            padding_idx += weight.shape[0]
        return Arguments(input, {"weight": weight}, {"padding": padding_idx})

    def covers(self, arguments: Arguments, shape: tuple[int, ...], layout: Layout) -> bool:
        """Return whether the records' axis, if there is one, is not the axis of the features."""
        return layout.axis is None or layout.axis < len(shape) - 1

    def terms(self, call: LayerCall, delta: Tensor) -> list[GradientTerm]:
        """Return one term, which contains the rows of all tokens."""
        layout = call.layout
        tokens = call.arguments.input
        rows = layout.by_record(delta).flatten(1, -2)[:, None]
        if "thin" in call.arguments.options:
            rows = rows @ call.arguments.options["thin"].to(rows.dtype)
        if tokens.numel() == rows.shape[2]:  # shared by all records
            index = tokens.reshape(1, 1, -1).expand(rows.shape[0], 1, -1)
        else:
            index = layout.by_record(tokens).flatten(1)[:, None]
        padding = call.arguments.options["padding"]
        keep = None if padding is None else index != padding
        table = call.arguments.parameters["weight"]
        assert table is not None  # noqa: S101 - it has a name
        tokens_as_rows = OneHot(index, int(table.shape[0]), keep)
        return [
            GradientTerm(call.names["weight"], (rows,), OuterProducts, fixed=tokens_as_rows),
        ]

    def narrow_axis(self, arguments: Arguments) -> int | None:
        """Return the axis of the embedding's features."""
        return 1

    def narrowed(self, arguments: Arguments, thin: Tensor) -> Arguments:
        """Return the arguments together with the matrix that will narrow ``δ``."""
        return replace(arguments, options={**arguments.options, "thin": thin})
