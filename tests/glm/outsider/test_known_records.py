"""An attacker who knows certain records: against dense matrices, refits by hand, and in words."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from test_outsider import MODELS, Dense, drawn, simulated

import seepage as sp
from seepage.glm.outsider.others import OtherPeople
from seepage.glm.outsider.resampled import ResampledFits
from seepage.glm.outsider.worlds import Worlds


def half_known(n, seed=3):
    return np.random.default_rng(seed).random(n) < 0.5


class DenseUnknown(Dense):
    """The worlds of people if some others are known: only the unknown ones vary."""

    def worlds_beside(self, i, unknown):
        rest = self.g[[j for j in unknown if j != i]]
        rest = rest - rest.mean(axis=0)
        G = rest.T @ rest
        inside = np.linalg.inv(self.H)
        outside = np.linalg.inv(self.H - self.A[i])
        move = inside @ (self.g[i] - self.g[unknown].mean(axis=0))
        return move, inside @ G @ inside + self.noise, outside @ G @ outside + self.noise


@pytest.mark.parametrize(
    ("family", "persons", "noise"),
    [
        ("gaussian", False, None),
        ("bernoulli", False, 0.05),
        ("poisson", True, None),
        ("softmax", False, None),
    ],
)
def test_every_unknown_record_against_dense_matrices(family, persons, noise):
    X, y = drawn(family, n=240)
    n = len(X)
    labels = np.arange(n) // 2 if persons else np.arange(n)
    known = half_known(labels.max() + 1)
    model = MODELS[family](l2=0.02, fit_intercept=True).fit(X, y)
    leak = sp.leakage(
        model,
        X,
        y,
        noise=None if noise is None else sp.Gaussian(noise),
        attacker=sp.Attacker(knows=known[labels]),
        person=labels if persons else None,
    )
    measured = leak.membership(exact=0)
    unknown = np.flatnonzero(~known)
    np.testing.assert_array_equal(measured.mu.labels(), unknown)
    people = [np.flatnonzero(labels == name) for name in range(len(known))]
    dense = DenseUnknown(family, model, X, y, 0.02 * n, np.ones(n), people, noise)
    uneven = 0
    for place, i in enumerate(unknown):
        move, inside, outside = dense.worlds_beside(i, unknown)
        share = np.linalg.eigvals(np.linalg.solve(dense.H, dense.A[i])).real.max()
        if share < 0.0999:
            mu = np.sqrt(move @ np.linalg.solve(inside, move))
            assert np.asarray(measured)[place] == pytest.approx(mu, rel=1e-6)
        elif share > 0.1001 and uneven < 2:
            right = simulated(move, inside, outside)
            assert np.asarray(measured.accuracy())[place] == pytest.approx(right, abs=5e-3)
            uneven += 1


def refitted(X, y, pool, count, rng):
    """Return margins of a pool under least squares without and with halves of it, and who is in."""
    n = len(X)
    taken = np.ones((count, n))
    taken[:, pool] = rng.random((count, len(pool))).argsort(axis=1) < len(pool) // 2
    H = np.einsum("bn,np,nq->bpq", taken, X, X, optimize=True)
    theta = np.linalg.solve(H, ((taken * y) @ X)[:, :, None])[:, :, 0]
    return theta @ X[pool].T, taken[:, pool] > 0


def test_one_known_set_against_refits():
    """A share averages over known sets: which ones they are is a large part of it."""
    n, rng = 300, np.random.default_rng(6)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, 2))])
    y = X @ [0.3, 1.0, -0.5] + 0.3 * rng.standard_t(2.5, n)
    y[:3] += [9.0, -8.0, 7.0]  # they carry much of what varies, and she knows them
    known = np.arange(n) < 240
    pool = np.flatnonzero(~known)
    margins, member = refitted(X, y, pool, 20_000, rng)
    measured = []
    for own, inside in zip(margins.T, member.T, strict=True):
        deviation = np.sqrt((own[inside].var() + own[~inside].var()) / 2)
        measured.append(abs(own[inside].mean() - own[~inside].mean()) / deviation)
    model = sp.glm.LinearRegression().fit(X, y)

    def predicted(knows):
        attacker = sp.Attacker(knows=knows, fraction=0.75)  # halves of the pool come and go
        leak = sp.leakage(model, X, y, attacker=attacker, release=sp.Predictions())
        return leak.membership(rows=pool, exact=0).worlds.distance

    assert predicted(known).mean() == pytest.approx(np.mean(measured), rel=0.03)
    np.testing.assert_allclose(predicted(known), measured, rtol=0.15, atol=0.03)
    assert predicted(0.8).mean() < 0.8 * np.mean(measured)


def test_who_is_hidden_by_one_other_alone():
    """A release shows whether the other one is there, and then hides nothing."""
    n, rng = 400, np.random.default_rng(1)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, 2))])
    y = X @ [0.3, 1.0, -0.5] + 0.2 * rng.standard_normal(n)
    pool = np.arange(60)
    y[0] += 60.0  # an outlier that she does not know
    y[1] += 1.5
    margins, member = refitted(X, y, pool, 20_000, rng)
    own, inside = margins[:, 1], member[:, 1]
    edges = np.quantile(own[::2], np.linspace(0, 1, 101)[1:-1])
    places = np.searchsorted(edges, own)
    counts = [
        np.bincount(places[::2][one[::2]], minlength=100) / one[::2].sum()
        for one in (inside, ~inside)
    ]
    says = (counts[0] > counts[1])[places[1::2]]
    right = (says[inside[1::2]].mean() + (~says[~inside[1::2]]).mean()) / 2
    model = sp.glm.LinearRegression().fit(X, y)
    known = np.arange(n) >= 60
    attacker = sp.Attacker(knows=known, fraction=0.75)
    leak = sp.leakage(model, X, y, attacker=attacker, release=sp.Predictions())
    risk = leak.membership(rows=[1], exact=0)
    deviation = np.sqrt((own[inside].var() + own[~inside].var()) / 2)
    normal = stats.norm.cdf(abs(own[inside].mean() - own[~inside].mean()) / deviation / 2)
    assert normal < 0.7  # what two normal distributions say
    assert right > 0.9
    assert float(np.asarray(risk.accuracy())[0]) == pytest.approx(right, abs=0.03)
    assert "four fifths" in " ".join(risk.mu.assumptions)
    # The same as to an attacker who knows that one too.
    known[0] = True
    attacker = sp.Attacker(knows=known, fraction=0.75)
    leak = sp.leakage(model, X, y, attacker=attacker, release=sp.Predictions())
    more = leak.membership(rows=[1], exact=0)
    np.testing.assert_allclose(np.asarray(risk), np.asarray(more), rtol=1e-6)


@pytest.mark.parametrize("outputs", [1, 2])
def test_who_is_taken_for_known_might_as_well_be(outputs):
    """Of a person with two records too, whose predictions are two numbers."""
    X, y = drawn("gaussian", n=200)
    X, y = X[2:], y[2:]
    X[10], y[10] = [0.1, -0.1, 0.1], 4000.0  # one hides many
    people = np.arange(len(X)) // outputs
    model = sp.glm.LinearRegression(l2=0.02, fit_intercept=True).fit(X, y)
    of_it = np.flatnonzero(people == people[10])

    def worlds(knows):
        leak = sp.leakage(
            model, X, y, attacker=sp.Attacker(knows=knows), release=sp.Predictions(), person=people
        )
        found = leak._first.worlds(leak._first.together(None))
        return found.told_apart()[1], found.taken_for_known

    plain, known = worlds(0.0)
    beside, further = worlds(of_it)
    hidden = np.flatnonzero(known)
    assert len(hidden) > 5
    np.testing.assert_array_equal(known[hidden], 1 + further[hidden])
    np.testing.assert_allclose(plain.distance[hidden], beside.distance[hidden], rtol=1e-9)


def test_who_is_known_stays_in_every_refit():
    X, y = drawn("bernoulli", n=200)
    model = sp.glm.LogisticRegression(l2=0.02, fit_intercept=True).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    known = half_known(len(X))
    others = OtherPeople(leak.release.finite_changes().model, None, False, known)
    fits = ResampledFits(Worlds(others, 1.0), 0)
    assert np.all(fits.weights[:, known] == 1)
    assert fits.weights[:, ~known].var() == pytest.approx(1.0, rel=0.05)
    np.testing.assert_allclose(fits.weights.sum(axis=1), len(X))


def test_refits_agree_where_some_are_known():
    X, y = drawn("gaussian", n=400)
    model = sp.glm.LinearRegression(l2=0.02, fit_intercept=True).fit(X, y)
    leak = sp.leakage(model, X, y, attacker=sp.Attacker(knows=half_known(len(X))))
    checked = leak.membership(exact=4).checked
    assert (np.abs(checked.right - checked.predicted) < 0.04 + 3 * checked.error).all()


def test_only_who_is_unknown_is_asked_about():
    X, y = drawn("gaussian", n=200)
    frame = pd.DataFrame(X, columns=["a", "b", "c"], index=[f"p{i}" for i in range(200)])
    model = sp.glm.LinearRegression(l2=0.02).fit(frame, y)
    known = half_known(len(X))
    leak = sp.leakage(model, frame, y, attacker=sp.Attacker(knows=known))
    risk = leak.membership(exact=0)
    assert list(risk.mu.labels()) == list(frame.index[~known])
    by_position = sp.Attacker(knows=np.flatnonzero(known))
    same = sp.leakage(model, frame, y, attacker=by_position).membership(exact=0)
    np.testing.assert_array_equal(np.asarray(risk), np.asarray(same))
    some = np.flatnonzero(~known)[[4, 7]]
    few = leak.membership(rows=some, exact=0)
    np.testing.assert_array_equal(np.asarray(few), np.asarray(risk)[[4, 7]])
    with pytest.raises(sp.InputError, match="there is no membership to infer"):
        leak.membership(rows=[int(np.flatnonzero(known)[0])])
    assert leak.records().shape == (np.sum(~known),)
    assert list(leak.records().labels()) == list(frame.index[~known])
    assert f"who knows {known.sum()} of the records" in repr(leak)
    assert risk.others == 199
    noisy = sp.leakage(model, frame, y, noise=sp.Gaussian(0.1), attacker=sp.Attacker(knows=known))
    informed = np.asarray(sp.leakage(model, frame, y, noise=sp.Gaussian(0.1)).membership())
    np.testing.assert_allclose(
        np.asarray(noisy.membership(exact=0).informed), informed[~known], rtol=1e-12
    )
    assert list(noisy.membership(exact=0).top(3).informed.mu.labels()) == list(
        noisy.membership(exact=0).top(3).mu.labels()
    )


def test_what_she_learnt_the_kind_of_people_from():
    """The mean of m unknown people is open to her by m/50 of their own variance."""
    attacker = sp.Attacker(knows=half_known(200), reference=50, fraction=0.5)
    assert attacker.unknown(100) == pytest.approx(0.5 * (1 + 100 / 50))
    X, y = drawn("gaussian", n=200)
    model = sp.glm.LinearRegression(l2=0.02).fit(X, y)
    known = np.arange(200) >= 100
    exactly, learnt = (
        sp.leakage(model, X, y, attacker=sp.Attacker(knows=known, reference=m)).membership(exact=0)
        for m in (None, 100)
    )
    np.testing.assert_allclose(
        exactly.worlds.distance, np.sqrt(2) * learnt.worlds.distance, rtol=1e-6
    )


def test_what_is_known_is_described_with_care():
    X, y = drawn("gaussian", n=200)
    model = sp.glm.LinearRegression(l2=0.02).fit(X, y)

    def asked(knows, **options):
        attacker = sp.Attacker(knows=knows)
        return sp.leakage(model, X, y, attacker=attacker, **options).membership(exact=0)

    with pytest.raises(sp.InputError, match=r"knows=0\.0"):
        asked(np.zeros(200, dtype=bool))
    with pytest.raises(sp.InputError, match="a boolean mask"):
        asked([0.5, 0.5])
    with pytest.raises(sp.InputError, match="mask of rows"):
        asked(np.ones(199, dtype=bool))
    with pytest.raises(sp.InputError, match="no row 200"):
        asked([3, 200])
    with pytest.raises(
        sp.InputError, match="fewer than three people whom the attacker does not know"
    ):
        asked(np.ones(200, dtype=bool))
    with pytest.raises(sp.InputError, match="all but 29 of 199 other people"):
        asked(np.arange(200) >= 30, release=sp.Predictions())
    assert len(asked(np.arange(200) >= 31, release=sp.Predictions())) == 31
    with pytest.raises(
        sp.InputError, match="21 people whom the attacker does not know are too few"
    ):
        asked(np.arange(200) >= 21)
    with pytest.raises(sp.InputError, match="some but not all records of a person"):
        asked(np.arange(200) % 2 == 0, person=np.arange(200) // 2)
