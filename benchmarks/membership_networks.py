"""Membership of networks trained without noise: attacks with shadow models, scores without.

Three sets of networks, each network trained on a random half of the records:

- ``small``: 128 four-layer CNNs (241 thousand parameters) on 20,000 images of CIFAR-10;
- ``large``: 64 residual networks (1.9 million parameters) on the same images;
- ``xrays``: 64 small CNNs on the 5,856 x-rays of PneumoniaMNIST.

``--pack FILE`` writes the images to one compressed file. ``--train FILE OUT`` trains on an
accelerator, in pieces that are each kept when they are done and not repeated; ``--seconds`` says
when no further piece is begun, ``--sets`` which sets are wanted. It needs NumPy and torch alone.
``--analyse OUT`` takes every network as target in turn, all others of its set as shadow models, and
prints: the power of LiRA, RMIA and the plain loss at 0.1 % and 1 % false positives with intervals;
rank correlations of the scores that need no retraining with LiRA's distance ``μ`` of each record,
taken from the other networks; whether a map from score to success, fitted on one set, holds on the
others; and what each costs. The figures are kept in ``results/membership_networks.json``;
``--figure FILE`` draws the ROC curves.

Nothing is tuned on the sets that are reported: damping and size of the sketch are the defaults of
``seepage.nn.exposure_scores``, and the offline constant of RMIA is chosen on the shadow models. A
rank correlation cannot exceed what the networks allow: ``μ`` from half of a set's networks agrees
with ``μ`` from the other half as far as the split-half correlation says.
"""

from __future__ import annotations

import argparse
import bz2
import json
import struct
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RESULTS = Path(__file__).parent / "results" / "membership_networks.json"
MAGIC = b"seepage images 1\n"


class Set(NamedTuple):
    """One set of networks, and how they are trained."""

    data: str
    shape: str
    models: int
    piece: int
    epochs: int
    rate: float
    batch: int


SETS = {
    "xrays": Set("xrays", "small", 64, 32, 40, 0.05, 122),
    "small": Set("cifar10", "small", 128, 32, 30, 0.05, 200),
    "large": Set("cifar10", "large", 64, 16, 20, 0.02, 200),
}


def pack(path: Path, records: int) -> None:
    """Write the images, as differences of neighbours and of colours, which compress well."""
    from seepage.data.loaders import load_cifar10, load_pneumoniamnist

    colours = load_cifar10(download=False).train
    shades = load_pneumoniamnist(download=False)
    splits = [part for part in (shades.train, shades.validation, shades.test) if part is not None]
    pixels = np.concatenate([part.pixels for part in splits])[..., None]
    labels = np.concatenate([part.labels for part in splits])
    sets = {
        "cifar10": (colours.pixels[:records], colours.labels[:records]),
        "xrays": (pixels[:records], labels[:records]),
    }
    with path.open("wb") as file:
        file.write(MAGIC)
        for name, (images, classes) in sets.items():
            whole = images.transpose(0, 3, 1, 2)
            head = json.dumps({"name": name, "shape": whole.shape}).encode()
            body = bz2.compress(differences(whole).tobytes())
            marks = bz2.compress(classes.astype(np.uint8).tobytes())
            file.write(struct.pack("<QQQ", len(head), len(body), len(marks)))
            file.write(head + body + marks)
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


def differences(images: np.ndarray) -> np.ndarray:
    """Return colours less the one before, and pixels less their neighbours, modulo 256."""
    out = images.copy()
    out[:, 1:] -= images[:, :-1]
    for axis in (2, 3):
        out = np.diff(out, axis=axis, prepend=np.uint8(0))
    return np.ascontiguousarray(out.transpose(1, 0, 2, 3))


