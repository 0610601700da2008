"""``refit="pipeline"``: who was in the data, asked of the preparation of the columns as well."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import seepage as sp
from sampled import sampled
from seepage.cli import app

N, L2, SIGMA = 50, 0.02, 0.1


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"income": rng.gamma(1.0, size=N).round(6), "age": rng.normal(50, 9, N)})
    score = 2 * frame["income"] + (frame["age"] - 50) / 9 + rng.logistic(size=N)
    return frame.assign(ill=np.where(score > 2, "yes", "no"))


def brute_force(people: pd.DataFrame, scaled_anew: bool) -> np.ndarray:
    """Scale and fit without each record, and return how far the coefficients move."""
    X, y = people[["income", "age"]].to_numpy(), (people["ill"] == "yes").to_numpy()

    def released(kept: np.ndarray) -> np.ndarray:
        learnt = X[kept] if scaled_anew else X
        features = (X[kept] - learnt.mean(axis=0)) / learnt.std(axis=0)
        model = LogisticRegression(C=1 / (N * L2), solver="newton-cholesky", tol=1e-12)
        model.fit(features, y[kept])
        return np.append(model.coef_, model.intercept_)

    every = np.arange(N)
    moves = [released(np.delete(every, i)) - released(every) for i in range(N)]
    return np.linalg.norm(moves, axis=1) / SIGMA


def asked(people: pd.DataFrame, folder: Path, *options: str) -> dict[str, object]:
    path = folder / "people.csv"
    people.to_csv(path, index=False)
    fixed = ["--target", "ill", "--l2", str(L2), "--sigma", str(SIGMA), "--quick", "--json"]
    found = CliRunner().invoke(app, ["audit", str(path), *fixed, *options])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


@pytest.mark.parametrize("anew", sampled([False, True], [True]))
def test_the_command_line_scales_and_encodes_anew(
    people: pd.DataFrame, anew: bool, tmp_path: Path
) -> None:
    summary = asked(people, tmp_path, *(["--refit", "pipeline"] if anew else []))
    truth = brute_force(people, anew)
    risks = summary["risks"]
    assert risks["mu"] == pytest.approx(truth.max(), rel=1e-6)
    assert risks["row"] == int(truth.argmax())
    assert risks["median"] == pytest.approx(np.median(norm.cdf(truth / 2)), rel=1e-6)
    assert risks["looked_at"] == N
    named = " ".join(risks["assumptions"])
    assert ("chosen again without the record" in named) == anew
    assert ("(scaling) is held fixed" in named) != anew
    assert risks["held"] == (["penalty"] if anew else ["scaling", "penalty"])
    assert summary["held"] == ["scaling"]
    assert (
        any(
            "refitted without each of the 50 most exposed records" in step
            for step in summary["steps"]
        )
        == anew
    )


@pytest.mark.parametrize(
    ("own", "preprocessing"),
    sampled(
        list(itertools.product([True, False], ["frozen", "refitted"])),
        0,
        [(True, "refitted"), (False, "frozen")],
    ),
)
def test_an_audit_in_python_fits_the_pipeline_anew(
    people: pd.DataFrame, own: bool, preprocessing: str
) -> None:
    last = (
        sp.glm.LogisticRegression(l2=L2, fit_intercept=True)
        if own
        else LogisticRegression(C=1 / (N * L2), tol=1e-8)
    )
    X, y = people[["income", "age"]], people["ill"]
    pipeline = make_pipeline(StandardScaler(), last).fit(X, y)
    truth = brute_force(people, True)
    found = sp.audit(pipeline, X, y, noise=SIGMA, refit="pipeline", preprocessing=preprocessing)
    assert found.risks.mu == pytest.approx(truth.max(), rel=1e-5)
    assert found.risks.row == int(truth.argmax())
    # Guesses hold the scaling fixed, which is not what a refitted one was asked about.
    assert bool(found.risks.guesses) == (preprocessing == "frozen")
    assert found.risks.held == (("penalty",) if own else ())
    # It is what is asked without refit=, too; the scaling is held fixed only on request.
    default = sp.audit(pipeline, X, y, noise=SIGMA, preprocessing=preprocessing)
    assert default.risks.mu == found.risks.mu
    if preprocessing == "frozen":
        fixed = sp.audit(pipeline, X, y, noise=SIGMA, refit="model")
        assert fixed.risks.mu == pytest.approx(brute_force(people, False).max(), rel=1e-5)
        assert fixed.risks.held == (("scaling", "penalty") if own else ("scaling",))


@pytest.mark.slow
def test_a_category_that_leaves_with_its_only_record_tells_for_certain(
    people: pd.DataFrame, tmp_path: Path
) -> None:
    town = np.where(np.arange(N) % 2, "north", "south").astype(object)
    town[17] = "west"
    risks = asked(people.assign(town=town), tmp_path, "--refit", "pipeline")["risks"]
    assert (risks["row"], risks["membership"]) == (17, 1.0)


@pytest.mark.slow
def test_few_of_many_records_are_looked_at(
    people: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seepage.auditing.audit._MOST_WHOLE", 20)
    risks = asked(people, tmp_path, "--refit", "pipeline")["risks"]
    assert risks["looked_at"] == 20
    assert risks["mu"] == pytest.approx(brute_force(people, True).max(), rel=1e-6)


def test_what_cannot_be_fitted_anew_is_refused(people: pd.DataFrame, tmp_path: Path) -> None:
    X, y = people[["income", "age"]], people["ill"]
    model = sp.glm.LogisticRegression(l2=L2).fit(X, y)
    with pytest.raises(sp.InputError, match="this model has no preceding steps"):
        sp.audit(model, X, y, noise=SIGMA, refit="pipeline")
    with pytest.raises(sp.InputError, match="refit must be 'pipeline' or 'model', or be"):
        sp.audit(model, X, y, noise=SIGMA, refit="all")
    path, folder = tmp_path / "people.csv", tmp_path / "people"
    people.to_csv(path, index=False)
    folder.mkdir()
    people.to_parquet(folder / "1.parquet")
    for table, options, sentence in [
        (path, ["--refit", "all"], "--refit must be pipeline or be left out, not 'all'"),
        (
            path,
            ["--refit", "pipeline", "--model", "m.json"],
            "a model from a file cannot be refitted",
        ),
        (
            path,
            ["--refit", "pipeline", "--model-kind", "forest"],
            "--refit applies only to linear models",
        ),
        (folder, ["--refit", "pipeline"], "--refit needs all records in memory"),
    ]:
        found = CliRunner().invoke(
            app, ["audit", str(table), "--target", "ill", "--json", *options]
        )
        assert found.exit_code == 2
        assert sentence in " ".join(found.output.split())
