"""Prepares loaded data sets as learning problems, exactly as in the papers.

The papers are Hannun, Guo and van der Maaten, "Measuring Data Leakage in Machine-Learning Models
with Fisher Information" (2021), and Guo, Karrer, Chaudhuri and van der Maaten, "Bounding Training
Data Reconstruction in Private (Deep) Learning" (2022). Neither fits an intercept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seepage.data.loaders import ADULT_COLUMNS, ADULT_CONTINUOUS, IWPC_NOMINAL, Adult
from seepage.data.structures import Images, ImageSet, Problem, Records
from seepage.errors import InputError

Matrix = NDArray[np.float64]


def two_class_pixels(images: ImageSet, classes: tuple[int, int] = (0, 1)) -> Problem:
    """Return two classes of images as flattened raw pixels in [0, 1] (Guo et al. 2022).

    Colour images are flattened in height, width, channel order. The target is 1 for the second
    class.
    """
    X, y = _two_classes(images.train, classes)
    X_test, y_test = _two_classes(images.test, classes)
    shape = images.train.pixels.shape[1:]
    names = tuple("pixel_" + "_".join(str(i) for i in place) for place in np.ndindex(*shape))
    return Problem(X, y, X_test, y_test, names)


def two_class_pca(
    images: ImageSet, classes: tuple[int, int] = (0, 1), dimensions: int = 20
) -> Problem:
    """Project two classes of images onto principal components (Hannun et al. 2021, Table 1).

    Pixels are divided by 255 and flattened. All rows of a split are then divided by the split's
    largest row norm, so that every row is in the unit ball. Both splits are then centred with the
    training mean and projected onto the leading eigenvectors of the training rows' covariance,
    without whitening. Components are in order of decreasing variance, with signs chosen such that
    the loading of largest absolute value is positive. For linear regression, Hannun et al. use the
    targets ``2*y - 1``.
    """
    X, y = _two_classes(images.train, classes)
    X_test, y_test = _two_classes(images.test, classes)
    if not 1 <= dimensions <= X.shape[1]:
        raise InputError(
            f"dimensions must be between 1 and {X.shape[1]}, the number of pixels, not "
            f"{dimensions}."
        )
    X /= np.linalg.norm(X, axis=1).max()
    X_test /= np.linalg.norm(X_test, axis=1).max()
    mean = X.mean(axis=0)
    X -= mean
    X_test -= mean
    basis = _leading_eigenvectors(X.T @ X, dimensions)
    names = tuple(f"pc{k + 1}" for k in range(dimensions))
    return Problem(X @ basis, y, X_test @ basis, y_test, names)


def iwpc_one_hot(patients: Records) -> Problem:
    """Encode the warfarin data of Hannun et al. 2021: 14 features, 80 % of patients for training.

    Attributes are in alphabetical order. Race, cyp2c9 and vkorc1 are one-hot encoded with the first
    level dropped, and the target is the standardised dose. The split is random with a fixed seed;
    the original split, which needs torch's generator, is a different one.
    """
    columns = [name for name in sorted(patients.columns) if name != "dose"]
    blocks: list[Matrix] = []
    names: list[str] = []
    attributes: dict[str, tuple[str, ...]] = {}
    for name in columns:
        if name in IWPC_NOMINAL:
            levels = np.unique(patients[name]).tolist()[1:]
            attributes[name] = tuple(f"{name}={level}" for level in levels)
            blocks.append(_indicators(patients[name], levels))
            names.extend(attributes[name])
        else:
            blocks.append(patients[name][:, None])
            names.append(name)
    X, y = np.hstack(blocks), patients["dose"]
    # NumPy guarantees the raw stream of a bit generator for ever, but not permutation().
    order = np.argsort(np.random.PCG64(0).random_raw(len(y)), kind="stable")
    train, test = np.split(order, [len(y) * 8 // 10])
    return Problem(X[train], y[train], X[test], y[test], tuple(names), attributes)


def adult_one_hot(people: Adult) -> Problem:
    """Encode the census problem of Hannun et al. 2021: 86 features, without incomplete records.

    The six continuous columns (including fnlwgt) are standardised with the training mean and sample
    standard deviation. Marital status becomes married (any "Married-…") or not, and relationship is
    dropped. Nominal columns are one-hot encoded in sorted order with the last level dropped. For
    marital status, the original code keeps the indicator of *not* being married. Features are in
    the order of the file; the target is 1 for an income above $50,000.
    """
    train, test = _complete(people.train), _complete(people.test)
    blocks: list[Matrix] = []
    test_blocks: list[Matrix] = []
    names: list[str] = []
    attributes: dict[str, tuple[str, ...]] = {}
    for name in ADULT_COLUMNS:
        if name in ("relationship", "income"):
            continue
        if name in ADULT_CONTINUOUS:
            mean, deviation = train[name].mean(), train[name].std(ddof=1)
            blocks.append((train[name] - mean)[:, None] / deviation)
            test_blocks.append((test[name] - mean)[:, None] / deviation)
            names.append(name)
            continue
        if name == "marital-status":
            levels = ["not-married", "married"]
            values, test_values = _married(train[name]), _married(test[name])
        else:
            levels = np.unique(train[name]).tolist()
            values, test_values = train[name], test[name]
        unseen = sorted(set(test_values.tolist()) - set(levels))
        if unseen:
            raise InputError(
                f"The test records have {unseen[0]!r} for {name}, which no training record has; "
                "drop those records, since the one-hot encoding covers only training levels."
            )
        attributes[name] = tuple(f"{name}={level}" for level in levels[:-1])
        blocks.append(_indicators(values, levels[:-1]))
        test_blocks.append(_indicators(test_values, levels[:-1]))
        names.extend(attributes[name])
    return Problem(
        np.hstack(blocks),
        (train["income"] == ">50K").astype(np.float64),
        np.hstack(test_blocks),
        (test["income"] == ">50K").astype(np.float64),
        tuple(names),
        attributes,
    )


def _two_classes(images: Images, classes: tuple[int, int]) -> tuple[Matrix, Matrix]:
    for label in classes:
        if not np.any(images.labels == label):
            raise InputError(f"No image has the class {label}; choose another class.")
    if classes[0] == classes[1]:
        raise InputError(f"The two classes must differ, but both are {classes[0]}; change one.")
    # Select before converting: all of MNIST as float64 would be eight times its bytes.
    chosen = np.isin(images.labels, classes)
    X = images.pixels[chosen].reshape(int(chosen.sum()), -1) / 255.0
    return X, (images.labels[chosen] == classes[1]).astype(np.float64)


def _leading_eigenvectors(scatter: Matrix, count: int) -> Matrix:
    from scipy.linalg import eigh

    d = scatter.shape[0]
    _, vectors = eigh(scatter, subset_by_index=[d - count, d - 1])
    basis: Matrix = np.ascontiguousarray(vectors[:, ::-1])
    largest = np.take_along_axis(basis, np.abs(basis).argmax(axis=0)[None, :], axis=0)
    return basis * np.sign(largest)


def _indicators(values: NDArray[np.str_], levels: Sequence[str]) -> Matrix:
    hits: Matrix = (values[:, None] == np.asarray(levels)).astype(np.float64)
    return hits


def _complete(records: Records) -> Records:
    known = np.ones(len(records), dtype=bool)
    for name, column in records.columns.items():
        if name not in ADULT_CONTINUOUS:
            known &= column != "?"
    return Records({name: column[known] for name, column in records.columns.items()})


def _married(status: NDArray[np.str_]) -> NDArray[np.str_]:
    return np.where(np.char.startswith(status, "Married-"), "married", "not-married")