def unpack(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the images, (n, height, width, channels) in bytes, and the labels of each set."""
    content, sets = path.read_bytes(), {}
    if not content.startswith(MAGIC):
        raise SystemExit(f"{path} is not a file that --pack wrote")
    place = len(MAGIC)
    while place < len(content):
        sizes = struct.unpack_from("<QQQ", content, place)
        place += 24
        head, body, marks = (
            content[place + sum(sizes[:k]) : place + sum(sizes[: k + 1])] for k in range(3)
        )
        place += sum(sizes)
        about = json.loads(head)
        n, channels, high, wide = about["shape"]
        out = np.frombuffer(bz2.decompress(body), np.uint8).reshape(channels, n, high, wide)
        for axis in (0, 2, 3):
            out = np.add.accumulate(out, axis=axis, dtype=np.uint8)
        labels = np.frombuffer(bz2.decompress(marks), np.uint8)
        sets[about["name"]] = np.ascontiguousarray(out.transpose(1, 2, 3, 0)), labels
    return sets


def halves(records: int, models: int, seed: int) -> np.ndarray:
    """Return which records each network gets, an independent random half for each."""
    rng = np.random.default_rng(seed)
    inside = np.zeros((models, records), dtype=bool)
    for row in inside:
        row[rng.permutation(records)[: records // 2]] = True
    return inside


def train_sets(args: argparse.Namespace) -> None:
    """Train what is missing, in pieces, until the time is up."""
    import torch

    import stacked_networks as stacked

    began = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    out = Path(args.train[1])
    out.mkdir(parents=True, exist_ok=True)
    sets = unpack(Path(args.train[0]))
    print(f"images unpacked after {time.monotonic() - began:.1f} s; {device}", flush=True)
    longest: dict[str, float] = {}
    for name in args.sets.split(","):
        plan = SETS[name]._replace(**json.loads(args.change))
        images, labels = (a[: args.records] for a in sets[plan.data])
        images, labels = images[: len(images) // 2 * 2], labels[: len(images) // 2 * 2]
        scaled = torch.as_tensor(images, device=device).float()
        scaled = (scaled - scaled.mean((0, 1, 2))) / scaled.std((0, 1, 2))
        target = torch.as_tensor(labels.astype(np.int64), device=device)
        inside = halves(len(labels), plan.models, seed=0)
        classes = int(labels.max()) + 1
        for first in range(0, plan.models, plan.piece):
            path = out / f"{name}-{first:03d}.npz"
            some = inside[first : first + plan.piece]
            left = args.seconds - (time.monotonic() - began)
            done = path.exists() or path.stem in args.skip.split(",")
            if done or left < longest.get(name, 0.0):
                continue
            start = time.monotonic()
            parameters = stacked.train(
                plan.shape,
                scaled,
                target,
                some,
                classes=classes,
                epochs=plan.epochs,
                rate=plan.rate,
                batch=plan.batch,
                seed=1 + first,
            )
            _wait(device)
            trained = time.monotonic() - start
            chunk = args.chunk
            pairs = [
                stacked.log_odds(plan.shape, parameters, view, target, chunk)
                for view in (scaled, scaled.flip(2))
            ]
            within = torch.as_tensor(some, device=device)
            right = pairs[0][1]
            accuracy = [float(right[w].float().mean()) for w in (within, ~within)]
            asked = time.monotonic()
            scores = stacked.one_model_scores(plan.shape, parameters, scaled, target, within, chunk)
            _wait(device)
            scored = time.monotonic() - asked
            np.savez_compressed(
                path.with_suffix(".tmp.npz"),
                odds=torch.stack([odds for odds, _ in pairs], -1).half().cpu().numpy(),
                inside=np.packbits(some, axis=1),
                labels=labels,
                accuracy=np.array(accuracy),
                seconds=np.array([trained, scored]),
                **{
                    key.replace(" ", "_"): value.clamp(min=1e-30).log().half().cpu().numpy()
                    for key, value in scores.items()
                },
            )
            path.with_suffix(".tmp.npz").rename(path)
            longest[name] = time.monotonic() - start
            print(
                f"{path.name}: trained {trained:.1f} s, scores {scored:.1f} s, all "
                f"{longest[name]:.1f} s; right {accuracy[0]:.3f} of members, {accuracy[1]:.3f} of "
                f"others; {time.monotonic() - began:.0f} s so far",
                flush=True,
            )
            del parameters, pairs, scores
            if device == "cuda":
                torch.cuda.empty_cache()


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


class Networks(NamedTuple):
    """What is kept of a set of networks."""

    odds: np.ndarray  # log-odds by network, record and query
    inside: np.ndarray
    scores: dict[str, np.ndarray]  # from one network each, by network and record
    accuracy: np.ndarray  # over members and others
    seconds: np.ndarray  # of training and of the scores, for one network


def kept_networks(folder: Path, name: str) -> Networks | None:
    """Return a set of networks from its pieces; the plain loss is minus the log-odds."""
    pieces = []
    for path in sorted(folder.glob(f"{name}-???.npz")):
        with np.load(path, allow_pickle=False) as file:
            pieces.append({key: file[key] for key in file.files})
    if not pieces:
        return None
    records = len(pieces[0]["labels"])
    odds = np.concatenate([p["odds"] for p in pieces]).astype(np.float32)
    names = ("norm", "last-layer_leverage", "sketched_leverage", "own_shift")
    scores = {key: np.concatenate([p[key] for p in pieces]).astype(np.float32) for key in names}
    bits = np.concatenate([np.unpackbits(p["inside"], axis=1)[:, :records] for p in pieces])
    return Networks(
        odds,
        bits.astype(bool),
        {"loss": -odds[..., 0], **{key.replace("_", " "): v for key, v in scores.items()}},
        np.mean([p["accuracy"] for p in pieces], axis=0),
        np.sum([p["seconds"] for p in pieces], axis=0) / len(odds),
    )


class Attackers(NamedTuple):
    """One way to attack."""

    method: str
    online: bool
    references: int | None = None  # all others if None
    queries: int = 1


ATTACKS = {
    "LiRA, online": Attackers("lira", True),
    "LiRA, online, mirrored too": Attackers("lira", True, queries=2),
    "LiRA, offline": Attackers("lira", False),
    "RMIA, online": Attackers("rmia", True),
    "RMIA, offline": Attackers("rmia", False),
    "RMIA, online, 4 references": Attackers("rmia", True, 4),
    "LiRA, online, 4 references": Attackers("lira", True, 4),
}


def power(nets: Networks) -> dict[str, Any]:
    """Attack every network by all others, or by a few; return areas, power and curves."""
    from seepage.attacks.membership.inference import MembershipInferenceResult
    from seepage.attacks.membership.scores import offline_constant, score

    models = len(nets.odds)
    found = {}
    for name, how in ATTACKS.items():
        scores = []
        for k in range(models):
            # The next ones, so that the halves of those few are independent of the target's
            others = [(k + 1 + j) % models for j in range(how.references or models - 1)]
            some = nets.odds[others, :, : how.queries]
            settings: dict[str, Any] = {"method": how.method, "online": how.online}
            if how.method == "rmia" and not how.online:
                if not k:  # one constant for all, from the networks that attack the first
                    constant = offline_constant(some[:16], nets.inside[others[:16]])
                settings["constant"] = constant
            target = nets.odds[k, :, : how.queries]
            scores.append(score(target, some, nets.inside[others], **settings))
        found[name] = MembershipInferenceResult(name, np.stack(scores), nets.inside)
    found["loss alone"] = MembershipInferenceResult("loss", nets.odds[..., 0], nets.inside)
    return found


def distances(nets: Networks, without: list[int]) -> np.ndarray:
    """Return LiRA's distance μ of every record, from all networks but some."""
    kept = np.setdiff1d(np.arange(len(nets.odds)), without)
    odds, inside = nets.odds[kept, :, 0].astype(float), nets.inside[kept]
    means, variances = [], []
    for side in (inside, ~inside):
        count = side.sum(axis=0).astype(float)
        count[count < 2] = np.nan  # no variance
        mean = np.where(side, odds, 0).sum(axis=0) / count
        means.append(mean)
        variances.append(np.where(side, (odds - mean) ** 2, 0).sum(axis=0) / (count - 1))
    return np.asarray((means[0] - means[1]) / np.sqrt((variances[0] + variances[1]) / 2))


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's correlation over the records that have both."""
    from scipy.stats import spearmanr

    known = np.isfinite(a) & np.isfinite(b)
    return float(spearmanr(a[known], b[known]).statistic)


def correlations(nets: Networks, rng: np.random.Generator) -> dict[str, Any]:
    """Return rank correlations with μ: of one network's scores, and of mean ranks over several."""
    from scipy.stats import rankdata

    models = len(nets.odds)
    out: dict[str, Any] = {}
    truth = [distances(nets, [k]) for k in range(models)]
    for name, scores in nets.scores.items():
        sides = []
        for side in (nets.inside, ~nets.inside):
            each = [rank_correlation(scores[k][side[k]], truth[k][side[k]]) for k in range(models)]
            sides.append([float(np.mean(each)), float(np.std(each, ddof=1))])
        row: dict[str, Any] = {"members": sides[0], "others": sides[1]}
        ranks = np.stack([rankdata(one) for one in scores])
        for count in (1, 2, 4, 8):
            if count > models // 4:
                continue
            each = []
            for _ in range(12):
                some = rng.choice(models, count, replace=False).tolist()
                each.append(rank_correlation(ranks[some].mean(0), distances(nets, some)))
            row[f"mean rank over {count}"] = float(np.mean(each))
        out[name] = row
    order = rng.permutation(models)
    first, second = order[: models // 2].tolist(), order[models // 2 :].tolist()
    split = rank_correlation(distances(nets, first), distances(nets, second))
    return {"scores": out, "split-half of μ": split}


def transfer(every: dict[str, Networks]) -> dict[str, Any]:
    """Fit a rising map from own shift to success ``Φ(μ/2)`` on one set; try it on all of them.

    Fitted on the members of the first half of a set's networks, tried on members of the second
    half. Returned: the largest difference between predicted and measured mean success over tenths
    of the records by prediction.
    """
    from scipy.special import ndtr
    from sklearn.isotonic import IsotonicRegression

    def members(nets: Networks, some: range) -> tuple[np.ndarray, np.ndarray]:
        x, y = [], []
        for k in list(some)[:16]:
            success = ndtr(distances(nets, [k]) / 2)
            side = nets.inside[k] & np.isfinite(success)
            x.append(nets.scores["own shift"][k][side])
            y.append(success[side])
        return np.concatenate(x), np.concatenate(y)

    out = {}
    for name, nets in every.items():
        half = len(nets.odds) // 2
        fit = IsotonicRegression(out_of_bounds="clip").fit(*members(nets, range(half)))
        for other, there in every.items():
            x, y = members(there, range(len(there.odds) // 2, len(there.odds)))
            said = fit.predict(x)
            tenths = np.array_split(np.argsort(said, kind="stable"), 10)
            gap = max(abs(float(said[some].mean() - y[some].mean())) for some in tenths)
            out[f"{name} to {other}"] = gap
    return out


def analyse(args: argparse.Namespace) -> int:
    """Attack every network by all others, print and keep the figures."""
    from keeping import keep
    from measuring import show

    every = {name: kept_networks(Path(args.analyse), name) for name in SETS}
    sets = {name: nets for name, nets in every.items() if nets is not None}
    rng = np.random.default_rng(0)
    figures: dict[str, Any] = {"trained on": args.trained_on}
    for name, nets in sets.items():
        models, records = nets.inside.shape
        train, ask = nets.seconds
        print(
            f"\n{name}: {models} networks, {records:,} records; right {nets.accuracy[0]:.3f} of "
            f"members, {nets.accuracy[1]:.3f} of others; a network trains in {train:.2f} s, its "
            f"scores take {ask:.2f} s"
        )
        widths = (28, 8, 30, 30)
        show("attack", "AUC", "power at 0.1 %", "power at 1 %", widths=widths)
        attacks = power(nets)
        rows = {}
        for attack, result in attacks.items():
            rates = [result.tpr(fpr) for fpr in (0.001, 0.01)]
            rows[attack] = {
                "AUC": result.auc,
                "0.1 %": [rates[0].rate, *rates[0].interval],
                "1 %": [rates[1].rate, *rates[1].interval],
            }
            texts = [
                f"{100 * r.rate:.2f} % [{100 * r.interval.low:.2f}, {100 * r.interval.high:.2f}]"
                for r in rates
            ]
            show(attack, f"{result.auc:.3f}", *texts, widths=widths)
        ranks = correlations(nets, rng)
        print(f"rank correlation with LiRA's μ (split-half {ranks['split-half of μ']:.3f})")
        heads = ("members", "others", *(f"mean rank over {c}" for c in (1, 2, 4, 8)))
        show("score", *heads, widths=(22, 16, 16, 18, 18, 18, 18))
        for score, row in ranks["scores"].items():
            cells = [
                ""
                if head not in row
                else f"{row[head]:.3f}"
                if isinstance(row[head], float)
                else f"{row[head][0]:.3f} ± {row[head][1]:.3f}"
                for head in heads
            ]
            show(score, *cells, widths=(22, 16, 16, 18, 18, 18, 18))
        figures[name] = {
            "networks": models,
            "records": records,
            "accuracy of members and others": nets.accuracy.tolist(),
            "seconds of training and of scores, a network": nets.seconds.tolist(),
            "attacks": rows,
            "rank correlations": ranks,
        }
        if args.figure and name == args.sets.split(",")[0]:
            draw(attacks, Path(args.figure))
    figures["largest error of transferred success, by tenths"] = gaps = transfer(sets)
    for pair, gap in gaps.items():
        print(f"success predicted from own shift, fitted on {pair}: off by {gap:.3f} at most")
    keep(figures, RESULTS)
    return 0


def draw(attacks: dict[str, Any], path: Path) -> None:
    """Draw the ROC curves on logarithmic axes."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.2, 4.4), layout="constrained")
    grid = np.logspace(-4, 0, 60)
    for name, result in attacks.items():
        known = np.isfinite(result.scores)  # a few references may not have or lack a record
        outside = np.sort(result.scores[~result.members & known])[::-1]
        inside = np.sort(result.scores[result.members & known])
        cuts = outside[np.minimum((grid * len(outside)).astype(int), len(outside) - 1)]
        true = 1 - np.searchsorted(inside, cuts, side="right") / len(inside)
        axes.plot(grid, true, label=name, linewidth=1.2)
    axes.plot(grid, grid, "0.7", linewidth=0.8)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(1e-4, 1),
        ylim=(1e-4, 1),
        xlabel="false positive rate",
        ylabel="true positive rate",
    )
    axes.legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Do what was asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pack", metavar="FILE")
    parser.add_argument("--train", nargs=2, metavar=("FILE", "OUT"))
    parser.add_argument("--analyse", metavar="OUT")
    parser.add_argument("--figure", metavar="FILE")
    parser.add_argument("--trained-on", default="one NVIDIA H200, bfloat16", help="where, kept")
    parser.add_argument("--sets", default="xrays,small,large")
    parser.add_argument("--skip", default="", help="pieces kept elsewhere: xrays-000,xrays-032")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--chunk", type=int, default=64, help="records scored at a time")
    parser.add_argument("--change", default="{}", help="settings of a smaller run, as JSON")
    args = parser.parse_args()
    if args.pack:
        pack(Path(args.pack), args.records)
    if args.train:
        train_sets(args)
    if args.analyse:
        return analyse(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
