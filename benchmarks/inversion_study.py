"""Which scores predict the records that a full gradient inversion reconstructs: PLIS, FIL, others.

256 training images of PneumoniaMNIST, two networks, two seeds each (of the initial weights, the
order of training and the starting points). Every record's gradient is inverted by the attack of
Geiping et al. 2020: cosine distance, total variation, Adam on signs with step size 0.1, divided by
ten after 3/8, 5/8 and 7/8 of 4,800 steps, pixels kept within bounds, known labels, and four
starting points for the strided network, two for the deep one (``--restarts 2``). The authors tune
the weight of the total variation to the network; here the best of five weights on 32 other records
is taken, by their true error, which favours the attacker. Starting points are drawn around grey
with a tenth of the range, where the authors draw standard normal ones.

``--pack FILE`` writes the images. ``--attack FILE OUT`` trains and attacks, on an accelerator if
there is one, in pieces that are each kept when they are done and not repeated: four of 4,800 steps,
others of a quarter and of twice as many, which show whether more steps help. ``--pieces`` names
those that are wanted, ``--seconds`` says when no further piece is begun. ``--analyse FILE OUT``
prints the rank correlation of every score with four measures of error, with 95 % intervals over
records, and the curves of the cost; the figures are kept in ``results/inversion_study.json``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import seepage as sp
from seepage.attacks.gradient.reconstruction_study import (
    record_scores,
    squared_errors,
)

RESULTS = Path(__file__).parent / "results" / "inversion_study.json"
WEIGHTS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # of the total variation, of which one is taken
MEASURES = ("squared error", "SSIM", "HaarPSI", "PSNR")


class Piece(NamedTuple):
    """One attack on all records."""

    network: str
    seed: int
    longer: float = 1  # times as many steps

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.network}-{self.seed}" + f"-times{self.longer:g}" * (self.longer != 1)


PIECES = [
    *(Piece("deep", seed, 0.25) for seed in (0, 1)),
    *(Piece(network, seed) for seed in (0, 1) for network in ("deep", "strided")),
    *(Piece(network, 0, 2) for network in ("deep", "strided")),
]


def network(name: str, seed: int) -> nn.Module:
    """Return six tanh convolutions with pooling and two dense layers, or three strided with SiLU.

    The first is the network of the reproduction of Mueller et al. 2022.
    """
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    before = 1
    if name == "deep":
        for width in (8, 16, 32):
            for _ in range(2):
                layers += [nn.Conv2d(before, width, 3, padding=1), nn.Tanh()]
                before = width
            layers.append(nn.AvgPool2d(2))
        layers += [nn.Flatten(), nn.Linear(9 * before, 32), nn.Tanh(), nn.Linear(32, 2)]
    else:
        for width in (16, 32, 64):
            layers += [nn.Conv2d(before, width, 3, stride=2, padding=1), nn.SiLU()]
            before = width
        layers += [nn.Flatten(), nn.Linear(16 * before, 2)]
    return nn.Sequential(*layers)


class Images(NamedTuple):
    """Images with unit variance and mean zero over the training data, and the limits of a pixel."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    mean: float
    deviation: float

    @property
    def bounds(self) -> tuple[float, float]:
        """The values of black and white."""
        return -self.mean / self.deviation, (1 - self.mean) / self.deviation

    def pixels(self, x: Any) -> np.ndarray:
        """Return images from 0 to 1."""
        values = torch.as_tensor(x).cpu().double() * self.deviation + self.mean
        return values.clamp(0, 1).numpy()


def pack(path: Path) -> None:
    """Write the images in bytes and their labels to one file."""
    data = sp.data.load_pneumoniamnist(download=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        x=data.train.pixels,
        y=data.train.labels.astype(np.uint8),
        test_x=data.test.pixels,
        test_y=data.test.labels.astype(np.uint8),
    )
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


