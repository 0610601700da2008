"""Printed regression tables: numbers, what they tell, and the rules of output checking."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import seepage as sp
from seepage.errors import InputError
from seepage.glm.printed.specification import Specification

sm = pytest.importorskip("statsmodels.api")
smf = pytest.importorskip("statsmodels.formula.api")

ERRORS = ("nonrobust", "HC0", "HC1", "HC2", "HC3", "cluster")


def drawn(logistic=False, n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = sm.add_constant(rng.standard_normal((n, 2)))
    margins = X @ [0.2, 1.0, -0.5]
    y = margins + rng.standard_normal(n)
    if logistic:
        y = (rng.random(n) < 1 / (1 + np.exp(-margins))).astype(float)
    return X, y, rng.integers(0, 12, n)


def fitted(X, y, logistic=False, errors="nonrobust", clusters=None):
    kwargs = {"cov_kwds": {"groups": clusters}} if errors == "cluster" else {}
    if logistic:
        return sm.Logit(y, X).fit(cov_type=errors, disp=0, tol=1e-12, **kwargs)
    return sm.OLS(y, X).fit(cov_type=errors, **kwargs)


def said(results):
    """Return the numbers of a table as statsmodels has them."""
    logistic = hasattr(results, "prsquared")
    fit = results.prsquared if logistic else results.rsquared
    return np.concatenate([results.params, results.bse, [fit, results.llf, results.nobs]])


# Numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("errors", ERRORS)
@pytest.mark.parametrize("logistic", [False, True])
def test_tables_without_somebody_are_refits(errors, logistic):
    X, y, clusters = drawn(logistic)
    table = sp.RegressionTable(fitted(X, y, logistic, errors, clusters))
    np.testing.assert_allclose(table.here, said(fitted(X, y, logistic, errors, clusters)))
    for i in (0, 3, 77):
        keep = np.arange(len(X)) != i
        again = fitted(X[keep], y[keep], logistic, errors, clusters[keep])
        np.testing.assert_allclose(table.without[i], said(again), rtol=1e-7)


@pytest.mark.parametrize("errors", ERRORS)
@pytest.mark.parametrize("logistic", [False, True])
def test_a_weight_of_two_is_a_record_twice(errors, logistic):
    X, y, clusters = drawn(logistic)
    one = Specification.of(fitted(X, y, logistic, errors, clusters))
    weights = np.ones(len(X))
    weights[[4, 9]] = 2.0, 0.0
    rows = np.repeat(np.arange(len(X)), weights.astype(int))
    again = fitted(X[rows], y[rows], logistic, errors, clusters[rows])
    np.testing.assert_allclose(one.numbers(weights[None])[0], said(again)[:-1], rtol=1e-7)


def test_a_whole_cluster_twice_is_two_clusters():
    X, y, clusters = drawn()
    one = Specification.of(fitted(X, y, errors="cluster", clusters=clusters))
    weights = 1.0 + (clusters == 3)
    rows = np.concatenate([np.arange(len(X)), np.flatnonzero(clusters == 3)])
    names = np.concatenate([clusters, np.full(np.sum(clusters == 3), 99)])
    again = fitted(X[rows], y[rows], errors="cluster", clusters=names)
    np.testing.assert_allclose(one.numbers(weights[None])[0], said(again)[:-1], rtol=1e-9)


@pytest.mark.parametrize("errors", ERRORS)
def test_survey_weights_belong_to_the_records(errors):
    X, y, clusters = drawn()
    weight = np.random.default_rng(8).uniform(0.2, 3.0, len(X))
    kwargs = {"cov_type": errors}

    def results(rows):
        if errors == "cluster":
            kwargs["cov_kwds"] = {"groups": clusters[rows]}
        return sm.WLS(y[rows], X[rows], weights=weight[rows]).fit(**kwargs)

    table = sp.RegressionTable(results(np.arange(len(X))))
    again = results(np.delete(np.arange(len(X)), 6))
    np.testing.assert_allclose(table.without[6], said(again), rtol=1e-9)


def test_badly_scaled_columns_cost_no_digits():
    X, y, _ = drawn()
    scaled = X * [1.0, 1e4, 1e-3] + [0.0, 1e5, 0.0]
    table = sp.RegressionTable(fitted(scaled, y))
    again = fitted(np.delete(scaled, 5, axis=0), np.delete(y, 5))
    np.testing.assert_allclose(table.without[5], said(again), rtol=1e-6)


def test_people_leave_with_all_their_records():
    X, y, clusters = drawn()
    results = fitted(X, y, errors="cluster", clusters=clusters)
    table = sp.RegressionTable(results, person=clusters)
    keep = clusters != 4
    again = fitted(X[keep], y[keep], errors="cluster", clusters=clusters[keep])
    np.testing.assert_allclose(table.without[4], said(again), rtol=1e-7)
    assert table.informed().mu.view == "people"
    with pytest.raises(InputError, match=r"too few people \(12\)"):
        table.membership()


# What they tell -------------------------------------------------------------------------------


def test_absences_change_digits_as_refits_do():
    X, y, _ = drawn(n=400)
    for digits in (1, 2):
        here = np.round(said(fitted(X, y)), digits)
        changed = np.array(
            [
                np.round(said(fitted(np.delete(X, i, 0), np.delete(y, i))), digits) != here
                for i in range(len(X))
            ]
        )
        for likelihood, count in ((True, -1), (False, -2)):
            table = sp.RegressionTable(fitted(X, y), digits=digits, log_likelihood=likelihood)
            np.testing.assert_array_equal(table.printed[:-1], here[:count])
            shows = changed[:, :count].any(axis=1)
            np.testing.assert_array_equal(table.absences(), shows)
            assert shows.all() == likelihood
            assert shows.any()


def test_who_knows_the_rest_sees_somebody_else_instead():
    """Every record with every other one in its place, by statsmodels: digits that stay."""
    X, y, _ = drawn(n=90)
    digits = 1
    table = sp.RegressionTable(fitted(X, y), digits=digits)
    here = np.round(said(fitted(X, y)), digits)
    asked = [0, 1, 2, 40]
    right = np.asarray(table.informed(asked).accuracy())
    for i, found in zip(asked, right, strict=True):
        alike = []
        for j in np.delete(np.arange(len(X)), i):
            rows = np.arange(len(X))
            rows[i] = j
            alike.append(np.array_equal(np.round(said(fitted(X[rows], y[rows])), digits), here))
        assert found == pytest.approx(1 - np.mean(alike) / 2, abs=1e-6)
    assert right.min() < 0.99
    fine = sp.RegressionTable(fitted(X, y), digits=6).informed()
    assert np.isinf(np.asarray(fine)).all()


@pytest.mark.parametrize(("logistic", "knows"), [(False, 0.0), (False, 0.5), (True, 0.0)])
def test_distances_by_hand(logistic, knows):
    """Differences by statsmodels, and the covariance of the others alone."""
    X, y, _ = drawn(logistic, n=110)
    table = sp.RegressionTable(fitted(X, y, logistic), digits=9)
    found = np.asarray(table.membership(sp.Attacker(knows=knows), exact=0))
    here = said(fitted(X, y, logistic))[:-1]
    without = [
        said(fitted(np.delete(X, i, 0), np.delete(y, i), logistic))[:-1] for i in range(len(X))
    ]
    made = here - np.array(without)
    for i in (0, 1, 2):
        S = (1 - knows) * np.cov(np.delete(made, i, axis=0).T) * (len(X) - 2)
        move = made[i] - made.mean(axis=0)
        assert found[i] == pytest.approx(np.sqrt(move @ np.linalg.solve(S, move)), rel=1e-4)


def normal_test(inside, outside):
    """Return how often a test between two normal laws is right, taught on one half of the draws."""
    hits = []
    for side in (0, 1):
        taught = [
            stats.multivariate_normal(
                one[side::2].mean(axis=0), np.cov(one[side::2].T), allow_singular=True
            )
            for one in (inside, outside)
        ]
        for own, draws in ((0, inside), (1, outside)):
            likely = [law.logpdf(draws[1 - side :: 2]) for law in taught]
            hits.append(np.mean(likely[own] > likely[1 - own]))
    return float(np.mean(hits))


def squares(X, y, robust):
    """Return the tables of many data sets at once, in plain NumPy."""
    n, d = X.shape[1:]
    back = np.linalg.inv(np.swapaxes(X, 1, 2) @ X)
    theta = np.einsum("bij,bnj,bn->bi", back, X, y)
    rest = y - np.einsum("bnd,bd->bn", X, theta)
    if robust:
        meat = np.swapaxes(X * (rest**2)[:, :, None], 1, 2) @ X
        covariance = back @ meat @ back * n / (n - d)
    else:
        covariance = back * (np.sum(rest**2, axis=1) / (n - d))[:, None, None]
    spread = np.sum((y - y.mean(axis=1, keepdims=True)) ** 2, axis=1)
    deviations = np.sqrt(np.einsum("bii->bi", covariance))
    rss = np.sum(rest**2, axis=1)
    likely = -n / 2 * (np.log(2 * np.pi * rss / n) + 1)
    return np.column_stack([theta, deviations, 1 - rss / spread, likely])


def shares(X, y, robust):
    theta = np.zeros((len(X), X.shape[2]))
    for _ in range(10):
        p = 1 / (1 + np.exp(-np.einsum("bnd,bd->bn", X, theta)))
        H = np.swapaxes(X * (p * (1 - p))[:, :, None], 1, 2) @ X
        theta = theta + np.linalg.solve(H, np.einsum("bnd,bn->bd", X, y - p)[:, :, None])[:, :, 0]
    back = covariance = np.linalg.inv(H)
    if robust:
        covariance = back @ (np.swapaxes(X * ((y - p) ** 2)[:, :, None], 1, 2) @ X) @ back
    fit = np.sum(y * np.log(p) + (1 - y) * np.log1p(-p), axis=1)
    q = y.mean(axis=1)
    null = X.shape[1] * (q * np.log(q) + (1 - q) * np.log1p(-q))
    deviations = np.sqrt(np.einsum("bii->bi", covariance))
    return np.column_stack([theta, deviations, 1 - fit / null, fit])


@pytest.mark.parametrize(
    ("logistic", "robust", "person", "label"),
    [
        (False, False, [1.0, 3.5, -2.0], 0.0),
        (False, True, [1.0, 0.2, 0.3], 3.5),
        pytest.param(True, False, [1.0, 3.5, -2.0], 0.0, marks=pytest.mark.slow),
        pytest.param(True, True, [1.0, 1.5, -1.0], 0.0, marks=pytest.mark.slow),
    ],
)
def test_tables_of_a_population(logistic, robust, person, label):
    """Printed tables with a person and with somebody else instead, all others drawn anew."""
    n, rng, tables = 300, np.random.default_rng(5), []
    for inside in (True, False):
        drawings = []
        for _ in range(8):
            X = rng.standard_normal((500, n, 3))
            X[:, :, 0] = 1.0
            margins = X @ [0.2, 1.0, -0.5]
            y = margins + rng.standard_normal(margins.shape)
            if logistic:
                y = (rng.random(margins.shape) < 1 / (1 + np.exp(-margins))).astype(float)
            if inside:
                X[:, 0], y[:, 0] = person, label
                example = X[:6], y[:6]
            drawings.append(np.round((shares if logistic else squares)(X, y, robust), 3))
        tables.append(np.concatenate(drawings))
    measured = normal_test(*tables)
    predicted = []
    for X, y in zip(*example, strict=True):
        results = fitted(X, y, logistic, "HC1" if robust else "nonrobust")
        risk = sp.RegressionTable(results, digits=3).membership(rows=[0])
        predicted.append(float(np.asarray(risk.accuracy())[0]))
    assert measured > 0.55
    assert np.mean(predicted) == pytest.approx(measured, abs=0.035)
    assert np.mean(predicted) > measured - 0.02


@pytest.mark.minutes
def test_clustered_tables_of_people_with_several_records():
    """Panels of 400 people with four records each, who differ in level; one of them far off."""
    people, rows, rng, tables = 400, 4, np.random.default_rng(9), []
    owner = np.repeat(np.arange(people), rows)
    for inside in (True, False):
        drawings = []
        for _ in range(8):
            X = rng.standard_normal((500, people * rows, 2))
            X[:, :, 0] = 1.0
            level = rng.standard_normal((500, people))
            y = X @ [0.2, 1.0] + level[:, owner] + rng.standard_normal((500, people * rows))
            if inside:
                X[:, :rows, 1], y[:, :rows] = [1.5, 1.0, 2.0, 0.5], [4.0, 3.0, 5.0, 3.5]
                example = X[:6], y[:6]
            back = np.linalg.inv(np.swapaxes(X, 1, 2) @ X)
            theta = np.einsum("bij,bnj,bn->bi", back, X, y)
            rest = y - np.einsum("bnd,bd->bn", X, theta)
            sums = (X * rest[:, :, None]).reshape(500, people, rows, 2).sum(axis=2)
            few = people / (people - 1) * (people * rows - 1) / (people * rows - 2)
            covariance = few * back @ np.swapaxes(sums, 1, 2) @ sums @ back
            spread = np.sum((y - y.mean(axis=1, keepdims=True)) ** 2, axis=1)
            rss = np.sum(rest**2, axis=1)
            likely = -people * rows / 2 * np.log(rss)  # but for a constant
            deviations = np.sqrt(np.einsum("bii->bi", covariance))
            numbers = [theta, deviations, 1 - rss / spread, likely]
            drawings.append(np.round(np.column_stack(numbers), 3))
        tables.append(np.concatenate(drawings))
    measured = normal_test(*tables)
    predicted = []
    for X, y in zip(*example, strict=True):
        results = fitted(X, y, errors="cluster", clusters=owner)
        risk = sp.RegressionTable(results, person=owner).membership(rows=[0])
        assert risk.mu.view == "people"
        predicted.append(float(np.asarray(risk.accuracy())[0]))
    assert measured > 0.58
    assert np.mean(predicted) == pytest.approx(measured, abs=0.035)
    assert np.mean(predicted) > measured - 0.02


def test_two_specifications_that_differ_by_one_record_tell_it():
    X, y, _ = drawn(n=400)
    frame = pd.DataFrame(X, columns=["const", "age", "dose"], index=[f"p{i}" for i in range(400)])
    outcome = pd.Series(y, index=frame.index)
    keep = frame.index != "p7"
    first, second = fitted(frame, outcome), fitted(frame[keep], outcome[keep])
    one, both = sp.RegressionTable(first), sp.RegressionTable(first, second)
    alone, together = (
        float(np.asarray(table.membership(rows=[7], exact=0).accuracy())[0])
        for table in (one, both)
    )
    assert alone < 0.7
    assert together > 0.99
    (broken,) = both.rules()
    assert broken.rule == "difference"
    assert broken.count == 1
    assert list(broken.people) == ["p7"]
    assert "Specifications 1 and 2" in str(broken)
    assert one.rules() == ()


def test_two_specifications_that_differ_by_the_group_of_a_record_tell_it():
    X, y, _ = drawn(n=400)
    group = (np.arange(400) % 2).astype(float)
    moved = group.copy()
    moved[7] = 1 - moved[7]
    tables = [np.column_stack([X, one]) for one in (group, moved)]
    both = sp.RegressionTable(*(fitted(one, y) for one in tables))
    (broken,) = both.rules()
    assert (broken.rule, broken.count, list(broken.people)) == ("difference", 1, [7])
    right = [
        float(np.asarray(one.membership(rows=[7], exact=0).accuracy())[0])
        for one in (sp.RegressionTable(fitted(tables[0], y)), both)
    ]
    assert right[0] < 0.7
    assert right[1] > 0.85


def test_formulas_with_levels_and_missing_values():
    rng = np.random.default_rng(6)
    frame = pd.DataFrame({"x": rng.standard_normal(300), "place": rng.choice(list("abc"), 300)})
    frame["y"] = frame["x"] + (frame["place"] == "b") + rng.standard_normal(300)
    frame.loc[[4, 50], "x"] = np.nan
    results = smf.ols("y ~ x + C(place)", frame).fit(cov_type="HC2")
    table = sp.RegressionTable(results)
    assert len(table.index) == 298
    assert 4 not in table.index
    assert "std err x" in table.labels
    again = smf.ols("y ~ x + C(place)", frame.drop(9)).fit(cov_type="HC2")
    place = int(np.flatnonzero(table.index == 9)[0])
    np.testing.assert_allclose(table.without[place], said(again), rtol=1e-8)


def test_a_specification_without_a_column_is_a_further_release():
    """Every further column of a table adds to what it tells, and never takes away."""
    X, y, _ = drawn(n=400)
    one, two = fitted(X, y), fitted(X[:, :2], y)
    tables = [sp.RegressionTable(one, digits=5), sp.RegressionTable(one, two, digits=5)]
    once, both = (np.asarray(t.membership(rows=range(50), exact=0)) for t in tables)
    assert np.all(both > once * (1 - 1e-9))
    assert np.median(both / once) > 1.02


def test_one_table_twice_tells_little_more_than_once():
    """The same numbers again are no further numbers; only the rounding is."""
    X, y, _ = drawn(n=400)
    once, twice = (
        np.asarray(sp.RegressionTable(*many, digits=6).membership(exact=0))
        for many in ([fitted(X, y)], [fitted(X, y)] * 2)
    )
    np.testing.assert_allclose(once, twice, rtol=1e-3)


def test_who_alone_carries_a_level_is_certain():
    X, y, _ = drawn(n=400)
    X = np.column_stack([X, np.arange(400) == 11])
    table = sp.RegressionTable(fitted(X, y))
    assert np.isinf(np.asarray(table.membership(exact=0)))[11]
    assert table.absences()[11]
    kinds = {rule.rule: rule for rule in table.rules()}
    assert set(kinds) == {"column", "cell"}
    assert list(kinds["cell"].people) == [11]
    assert kinds["column"].count == 1


def test_rules_of_output_checking():
    X, y, _ = drawn(n=12)
    rules = sp.RegressionTable(fitted(X, y)).rules()
    assert [rule.count for rule in rules if rule.rule == "degrees of freedom"] == [9]
    X, y, _ = drawn(n=200)
    level = np.arange(200) < 193  # its reference level has seven records
    rules = sp.RegressionTable(fitted(np.column_stack([X, level]), y)).rules()
    assert {rule.rule for rule in rules} == {"column", "cell"}
    cell = next(rule for rule in rules if rule.rule == "cell")
    assert {193, 194, 195, 196, 197, 198, 199} <= set(cell.people)
    assert sp.RegressionTable(fitted(np.column_stack([X, level]), y)).rules(3) == ()


def test_the_more_she_knows_the_more_the_table_tells():
    X, y, _ = drawn(n=400)
    table = sp.RegressionTable(fitted(X, y), digits=6)
    none, most = (
        np.asarray(table.membership(sp.Attacker(knows=share), exact=0)) for share in (0.0, 0.75)
    )
    np.testing.assert_allclose(most, 2 * none, rtol=1e-3)


def test_coarse_digits_are_not_counted_as_protection():
    X, y, _ = drawn(n=400)
    fine, coarse = (
        sp.RegressionTable(fitted(X, y), digits=digits, log_likelihood=False).membership(
            rows=range(20), exact=0
        )
        for digits in (8, 1)
    )
    np.testing.assert_allclose(np.asarray(coarse), np.asarray(fine), rtol=1e-6)
    assert "treated as exact" in " ".join(coarse.mu.assumptions)
    assert "not a guarantee" in " ".join(fine.mu.assumptions)
    assert "not checked by tables of resampled people" in " ".join(fine.mu.assumptions)


def test_a_mean_over_tables_may_be_above_what_this_table_s_digits_tell():
    X, y, _ = drawn(n=400)
    table = sp.RegressionTable(fitted(X, y), digits=0, log_likelihood=False)
    risk = table.membership(rows=range(60), exact=0)
    assert np.any(np.asarray(risk) > np.asarray(risk.informed))
    assert "a mean over tables of other people" in " ".join(risk.mu.assumptions)
    fine = sp.RegressionTable(fitted(X, y), digits=6).membership(rows=range(60), exact=0)
    assert "a mean over tables" not in " ".join(fine.mu.assumptions)


# Labels and people ----------------------------------------------------------------------------


def people(n=300, seed=3):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.standard_normal(n), "dose": rng.integers(0, 3, n) * 1.0})
    frame["effect"] = np.exp(frame["age"] / 3 - 0.1 * frame["dose"] + rng.standard_normal(n) / 9)
    return frame


def regress(formula, frame):
    return smf.ols(formula, frame).fit()


@pytest.mark.parametrize("row", [7, 200, 290, 298])
def test_one_label_must_mean_one_record(row):
    frame = people()
    anew = frame.drop(index=row).reset_index(drop=True)
    for formula in ("effect ~ age + dose", "effect ~ dose"):
        with pytest.raises(InputError, match="keep its index"):
            sp.RegressionTable(regress("effect ~ age + dose", frame), regress(formula, anew))
    kept = regress("effect ~ age + dose", frame.drop(index=row))
    assert len(sp.RegressionTable(regress("effect ~ age + dose", frame), kept).index) == len(frame)


def test_labels_of_other_people_are_refused():
    first, second = (regress("effect ~ age", people(seed=seed)) for seed in (3, 4))
    with pytest.raises(InputError, match="for 300 of 300"):
        sp.RegressionTable(first, second)


def test_sorted_columns_whose_labels_were_counted_anew_are_refused():
    frame = people().sort_values("age", ignore_index=True)
    anew = frame.drop(index=7).reset_index(drop=True)
    X, Z = (sm.add_constant(one[["age"]]) for one in (frame, anew))
    y, z = (pd.Series(one["effect"].to_numpy()) for one in (frame, anew))  # without a name
    with pytest.raises(InputError, match="age"):
        sp.RegressionTable(fitted(X, y), fitted(Z, z))


def test_recoded_columns_and_other_outcomes_are_no_contradiction():
    frame = people()
    older = frame[frame["age"] > 0]
    first = regress("effect ~ center(age) + dose", frame)
    sp.RegressionTable(first, regress("effect ~ center(age) + dose", older))
    bent = "effect ~ bs(age, df=4) + center(age):center(dose)"
    sp.RegressionTable(regress(bent, frame), regress(bent, older))
    X = sm.add_constant(frame[["age", "dose"]])
    sp.RegressionTable(fitted(X, frame["effect"]), fitted(X, np.log(frame["effect"])))
    other = pd.Series(np.random.default_rng(1).standard_normal(len(frame)))
    unnamed = pd.Series(frame["effect"].to_numpy())
    sp.RegressionTable(fitted(X, unnamed), fitted(X, other))
    arrays = X.to_numpy()
    sp.RegressionTable(
        fitted(arrays[:, [0, 1]], frame["effect"]), fitted(arrays[:, [0, 2]], frame["effect"])
    )
    moved = X.copy()
    moved.loc[[3, 9], "dose"] = 5.0
    sp.RegressionTable(fitted(X, frame["effect"]), fitted(moved, frame["effect"]))


@pytest.mark.parametrize(
    ("person", "sentence"),
    [
        (3, "identity per record, not 3"),
        ("id", "identity per record, not 'id'"),
        ([[1, 2], [3]], "identity per record, not"),
        (np.full(300, np.nan), "missing for 300 of 300 records"),
        ([None, *range(299)], "missing for 1 of 300 records"),
        (np.zeros(300), "same identity for all records"),
        (pd.Series(["a", *range(299)]), "mix text and numbers"),
        (pd.Series(range(300), index=[0, *range(299)]), "same label"),
        (pd.Series(range(300), index=range(10, 310)), "no identity for 10 of 300 .*row 0"),
        (pd.Series(range(9)), "no identity for 291 of 300"),
        (np.arange(9), "9 identities"),
        (np.zeros((300, 2)), r"shape \(300, 2\)"),
        (pd.DataFrame({"id": range(300)}), r"shape \(300, 1\)"),
    ],
)
def test_identities_that_say_nothing_are_refused(person, sentence):
    results = regress("effect ~ age", people())
    with pytest.raises(InputError, match=sentence):
        sp.RegressionTable(results, person=person)


def test_masks_come_by_label_in_any_order():
    """Also those of a larger frame, of which the table leaves some rows out."""
    frame = people().set_axis([f"r{k}" for k in range(300)])
    mask = frame.index.isin(["r7", "r100", "r250"])
    series = pd.Series(mask, index=frame.index)
    table = sp.RegressionTable(
        regress("effect ~ age", frame.iloc[100:]), regress("effect ~ age", frame)
    )
    assert table.index[0] == "r100"  # not the order of the frame
    for rows in (series, series.sample(frac=1, random_state=0)):
        found = table.membership(rows=rows, exact=0)
        assert sorted(found.mu.labels()) == ["r100", "r250", "r7"]
        assert sorted(table.informed(rows).mu.labels()) == ["r100", "r250", "r7"]
    part = sp.RegressionTable(regress("effect ~ age", frame.iloc[:200]))
    assert sorted(part.membership(rows=series, exact=0).mu.labels()) == ["r100", "r7"]
    with pytest.raises(sp.InputError, match=r"rows has no entry for 1 of 300 records .*'r0'"):
        table.membership(rows=series.iloc[1:])
    plain = sp.RegressionTable(sm.OLS(frame["effect"].to_numpy(), frame[["age"]].to_numpy()).fit())
    assert plain.membership(rows=series, exact=0).mu.labels().tolist() == [7, 100, 250]


def test_identities_come_by_label_in_any_order():
    frame = people()
    owner = pd.Series(np.arange(300) // 2, index=frame.index)
    results = regress("effect ~ age", frame)
    tables = [
        sp.RegressionTable(results, person=one)
        for one in (owner, owner[::-1], owner.to_numpy(), pd.Index(owner))
    ]
    for table in tables:
        np.testing.assert_array_equal(table.owner, owner)


@pytest.mark.parametrize("exact", [-1, "all", 2.5, None])
def test_a_number_of_checks_that_is_none_is_refused(exact):
    table = sp.RegressionTable(regress("effect ~ age", people()))
    with pytest.raises(
        InputError, match="exact must be True, False or a non-negative whole number"
    ):
        table.membership(exact=exact)
    if exact is not None:
        with pytest.raises(InputError, match=r"row"):
            table.membership(rows=-301 if exact == -1 else exact)


# Words ----------------------------------------------------------------------------------------


def test_refusals_name_the_model():
    X, y, _ = drawn()
    with pytest.raises(InputError, match="not results of GLS"):
        sp.RegressionTable(sm.GLS(y, X).fit())
    with pytest.raises(InputError, match="log_likelihood must be True or False"):
        sp.RegressionTable(fitted(X, y), log_likelihood="no")


def test_what_cannot_be_read_is_refused():
    X, y, clusters = drawn()
    with pytest.raises(InputError, match="at least one fit"):
        sp.RegressionTable()
    with pytest.raises(InputError, match="statsmodels' OLS, WLS or Logit"):
        sp.RegressionTable(sp.glm.LinearRegression().fit(X, y))
    with pytest.raises(InputError, match="cov_type='HAC'"):
        sp.RegressionTable(sm.OLS(y, X).fit(cov_type="HAC", cov_kwds={"maxlags": 1}))
    with pytest.raises(InputError, match="digits must be"):
        sp.RegressionTable(fitted(X, y), digits=-1)
    with pytest.raises(InputError, match="different numbers of records"):
        sp.RegressionTable(fitted(X, y), fitted(X[1:], y[1:]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dependent = fitted(np.column_stack([X, X[:, 1]]), y)
        early = sm.Logit(y > 0, X).fit(maxiter=1, disp=0)
    with pytest.raises(InputError, match="linearly dependent"):
        sp.RegressionTable(dependent)
    with pytest.raises(InputError, match="converged"):
        sp.RegressionTable(early)
    single = np.column_stack([X, np.arange(len(X)) == 3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        endless = fitted(single, y, errors="HC3")
    with pytest.raises(InputError, match="HC3 divides by zero"):
        sp.RegressionTable(endless)
    twice = pd.DataFrame(X, index=np.zeros(len(X)))
    with pytest.raises(InputError, match="same label"):
        sp.RegressionTable(fitted(twice, pd.Series(y, index=twice.index)))
    table = sp.RegressionTable(fitted(X, y))
    with pytest.raises(InputError, match="who does not know all other records"):
        table.membership(sp.Attacker())
    with pytest.raises(InputError, match="practically everybody"):
        table.membership(sp.Attacker(knows=0.9))
    with pytest.raises(InputError, match="identities"):
        sp.RegressionTable(fitted(X, y), person=clusters[:5])
    assert "1 specification about 120 records" in repr(table)


def test_what_a_formula_learns_is_said_to_be_held():
    X, y, _ = drawn()
    table = pd.DataFrame({"x": X[:, 1], "y": y})
    plain, learnt = (
        sp.RegressionTable(smf.ols(formula, table).fit(), digits=2).membership(exact=0)
        for formula in ("y ~ x", "y ~ standardize(x)")
    )
    assert not any("is held fixed" in one for one in plain.mu.assumptions)
    for result in (learnt.mu, learnt.informed.mu):
        assert any("standardize" in one and "is held fixed" in one for one in result.assumptions)


def test_a_fit_without_errors_is_refused():
    X, _, _ = drawn()
    with pytest.raises(InputError, match="labels without error"):
        sp.RegressionTable(sm.OLS(X @ [1.0, 2.0, -1.0], X).fit(), digits=3)
