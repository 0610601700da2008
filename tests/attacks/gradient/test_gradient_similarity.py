"""HaarPSI against loops, against other implementations' numbers, and its laws; SSIM's numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

import seepage as sp
from seepage.attacks import compare_images, haarpsi, psnr, ssim


def made(shape):
    """An image of waves, and the same with spots, from a formula: (channels, height, width)."""
    c, i, j = np.indices(shape)
    clean = (np.sin(i / 3 + c) * np.cos(j / 4) + 1) / 2
    spots = ((7 * i + 13 * j + 5 * c + i * j) % 17) / 17
    return clean, 0.8 * clean + 0.2 * spots


# From piq.haarpsi(…, reduction="none") of piq 0.8.0 in float64, whose own tests hold it to the
# authors' MATLAB code. Its colours are mixed with weights of four digits, the authors' with three.
OTHERS = {
    (1, 28, 28): 0.8141972493979538,
    (1, 33, 29): 0.8595088432427579,
    (1, 64, 48): 0.8647836621097136,
    (3, 28, 28): 0.8599345893447015,
    (3, 40, 31): 0.8557191167170421,
}

# From structural_similarity(a, b, data_range=1.0, gaussian_weights=True, sigma=1.5,
# use_sample_covariance=False) and peak_signal_noise_ratio(b, a, data_range=1.0) of
# skimage.metrics, scikit-image 0.26.0, on the first channel.
SCIKIT_IMAGE = {
    (1, 28, 28): (0.8692236790298653, 22.172787062476594),
    (1, 33, 29): (0.8686392691349717, 22.354838714788517),
    (1, 64, 48): (0.8756295568740474, 22.51259059352947),
}


@pytest.mark.parametrize("shape", OTHERS)
def test_haarpsi_is_what_others_find(shape):
    a, b = made(shape)
    if shape[0] == 3:
        assert float(haarpsi(a, b, colour=True)) == pytest.approx(OTHERS[shape], abs=2e-4)
    else:
        assert float(haarpsi(a[0], b[0])) == pytest.approx(OTHERS[shape], rel=1e-12)


@pytest.mark.parametrize("shape", SCIKIT_IMAGE)
def test_ssim_and_psnr_are_those_of_scikit_image(shape):
    a, b = (side[0] for side in made(shape))
    similar, ratio = SCIKIT_IMAGE[shape]
    assert float(ssim(a, b)) == pytest.approx(similar, rel=1e-12)
    assert float(psnr(a, b)) == pytest.approx(ratio, rel=1e-12)


def naive_haarpsi(a, b, colour):
    """Pixel by pixel, with loops over the filters' windows."""
    yiq = [[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]]
    mixed = []
    for side in (a, b):
        planes = [sum(w * 255 * side[c] for c, w in enumerate(row)) for row in yiq]
        mixed.append(planes if colour else [255 * side])

    def at(image, i, j):
        inside = 0 <= i < image.shape[0] and 0 <= j < image.shape[1]
        return image[i, j] if inside else 0.0

    def halved(image):
        rows, columns = (-(-n // 2) for n in image.shape)
        corners = [(0, 0), (0, 1), (1, 0), (1, 1)]
        return np.array(
            [
                [
                    sum(at(image, 2 * i + p, 2 * j + q) for p, q in corners) / 4
                    for j in range(columns)
                ]
                for i in range(rows)
            ]
        )

    def response(image, i, j, side, down):
        total = 0.0
        for p in range(side):
            for q in range(side):
                sign = 1 if (p if down else q) >= side // 2 else -1
                total += sign * at(image, i + p - side // 2 + 1, j + q - side // 2 + 1)
        return abs(total) / side

    def alike(u, v):
        return (2 * u * v + 30) / (u * u + v * v + 30)

    small = [[halved(plane) for plane in planes] for planes in mixed]
    above = below = 0.0
    for i in range(small[0][0].shape[0]):
        for j in range(small[0][0].shape[1]):
            weights = []
            for down in (True, False):
                h = [[response(s[0], i, j, side, down) for s in small] for side in (2, 4, 8)]
                similar = (alike(*h[0]) + alike(*h[1])) / 2
                weights.append(max(h[2]))
                above += weights[-1] / (1 + np.exp(-4.2 * similar))
                below += weights[-1]
            if colour:
                means = [
                    [
                        abs(sum(at(s[k], i + p, j + q) for p in (0, 1) for q in (0, 1)) / 4)
                        for s in small
                    ]
                    for k in (1, 2)
                ]
                similar = (alike(*means[0]) + alike(*means[1])) / 2
                above += np.mean(weights) / (1 + np.exp(-4.2 * similar))
                below += np.mean(weights)
    return (np.log(above / (below - above)) / 4.2) ** 2


@pytest.mark.parametrize("shape", [(16, 16), (17, 20), (3, 18, 17)])
def test_haarpsi_is_what_the_loops_give(shape):
    draw = np.random.default_rng(0)
    a = draw.random(shape)
    b = np.clip(a + 0.3 * draw.standard_normal(shape), 0, 1)
    colour = len(shape) == 3
    got = float(haarpsi(a, b, colour=colour))
    assert got == pytest.approx(naive_haarpsi(a, b, colour), rel=1e-10)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.sampled_from([(16, 16), (21, 18)]), st.booleans())
@settings(max_examples=30, deadline=None)
def test_laws_of_haarpsi(seed, size, colour):
    draw = np.random.default_rng(seed)
    shape = (3, *size) if colour else size
    a, b = draw.random(shape), draw.random(shape)
    value = float(haarpsi(a, b, colour=colour))
    assert 0 <= value < 1
    assert float(haarpsi(a, a, colour=colour)) == pytest.approx(1.0)
    assert float(haarpsi(b, a, colour=colour)) == pytest.approx(value, rel=1e-12)
    assert float(haarpsi(255 * a, 255 * b, 255.0, colour=colour)) == pytest.approx(value, rel=1e-9)
    if not colour:
        assert float(haarpsi(a.T, b.T)) == pytest.approx(value, rel=1e-9)


def test_the_more_noise_or_blur_the_less_alike():
    clean = made((1, 64, 64))[0][0]
    noise = np.random.default_rng(0).standard_normal(clean.shape)
    noisy = [float(haarpsi(clean + s * noise, clean)) for s in (0.02, 0.05, 0.1, 0.2, 0.5)]
    blurred = [float(haarpsi(gaussian_filter(clean, s), clean)) for s in (0.5, 1, 2, 4, 8)]
    for values in (noisy, blurred):
        assert values == sorted(values, reverse=True)
        assert values[0] - values[-1] > 0.3


def test_images_come_in_stacks():
    draw = np.random.default_rng(0)
    a, b = draw.random((2, 4, 3, 16, 18)), draw.random((4, 3, 16, 18))
    grey, colour = haarpsi(a, b), haarpsi(a, b, colour=True)
    assert grey.shape == (2, 4, 3)
    assert colour.shape == (2, 4)
    assert grey[1, 2, 0] == pytest.approx(float(haarpsi(a[1, 2, 0], b[2, 0])))
    assert colour[1, 2] == pytest.approx(float(haarpsi(a[1, 2], b[2], colour=True)))


def test_images_without_structure_are_compared_all_the_same():
    flat = np.zeros((20, 20))
    assert float(haarpsi(flat, flat)) == pytest.approx(1.0)
    assert np.isfinite(haarpsi(flat, np.ones((20, 20))))


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((15, 20), {}, "at least 16 pixels"),
        ((20, 20), {"colour": True}, "Colour images must have"),
        ((4, 20, 20), {"colour": True}, "Colour images must have"),
        ((20, 20), {"data_range": -1.0}, "data_range"),
    ],
)
def test_what_haarpsi_refuses(shape, options, words):
    with pytest.raises(sp.InputError, match=words):
        haarpsi(np.zeros(shape), np.zeros(shape), **options)


