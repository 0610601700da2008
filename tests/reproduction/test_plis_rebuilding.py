"""Figure 3 and Table 1 of Mueller et al. 2022 from made-up studies, and the study in miniature."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

import seepage as sp
from reproduction.plis import chest as plis_chest
from reproduction.plis import figure3 as plis_figure3
from reproduction.plis import table1 as plis_table1
from reproduction.plis import whole_attack
from reproduction.plis.chest import Attacked, Study, mean_of, rank_correlation
from seepage.attacks import compare_images

RECORDS = 40


def made_up(rising):
    """A study in which quality rises with PLIS, over records and over pixels, or falls."""
    draw = np.random.default_rng(0)
    originals = draw.random((RECORDS, 28, 28))
    exposure = np.linspace(-3, 3, RECORDS)
    heat = 10 ** (draw.uniform(-1, 1, originals.shape) + exposure[:, None, None])
    # The error of a pixel follows its PLIS, one way or the other.
    rank = np.argsort(np.argsort(heat.ravel())).reshape(heat.shape) / heat.size
    error = 0.5 * (1 - rank if rising else rank)
    images = originals + error * np.sign(draw.standard_normal(error.shape))
    noise = draw.random(originals.shape)

    def attacked(rebuilt, subjects):
        quality = compare_images(rebuilt[:, None], originals[:, None])
        return Attacked(0.8, heat, subjects, np.sqrt(subjects), rebuilt, quality)

    subjects = np.sqrt(np.sum(heat**2, axis=(1, 2)))
    clipped = np.where(np.arange(RECORDS) < 30, subjects, 0.0)
    labels = np.arange(RECORDS) % 2
    return Study(
        np.arange(RECORDS),
        originals,
        labels,
        attacked(images, subjects),
        attacked(noise, clipped),
        1.5,
    )


@pytest.fixture
def kept(monkeypatch):
    def keep(study):
        for module in (plis_figure3, plis_table1):
            monkeypatch.setattr(module, "chest_study", lambda quick: study)

    return keep


def numbers(outcome):
    assert len({q.name for q in outcome.quantities}) == len(outcome.quantities)
    assert len(outcome.figure.png) < 150_000
    assert outcome.seen.endswith(".")
    return {q.name: q.measured for q in outcome.quantities}


@pytest.mark.slow
def test_what_agrees_with_the_paper_is_said_to(kept):
    kept(made_up(rising=True))
    outcome = plis_table1.reproduce(False)
    found = numbers(outcome)
    assert found["without DP: rank correlation of PLIS and SSIM"] > 0.9
    assert found["without DP, normal only: rank correlation of PLIS and SSIM"] > 0.9
    assert found["SSIM, high PLIS, shorter attack"] > found["SSIM, low PLIS, shorter attack"]
    printed = {q.name: q.printed for q in outcome.quantities if q.printed}
    assert printed == {
        "SSIM, low PLIS": "0.8536",
        "SSIM, high PLIS": "0.9912",
        "HaarPSI, low PLIS": "0.7323",
        "HaarPSI, high PLIS": "0.7779",
    }
    outcome = plis_figure3.reproduce(False)
    found = numbers(outcome)
    over = "rank correlation over the pixels of |PLIS| and error, mean of records"
    assert found[f"{over}, 95 % interval to"] < 0
    assert found["records whose PLIS vanishes with DP"] == 10
    assert "smaller where PLIS is larger, as the paper states for one record" in outcome.seen
    assert "highest PLIS better than" in outcome.seen


@pytest.mark.slow
def test_and_what_does_not_is_not(kept):
    kept(made_up(rising=False))
    outcome = plis_table1.reproduce(False)
    assert numbers(outcome)["without DP: rank correlation of PLIS and SSIM"] < -0.9
    outcome = plis_figure3.reproduce(False)
    assert "unlike what the paper states" in outcome.seen
    assert "highest PLIS worse, not better, than" in outcome.seen


def test_maps_of_white_noise_are_neither_concentrated_nor_smooth():
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((40, 28, 28))
    top, beside = plis_figure3.concentration(noise)
    # A tenth of the pixels, those beyond 1.645, has 0.1 + 2 · 1.645 · φ(1.645) of the square.
    assert top == pytest.approx(0.44, abs=0.02)
    assert abs(beside) < 0.05
    smooth = np.cumsum(np.abs(noise), axis=2)
    assert plis_figure3.concentration(smooth)[1] > 0.9


def test_intervals_hold_what_they_are_about():
    draw = np.random.default_rng(1)
    a = draw.standard_normal(60)
    related, apart = a + draw.standard_normal(60), draw.standard_normal(60)
    found = rank_correlation(a, related)
    assert found.value == pytest.approx(spearmanr(a, related).statistic)
    assert 0 < found.low < found.value < found.high < 1
    assert found.verdict == "up"
    assert rank_correlation(a, -related).verdict == "down"
    assert rank_correlation(a, apart).verdict == "no clear way"
    ties = np.repeat([0.0, 1.0, 2.0], 20)
    assert rank_correlation(ties, related).value == pytest.approx(
        spearmanr(ties, related).statistic
    )
    mean = mean_of(a)
    assert mean.low < mean.value < mean.high
    # The normal interval of a mean, which the bootstrap comes near to.
    assert mean.high - mean.low == pytest.approx(2 * 1.96 * a.std() / np.sqrt(60), rel=0.1)


@pytest.mark.slow
def test_the_noise_of_the_private_run_gives_the_wanted_privacy():
    rate, steps = 256 / 4708, 20
    noise = plis_chest.noise_for(rate, steps)
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    for factor, under in ((1.01, True), (0.97, False)):
        accountant = RdpAccountant(list(range(2, 129)))
        event = dp_accounting.GaussianDpEvent(factor * noise)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, event), steps)
        assert (accountant.get_epsilon(plis_chest.DELTA) <= plis_chest.EPSILON) == under


@pytest.mark.minutes
def test_the_study_in_miniature():
    try:
        sp.data.locate("pneumoniamnist", download=False)
    except sp.InputError as error:
        pytest.skip(f"the data set is not at hand: {error}")
    study = plis_chest.chest_study(True)
    assert len(study.rows) == 12
    assert study.plain.subjects[study.low] == study.plain.subjects.min()
    # Without clipping and noise the picture is the PLIS itself.
    np.testing.assert_allclose(
        study.plain.subjects, np.sqrt(np.sum(study.plain.heat**2, axis=(1, 2))), rtol=1e-5
    )
    assert np.median(study.plain.quality.ssim) > 0.3
    assert np.median(study.private.quality.ssim) < 0.2
    for module in (plis_figure3, plis_table1):
        numbers(module.reproduce(True))


def test_the_printed_numbers_are_judged_by_the_whole_attack(kept, monkeypatch):
    kept(made_up(rising=False))
    outcome = plis_table1.reproduce(False)
    record = json.loads(whole_attack.KEPT.read_text(encoding="utf-8"))
    pieces = [record[f"{network}-{seed}"] for network in ("deep", "strided") for seed in (0, 1)]
    judged = {q.name: q for q in outcome.quantities if q.printed}
    for name, quantity in judged.items():
        measure, place = name.split(", ")[0], int("high" in name)
        values = [p["at the lowest and the highest PLIS"][measure][place] for p in pieces]
        assert quantity.measured == pytest.approx(np.mean(values))
        assert quantity.verdict == "undecided"
        assert "ChestMNIST" in quantity.why
        assert "inversion_study.json" in quantity.why
    # The attack is whole: as many steps as published, and its cost no longer falls.
    for piece in pieces:
        assert (piece["steps"], piece["records"]) == (4800, 256)
        assert piece["curve, fall over the last eighth, median"] < 0.01
    ssim = [p["at the lowest and the highest PLIS"]["SSIM"] for p in pieces]
    rising = sum(high > low for low, high in ssim)
    assert f"in {rising} of 4 cases, as in the paper" in outcome.seen
    for label in ("normal", "pneumonia"):  # over both together, classes hide part of it
        value, low, high = record["mean over attacks"][f"plis, {label}"]["PSNR"]
        assert f"{value:.2f} ({low:.2f} to {high:.2f}) among" in outcome.seen
        assert low > 0
    assert "inversion_study.json: `python benchmarks/inversion_study.py" in outcome.kept[0]
    attacks = " ".join(outcome.kept[1:])  # every piece has the command that attacks it
    assert all(name in attacks for name in (*whole_attack.ATTACKS, *whole_attack.OTHER_LENGTHS))
    assert "--attack IMAGES OUT --restarts 4 --pieces strided-0,strided-1" in attacks


def test_the_plateau_is_shown_by_attacks_of_other_lengths():
    whole = whole_attack.whole_attacks()
    alike, change = whole.settled()
    assert alike > 0.95
    assert change < 0.01
    assert change < whole.extremes_settled() < 0.1
    curves = whole.curves()
    assert set(curves) == {*whole_attack.ATTACKS, *whole_attack.OTHER_LENGTHS}
    for name, (steps, cost) in curves.items():
        assert steps[-1] == {"deep": 1200, "strided": 9600}[name.split("-")[0]] * (
            "times" in name
        ) + 4800 * ("times" not in name)
        assert np.all(np.diff(cost) <= 0)
        assert cost[-1] == pytest.approx(1, abs=0.03)
