"""What one fit predicts about LiRA's thousands of shadow models, and how far it may be trusted.

To an attacker who does not know the others, a release without noise is random through them; from
one fit, ``sp.leakage(model, X, y, attacker=…)`` estimates how well she tells members. Claims, for
breast cancer (logistic, λ = 0.01 and 0.1), 3,000 records of UCI Adult (logistic), IWPC (linear) and
3,000 records of the RAND health insurance experiment (Poisson; statsmodels' table ``randhie``):

- **LiRA.** Each record's area under the curve of LiRA on shadow models, fitted on half of them and
  judged on the other (and the other way round), against one fit on the whole table: the mean of
  AUC − ½ within 15 %, the 1 % of the records that LiRA finds best within 0.03, and a correlation
  over records of 0.95 once LiRA's own error is corrected for (by two LiRAs that share no shadow
  model; the raw one is printed too). Shadow models take a random half of the table: a record moves
  them by twice as much as the whole model, and the others' variance is a quarter of the table's; so
  LiRA sees what an attacker sees who knows three quarters of the others of the whole table.
- **White box.** 20 records a table, the 10 most exposed among them: accuracies within 0.03 of
  resampled refits, or within two standard errors; except where one record is most of what varies,
  and the number given is the refits' own.
- **Partial knowledge.** 300 patients; one known set of 0, 50 or 80 % always stays and the others
  come and go: the mean μ of one query within 10 % and two standard errors. (Of 95 %, the 15 others
  are too few, and the question is refused.)

Shadow models are fitted here, by Newton's method on many of them at once, and share no code with
what is judged. Tables that are done are kept in ``results/outsider.json`` and not run again;
``--again`` starts afresh. Real data in SEEPAGE_DATA.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import rankdata
from sklearn.datasets import load_breast_cancer
from tqdm import tqdm

import seepage as sp
from glm_rows import adult
from keeping import keep
from measuring import show

PARTIAL = 4000
WIDTHS = (22, 10, 10, 10, 10, 10, 10)
KEPT = Path(__file__).parent / "results" / "outsider.json"
Table = tuple[np.ndarray, np.ndarray]


def cancer() -> Table:
    """Return standardised breast-cancer records."""
    X, y = load_breast_cancer(return_X_y=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y.astype(float)


def few_adults() -> Table:
    """Return 3,000 records of Adult, without levels that none of them has."""
    X, y = adult()
    rows = np.random.default_rng(0).choice(len(X), 3000, replace=False)
    X = X[rows]
    return X[:, (X != 0).any(axis=0)], (y[rows] > 0).astype(float)


def patients() -> Table:
    """Return IWPC's patients and their doses."""
    problem = sp.data.iwpc_one_hot(sp.data.load_iwpc(download=False))
    return problem.X, problem.y


def visits() -> Table:
    """Return 3,000 people of the RAND experiment, and how often each saw a physician."""
    import statsmodels.api as sm

    frame = sm.datasets.randhie.load_pandas().data
    rows = np.random.default_rng(0).choice(len(frame), 3000, replace=False)
    X = frame.drop(columns="mdvis").to_numpy(float)[rows]
    return (X - X.mean(axis=0)) / X.std(axis=0), frame["mdvis"].to_numpy(float)[rows]


# Where the records come from, the family, λ, and how many shadow models each of two LiRAs has
TABLES: dict[str, tuple[Callable[[], Table], str, float, int]] = {
    "breast cancer, 0.01": (cancer, "bernoulli", 0.01, 4000),
    "breast cancer, 0.1": (cancer, "bernoulli", 0.1, 4000),
    "IWPC, 0.01": (patients, "gaussian", 0.01, 4000),
    "RAND, 0.01": (visits, "poisson", 0.01, 4000),
    "Adult, 0.01": (few_adults, "bernoulli", 0.01, 2000),
}
MODELS = {
    "bernoulli": sp.glm.LogisticRegression,
    "gaussian": sp.glm.LinearRegression,
    "poisson": sp.glm.PoissonRegression,
}
MEANS = {"bernoulli": expit, "gaussian": lambda m: m, "poisson": np.exp}