def test_all_measures_at_once():
    a, b = (np.stack([side, side[::-1]]) for side in made((3, 20, 24)))
    found = compare_images(b, a)
    assert found.psnr[0] == pytest.approx(-10 * np.log10(np.mean((a[0] - b[0]) ** 2)))
    assert found.ssim[0] == pytest.approx(ssim(b[0], a[0]).mean())
    assert found.haarpsi[0] == pytest.approx(float(haarpsi(b[0], a[0], colour=True)))
    assert found.table().column_names == ["row", "psnr", "ssim", "haarpsi"]
    assert "2 images" in repr(found)
    grey = compare_images(b[:, :1], a[:, :1])
    assert grey.haarpsi[1] == pytest.approx(float(haarpsi(b[1, 0], a[1, 0])))


def test_bytes_have_a_range_of_their_own():
    a, b = (np.round(255 * side[0]).astype(np.uint8) for side in made((1, 28, 28)))
    for measure in (psnr, ssim, haarpsi):
        assert float(measure(a, b)) == pytest.approx(float(measure(a / 255, b / 255)), rel=1e-12)
    assert float(ssim(a, b)) == pytest.approx(SCIKIT_IMAGE[1, 28, 28][0], abs=1e-3)
    found = compare_images(a[None], b[None])
    assert found.ssim[0] == pytest.approx(float(ssim(a / 255, b / 255)), rel=1e-12)
    assert float(psnr(a.astype(int), b, 255)) == pytest.approx(float(psnr(a, b)))


