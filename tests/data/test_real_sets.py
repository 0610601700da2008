"""The real data sets, where they are at hand: the counts and facts their publishers state."""

from __future__ import annotations

import numpy as np
import pytest

import seepage.data as sd
from seepage.data.download import digest
from seepage.data.obtain import find
from seepage.data.registry import DATA_SETS


def need(name: str):
    """Skip unless the set is in $SEEPAGE_DATA or the cache; return its folder."""
    home = find(DATA_SETS[name])
    if home is None:
        pytest.skip(f"the data set {name} is not here; set SEEPAGE_DATA or fetch it")
    return home


@pytest.fixture(scope="module")
def mnist():
    need("mnist")
    return sd.load_mnist(download=False)


@pytest.fixture(scope="module")
def cifar10():
    need("cifar10")
    return sd.load_cifar10(download=False)


@pytest.mark.parametrize("name", ["mnist", "adult", "iwpc"])
def test_the_published_hashes(name):
    home = need(name)
    for file in DATA_SETS[name].downloads:
        path = home / file.name
        if path.exists():
            assert path.stat().st_size == file.size
            assert digest(path) == file.sha256


def linear_leakage(problem):
    """Return η of every row of unpenalised linear regression on ±1, and the test accuracy."""
    X, y = problem.X, 2 * problem.y - 1
    inverse = np.linalg.inv(X.T @ X)
    w = inverse @ (X.T @ y)
    residual = X @ w - y
    features = X[:, :, None] * w + residual[:, None, None] * np.eye(len(w))
    jacobian = inverse @ np.concatenate([features, -X[:, :, None]], axis=2)
    eta = np.sqrt(np.linalg.eigvalsh(jacobian @ jacobian.transpose(0, 2, 1))[:, -1])
    accuracy = np.mean((problem.X_test @ w > 0) == (problem.y_test == 1))
    return np.mean(eta), np.std(eta), accuracy


@pytest.mark.slow
def test_mnist_zeros_and_ones(mnist):
    raw = sd.two_class_pixels(mnist)
    assert raw.X.shape == (12_665, 784)
    assert raw.X_test.shape == (2_115, 784)
    assert raw.X.min() == 0.0
    assert raw.X.max() == 1.0
    assert np.linalg.norm(raw.X, axis=1).max() == pytest.approx(17.2, abs=0.05)
    mean, deviation, accuracy = linear_leakage(sd.two_class_pca(mnist))
    assert round(mean, 4) == 0.0405
    assert round(deviation, 4) == 0.0138
    assert round(accuracy, 4) == 0.9995


@pytest.mark.minutes
def test_cifar10_planes_and_cars(cifar10):
    problem = sd.two_class_pca(cifar10)
    assert problem.X.shape == (10_000, 20)
    assert problem.X_test.shape == (2_000, 20)
    mean, deviation, accuracy = linear_leakage(problem)
    assert round(mean, 3) == 0.247
    assert round(deviation, 3) == 0.080
    assert round(accuracy, 4) == 0.7975


@pytest.mark.slow
def test_cifar10_counts(cifar10):
    assert np.bincount(cifar10.train.labels).tolist() == [5_000] * 10
    assert np.bincount(cifar10.test.labels).tolist() == [1_000] * 10


@pytest.mark.slow
def test_adult():
    need("adult")
    problem = sd.adult_one_hot(sd.load_adult(download=False))
    assert problem.X.shape == (30_162, 86)
    assert problem.X_test.shape == (15_060, 86)
    assert problem.indices()["marital-status"] == (24,)
    np.testing.assert_allclose(problem.X[:, problem.names.index("fnlwgt")].std(ddof=1), 1.0)
    # adult.names: 24.78 % of the records without unknown values earn more than $50,000.
    assert np.concatenate([problem.y, problem.y_test]).mean() == pytest.approx(0.2478, abs=5e-5)


def test_iwpc():
    need("iwpc")
    patients = sd.load_iwpc(download=False)
    assert len(patients) == 4_819
    problem = sd.iwpc_one_hot(patients)
    assert problem.X.shape == (3_855, 14)
    assert problem.X_test.shape == (964, 14)
    assert problem.names[11:13] == ("vkorc1=CT", "vkorc1=TT")


def test_pneumoniamnist():
    need("pneumoniamnist")
    images = sd.load_pneumoniamnist(download=False)
    assert np.bincount(images.train.labels).tolist() == [1_214, 3_494]
    assert len(images.validation) == 524
    assert np.bincount(images.test.labels).tolist() == [234, 390]


@pytest.mark.slow
def test_lfw():
    need("lfw")
    faces = sd.load_lfw()
    assert len(faces) == 13_233

    def known(column):
        return int(np.isfinite(faces.attributes[column]).sum())

    assert known("male_manual") == 13_225
    assert known("smile_manual") == 3_780
    assert known("pred_Male") == 12_949
    both = np.isfinite(faces.attributes["male_manual"]) & np.isfinite(faces.attributes["pred_Male"])
    agree = (faces.attributes["pred_Male"] > 0.5) == (faces.attributes["male_manual"] == 1)
    assert agree[both].mean() == pytest.approx(0.991, abs=5e-4)
