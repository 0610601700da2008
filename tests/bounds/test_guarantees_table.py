"""The table of guarantees: its lines are the bounds it names, and it says what it assumes."""

from __future__ import annotations

from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from scipy.stats import norm

import seepage as sp
from seepage.bounds import (
    BoundedPrior,
    GaussianPrior,
    cramer_rao_rows,
    from_privacy,
    hammersley_chapman_robbins,
    two_point,
    van_trees_rows,
)
from seepage.bounds.guarantees import (
    EVERY_ADVERSARY,
    MEMBERSHIP,
    ONE_CELL,
    UNBIASED_ADVERSARY,
    guarantees,
)
from seepage.privacy import DifferentialPrivacy, output_perturbation

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (60, 3))
Y = (X[:, 0] + 0.5 * RNG.standard_normal(60) > 0).astype(int)


def leak_of(intercept=False, sigma=0.3, l2=0.1):
    model = sp.glm.LogisticRegression(l2=l2, fit_intercept=intercept).fit(X, Y)
    return sp.leakage(model, X, Y, noise=sp.Gaussian(sigma))


LEAK = leak_of()
TABLE = guarantees(LEAK, domain=(-1, 1), draws=16)


def line(table, name):
    (found,) = [g for g in table.rows if g.name.startswith(name)]
    return found


def test_every_line_is_the_bound_it_names():
    i = TABLE.row
    dfil = LEAK.rows(label=False, measure="dfil")
    assert i == int(np.argmax(dfil))
    promise = output_perturbation(LEAK, row_norm=np.sqrt(3))
    wide = BoundedPrior(-1, 1)
    data = GaussianPrior(X.std(axis=0), X.mean(axis=0))
    want = {
        "FIL": LEAK.rows(label=False).mse_bound()[i],
        "dFIL": dfil.mse_bound()[i],
        "Cramér–Rao": cramer_rao_rows(LEAK)[i],
        "Rényi": from_privacy(promise, [2.0] * 3),
        "van Trees, spread": van_trees_rows(LEAK, data, [i], draws=16)[0],
        "van Trees, within": van_trees_rows(LEAK, wide, [i], draws=16)[0],
        "two points": two_point(promise, [2.0] * 3),
        "advantage, this": LEAK.membership(rows=[i]).advantage()[0],
        "advantage, any": promise.total_variation(),
    }
    cells = [g for g in TABLE.rows if g.adversary == ONE_CELL]
    for name, value in want.items():
        found = [g for g in TABLE.rows if g.name.startswith(name) and g.adversary != ONE_CELL]
        assert found[0].value == pytest.approx(float(value), rel=1e-12), name
    j = int(np.argmin(LEAK.cells().mse_bound()[i]))
    assert cells[0].value == pytest.approx(LEAK.cells().mse_bound()[i, j])
    assert cells[1].value == float(hammersley_chapman_robbins(LEAK, i, j, domain=(-1, 1)))


def test_bounds_are_ordered_and_the_tightest_is_named():
    fil, dfil, exact = (g.value for g in TABLE.rows[:3])
    assert fil <= dfil <= exact
    assert TABLE.tightest(UNBIASED_ADVERSARY).value == max(
        g.value for g in TABLE.rows if g.adversary == UNBIASED_ADVERSARY
    )
    assert TABLE.tightest().adversary in (UNBIASED_ADVERSARY, EVERY_ADVERSARY)
    with pytest.raises(sp.InputError, match="did you mean 'every adversary'"):
        TABLE.tightest("every adversry")


def test_every_line_says_what_it_assumes_or_why_it_does_not_apply():
    for table in (TABLE, guarantees(leak_of(intercept=True), draws=8)):
        for g in table.rows:
            assert bool(g.assumptions) == g.applies
            assert bool(g.reason) == (not g.applies)
            assert all(text.endswith(".") for text in g.assumptions)


def test_the_print_can_be_read():
    text = str(TABLE)
    assert f"record {TABLE.row}, the most exposed of 60 by dFIL" in text
    assert "(all columns: 3 numbers;" in text
    for g in TABLE.rows:
        assert g.name in text
    for assumption in {a for g in TABLE.rows for a in g.assumptions}:
        assert " ".join(assumption.split()) in " ".join(text.split())
    assert text.count("← tightest") == 3
    assert "do not publish" in text
    assert max(map(len, text.splitlines())) <= 110


