"""Small files made in each publisher's format, for tests that must not need the real ones."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K"
)
IWPC_HEADER = "race,age,height,weight,amiodarone,decr,cyp2c9,vkorc1,dose"
LFW_HEADER = "image,person,imagenum,male_manual,smile_manual,pred_Male,pred_df_race"


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes(), compresslevel=1)


def write_mnist(root: Path) -> Path:
    home = root / "mnist"
    home.mkdir()
    for prefix, count in (("train", 60_000), ("t10k", 10_000)):
        pixels = np.zeros((count, 28, 28), dtype=np.uint8)
        pixels[:, 3, 5] = np.arange(count) % 251
        (home / f"{prefix}-images-idx3-ubyte.gz").write_bytes(idx_bytes(pixels))
        labels = np.arange(count) % 10
        (home / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(idx_bytes(labels))
    return home


CIFAR10_BATCHES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")


def write_black_cifar10(root: Path) -> Path:
    """Write nothing but zeros, which takes no time: black images of the first class."""
    batches = root / "cifar10" / "cifar-10-batches-bin"
    batches.mkdir(parents=True)
    for name in CIFAR10_BATCHES:
        with (batches / f"{name}.bin").open("wb") as stream:
            stream.truncate(10_000 * 3073)
    return batches


def write_cifar10(root: Path) -> Path:
    batches = write_black_cifar10(root)
    record = np.arange(10_000 * 3073, dtype=np.uint32).reshape(10_000, 3073).astype(np.uint8)
    record[:, 0] = np.arange(10_000) % 10
    for name in CIFAR10_BATCHES:
        record[0, 1] = len(name) + int(name[-1]) if name[-1].isdigit() else 99
        record.tofile(batches / f"{name}.bin")
    return batches


def write_adult(root: Path) -> Path:
    home = root / "adult"
    home.mkdir()
    unknown = ADULT_ROW.replace("State-gov", "?")
    rich = ADULT_ROW.replace("<=50K", ">50K").replace("Never-married", "Married-AF-spouse")
    rows = [rich, unknown] + [ADULT_ROW] * (32_561 - 2)
    (home / "adult.data").write_text("\n".join(rows) + "\n\n")
    rows = ["|1x3 Cross validator"] + [f"{ADULT_ROW}."] * 16_280 + [f"{rich}."]
    (home / "adult.test").write_text("\n".join(rows) + "\n\n")
    return home


def write_iwpc(root: Path) -> Path:
    home = root / "iwpc"
    home.mkdir()
    kinds = [
        f"{race},{k / 10},0.5,-0.25,0,1,{gene},{allele},{k / 7:.4f}"
        for k, (race, gene, allele) in enumerate(
            zip(
                ("asian", "black", "white", "white", "white", "asian"),
                ("11", "12", "13", "22", "23", "33"),
                ("CC", "CT", "TT", "CC", "CT", "TT"),
                strict=True,
            )
        )
    ]
    rows = [kinds[k % len(kinds)] for k in range(4_819)]
    (home / "iwpc-scaled.csv").write_text("\n".join([IWPC_HEADER, *rows]) + "\n")
    return home


def pneumonia_arrays() -> dict[str, np.ndarray]:
    arrays = {}
    for split, count in (("train", 4_708), ("val", 524), ("test", 624)):
        arrays[f"{split}_images"] = np.full((count, 28, 28), len(split), dtype=np.uint8)
        arrays[f"{split}_labels"] = (np.arange(count) % 2).astype(np.uint8)[:, None]
    return arrays


def write_pneumonia(root: Path, **changed: np.ndarray) -> Path:
    home = root / "medmnist"
    home.mkdir()
    np.savez_compressed(home / "pneumoniamnist.npz", **(pneumonia_arrays() | changed))
    return home


def write_lfw(root: Path, faces: int = 3) -> Path:
    home = root / "lfw"
    home.mkdir()
    images = np.arange(faces * 62 * 47 * 3, dtype=np.uint32).astype(np.uint8)
    np.savez(home / "lfw_62x47.npz", images=images.reshape(faces, 62, 47, 3))
    rows = [
        f"A_{k:04},A,{k},{k % 2},{'' if k else 1},0.25,{'' if k else 'white'}" for k in range(3)
    ]
    (home / "lfw_attributes.csv").write_text("\n".join([LFW_HEADER, *rows]) + "\n")
    return home
