"""A panel with unequal numbers of rows, and refits of it by hand, which share no code with ours."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from scipy.optimize import minimize
from scipy.special import expit, ndtr

L2 = 0.01


def panel(kind="linear", people=40, seed=0):
    """People with one to five rows, one with twenty; age and sex belong to the person."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, people)
    sizes[3] = 20
    who = np.repeat(np.arange(people), sizes)
    rng.shuffle(who)
    age, sex = rng.normal(50, 10, people)[who], rng.integers(0, 2, people)[who]
    dose = rng.normal(size=len(who))
    signal = 0.05 * (age - 50) + sex + dose + rng.normal(size=len(who))
    target = {
        "linear": signal,
        "logistic": (signal > 0.5).astype(int),
        # A diagnosis: the same in all rows of a person
        "constant": rng.integers(0, 2, people)[who],
    }[kind]
    table = {"age": age, "sex": np.array(["f", "m"])[sex], "dose": dose, "y": target}
    return pa.table({**table, "pid": who * 7 + 1000})


def design(table):
    """The standardised columns, a flag for sex, and the constant."""
    age, dose = (table[name].to_numpy() for name in ("age", "dose"))
    scaled = [(age - age.mean()) / age.std(), (dose - dose.mean()) / dose.std()]
    flag = (np.asarray(table["sex"].to_pylist()) == "m").astype(float)
    return np.column_stack([scaled[0], flag, scaled[1], np.ones(len(age))])


def fit(X, y, kind, ridge):
    """Minimise Σ loss + ridge/2 ‖β‖², the constant unpenalised: coefficients and intercept."""
    penalty = np.diag([ridge] * (X.shape[1] - 1) + [0.0])
    if kind == "linear":
        return np.linalg.solve(X.T @ X + penalty, X.T @ y)

    def objective(b):
        m = X @ b
        value = np.sum(np.logaddexp(0, m) - y * m) + b @ penalty @ b / 2
        return value, X.T @ (expit(m) - y) + penalty @ b

    b = minimize(objective, np.zeros(X.shape[1]), jac=True, method="BFGS", tol=1e-12).x
    for _ in range(5):  # BFGS stops at about half of the digits
        m = X @ b
        H = X.T @ (X * (expit(m) * expit(-m))[:, None]) + penalty
        b = b - np.linalg.solve(H, X.T @ (expit(m) - y) + penalty @ b)
    return b


def rows_of(table):
    """The rows of every person, in the order of their first rows."""
    who = table["pid"].to_numpy()
    return [np.flatnonzero(who == p) for p in dict.fromkeys(who.tolist())]


def leakages(table, kind, tied=()):
    """η of every person at σ = 1 by differences of refits, and along columns that move together.

    The first is the largest singular value over all cells of the person's rows with their labels;
    with ``tied`` columns, the length of the move when such a column moves by one in all rows.
    """
    X, y = design(table), table["y"].to_numpy().astype(float)
    step, h = y.std() if kind == "linear" else 1.0, 1e-4
    ridge = L2 * len(y)

    def moved(rows, j, size):
        XX, yy = X.copy(), y.copy()
        if j is None:
            yy[rows] += size * step
        else:
            XX[rows, j] += size
        return fit(XX, yy, kind, ridge)

    def slope(rows, j):
        return (moved(rows, j, h) - moved(rows, j, -h)) / (2 * h)

    if tied:
        return {
            j: np.array([np.linalg.norm(slope(rows, j)) for rows in rows_of(table)]) for j in tied
        }
    found = []
    for rows in rows_of(table):
        columns = [slope([row], j) for row in rows for j in (0, 1, 2, None)]
        found.append(np.linalg.svd(np.column_stack(columns), compute_uv=False)[0])
    return np.array(found)


def departures(table, kind):
    """How far the released numbers move without each person's rows, with nλ as it is."""
    X, y = design(table), table["y"].to_numpy().astype(float)
    ridge = L2 * len(y)
    here = fit(X, y, kind, ridge)
    kept = (np.setdiff1d(np.arange(len(y)), rows) for rows in rows_of(table))
    return np.array([np.linalg.norm(fit(X[k], y[k], kind, ridge) - here) for k in kept])


def flips(table, kind, column=1):
    """How far they move with the other sex in all rows of each person, or the other label."""
    X, y = design(table), table["y"].to_numpy().astype(float)
    ridge, found = L2 * len(y), []
    here = fit(X, y, kind, ridge)
    for rows in rows_of(table):
        XX, yy = X.copy(), y.copy()
        if column is None:
            yy[rows] = 1 - yy[rows]
        else:
            XX[rows, column] = 1 - XX[rows, column]
        found.append(np.linalg.norm(fit(XX, yy, kind, ridge) - here))
    return np.array(found)


def best_guess(mu, p):
    """How often the better of two answers, believed with p and 1 − p, is right at a distance μ."""
    odds = np.log(p / (1 - p)) / mu
    return p * ndtr(mu / 2 + odds) + (1 - p) * ndtr(mu / 2 - odds)