def test_what_rests_on_the_data_is_starred():
    """Whatever the domain, a prior read off the data is; other lines are with a domain that is."""
    starred = {g.name for g in TABLE.rows if g.applies and not g.guarantee}
    (gain,) = (g.name for g in TABLE.rows if g.name.startswith("gain, "))
    assert starred == {"van Trees, spread as the data", gain}  # the latter's prior is the data's
    loose = guarantees(LEAK, draws=8)
    unsafe = {g.name.partition(",")[0] for g in loose.rows if g.applies and not g.guarantee}
    assert unsafe == {
        "Rényi differential privacy",
        "van Trees",
        "two points",
        "Hammersley–Chapman–Robbins",
        "advantage",
        "gain",
    }
    assert "An indication, not a guarantee" in str(loose)


def test_an_intercept_that_is_not_penalised_promises_nothing():
    table = guarantees(leak_of(intercept=True), domain=(-1, 1), draws=8)
    missing = [g for g in table.rows if not g.applies]
    assert {g.adversary for g in missing} == {UNBIASED_ADVERSARY, EVERY_ADVERSARY, MEMBERSHIP}
    assert all("intercept" in g.reason for g in missing)
    assert str(table).count("The intercept is not penalised") == 1
    assert str(table).count("for the same reason") == 2


def test_promises_are_taken_from_the_caller():
    stated = guarantees(LEAK, domain=(-1, 1), dp=DifferentialPrivacy(0.5, 1e-6), draws=8)
    assert "order 2" in line(stated, "Rényi").reason
    assert line(stated, "two points").value == pytest.approx(
        float(two_point(DifferentialPrivacy(0.5, 1e-6), 2.0))
    )
    event = guarantees(LEAK, domain=(-1, 1), dp=dp_accounting.GaussianDpEvent(10.0), draws=8)
    assert line(event, "Rényi").value == pytest.approx(1 / np.expm1(0.04), rel=1e-6)
    with pytest.raises(sp.InputError, match="dp must be"):
        guarantees(LEAK, dp="private", draws=8)


def test_a_row_columns_and_a_prior_may_be_chosen():
    table = guarantees(
        LEAK, domain=(-1, 1), row=-1, columns=["x1"], prior=GaussianPrior(0.5), draws=8
    )
    assert (table.row, table.numbers, table.about) == (59, 1, "x1")
    assert "record 59\n(x1: 1 number;" in str(table)
    names = [g.name for g in table.rows if g.adversary == EVERY_ADVERSARY]
    assert names == ["van Trees", "two points"]
    assert table.guessing == pytest.approx(X[:, 1].var())
    assert line(table, "FIL").value == pytest.approx(line(table, "dFIL").value)


def test_columns_that_never_vary_are_no_obstacle():
    constant = np.column_stack([X, np.ones(60)])
    model = sp.glm.LogisticRegression(l2=0.1).fit(constant, Y)
    leak = sp.leakage(model, constant, Y, noise=sp.Gaussian(0.3))
    table = guarantees(leak, draws=8)
    data = GaussianPrior(X.std(axis=0), X.mean(axis=0))
    want = van_trees_rows(leak, data, [table.row], columns=[0, 1, 2], draws=8)[0] * 3 / 4
    assert line(table, "van Trees, spread").value == pytest.approx(float(want))


def test_composed_releases_keep_the_lines_that_need_no_refit():
    table = guarantees(sp.compose(LEAK, leak_of(l2=0.3)), draws=8)
    applying = {g.name for g in table.rows if g.applies}
    assert {"FIL, 1/η²", "Cramér–Rao"} <= applying
    assert not any(name.startswith(("van Trees", "Hammersley")) for name in applying)


def test_it_turns_into_a_data_frame_and_html():
    frame = TABLE.table("pandas")
    assert frame["bound"].tolist() == [g.name for g in TABLE.rows]
    assert frame["applies"].all()
    html = TABLE._repr_html_()
    assert html.count("<tr>") == 1 + len(TABLE.rows) + 5
    assert "<script" not in guarantees(_named("<script>"), draws=8)._repr_html_()


def _named(name):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=[name, "b", "c"])
    model = sp.glm.LogisticRegression(l2=0.1).fit(frame, Y)
    return sp.leakage(model, frame, Y, noise=sp.Gaussian(0.3))


