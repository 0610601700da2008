"""Outlier detection by a score: ROC curve and area, also with equal scores."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

import seepage as sp
from seepage.core.result import Result


@pytest.mark.parametrize("decimals", [0, 1, 9])
def test_the_curve_of_scikit_learn(decimals: int) -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(0, 1, 80).round(decimals), rng.normal(1, 2, 50).round(decimals)
    found = sp.attacks.out_of_distribution(inside, outside)
    truth, scores = np.repeat([0, 1], [80, 50]), np.concatenate([inside, outside])
    false_alarms, detections, thresholds = roc_curve(truth, scores, drop_intermediate=False)
    np.testing.assert_allclose(found.false_alarms, false_alarms)
    np.testing.assert_allclose(found.detections, detections)
    np.testing.assert_allclose(found.thresholds, thresholds)
    assert found.area == pytest.approx(roc_auc_score(truth, scores))
    assert np.trapezoid(found.detections, found.false_alarms) == pytest.approx(found.area)
    assert found.interval.low < found.area < found.interval.high
    allowed = false_alarms <= 0.1
    assert found.detected_at(0.1) == pytest.approx(detections[allowed].max())


def test_results_and_bad_scores() -> None:
    inside = Result(np.array([1.0, 2.0]), "rows", "plis")
    assert sp.attacks.out_of_distribution(inside, [3.0, 4.0]).area == 1.0
    assert "1.000" in repr(sp.attacks.out_of_distribution(inside, [3.0, 4.0]))
    for bad, message in (
        ([], "one score"),
        ([[1.0]], "one score"),
        ([np.nan], "not finite"),
    ):
        with pytest.raises(sp.InputError, match=message):
            sp.attacks.out_of_distribution(inside, bad)
    with pytest.raises(sp.InputError, match="false positive rate"):
        sp.attacks.out_of_distribution(inside, [1.0]).detected_at(2)