def unpack(path: Path, device: str) -> Images:
    """Return the packed images, normalised."""
    with np.load(path, allow_pickle=False) as file:
        raw = {name: torch.as_tensor(file[name]) for name in file.files}
    x, test_x = (raw[name].float()[:, None] / 255 for name in ("x", "test_x"))
    mean, deviation = float(x.mean()), float(x.std())
    x, test_x = ((values - mean) / deviation for values in (x, test_x))
    y, test_y = (raw[name].long() for name in ("y", "test_y"))
    parts = [values.to(device) for values in (x, y, test_x, test_y)]
    return Images(*parts, mean, deviation)


def train(net: nn.Module, images: Images, epochs: int, seed: int) -> float:
    """Train with Adam as the reproduction does; return the accuracy on the test images."""
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(images.x), generator=draw).split(128):
            some = rows.to(images.x.device)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images.x[some]), images.y[some]).backward()
            optimizer.step()
    with torch.no_grad():
        return float((net(images.test_x).argmax(1) == images.test_y).float().mean())


def attack_records(args: argparse.Namespace) -> None:
    """Train and attack what is missing, piece by piece, until the time is up."""
    began = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.allow_tf32 = False  # second derivatives need the digits
    out = Path(args.attack[1])
    out.mkdir(parents=True, exist_ok=True)
    images = unpack(Path(args.attack[0]), device)
    order = np.random.default_rng(0).permutation(len(images.x))
    rows, pilot = order[: args.records], order[args.records :][: max(2, args.records // 8)]
    longest = 0.0
    known: dict[tuple[str, int], Any] = {}  # networks, and what was found on other records
    for piece in PIECES:
        path = out / f"{piece.name}.npz"
        left = args.seconds - (time.monotonic() - began)
        wanted = args.pieces is None or piece.name in args.pieces.split(",")
        if not wanted or path.exists() or left < longest * piece.longer:
            continue
        start = time.monotonic()
        if (piece.network, piece.seed) in known:
            net, accuracy, weight, pilot_errors = known[piece.network, piece.seed]
        else:
            net = network(piece.network, piece.seed).to(device)
            accuracy = train(net, images, args.epochs, piece.seed)
            weight = None
        trained = time.monotonic()

        def attack(which: np.ndarray, weight: float, steps: int, starts: int, piece=piece, net=net):
            x, y = images.x[which], images.y[which]
            adversary = sp.attacks.GradientInversion(
                net,
                shape=(1, 28, 28),
                total_variation=weight,
                steps=steps,
                restarts=starts,
                bounds=images.bounds,
                seed=piece.seed,
            )
            return adversary.reconstruct(
                sp.attacks.release_gradients(net, "cross_entropy", x, y), labels=y
            )

        if weight is None:
            pilots = [attack(pilot, some, args.steps // 12, 1) for some in WEIGHTS]
            pilot_errors = [squared_errors(p, images.x[pilot].cpu())[0].mean() for p in pilots]
            weight = WEIGHTS[int(np.argmin(pilot_errors))]
            known[piece.network, piece.seed] = net, accuracy, weight, pilot_errors
        tried = time.monotonic()
        steps = int(args.steps * piece.longer)
        found = attack(rows, weight, steps, args.restarts)
        attacked = time.monotonic()
        kept: dict[str, Any] = {
            "rows": rows,
            "records": found.records[:, 0].half().numpy(),
            "mismatch": found.mismatch.numpy(),
            "curve": found.curve.numpy(),
            "accuracy": accuracy,
            "weight": weight,
            "pilot_errors": np.array(pilot_errors),
            "steps": steps,
            "restarts": args.restarts,
            "seconds": np.array([trained - start, tried - trained, attacked - tried]),
            **{f"net.{name}": value.cpu().numpy() for name, value in net.state_dict().items()},
        }
        _write(path, kept)
        scores = record_scores(net, "cross_entropy", images.x[rows], images.y[rows])
        _write(path, kept | {f"score.{name}": value for name, value in scores.items()})
        longest = max(longest, (time.monotonic() - start) / piece.longer)
        error = squared_errors(found, images.x[rows].cpu())[0] * images.deviation**2
        print(
            f"{path.name}: accuracy {accuracy:.3f}, total variation {weight:g} (errors of "
            f"{', '.join(f'{e:.3f}' for e in pilot_errors)}); median squared error a pixel "
            f"{np.median(error):.5f}; {' + '.join(f'{s:.0f}' for s in kept['seconds'])} s and "
            f"{time.monotonic() - attacked:.0f} s for the scores; {time.monotonic() - began:.0f} s "
            "so far",
            flush=True,
        )


def _write(path: Path, kept: dict[str, Any]) -> None:
    np.savez_compressed(path.with_suffix(".tmp.npz"), **kept)
    path.with_suffix(".tmp.npz").rename(path)


def measured(piece: Piece, path: Path, images: Images) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the scores and errors of one piece's records, and what is known about the attack."""
    with np.load(path, allow_pickle=False) as file:
        kept = {name: file[name] for name in file.files}
    rows = kept["rows"]
    x, y = images.x[rows], images.y[rows]
    scores = {name[6:]: v for name, v in kept.items() if name.startswith("score.")}
    if not scores:
        net = network(piece.network, piece.seed)
        net.load_state_dict({n[4:]: torch.as_tensor(v) for n, v in kept.items() if n[:4] == "net."})
        scores = record_scores(net, "cross_entropy", x, y)
    truth = images.pixels(x)
    guesses = images.pixels(kept["records"].astype(np.float32))
    quality = sp.attacks.compare_images(guesses, truth)
    errors = {
        "squared error": np.mean((guesses - truth) ** 2, axis=(1, 2, 3)),
        "SSIM": quality.ssim,
        "HaarPSI": quality.haarpsi,
        "PSNR": quality.psnr,
    }
    scores["contrast of the image"] = truth.std(axis=(1, 2, 3))
    others = (truth.sum(axis=0) - truth) / (len(truth) - 1)
    about = {
        "records": len(rows),
        "steps": int(kept["steps"]),
        "starting points": int(kept["restarts"]),
        "test accuracy": float(kept["accuracy"]),
        "total variation": float(kept["weight"]),
        "seconds of training, pilots and attack": kept["seconds"].tolist(),
        "median error of the mean image": float(
            np.median(np.mean((others - truth) ** 2, (1, 2, 3)))
        ),
        "share better than the mean image": float(
            np.mean(errors["squared error"] < np.mean((others - truth) ** 2, axis=(1, 2, 3)))
        ),
        "least and quartiles": {
            n: np.quantile(v, (0, 0.25, 0.5, 0.75)).tolist() for n, v in errors.items()
        },
        "at the lowest and the highest PLIS": {
            n: v[[scores["plis"].argmin(), scores["plis"].argmax()]].tolist()
            for n, v in errors.items()
        },
        "pairs in which the higher PLIS has the higher SSIM": _ordered(
            scores["plis"], errors["SSIM"]
        ),
        "curve, median over records": np.median(kept["curve"], axis=0)[4::5].tolist(),
        "curve, fall over the last eighth, median": float(
            np.median(1 - kept["curve"][:, -1] / kept["curve"][:, 87])
        ),
    }
    return {"scores": scores, "errors": errors, "labels": y.numpy()}, about


def _ordered(a: np.ndarray, b: np.ndarray) -> float:
    """Return the share of pairs of records that two scores put in the same order."""
    one, two = np.triu_indices(len(a), 1)
    return float(np.mean((a[one] - a[two]) * (b[one] - b[two]) > 0))


def mean_correlation(pairs: list[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """Return the mean rank correlation over attacks on the same records, and its 95 % interval.

    Percentile bootstrap over the records, which are the same in every attack, with the ranks of the
    whole sample: ranking every resample anew takes ten times as long and changes little.
    """
    from scipy.stats import rankdata

    count = len(pairs[0][0])
    rows = np.random.default_rng(0).integers(count, size=(2_000, count))
    rows = np.vstack([np.arange(count), rows])
    total = np.zeros(len(rows))
    for pair in pairs:
        ranks = [rankdata(values)[rows] for values in pair]
        a, b = (r - r.mean(axis=1, keepdims=True) for r in ranks)
        total += np.sum(a * b, axis=1) / np.sqrt(np.sum(a**2, axis=1) * np.sum(b**2, axis=1))
    total /= len(pairs)
    return [float(total[0]), *np.quantile(total[1:], (0.025, 0.975)).tolist()]


def _words(found: list[float]) -> str:
    return "{:.2f} ({:.2f} to {:.2f})".format(*found).replace("-", "−")


def analyse(args: argparse.Namespace) -> int:
    """Print and keep the rank correlations."""
    from keeping import keep
    from measuring import show

    images = unpack(Path(args.analyse[0]), "cpu")
    found, figures = {}, {}
    for piece in PIECES:
        path = Path(args.analyse[1]) / f"{piece.name}.npz"
        if path.exists():
            found[piece], figures[piece.name] = measured(piece, path, images)
    if not found:
        raise SystemExit(f"there are no pieces in {args.analyse[1]}; make them with --attack")
    names = list(next(iter(found.values()))["scores"])
    widths = (24, 26, 26, 26, 26)
    for piece, got in found.items():
        about = figures[piece.name]
        similar = about["least and quartiles"]["SSIM"]
        print(
            f"\n{piece.name}: {about['records']} records, {about['steps']:,} steps; SSIM "
            f"{similar[2]:.3f} (quartiles {similar[1]:.3f}, {similar[3]:.3f}, least "
            f"{similar[0]:.3f}); better than the mean image: "
            f"{about['share better than the mean image']:.2f}; over the last eighth the cost fell "
            f"by {about['curve, fall over the last eighth, median']:.1e} (median)"
        )
        show("rank correlation with", *MEASURES, widths=widths)
        about["rank correlations"] = table = {}
        for name in names:
            table[name] = {
                m: mean_correlation([(got["scores"][name], got["errors"][m])]) for m in MEASURES
            }
            show(name, *map(_words, table[name].values()), widths=widths)
    plain = [piece for piece in found if piece.longer == 1]
    print(f"\nmean over {len(plain)} attacks, and within the classes")
    show("rank correlation with", *MEASURES, widths=widths)
    figures["mean over attacks"] = means = {}
    for name in names:
        for words, label in (("", None), (", normal", 0), (", pneumonia", 1)):
            row = {}
            for m in MEASURES:
                pairs = []
                for piece in plain:
                    got = found[piece]
                    own = slice(None) if label is None else got["labels"] == label
                    pairs.append((got["scores"][name][own], got["errors"][m][own]))
                row[m] = mean_correlation(pairs)
            means[name + words] = row
            show(name + words, *map(_words, row.values()), widths=widths)
    figures["rank correlation of errors between attacks"] = between = {}
    for k, one in enumerate(found):
        for other in list(found)[k + 1 :]:
            errors = [found[piece]["errors"]["squared error"] for piece in (one, other)]
            between[f"{one.name}, {other.name}"] = mean_correlation([(errors[0], errors[1])])
    for pair, value in between.items():
        print(f"squared errors of {pair}: {_words(value)}")
    keep({"attacked on": args.attacked_on, **figures}, Path(args.result))
    return 0


def main() -> int:
    """Do what was asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pack", metavar="FILE")
    parser.add_argument("--attack", nargs=2, metavar=("FILE", "OUT"))
    parser.add_argument("--analyse", nargs=2, metavar=("FILE", "OUT"))
    parser.add_argument("--attacked-on", default="one NVIDIA H200, float32", help="where, kept")
    parser.add_argument("--result", default=str(RESULTS))
    parser.add_argument("--records", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4_800)
    parser.add_argument("--restarts", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pieces", help="deep-0,strided-0,deep-1,strided-1,deep-0-times2,…")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    args = parser.parse_args()
    if args.pack:
        pack(Path(args.pack))
    if args.attack:
        attack_records(args)
    if args.analyse:
        return analyse(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