def test_the_breast_cancer_demo_has_a_table():
    cancer = sp.data.load_bundled("breast_cancer")
    Z = (cancer.X - cancer.X.mean(axis=0)) / cancer.X.std(axis=0)
    model = sp.glm.LogisticRegression(l2=1e-2, fit_intercept=True).fit(Z, cancer.y)
    table = guarantees(sp.leakage(model, Z, cancer.y, noise=sp.Gaussian(0.1)), draws=16)
    assert table.guessing == pytest.approx(1.0)
    assert line(table, "van Trees, spread").value < 1.0  # no better than what one knows anyway
    assert table.tightest(UNBIASED_ADVERSARY).name == "Cramér–Rao"


def test_where_no_bound_applies_none_is_the_tightest():
    never = replace(TABLE, rows=tuple(replace(g, value=None) for g in TABLE.rows))
    none = "No bound on the error applies to this release; print the table"
    with pytest.raises(sp.InputError, match=none):
        never.tightest()
    with pytest.raises(sp.InputError, match=f"No bound on the error applies to {ONE_CELL}"):
        never.tightest(ONE_CELL)


def test_what_does_not_leak_has_infinite_bounds():
    X, y = np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 2.0], [1.0, 1.0]]), np.zeros(4)
    model = sp.glm.LinearRegression(l2=0.1).fit(X, y)
    table = guarantees(sp.leakage(model, X, y, noise=sp.Gaussian(1.0)), domain=(0, 3), draws=4)
    assert np.isinf(line(table, "FIL").value)
    shown = next(text for text in str(table).split("\n") if text.startswith("  FIL, 1/η²"))
    assert shown.split()[2:4] == ["∞", "±∞"]


@pytest.mark.parametrize("intercept", [False, True])
def test_telling_the_record_s_absence_is_that_of_a_refit(intercept):
    """Where nothing is promised to everybody, something is still known of this record."""
    model = sp.glm.LinearRegression(l2=0.05, fit_intercept=intercept).fit(X, Y)
    found = guarantees(sp.leakage(model, X, Y, noise=sp.Gaussian(0.01)), row=7, draws=8)
    x = np.hstack([X, np.ones((len(X), 1))]) if intercept else X
    penalty = np.diag(np.r_[np.full(3, len(X) * 0.05), np.zeros(int(intercept))])
    kept = np.arange(len(X)) != 7
    fits = [np.linalg.solve(x[w].T @ x[w] + penalty, x[w].T @ Y[w]) for w in (kept, kept | ~kept)]
    mu = np.linalg.norm(fits[0] - fits[1]) / 0.01
    own, promised = (one for one in found.rows if one.adversary == MEMBERSHIP)
    assert own.value == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-9)
    assert own.unit == "advantage"
    assert own.guarantee
    assert promised.applies is not intercept  # nothing bounds how far a record moves that


@pytest.mark.parametrize("intercept", [False, True])
def test_two_labels_are_told_apart_by_the_refit_with_the_other(intercept):
    """The finite change between two values, and the gain of a guess, are in the table."""
    y = (np.median(Y) < Y).astype(int)
    model = sp.glm.LogisticRegression(l2=0.05, fit_intercept=intercept).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(0.02))
    table = guarantees(leak, row=7, draws=8)
    other = y.copy()
    other[7] = 1 - y[7]
    again = sp.glm.LogisticRegression(l2=0.05, fit_intercept=intercept).fit(X, other)
    move = [np.ravel(again.coef_ - model.coef_), np.ravel(again.intercept_ - model.intercept_)]
    mu = np.linalg.norm(np.concatenate(move)) / 0.02
    label, cell = (one for one in table.rows if one.adversary == "attribute inference")
    assert label.value == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-4)
    assert (label.unit, label.guarantee) == ("advantage", True)
    column = cell.name.removeprefix("gain, ").partition(" ")[0]
    width = X[:, leak.source.names.index(column)].std()
    gain = leak.within(column, width, rows=[7]).gain()
    assert cell.value == pytest.approx(float(np.asarray(gain)[0]), abs=1e-3)
    assert not cell.guarantee


def test_a_label_that_is_a_number_has_no_two_values():
    """And says what to ask instead."""
    model = sp.glm.LinearRegression(l2=0.05).fit(X, Y)
    table = guarantees(sp.leakage(model, X, Y, noise=sp.Gaussian(0.1)), draws=8)
    label = next(one for one in table.rows if one.name == "advantage, label of this record")
    assert not label.applies
    assert "leak.within()" in label.reason