def shadow_margins(
    X: np.ndarray, y: np.ndarray, family: str, taken: np.ndarray, l2: float, start: np.ndarray
) -> np.ndarray:
    """Return every record's margin under models fitted on some of them, (models, n).

    ``taken (models, n)`` says which; the intercept, last, is not penalised.
    """
    x = np.hstack([X, np.ones((len(X), 1))])
    margins = np.empty(taken.shape)
    step_size = max(1, 4_000_000 // x.size)
    for begin in tqdm(range(0, len(taken), step_size), desc="shadow models", disable=None):
        some = slice(begin, begin + step_size)
        weight = taken[some].astype(float)
        penalty = np.outer(l2 * weight.sum(axis=1), np.append(np.ones(X.shape[1]), 0.0))
        theta = np.tile(start, (len(weight), 1))
        for _ in range(30):
            m = theta @ x.T
            mean = MEANS[family](m)
            bend = {"bernoulli": mean * (1 - mean), "gaussian": 1.0, "poisson": mean}[family]
            gradient = (weight * (mean - y)) @ x + penalty * theta
            H = (x.T[None] * (weight * bend)[:, None, :]) @ x
            H[:, np.arange(x.shape[1]), np.arange(x.shape[1])] += penalty
            step = np.linalg.solve(H, gradient[:, :, None])[:, :, 0]
            theta -= step
            if np.abs(step @ x.T).max() < 1e-4:
                break
        margins[some] = theta @ x.T
    return margins


def areas(margins: np.ndarray, taken: np.ndarray, taught: slice, judged: slice) -> np.ndarray:
    """Return LiRA's area under the curve for every record."""
    area = np.empty(margins.shape[1])
    for i in range(len(area)):
        inside = taken[taught, i]
        seen, now = margins[taught, i], margins[judged, i]
        scores = 0.0
        for sign, part in ((1, seen[inside]), (-1, seen[~inside])):
            scores = scores - sign * (
                ((now - part.mean()) / part.std()) ** 2 / 2 + np.log(part.std())
            )
        member = taken[judged, i]
        ranks, count = rankdata(scores)[member].sum(), int(member.sum())
        area[i] = (ranks - count * (count + 1) / 2) / (count * (len(member) - count))
    return area


def lira(X: np.ndarray, y: np.ndarray, family: str, taken: np.ndarray, *known: Any) -> np.ndarray:
    """Return LiRA's area for every record, on shadow models fitted on these halves of a table."""
    margins = shadow_margins(X, y, family, taken, *known)
    parts = slice(0, len(taken) // 2), slice(len(taken) // 2, None)
    return (areas(margins, taken, *parts) + areas(margins, taken, *parts[::-1])) / 2


def halves(count: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return random halves of a table, (count, n)."""
    return rng.random((count, n)).argsort(axis=1) < n // 2


def white_box(name: str) -> dict[str, Any]:
    """Return accuracies about 20 records from the parameters of one table's model."""
    load, family, l2, _ = TABLES[name]
    X, y = load()
    model = MODELS[family](l2=l2, fit_intercept=True).fit(X, y)
    leak = sp.leakage(model, X, y, attacker=sp.Attacker(knows=0.0))
    right = np.asarray(leak.membership(exact=0).accuracy())
    worst = np.argsort(-right)[:10]
    others = np.setdiff1d(np.arange(len(X)), worst)
    rest = np.random.default_rng(1).choice(others, 10, replace=False)
    risk = leak.membership(rows=np.concatenate([worst, rest]), exact=True)
    checked = risk.checked
    given = np.asarray(risk.accuracy())[checked.people]
    return {
        "certain": int(np.sum(right > 1 - 1e-12)),
        "approximated": checked.predicted.tolist(),
        "refitted": checked.right.tolist(),
        "standard errors": checked.error.tolist(),
        "decided by refits": (given != checked.predicted).tolist(),
    }


def examine(name: str) -> dict[str, Any]:
    """Return how LiRA compares with one fit of a table."""
    load, family, l2, shadows = TABLES[name]
    X, y = load()
    rng = np.random.default_rng(1)
    model = MODELS[family](l2=l2, fit_intercept=True).fit(X, y)
    start = np.append(np.asarray(model.coef_), np.asarray(model.intercept_))
    begun = time.process_time()
    attacker = sp.Attacker(knows=0.75)
    leak = sp.leakage(model, X, y, attacker=attacker, release=sp.Predictions())
    predicted = np.asarray(leak.membership(exact=0).auc())
    ours, begun = time.process_time() - begun, time.process_time()
    first, second = (lira(X, y, family, halves(shadows, len(X), rng), l2, start) for _ in range(2))
    theirs = time.process_time() - begun
    measured = (first + second) / 2
    between = float(np.corrcoef(first, second)[0, 1])
    raw = float(np.corrcoef(predicted, measured)[0, 1])
    top = np.argsort(-measured)[: max(1, len(X) // 100)]
    return {
        "records": len(X),
        "columns": X.shape[1],
        "shadow models": 2 * shadows,
        "mean area, predicted": float(predicted.mean()),
        "mean area, LiRA": float(measured.mean()),
        "top 1 %, predicted": float(predicted[top].mean()),
        "top 1 %, LiRA": float(measured[top].mean()),
        "correlation": raw,
        "correlation, corrected": raw / float(np.sqrt(2 * between / (1 + between))),
        "seconds of processor time": [ours, theirs],
    }


def partial_knowledge() -> list[dict[str, float]]:
    """Return the mean distance for several shares of known others, predicted and measured."""
    X, y = cancer()
    X, y = X[:300], y[:300]
    model = sp.glm.LogisticRegression(l2=0.1, fit_intercept=True).fit(X, y)
    start = np.append(np.asarray(model.coef_), np.asarray(model.intercept_))
    rng, found = np.random.default_rng(2), []
    order = rng.permutation(len(X))
    for known in (0.0, 0.5, 0.8):
        pool = order[int(known * len(X)) :]
        # Those who come and go are there half of the time: a quarter of their scatter.
        attacker = sp.Attacker(knows=known, fraction=0.75)
        leak = sp.leakage(model, X, y, attacker=attacker, release=sp.Predictions())
        mu = leak.membership(exact=0).worlds.distance[pool]
        taken = np.ones((PARTIAL, len(X)), dtype=bool)
        taken[:, pool] = rng.random((PARTIAL, len(pool))) < 0.5
        margins = shadow_margins(X, y, "bernoulli", taken, 0.1, start)
        signed = []
        for i in pool:  # a member's margin is drawn towards its label
            inside, outside = margins[taken[:, i], i], margins[~taken[:, i], i]
            apart = (2 * y[i] - 1) * (inside.mean() - outside.mean())
            signed.append(apart / np.sqrt((inside.var() + outside.var()) / 2))
        error = np.sqrt(4 / PARTIAL / len(pool))
        found.append(
            {
                "known": known,
                "predicted": float(mu.mean()),
                "measured": float(np.mean(signed)),
                "standard error": float(error),
            }
        )
    return found


def claims(name: str, found: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return what is claimed of a table, and whether it holds."""
    mean = (found["mean area, predicted"] - 0.5) / (found["mean area, LiRA"] - 0.5)
    top = found["top 1 %, predicted"] - found["top 1 %, LiRA"]
    return [
        (f"{name}: mean of AUC − ½ {100 * (mean - 1):+.0f} %", abs(mean - 1) <= 0.15),
        (f"{name}: the top 1 % {top:+.3f}", abs(top) <= 0.03),
        (
            f"{name}: correlation {found['correlation, corrected']:.3f}",
            found["correlation, corrected"] >= 0.95,
        ),
    ]


def agreement(name: str, found: dict[str, Any]) -> tuple[str, bool]:
    """Return what is claimed of the parameters' accuracies, and whether it holds."""
    refitted, decided = np.array(found["refitted"]), np.array(found["decided by refits"])
    off = np.abs(refitted - np.array(found["approximated"]))
    agree = (off < 0.03) | (off < 2 * np.array(found["standard errors"]))
    return (
        f"{name}: parameters, refits agree for {np.sum(agree & ~decided)} of {np.sum(~decided)} "
        f"(and for {np.sum(agree & decided)} of the {np.sum(decided)} that they decide)",
        bool(np.all(agree | decided)),
    )


def main() -> int:
    """Examine every table that is not kept, print, compare with the claims, and keep."""
    kept: dict[str, Any] = {"tables": {}, "white box": {}, "partial knowledge": []}
    if KEPT.exists() and "--again" not in sys.argv:
        kept = json.loads(KEPT.read_text("utf-8"))
        kept.pop("made")
    for name in TABLES:
        if name not in kept["tables"]:
            kept["tables"][name] = examine(name)
            keep(kept, KEPT)
    for name in TABLES:
        if name not in kept["white box"]:
            kept["white box"][name] = white_box(name)
            keep(kept, KEPT)
    if not kept["partial knowledge"]:
        kept["partial knowledge"] = partial_knowledge()
        keep(kept, KEPT)
    show("table, λ", "AUC", "LiRA", "top 1 %", "LiRA", "r, raw", "r", widths=WIDTHS)
    for name, found in kept["tables"].items():
        figures = ("mean area, predicted", "mean area, LiRA", "top 1 %, predicted", "top 1 %, LiRA")
        both = ("correlation", "correlation, corrected")
        show(name, *(f"{found[key]:.4f}" for key in (*figures, *both)), widths=WIDTHS)
    for name, found in kept["tables"].items():
        ours, theirs = found["seconds of processor time"]
        print(f"{name}: {ours:.2f} s for one fit, {theirs:.0f} s for LiRA's shadow models")
    stated = [claim for name, found in kept["tables"].items() for claim in claims(name, found)]
    stated += [agreement(name, found) for name, found in kept["white box"].items()]
    for row in kept["partial knowledge"]:
        off = abs(row["predicted"] - row["measured"])
        allowed = 0.1 * row["measured"] + 2 * row["standard error"]
        stated.append(
            (
                f"{100 * row['known']:.0f} % known: μ {row['predicted']:.3f}, measured "
                f"{row['measured']:.3f} ± {row['standard error']:.3f}",
                off <= allowed,
            )
        )
    for sentence, holds in stated:
        print(f"{'kept' if holds else 'MISSED':<7}{sentence}")
    return 0 if all(holds for _, holds in stated) else 1


if __name__ == "__main__":
    sys.exit(main())