@pytest.mark.parametrize("measure", [psnr, ssim, haarpsi])
def test_what_cannot_be_compared(measure):
    image = np.zeros((20, 20))
    holed, endless = image.copy(), image.copy()
    holed[3, 3], endless[0, 0] = np.nan, np.inf
    for bad, what in ((holed, "image"), (endless, "image")):
        with pytest.raises(sp.InputError, match=f"The {what} contains NaN"):
            measure(bad, image)
    with pytest.raises(sp.InputError, match="The reference contains NaN"):
        measure(image, holed)
    with pytest.raises(sp.InputError, match=r"\(3, 20, 20\) cannot be paired with .*\(5, 20, 20\)"):
        measure(np.zeros((3, 20, 20)), np.zeros((5, 20, 20)))
    for pair in ((image, image.astype(np.uint8)), (image.astype(int), image.astype(int))):
        with pytest.raises(sp.InputError, match=r"pixel range is not defined for .*set data_range"):
            measure(*pair)
    for full in (0.0, np.inf, np.nan):
        with pytest.raises(sp.InputError, match="data_range must be a finite number"):
            measure(image, image, full)


def test_each_measure_of_what_it_can_take():
    a, b = (np.stack([side, side[::-1]]) for side in made((4, 20, 24)))
    for channels in (1, 2, 4):
        found = compare_images(b[:, :channels], a[:, :channels])
        each = haarpsi(b[:, :channels], a[:, :channels])
        np.testing.assert_allclose(found.haarpsi, each.mean(axis=1))
        assert found.notes == ()
    flat = compare_images(b[:, 0], a[:, 0])
    np.testing.assert_array_equal(flat.ssim, compare_images(b[:, :1], a[:, :1]).ssim)
    middling = compare_images(b[..., :12, :12], a[..., :12, :12])
    assert np.isfinite(middling.ssim).all()
    assert np.isnan(middling.haarpsi).all()
    assert middling.notes == ("no HaarPSI, which needs 16 pixels in each direction",)
    small = compare_images(b[..., :8, :8], a[..., :8, :8])
    assert small.psnr[0] == pytest.approx(
        -10 * np.log10(np.mean((a[0, :, :8, :8] - b[0, :, :8, :8]) ** 2))
    )
    assert np.isnan(small.ssim).all()
    assert len(small.notes) == 2
    assert "no SSIM, which needs 11 pixels" in repr(small)
    assert "SSIM 0." in repr(flat)
    with pytest.raises(sp.InputError, match="Images and originals must have the same shape"):
        compare_images(b[0, 0], a[0, 0])
    with pytest.raises(sp.InputError, match="Images and originals must have the same shape"):
        compare_images(b[:1], a)


def test_records_without_channels_have_a_quality():
    truth = np.stack([made((1, 20, 24))[0][0]] * 2).astype(np.float32)
    found = sp.attacks.GradientReconstruction(
        torch.tensor(truth)[:, None] + 0.1,
        torch.zeros(2, 1),
        torch.zeros(2),
        torch.ones(2),
        torch.ones(2, dtype=torch.bool),
        True,
    )
    np.testing.assert_allclose(found.quality(truth).psnr, 20.0, rtol=1e-4)
    with pytest.raises(sp.InputError, match="set data_range"):
        found.quality((255 * truth).astype(np.uint8))
    with pytest.raises(sp.InputError, match="originals contain NaN"):
        found.quality(np.full_like(truth, np.nan))
