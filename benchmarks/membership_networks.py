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
``seepage.nn.exposure_scores``, and the offline constant of RMIA is chosen on the shadow models.
"""

from __future__ import annotations

import argparse
import bz2
import json
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

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


def analyse(args: argparse.Namespace) -> int:
    """Attack every network by all others."""
    raise NotImplementedError(args.analyse)


def main() -> int:
    """Do what was asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pack", metavar="FILE")
    parser.add_argument("--train", nargs=2, metavar=("FILE", "OUT"))
    parser.add_argument("--analyse", metavar="OUT")
    parser.add_argument("--figure", metavar="FILE")
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
