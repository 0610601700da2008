"""The audit's numbers against refits, and what it says about noise, groups, cost and remedies."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from people import by_refits, encoded_people, positions, spread, units
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression, Ridge

import seepage as sp
from coarse import point_above, point_below
from sampled import sampled
from seepage.auditing.audit import DEFAULT_L2, ONLY_NOISE, QUICK, SEPARABLE_L2, Effort, audit_table
from seepage.auditing.report.rendering import tell
from seepage.auditing.report.verdict import judge
from seepage.auditing.tradeoff import split
from seepage.errors import InputError
from seepage.glm import LinearRegression

# Every record's leakage and the curve, and nothing that takes refits
measured = partial(audit_table, name="people", effort=ONLY_NOISE)


def _labels(encoded):
    if encoded.target_kind == "binary":
        return (encoded.source.y == "yes").astype(float)
    return np.asarray(encoded.source.y, dtype=float)


def _fit(model, l2):
    """Minimise the objective with no code of the package: parameters, intercept last."""

    def fit(X, y):
        n, d = X.shape
        D = np.hstack([X, np.ones((n, 1))])
        ridge = np.append(np.full(d, n * l2), 0.0)
        if model == "linear":
            return np.linalg.solve(D.T @ D + np.diag(ridge), D.T @ y)
        mean = (lambda m: 1 / (1 + np.exp(-m))) if model == "logistic" else np.exp
        theta = np.zeros(d + 1)
        scale = np.abs(D).max(axis=0)
        if model == "poisson":
            theta[-1] = np.log(y.mean())
        # A rough start, then Newton's method to rounding.
        loss = (lambda m: np.logaddexp(0, m)) if model == "logistic" else np.exp

        def objective(t):
            m = D @ (t / scale)
            return np.sum(loss(m) - y * m) + 0.5 * np.sum(ridge * (t / scale) ** 2)

        theta = minimize(objective, theta * scale, method="BFGS").x / scale
        for _ in range(30):
            m = mean(D @ theta)
            slope = m * (1 - m) if model == "logistic" else m
            H = D.T @ (slope[:, None] * D) + np.diag(ridge)
            theta = theta - np.linalg.solve(H, D.T @ (m - y) + ridge * theta)
        return theta

    return fit


@pytest.mark.parametrize("scale", sampled([True, False], [True]))
@pytest.mark.parametrize(
    "model", sampled(["linear", "logistic", "poisson"], ["linear", "logistic"])
)
def test_records_and_cells_agree_with_refits(model, scale):
    encoded = encoded_people(model, scale=scale, sensitive=["age", "town", "smoker"])
    audit = measured(encoded, l2=0.02, sigma=0.3)
    y = _labels(encoded)
    label_step = y.std() if model != "logistic" else 1.0
    where = positions(encoded)
    own = np.diag(1 / units(encoded))  # one unit of each column, in features
    steps = own.copy()
    for name in ("age", "weight"):
        steps[where[name][0]] *= spread(encoded)[name]
    fit = _fit(model, 0.02)
    for row in (0, 17, 42):
        J = by_refits(fit, encoded.source.X, y, row, steps, label_step) / 0.3
        assert audit.eta[row] == pytest.approx(np.linalg.norm(J, 2), rel=1e-4)
        assert audit.eta_features[row] == pytest.approx(np.linalg.norm(J[:, :-1], 2), rel=1e-4)
        assert audit.eta_label[row] == pytest.approx(np.linalg.norm(J[:, -1]), rel=1e-4)
        inverse = np.linalg.inv(J[:, :-1].T @ J[:, :-1])
        exact = np.sqrt(np.trace(inverse) / len(inverse))
        assert audit.exact_error[row] == pytest.approx(exact, rel=1e-3)
        for name in ("age", "town", "smoker"):
            part = by_refits(fit, encoded.source.X, y, row, own[list(where[name])]) / 0.3
            error = 1 / np.linalg.norm(part, 2)
            assert audit.cell_errors[name][row] == pytest.approx(error, rel=1e-4)


@pytest.mark.parametrize(
    "model", sampled(["linear", "logistic", "poisson", "softmax"], ["linear", "softmax"])
)
def test_every_model_is_chosen_by_its_target_and_measured(model):
    encoded = encoded_people(model, groups=["town"])
    audit = audit_table(encoded, name="people")
    assert audit.model == model
    assert audit.l2 == DEFAULT_L2
    assert audit.released == (5 + 1) * (3 if model == "softmax" else 1)
    assert np.all(audit.eta >= audit.eta_features * (1 - 1e-9))
    assert np.all(audit.eta >= audit.eta_label * (1 - 1e-9))
    assert audit.dataset_eta >= audit.eta.max() * (1 - 1e-9)
    names = [found.name for found in audit.attributes]
    assert names == ["age", "smoker", "town", "weight", audit.target]
    assert all(text.endswith(".") for _, text in judge(audit).advice)
    assert len(audit.remedies) == 3


def test_summaries_of_attributes_are_those_of_their_cells():
    encoded = encoded_people("logistic", sensitive=["age", "smoker", "town", "weight"])
    audit = measured(encoded, sigma=0.5)
    for found in audit.attributes[:-1]:
        errors = audit.cell_errors[found.name]
        assert found.sensitive
        assert found.smallest_error == errors.min()
        assert errors[list(audit.row_index).index(found.easiest_row)] == errors.min()
        assert found.median_error == np.median(errors)
    label = audit.attributes[-1]
    assert label.smallest_error == pytest.approx(1 / audit.eta_label.max())


def test_the_label_of_a_number_is_in_its_own_units():
    audit = measured(encoded_people("linear"), sigma=2.0, sensitive=["dose"])
    dose = audit.attributes[-1]
    assert dose.spread == pytest.approx(np.std(encoded_people("linear").source.y))
    assert np.allclose(audit.cell_errors["dose"], dose.spread / audit.eta_label)


def test_noise_is_given_calibrated_or_chosen():
    encoded = encoded_people("logistic")
    chosen = measured(encoded)
    least = chosen.eta.max() * chosen.sigma
    assert chosen.sigma == point_above(least)
    assert point_below(chosen.sigma) < least
    assert chosen.noise.how == "default"
    assert "coarse grid" in tell("noise", chosen)
    asked = measured(encoded, target_eta=0.25)
    assert asked.eta.max() == pytest.approx(least / asked.sigma)
    assert asked.eta.max() <= 0.25
    assert asked.sigma == asked.calibrated_sigma == point_above(4 * least)
    given = measured(encoded, sigma=least / 2)
    assert given.eta.max() == pytest.approx(2.0)
    assert given.calibrated_sigma == chosen.sigma


def test_groups_are_compared():
    encoded = encoded_people("logistic", groups=["town", "smoker"])
    audit = measured(encoded)
    by_town, by_smoker = audit.groupings
    assert (by_town.column, by_smoker.column) == ("town", "smoker")
    assert sum(group.count for group in by_town.groups) == len(audit.eta)
    means = {group.label: group.mean_eta for group in by_town.groups}
    assert by_town.ratio == pytest.approx(max(means.values()) / min(means.values()))
    assert means[by_town.least_protected] == max(means.values())
    assert means[by_town.most_protected] == min(means.values())
    for group in by_town.groups:
        assert group.eta_together >= group.worst_eta * (1 - 1e-9)


@pytest.mark.parametrize("model", ["linear", "logistic", "poisson", "softmax"])
def test_the_curve_falls_in_leakage_and_rises_in_error(model):
    audit = measured(encoded_people(model, n=200), sigma=0.1)
    curve = audit.curve
    assert np.all(np.diff(curve.sigma) > 0)
    assert {audit.sigma, audit.calibrated_sigma} <= set(curve.sigma)
    assert np.allclose(curve.worst_eta * curve.sigma, curve.worst_eta[0] * curve.sigma[0])
    assert curve.error[0] == pytest.approx(curve.noiseless_error, rel=0.1)
    assert curve.error[-1] > curve.noiseless_error
    assert curve.noiseless_error < curve.trivial_error
    again = measured(encoded_people(model, n=200), sigma=0.1)
    assert np.array_equal(again.curve.error, curve.error)


def test_the_noiseless_error_is_that_of_held_out_records():
    encoded = encoded_people("linear", n=100)
    audit = measured(encoded, l2=0.01, seed=3)
    train, test = split(encoded.source.y, classes=False, seed=3)
    assert len(test) == 20
    assert not set(train) & set(test)
    model = LinearRegression(l2=0.01, fit_intercept=True).fit(
        encoded.source.X[train], encoded.source.y[train]
    )
    error = np.sqrt(np.mean((model.predict(encoded.source.X[test]) - encoded.source.y[test]) ** 2))
    assert audit.curve.noiseless_error == pytest.approx(error)


def test_noisy_errors_are_those_of_noisy_models():
    """The vectorised error of a linear model has the expectation that theory gives."""
    encoded = encoded_people("linear", n=100)
    audit = measured(encoded, l2=0.01, sigma=50.0)
    _, test = split(encoded.source.y, classes=False, seed=0)
    design = np.hstack([encoded.source.X[test], np.ones((len(test), 1))])
    expected = audit.curve.noiseless_error**2 + 50.0**2 * np.mean(np.sum(design**2, axis=1))
    error = audit.curve.error[list(audit.curve.sigma).index(50.0)]
    assert error**2 == pytest.approx(expected, rel=0.5)  # 20 draws of 6 numbers


def test_every_class_is_fitted_however_rare():
    y = np.array(["a"] * 30 + ["b"])
    for seed in range(20):
        train, test = split(y, classes=True, seed=seed)
        assert set(y[train]) == {"a", "b"}
        assert len(test) == 6


def remedy_of(audit, name):
    """Return the remedy of this name: their order depends on which are useless."""
    return next(remedy for remedy in audit.remedies if remedy.name == name)


@pytest.mark.slow
def test_the_remedies_keep_their_promise():
    encoded = encoded_people("logistic", n=120)
    first = measured(encoded)
    sigma = first.sigma * first.eta.max() / 3
    audit = audit_table(encoded, name="people", sigma=sigma, target_eta=1.0)
    assert audit.eta.max() == pytest.approx(3.0)
    names = ("more noise", "more regularisation", "reweighting")
    noise, penalty, weights = (remedy_of(audit, name) for name in names)
    enough, stronger = noise.sigma, penalty.l2
    after = measured(encoded, sigma=enough).eta.max()
    assert noise.eta == pytest.approx(after)
    assert after <= 1
    assert measured(encoded, sigma=point_below(enough)).eta.max() > 1
    after = measured(encoded, sigma=sigma, l2=stronger)
    assert stronger > audit.l2
    assert penalty.eta == pytest.approx(after.eta.max())
    assert after.eta.max() < 1
    assert noise.reaches_target
    assert penalty.reaches_target
    weaker = measured(encoded, sigma=sigma, l2=point_below(stronger))
    assert weaker.eta.max() > 1
    assert weights.rounds >= 1


def test_a_penalty_that_cannot_help_is_said_so():
    encoded = encoded_people("linear")
    audit = audit_table(encoded, name="people", sigma=1e-6, target_eta=1.0)
    penalty = remedy_of(audit, "more regularisation")
    assert (penalty.reason, penalty.reaches_target) == ("no penalty", False)
    assert penalty.eta > 1
    told = "No penalty is enough at σ = 1e-06: even with λ = 1000, the most exposed record has η = "
    assert tell("remedy", audit, penalty) == f"{told}{penalty.eta:.3g}."


def test_separable_classes_get_a_larger_penalty():
    encoded = encoded_people("logistic")
    encoded.source.X[:, 0] = np.where(encoded.source.y == "yes", 1.0, -1.0) * (
        1 + np.abs(encoded.source.X[:, 0])
    )
    audit = measured(encoded)
    assert audit.l2 == SEPARABLE_L2
    assert any("separated without error" in step for step in audit.steps)
    assert measured(encoded, l2=1e-4).l2 == 1e-4


def test_values_are_carried_only_when_asked_for():
    encoded = encoded_people("logistic", n=20)
    assert measured(encoded).values is None
    shown = measured(encoded, show_values=True).values
    assert shown["town"] == encoded.raw.column("town").to_pylist()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"model": "poisson"}, "one of two classes"),
        ({"model": "forest"}, "There is no model family 'forest'"),
        ({"sigma": -1.0}, "sigma must be"),
        ({"target_eta": 0.0}, "target_eta must be"),
        ({"sensitive": ["agee"]}, "did you mean 'age'"),
        ({"l2": -1.0}, "l2 must be"),
    ],
)
def test_what_makes_no_sense_is_refused(options, complaint):
    with pytest.raises(InputError, match=re.escape(complaint)):
        audit_table(encoded_people("logistic"), name="people", **options)


def test_a_handful_of_rows_is_refused():
    with pytest.raises(InputError, match="at least 10 usable rows, but the table has 8"):
        audit_table(encoded_people("linear", n=8), name="people")


@pytest.mark.slow
def test_slow_searches_are_cut_short_and_left_out_where_said(monkeypatch):
    encoded = encoded_people("softmax", n=100)
    monkeypatch.setattr("seepage.auditing.tradeoff._HEAVY", 0.0)
    monkeypatch.setattr("seepage.auditing.remedies._MANY_PENALTIES", 0.0)
    monkeypatch.setattr("seepage.auditing.remedies._BUDGETS", {"penalty": 1e9, "weights": 0.0})
    audit = audit_table(encoded, name="people")
    weights = remedy_of(audit, "reweighting")
    assert weights.reason == "unknown"
    assert "not tried: the leakage of choosing them" in tell("remedy", audit, weights)
    linear = audit_table(encoded_people("linear", n=100), name="people")
    weights = remedy_of(linear, "reweighting")
    assert weights.reason == "slow"
    assert "the many refits" in tell("remedy", linear, weights)
    named = Effort(remedies=("weights",))
    (asked,) = audit_table(encoded_people("linear", n=100), name="people", effort=named).remedies
    assert asked.rounds >= 1
    monkeypatch.setattr("seepage.auditing.remedies._BUDGETS", {"penalty": 0.0, "weights": 0.0})
    monkeypatch.setattr("seepage.auditing.measures.INVERSE_WORK", 0.0)
    audit = audit_table(encoded, name="people")
    assert {remedy.name for remedy in audit.remedies} == {"more noise", "refitting"}
    assert remedy_of(audit, "refitting").reason == "large"
    assert np.all(np.isnan(audit.exact_error))
    assert any("The exact Cramér–Rao bound" in step for step in audit.steps)


@pytest.mark.parametrize("kind", sampled(["linear", "logistic"], ["linear"]))
def test_reweighting_is_judged_with_the_choice_of_the_weights(kind):
    encoded = encoded_people(kind, n=150)
    audit = audit_table(encoded, name="people", sigma=0.5)
    weights = remedy_of(audit, "reweighting")
    assert "including the leakage of choosing the weights" in tell("remedy", audit, weights)
    spread = np.std(encoded.source.y) if kind == "linear" else 1.0
    makers = {"linear": sp.glm.LinearRegression, "logistic": sp.glm.LogisticRegression}
    fair = sp.glm.reweight(
        makers[kind](l2=audit.l2, fit_intercept=True),
        encoded.source.X,
        encoded.source.y / spread if kind == "linear" else encoded.source.y,
        rounds=60,
        tolerance=1e-4,
        noise=sp.Gaussian(1 / spread),
    )
    worst = float(np.max(np.asarray(fair.whole_procedure())))
    assert weights.sigma == point_above(worst / (audit.target_eta or 1.0))
    assert weights.eta == pytest.approx(worst / weights.sigma)


def test_stages_are_told_as_they_begin():
    told = []
    audit_table(encoded_people("linear"), name="people", tell=told.append)
    assert told == [
        "fitting",
        "leakage of every record",
        "privacy and utility",
        "repeated splits",
        "bounds on one exposed record",
        "which rows were in the data, and guesses",
        "remedy: regularisation and noise",
        "remedy: reweighting",
    ]


@pytest.mark.slow
def test_a_quick_audit_fits_nothing_again_and_has_the_same_numbers():
    told = []
    encoded = encoded_people("logistic")
    quick = audit_table(encoded, name="people", effort=QUICK, tell=told.append)
    assert told == [
        "fitting",
        "leakage of every record",
        "privacy and utility",
        "which rows were in the data, and guesses",
    ]
    whole = audit_table(encoded, name="people")
    assert quick.remedies == ()
    assert quick.guarantees is None
    assert quick.usefulness.splits == 1
    assert quick.sigma == whole.sigma
    ours, theirs = quick.risks.curve, whole.risks.curve
    for name, values in vars(ours).items():
        np.testing.assert_array_equal(values, getattr(theirs, name), err_msg=name)
    assert replace(quick.risks, curve=None) == replace(whole.risks, curve=None)
    np.testing.assert_array_equal(quick.eta, whole.eta)
    assert any("This quick audit" in step for step in quick.steps)


@pytest.mark.parametrize("kind", sampled(["linear", "logistic"], ["linear"]))
def test_noise_in_the_shape_of_public_records_is_a_remedy(kind):
    encoded = encoded_people(kind, n=150)
    assert "shaped noise" not in [r.name for r in audit_table(encoded, name="people").remedies]
    rows = np.arange(len(encoded.source))
    public, private = encoded.source.at(rows[:60]), encoded.source.at(rows[60:])
    table = replace(encoded, source=private, public=public)
    audit = audit_table(table, name="people")
    shaped = remedy_of(audit, "shaped noise")
    assert shaped.public == 60
    assert "a model of the 60 public records" in tell("remedy", audit, shaped)
    makers = {"linear": sp.glm.LinearRegression, "logistic": sp.glm.LogisticRegression}
    pilot, model = (
        makers[kind](l2=audit.l2, fit_intercept=True).fit(part.X, part.y)
        for part in (public, private)
    )
    shape = sp.glm.noise_shape(pilot, public.X, public.y)
    # Of a number, the label's step is its spread.
    step = np.std(encoded.source.y) if kind == "linear" else 1.0
    leak = sp.leakage(model, private.X, private.y, noise=shape)
    bound = np.hypot(np.asarray(leak.records(label=False)), step * np.asarray(leak.labels())).max()
    least = max(np.max(leak.records(label=False)), step * np.max(np.asarray(leak.labels())))
    assert point_above(least) <= shaped.sigma <= point_above(bound)
    assert least / shaped.sigma * (1 - 1e-9) <= shaped.eta <= bound / shaped.sigma * (1 + 1e-9)
    # Membership and guesses are those of releases with and without a record, in units of the noise.
    root = np.linalg.inv(np.linalg.cholesky(shape.sigma)) / shaped.sigma
    n, y = len(private), np.asarray(private.y)
    total = n * audit.l2

    def released(X, y):
        model = Ridge(total) if kind == "linear" else LogisticRegression(C=1 / total, tol=1e-12)
        model.fit(X, y)
        return root @ np.append(model.coef_, model.intercept_)

    whole = released(private.X, y)
    without = [released(np.delete(private.X, i, 0), np.delete(y, i)) for i in range(n)]
    right = norm.cdf(max(np.linalg.norm(there - whole) for there in without) / 2)
    assert right - 1e-6 <= shaped.membership <= right + 0.01
    assert (shaped.gain is None) == (audit.risks.worst_guess is None)
