"""Gradient inversion: reconstruction of records from their gradients.

The adversary searches for a record whose gradient matches the observed gradient. The adversary
knows the network, the clipping of the gradients and the number of records in a batch. For a
client's update after several local steps, the adversary knows how the client trains and repeats
these steps with candidate records.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.attacks.gradient.image_similarity import ImageQuality, compare_images
from seepage.attacks.gradient.labels import is_plain_cross_entropy, recover_labels
from seepage.attacks.gradient.minimisers import Descent, QuasiNewton
from seepage.attacks.gradient.priors import BatchNormPrior, OneHotColumns, Statistics
from seepage.attacks.gradient.releases import GradientReleases
from seepage.attacks.gradient.simulation import COSTS, GradientCost
from seepage.errors import InputError, accepts_other_names
from seepage.nn.gradients.network_checks import refuse_modes
from seepage.nn.problem.problem import Loss
from seepage.support.chunks import ACCELERATOR_CHUNK, progress, row_slices
from seepage.support.number_check import check_choice, check_count, check_not_negative
from seepage.tables.result_table import PlottedNumbers, ResultNumbers
from seepage.tables.source import as_numpy, build_frame


@dataclass(frozen=True, eq=False, repr=False)
class GradientReconstruction(ResultNumbers):
    """The records that an adversary reconstructed from gradients.

    These records are as sensitive as the data: do not publish them.

    Parameters
    ----------
    records
        The records, (releases, batch size, …), where … is the shape of one record.
    labels
        The labels of the records, (releases, batch size).
    mismatch
        The remaining mismatch between simulated and observed gradients, (releases,).
    steps
        The number of steps for each release.
    solved
        Whether the mismatch fell below the tolerance. A mismatch below the tolerance does not prove
        that the record was recovered: many records may match one gradient.
    labels_known
        Whether the labels were given to the adversary.
    curve
        The lowest cost so far, after every hundredth of the steps, (releases, 100): a curve that is
        flat at its end suggests that more steps would not help.
    kind
        ``attack``: a lower bound on what can be reconstructed, never an upper bound.
    """

    records: Tensor
    labels: Tensor
    mismatch: Tensor
    steps: Tensor
    solved: Tensor
    labels_known: bool
    curve: Tensor | None = None
    kind: str = "attack"

    def __len__(self) -> int:
        return len(self.records)

    value_column = "mismatch"

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per release: its mismatch, steps and outcome."""
        columns = {
            "release": np.arange(len(self)),
            "mismatch": as_numpy(self.mismatch),
            "steps": as_numpy(self.steps),
            "solved": as_numpy(self.solved),
        }
        return build_frame(columns, library or "pyarrow")

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: the remaining mismatch, in ascending order."""
        mismatch = as_numpy(self.mismatch)
        order = np.argsort(mismatch, kind="stable")
        return PlottedNumbers(mismatch[order], order, "mismatch of the gradients", "releases")

    def matched(self, originals: Any) -> np.ndarray:
        """Return the records in the order of the originals, (releases · batch size, …).

        Within each release, records and originals are paired so that the sum of squared differences
        is smallest (linear assignment).

        Parameters
        ----------
        originals
            The true records, in the order in which their gradients were released.
        """
        from scipy.optimize import linear_sum_assignment

        candidates = self.records.numpy()
        truth = self._originals(originals).reshape(candidates.shape)
        out: np.ndarray = np.empty_like(candidates)
        for k, (guesses, records) in enumerate(zip(candidates, truth, strict=True)):
            flat = [side.reshape(len(side), -1) for side in (records, guesses)]
            off = [np.sum((flat[1] - record) ** 2, axis=1) for record in flat[0]]
            order = linear_sum_assignment(np.stack(off))[1]
            out[k] = guesses[order]
        return out.reshape(-1, *candidates.shape[2:])

    def quality(self, originals: Any, data_range: float | None = None) -> ImageQuality:
        """Return the similarity of the reconstructed images to the originals, by three measures.

        Parameters
        ----------
        originals
            The true images, (n, channels, height, width) or (n, height, width), in the order in
            which their gradients were released.
        data_range
            The range of pixel values; 1 by default.
        """
        images, truth = self.matched(originals), self._originals(originals)
        if images.ndim not in (3, 4):
            raise InputError(
                "Image quality is defined only for images, (channels, height, width) or (height, "
                f"width), not records of shape {images.shape[1:]}; use reconstruction_errors."
            )
        return compare_images(images, truth, data_range)

    def _originals(self, originals: Any) -> np.ndarray:
        truth = as_numpy(originals)
        count, b = self.records.shape[:2]
        if truth.shape != (count * b, *self.records.shape[2:]):
            raise InputError(
                f"The originals must have the shape {(count * b, *self.records.shape[2:])}, not "
                f"{truth.shape}."
            )
        if not np.isfinite(truth).all():
            raise InputError("The originals contain NaN or infinity; leave those records out.")
        return truth

    def __repr__(self) -> str:
        count = f"{len(self):,} release{'s' if len(self) != 1 else ''}"
        return (
            f"<gradient inversion of {count}: {int(self.solved.sum()):,} matched to the tolerance, "
            f"median mismatch {float(self.mismatch.median()):.3g}>"
        )


@accepts_other_names
@dataclass(eq=False, repr=False)
class GradientInversion:
    """Minimises the mismatch of gradients, plus total variation, over candidate records.

    By default, ``1 − ⟨g(x), t⟩/(‖g(x)‖‖t‖) + α TV(x)`` is minimised over x within the bounds, by
    Adam on the signs of the gradient (Geiping, Bauermeister, Dröge and Moeller 2020, "Inverting
    gradients"). With ``cost="euclidean", optimizer="lbfgs", total_variation=0``, the objective is
    proportional to the ``‖g(x) − t‖²`` of Zhu, Liu and Han (2019, "Deep leakage from gradients").
    In both formulas, ``t`` is the observed gradient and ``g(x)`` the simulated one, with the same
    clipping or the same local steps. All releases are attacked at once, each from several starting
    points, until the mismatch is within the tolerance or the search makes no further progress.

    Parameters
    ----------
    net, loss
        The network at the time of the release, and its loss, as for :class:`seepage.nn.Engine`.
    shape
        The shape of one record, such as (1, 28, 28).
    cost
        ``"cosine"`` or ``"euclidean"``.
    optimizer
        ``"signed_adam"``, ``"adam"`` or ``"lbfgs"``.
    total_variation
        The weight α of the total variation; supported only for images, whose last two axes are
        height and width.
    steps
        The largest number of evaluations of the cost.
    step_size
        Adam's initial step size; it is divided by ten after 3/8, 5/8 and 7/8 of the steps.
    restarts
        The number of starting points for each release; the result with the lowest cost is returned.
    bounds
        The lower and upper limits of all entries of a record. Starting points are drawn around the
        midpoint of these limits. ``"lbfgs"`` searches without limits; its records are clipped to
        the limits before their cost is computed.
    batch_norm
        The weight of the distance ``Σ_l (‖μ_l − m_l‖ + ‖s_l − v_l‖)`` over BatchNorm layers (Yin et
        al. 2021, "See through gradients"); 0 by default. Here ``μ_l`` and ``s_l`` are the means and
        variances of the candidates, and ``m_l`` and ``v_l`` the known ones.
    statistics
        The known mean and variance by layer name, such as ``{"norm": (mean, variance)}``; by
        default, the network's running statistics. A client that sends its buffers after one step
        with momentum ``a`` reveals the statistics of its batch: ``(sent back − (1 − a)
        received)/a``.
    categories
        For tables, the columns that encode each category, such as ``[(2, 3, 4), (5, 6)]``: exactly
        one of them is 1. During the search, these columns are a softmax; at the end they are
        rounded (Vero et al. 2023, "TabLeak"). The mismatch is computed before rounding.
    tolerance
        The mismatch of gradients below which a release counts as solved.
    seed
        The seed of the starting points; the default is fixed, so the attack is repeatable.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> x, y = torch.rand(3, 4), torch.tensor([0, 1, 1])
    >>> seen = sp.attacks.release_gradients(net, "cross_entropy", x, y)
    >>> adversary = sp.attacks.GradientInversion(
    ...     net, shape=(4,), cost="euclidean", optimizer="lbfgs", total_variation=0
    ... )
    >>> found = adversary.reconstruct(seen)
    >>> found.labels.flatten().tolist(), float((found.records[:, 0] - x).abs().max()) < 1e-3
    ([0, 1, 1], True)
    """

    net: nn.Module
    loss: str | nn.Module | Loss = "cross_entropy"
    _: KW_ONLY
    shape: tuple[int, ...]
    cost: str = "cosine"
    optimizer: str = "signed_adam"
    total_variation: float = 1e-4
    steps: int = 1000
    step_size: float = 0.1
    restarts: int = 1
    bounds: tuple[float, float] = (0.0, 1.0)
    batch_norm: float = 0.0
    statistics: Statistics | None = None
    categories: Sequence[Sequence[int]] = ()
    tolerance: float = 1e-10
    seed: int = 0

    def __post_init__(self) -> None:
        self.shape = _record_shape(self.shape)
        check_choice(self.cost, "cost", COSTS)
        check_choice(self.optimizer, "optimizer", ("signed_adam", "adam", "lbfgs"))
        check_not_negative(self.total_variation, "total_variation")
        if self.total_variation and (len(self.shape) < 2 or min(self.shape[-2:]) < 2):
            raise InputError(
                f"Records of shape {self.shape} have no neighbouring pixels; set total_variation=0."
            )
        check_count(self.steps, "steps")
        check_count(self.restarts, "restarts")
        if not self.bounds[0] < self.bounds[1]:
            raise InputError(
                f"bounds must be a lower limit and a larger upper limit, not {self.bounds!r}."
            )
        check_not_negative(self.batch_norm, "batch_norm")
        self._prior = BatchNormPrior(self.net, self.statistics) if self.batch_norm else None
        if self.categories and len(self.shape) > 1:
            raise InputError(
                "categories= applies only to rows of a table, but the records have the shape "
                f"{self.shape}; leave categories out."
            )
        span = self.bounds[1] - self.bounds[0]
        self._hot = OneHotColumns(self.categories, self.shape[0], span) if self.categories else None

    def reconstruct(self, releases: GradientReleases, labels: Any = None) -> GradientReconstruction:
        """Return the records whose simulated gradients best match the releases.

        Parameters
        ----------
        releases
            The observed gradients, with their batch size, clipping and noise.
        labels
            The labels, if the adversary knows them, (releases, batch size), or (releases,) for
            single records. By default, the labels are recovered from the last layer's gradient, in
            ascending order. If a client's local steps use different records, give the labels in the
            order of the records.
        """
        simulated = releases.simulated(self.net, self.loss)
        targets = releases.flat(simulated.parameters())
        silent = torch.nonzero((targets == 0).all(1)).flatten()
        if len(silent):
            raise InputError(
                f"The gradient of release {int(silent[0])} is zero in every entry, so it reveals "
                "nothing; leave this release out."
            )
        known = labels is not None
        outputs = self._outputs(targets)
        y = self._labels(releases, labels, outputs)
        like = targets.new_full((3, *self.shape), (self.bounds[0] + self.bounds[1]) / 2)
        simulated.prepare(like, y.flatten(0, 1)[:1].expand(3, *y.shape[2:]))
        d = releases.batch_size * math.prod(self.shape)
        width = self.restarts * (simulated.held() + 60 * d)  # L-BFGS keeps twenty steps and changes
        # Half a gigabyte; an accelerator needs more to stay busy.
        chunk = ACCELERATOR_CHUNK * (1 if targets.device.type == "cpu" else 16)
        parts = []
        for rows in row_slices(len(releases), width, chunk=chunk):
            cost = GradientCost(
                simulated,
                targets[rows],
                y[rows],
                self.shape,
                self.cost,
                self.total_variation,
                self.batch_norm,
                self._prior,
                self._hot,
            )
            parts.append(self._search(cost, self._starts(rows, d, targets)))
        records, mismatch, taken, curve = (torch.cat(values) for values in zip(*parts, strict=True))
        records = records.reshape(*y.shape[:2], *self.shape)
        if self._hot is not None:
            records = self._hot.rounded(records)
        return GradientReconstruction(
            records.cpu(),
            y.cpu(),
            mismatch.cpu(),
            taken.cpu(),
            (mismatch <= self.tolerance).cpu(),
            known,
            curve.cpu(),
        )

    def _search(self, cost: GradientCost, starts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the best candidates (G, d), their mismatches and step counts (G,), and curves."""
        search = self._minimiser(starts)
        groups = len(starts)
        records = starts[:, 0].clone()
        mismatch, taken = starts.new_full((groups,), torch.inf), torch.zeros(groups).long()
        marks = [-(-k * self.steps // 100) for k in range(1, 101)]  # points of the curve
        curve = starts.new_empty(groups, len(marks))
        drawn = 0
        left = torch.arange(groups, device=starts.device)
        best = _BestCandidates(starts, *starts.new_full((2, *starts.shape[:2]), torch.inf))
        for step in progress(range(1, self.steps + 1), "gradient inversion"):
            point = search.point
            evaluation = cost.evaluate(point)
            best.update(point, evaluation.total, evaluation.match)
            while drawn < len(marks) and marks[drawn] <= step:
                curve[left, drawn] = best.total.amin(1)
                drawn += 1
            search.tell(evaluation.total, evaluation.slopes)
            last = step == self.steps
            if step % 10 and not last:  # looking waits for the device
                continue
            stuck = search.stuck.all(1)
            if not last and not bool(((best.match <= self.tolerance).any(1) | stuck).any()):
                continue
            final = self._within(best, cost)
            over = torch.ones_like(stuck) if last else stuck
            over = over | (final.match <= self.tolerance).any(1)
            if not bool(over.any()):
                continue
            ended = left[over]
            records[ended], mismatch[ended] = final.chosen(over)
            curve[ended, drawn:] = best.total[over].amin(1)[:, None]
            taken[ended.cpu()] = step
            stay = ~over
            left = left[stay]
            if not len(left):
                break
            for part in (cost, search, best):
                part.keep(stay)
        return records, mismatch, taken, curve

    def _within(self, best: _BestCandidates, cost: GradientCost) -> _BestCandidates:
        """Return the candidates clipped to the bounds, and the cost after clipping."""
        point = best.point.clamp(*self.bounds)
        if torch.equal(point, best.point):
            return best
        evaluation = cost.evaluate(point)
        return _BestCandidates(point, evaluation.total, evaluation.match)

    def _minimiser(self, starts: Tensor) -> Descent | QuasiNewton:
        if self.optimizer == "lbfgs":
            return QuasiNewton(starts)
        signed = self.optimizer == "signed_adam"
        return Descent(starts, self.step_size, self.steps, self.bounds, signed=signed)

    def _starts(self, rows: slice, d: int, like: Tensor) -> Tensor:
        """Return starting points that depend only on the seed and the release's position."""
        low, high = self.bounds
        starts = []
        for release in range(rows.start, rows.stop):
            key = np.random.SeedSequence([self.seed, release]).generate_state(1)
            draw = torch.Generator().manual_seed(int(key[0]))
            starts.append(torch.randn(self.restarts, d, generator=draw))
        # A tenth of the range is far enough for starts to differ, and seldom leaves the bounds.
        around = (high + low) / 2 + 0.1 * (high - low) * torch.stack(starts)
        return around.clamp(low, high).to(like)

    def _outputs(self, like: Tensor) -> Tensor:
        """Return the network's outputs for five records, in each of which all entries are equal."""
        refuse_modes(self.net)  # running the network must not change it
        low, high = self.bounds
        own = low + (high - low) * torch.linspace(0.1, 0.9, 5).to(like)
        own = own.reshape(5, *[1] * len(self.shape)).expand(5, *self.shape)
        try:
            with torch.no_grad():
                outputs: Tensor = self.net(own)
        except (RuntimeError, IndexError, ValueError) as error:
            raise InputError(
                f"The network does not accept records of shape {self.shape} ({error}); shape must "
                "be that of one record, without the batch dimension."
            ) from None
        return outputs

    def _labels(self, releases: GradientReleases, labels: Any, outputs: Tensor) -> Tensor:
        wanted = (len(releases), releases.batch_size)
        if labels is not None:
            read = labels if isinstance(labels, Tensor) else torch.tensor(as_numpy(labels))
            given = (read.long() if read.dtype == torch.bool else read).to(outputs.device)
            if releases.batch_size == 1 and given.dim() and given.shape[:2] != wanted:
                given = given[:, None]
            if given.shape[:2] != wanted:
                raise InputError(
                    f"labels must have the shape {wanted}, one label for each record of every "
                    f"release, not {tuple(read.shape)}."
                )
            return given
        if not is_plain_cross_entropy(self.loss):
            raise InputError(
                "Labels can be recovered from the gradient only for plain cross-entropy (no "
                "weight, label_smoothing, ignore_index or other reduction); give the labels "
                "(labels=…)."
            )
        return recover_labels(self.net, releases, outputs).to(outputs.device)


def _record_shape(shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, tuple | list) else ()
    if not sizes or any(not isinstance(n, numbers.Integral) or n < 1 for n in sizes):
        raise InputError(
            f"shape must be the shape of one record, such as (1, 28, 28) or (16,), not {shape!r}."
        )
    return tuple(int(n) for n in sizes)


class _BestCandidates:
    """The best candidate so far from every starting point, with its cost and mismatch."""

    def __init__(self, point: Tensor, total: Tensor, match: Tensor) -> None:
        self.point, self.total, self.match = point, total, match

    def update(self, point: Tensor, total: Tensor, match: Tensor) -> None:
        better = total < self.total
        self.point = torch.where(better[..., None], point, self.point)
        self.match = torch.where(better, match, self.match)
        self.total = torch.where(better, total, self.total)

    def chosen(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best candidate for each of the given releases, and its mismatch."""
        point, match = self.point[which], self.match[which]
        rows = torch.arange(len(point), device=point.device)
        best = self.total[which].argmin(1)
        return point[rows, best], match[rows, best]

    def keep(self, which: Tensor) -> None:
        self.point, self.total, self.match = (
            values[which] for values in (self.point, self.total, self.match)
        )
