"""Errors of reconstructions: their parts, categories, and how alike images are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seepage as sp
from seepage.attacks import categorical_accuracy, psnr, reconstruction_errors, ssim
from seepage.attacks.record.reconstruction_error import ErrorTally

RNG = np.random.default_rng(0)


@pytest.mark.slow
@given(st.integers(2, 40), st.integers(1, 5), st.integers(1, 6), st.integers(0, 10**6))
def test_the_parts_add_up_and_are_what_they_are_called(trials, rows, size, seed):
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((rows, size))
    guesses = truth + rng.standard_normal((trials, rows, size)) + 2.0
    found = reconstruction_errors(guesses, truth)
    squared = ((guesses - truth) ** 2).mean(axis=2)
    np.testing.assert_allclose(found.mse, squared.mean(axis=0))
    np.testing.assert_allclose(found.median_error, np.median(squared, axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.variance, guesses.var(axis=0, ddof=1).mean(axis=1))
    np.testing.assert_allclose(found.bias_squared, np.maximum(found.mse - found.variance, 0))
    np.testing.assert_allclose(
        found.standard_error, squared.std(axis=0, ddof=1) / np.sqrt(trials), atol=1e-8
    )


def test_bias_is_free_of_what_few_trials_put_there():
    """Over many repetitions a bias of zero is found to be near zero, and one of one near one."""
    for offset in (0.0, 1.0):
        guesses = offset + RNG.standard_normal((5, 20_000, 1))
        found = reconstruction_errors(guesses, np.zeros((20_000, 1)))
        raw = np.mean(guesses.mean(axis=0) ** 2)
        assert raw == pytest.approx(offset**2 + 0.2, abs=0.03)
        assert np.mean(found.mse - found.variance) == pytest.approx(offset**2, abs=0.03)


def test_chunks_of_trials_add_up():
    truth = RNG.standard_normal((3, 2))
    guesses = RNG.standard_normal((50, 3, 2))
    whole = reconstruction_errors(guesses, truth, rows=["a", "b", "c"])
    tally = ErrorTally(np.array(["a", "b", "c"]), 2)
    for piece in np.split(guesses, [7, 30]):
        off = piece - truth
        tally.add(np.mean(off**2, axis=2).T, off.sum(axis=0))
    found = tally.result()
    for field in ("mse", "median_error", "variance", "bias_squared"):
        np.testing.assert_allclose(getattr(found, field), getattr(whole, field), rtol=1e-9)
    assert found.table().column("row").to_pylist() == ["a", "b", "c"]


def test_one_record_may_be_given_flat():
    found = reconstruction_errors([[1.0, 1.0], [3.0, 3.0]], [0.0, 0.0])
    assert found.mse.tolist() == [5.0]


@pytest.mark.parametrize("shape", [(2, 3), (4, 2, 3), (0, 1, 2), (2,)])
def test_shapes_that_do_not_fit_are_refused(shape):
    with pytest.raises(sp.InputError, match="estimates must have the shape"):
        reconstruction_errors(np.zeros(shape), np.zeros((1, 2)))


def test_categories_are_the_nearest_code():
    codes = np.array([[1, 0], [0, 1], [0, 0]])
    truth = np.array([[1, 0], [0, 0]])
    guesses = np.array([[[0.8, 0.1], [0.2, 0.1]], [[0.4, 0.45], [0.9, 0.3]], [[9, 0], [-4, -4]]])
    np.testing.assert_allclose(categorical_accuracy(guesses, truth, codes), [2 / 3, 2 / 3])
    with pytest.raises(sp.InputError, match="codes must have one row per level"):
        categorical_accuracy(guesses, truth, np.eye(3))
    with pytest.raises(sp.InputError, match="estimates must have the shape"):
        categorical_accuracy(guesses[:, :1], truth, codes)


def naive_ssim(a: np.ndarray, b: np.ndarray, data_range: float) -> float:
    """Window by window, with loops."""
    offsets = np.arange(-5, 6)
    line = np.exp(-(offsets**2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    values = []
    for i in range(5, a.shape[0] - 5):
        for j in range(5, a.shape[1] - 5):
            x, y = (v[i - 5 : i + 6, j - 5 : j + 6] for v in (a, b))
            mx, my = (window * x).sum(), (window * y).sum()
            sx, sy = (window * (x - mx) ** 2).sum(), (window * (y - my) ** 2).sum()
            sxy = (window * (x - mx) * (y - my)).sum()
            values.append(
                (2 * mx * my + c1) * (2 * sxy + c2) / ((mx**2 + my**2 + c1) * (sx + sy + c2))
            )
    return float(np.mean(values))


@pytest.mark.parametrize("shape", [(11, 11), (28, 28), (13, 20)])
@pytest.mark.parametrize("data_range", [1.0, 255.0])
def test_structural_similarity_is_what_the_loops_give(shape, data_range):
    a = data_range * RNG.random(shape)
    b = np.clip(a + 0.2 * data_range * RNG.standard_normal(shape), 0, data_range)
    got = float(ssim(a, b, data_range))
    assert got == pytest.approx(naive_ssim(a, b, data_range), rel=1e-9)
    assert 0 < got < 1


def test_similarities_are_scikit_images():
    metrics = pytest.importorskip("skimage.metrics")
    a, b = RNG.random((28, 28)), RNG.random((28, 28))
    want = metrics.structural_similarity(
        a, b, data_range=1.0, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    assert float(ssim(a, b)) == pytest.approx(want, rel=1e-9)
    assert float(psnr(a, b)) == pytest.approx(metrics.peak_signal_noise_ratio(b, a, data_range=1.0))


def test_images_come_in_stacks():
    images, reference = RNG.random((4, 3, 16, 16)), RNG.random((3, 16, 16))
    both = ssim(images, reference), psnr(images, reference)
    for k in range(4):
        for j in range(3):
            assert both[0][k, j] == pytest.approx(float(ssim(images[k, j], reference[j])))
            assert both[1][k, j] == pytest.approx(float(psnr(images[k, j], reference[j])))


def test_the_same_image_is_infinitely_close():
    image = RNG.random((12, 12))
    assert float(psnr(image, image)) == np.inf
    assert float(ssim(image, image)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("a", "b", "options", "words"),
    [
        (np.zeros((4, 4)), np.zeros((5, 4)), {}, "same height and width"),
        (np.zeros(4), np.zeros(4), {}, "height, width"),
        (np.zeros((10, 12)), np.zeros((10, 12)), {}, "at least 11 pixels"),
        (np.zeros((12, 12)), np.zeros((12, 12)), {"data_range": 0.0}, "data_range"),
    ],
)
def test_what_cannot_be_compared_is_refused(a, b, options, words):
    with pytest.raises(sp.InputError, match=words):
        ssim(a, b, **options)
