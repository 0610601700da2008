"""Every result people get becomes a table, an array and a picture, with the numbers it prints."""

import json
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from inspect import isabstract

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes

import seepage as sp
from seepage.nn.susceptibility.attribution import Attribution
from seepage.tables import result_table
from seepage.tables.result_table import Listing, RankedResult, ResultNumbers, ResultTable

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@cache
def table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(60, 3)), columns=["age", "<b>dose", "sex"])
    X["sex"] = (X["sex"] > 0).astype(float)
    X.index = [f"p{k}" for k in range(60)]
    y = (X["age"] + rng.normal(size=60) > 0).astype(int)
    return X, y


@cache
def leak(**options):
    X, y = table()
    model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    people = np.arange(60) // 2
    return sp.leakage(model, X, y, noise=sp.Gaussian(0.1), person=people)


@cache
def rows():
    X, y = table()
    model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    return sp.leakage(model, X, y, noise=sp.Gaussian(0.1))


@cache
def outsider():
    X, y = table()
    model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    return sp.leakage(model, X, y, attacker=sp.Attacker(knows=0.0))


@cache
def torch_run():
    import torch

    torch.manual_seed(0)
    X, y = torch.randn(40, 3), torch.randint(2, (40,))
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    trainer = sp.nn.PrivateSGD(
        net,
        "cross_entropy",
        steps=4,
        sample_rate=0.5,
        expected_batch=20,
        individual=True,
        sketch=2,
        sketch_records=[0, 1, 2],
        probes=2,
    ).fit(X, y)
    return trainer, net, X, y


@cache
def attacked():
    from sklearn.tree import DecisionTreeClassifier

    X, y = table()
    return sp.audit_estimator(DecisionTreeClassifier(random_state=0).fit(X, y), X, y)


@cache
def updates():
    draw = np.random.default_rng(0)
    client = np.tile(np.arange(20), 4)
    moved = draw.standard_normal((80, 3)) + 4 * (client % 2)[:, None]
    seen = sp.layers.LayerGradients.of({"fc1": moved, "fc2": draw.standard_normal((80, 2))})
    return replace(seen, nodes=client, rounds=np.repeat(np.arange(4), 20)), client


def of_stream(folder):
    X, y = table()
    plain = X.reset_index(drop=True)
    plain.assign(y=y.to_numpy()).to_parquet(folder / "t.parquet")
    model = sp.glm.LogisticRegression(l2=0.1).fit(plain, y.to_numpy())
    return sp.leakage(model, folder / "t.parquet", "y", noise=sp.Gaussian(0.1)).records()


def of_inversion(folder):
    X = np.random.default_rng(0).integers(0, 2, size=(40, 2)).astype(float)
    y = X @ [1.0, 2.0]
    level = sp.attacks.NominalAttribute.from_table(X, [0], "level")
    white = sp.attacks.WhiteBox(level, sp.glm.LinearRegression(l2=0.1)).fit(X, y)
    releases = sp.attacks.draw_releases(white.model_, sp.Gaussian(0.1), 5, seed=0)
    return white.attack(X, y, releases)


def of_plis(folder):
    _, net, X, y = torch_run()
    return sp.nn.plis(
        net, "cross_entropy", X, y, noise_multiplier=1.0, max_grad_norm=1.0, compare="exact"
    )


def of_plis_run(folder):
    _, net, X, y = torch_run()
    watch = sp.nn.PlisOverTraining(
        net, "cross_entropy", n=40, noise_multiplier=1.0, max_grad_norm=1.0
    )
    watch.observe(np.arange(40), X, y)
    return watch.result()


def of_ledger(folder):
    ledger = sp.LedgerFile(folder / "seepage-ledger.json")
    ledger.record({"name": ["Ada", "<i>Ben"]}, "<b>training run", eta=0.5, epsilon=1.0)
    return ledger


def of_release(folder):
    X, y = table()
    model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    return sp.Release.of(sp.release(model, sp.Gaussian(0.1)))


def of_remedies(folder):
    from seepage.attacks.remedies_compared import RemedyComparison, RemedyOutcome
    from seepage.layers.measures.per_layer import Span

    span = Span(0.6, 0.5, 0.7)
    outcomes = [RemedyOutcome(name, span, span, span, 10) for name in ("as it is", "<b>clipped")]
    return RemedyComparison(tuple(outcomes))


def of_property(folder):
    from seepage.attacks import PropertyInferenceResult

    scores = np.linspace(0, 1, 20)
    truth = (np.arange(20) % 3 > 0).astype(int)
    return PropertyInferenceResult("fc1", np.stack([1 - scores, scores], axis=1), truth, (0, 1))


def of_tokens(folder):
    from seepage.nn import Token, TokenMap

    tokens = (Token(0, 0, "<b>Ada", 0, input=0.5), Token(0, 1, "ill", 1, input=1.5, target=0.1))
    return TokenMap(tokens, None)


def of_callback(folder):
    from seepage.nn import LeakageCallback

    callback = LeakageCallback({}, noise_multiplier=1.0, max_grad_norm=1.0)
    callback.history_ = {0: rows().records(), 10: rows().records()}
    return callback


def of_extraction(folder):
    from seepage.attacks.extraction.result import ExtractedSecret, ExtractionResult
    from seepage.attacks.extraction.sampler import TokenSampler

    rest = ("<b>", "4711", 1, ("4", "7"), (0.5, 0.5), (1, 2))
    secrets = [
        ExtractedSecret(k, "code", f"<i>{k}", *rest, of_tokens=log, low=log, high=log, plain=log)
        for k, log in enumerate((-3.0, -1.0))
    ]
    return ExtractionResult(tuple(secrets), (), TokenSampler(), False, 2)


def of_audit(folder):
    X, y = table()
    return sp.audit(sp.glm.LogisticRegression(l2=0.1).fit(X, y), X, y)


def of_reweighting(folder):
    X, y = table()
    return sp.glm.reweight(sp.glm.LogisticRegression(l2=0.1).fit(X, y), X, y, rounds=2)


def of_reconstruction(folder):
    X, y = (np.asarray(part, dtype=float) for part in table())
    attack = sp.attacks.InformedAdversary(sp.glm.LinearRegression(l2=0.1)).fit(X, y)
    return attack.errors(sp.Gaussian(0.1), 20, seed=0, rows=[0, 1, 2])


def of_reconstruction_study(folder):
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    x, y = torch.rand(8, 4), torch.arange(8) % 2
    attack = sp.attacks.GradientInversion(net, shape=(4,), total_variation=0, steps=50)
    return sp.attacks.reconstruction_study(net, "cross_entropy", x, y, attack=attack)


def of_gradient_inversion(folder):
    _, net, X, y = torch_run()
    seen = sp.attacks.release_gradients(net, "cross_entropy", X[:3], y[:3])
    return sp.attacks.GradientInversion(net, shape=(3,), steps=5, total_variation=0).reconstruct(
        seen
    )


CASES = {
    "records": lambda _: rows().records(),
    "cells": lambda _: rows().cells(),
    "columns": lambda _: rows().columns(),
    "groups": lambda _: rows().groups(np.arange(60) % 3),
    "people": lambda _: leak().people(),
    "dataset": lambda _: rows().dataset(),
    "bound": lambda _: rows().records().std_bound(),
    "stream": of_stream,
    "membership": lambda _: rows().membership(),
    "membership of people": lambda _: leak().membership(),
    "guess": lambda _: rows().guess("sex"),
    "within": lambda _: rows().within("age", 0.5),
    "outsider's membership": lambda _: outsider().membership(),
    "outsider's guess": lambda _: outsider().guess("sex"),
    "guarantees": lambda _: sp.guarantees(rows(), draws=8),
    "finite change": lambda _: sp.bounds.hammersley_chapman_robbins(rows(), 0, "age"),
    "reweighting": of_reweighting,
    "audit": of_audit,
    "audit by attack": lambda _: attacked(),
    "membership attack": lambda _: attacked().strongest,
    "guessed column": lambda _: attacked().guesses[0],
    "explanation": lambda _: sp.explain(2.0, delta=1e-5),
    "release": of_release,
    "ledger": of_ledger,
    "inversion": of_inversion,
    "reconstruction": of_reconstruction,
    "gradient inversion": of_gradient_inversion,
    "reconstruction study": of_reconstruction_study,
    "image quality": lambda _: sp.attacks.compare_images(
        np.linspace(0, 1, 3 * 256).reshape(3, 16, 16), np.zeros((3, 16, 16))
    ),
    "outliers": lambda _: sp.attacks.out_of_distribution(np.arange(20.0), np.arange(20) > 12),
    "canaries": lambda _: sp.attacks.CanaryAudit(195, 200, 800, 1e-5, promised=8.0),
    "accountant": lambda _: torch_run()[0].accountant_.records("dfil"),
    "run's FIL": lambda _: torch_run()[0].accountant_.fil(),
    "run's privacy": lambda _: torch_run()[0].accountant_.privacy(1e-5),
    "run's membership": lambda _: torch_run()[0].accountant_.membership(),
    "individual loss": lambda _: torch_run()[0].accountant_.individual_loss(),
    "individual privacy": lambda _: torch_run()[0].accountant_.individual_privacy(),
    "PLIS": of_plis,
    "PLIS beside others": lambda _: of_plis(_).compare(),
    "PLIS over a run": of_plis_run,
    "layers": lambda _: sp.layers.v_information(
        updates()[0], updates()[1] % 2, groups=updates()[1], family="logistic"
    ),
    "layer audit": lambda _: sp.layers.audit_updates(
        updates()[0], updates()[1] % 2, family="logistic"
    ),
    "recording": lambda _: sp.layers.audit_recording(
        updates()[0], updates()[1] % 2, family="logistic", permutations=99
    ),
    "rounds": lambda _: sp.layers.since_when(updates()[0], updates()[1] % 2, permutations=99),
    "remedies": of_remedies,
    "extraction": of_extraction,
    "property": of_property,
    "tokens": of_tokens,
    "callback": of_callback,
    "attribution": lambda _: Attribution(of_plis(_).values),
    "promise's trade-off": lambda _: sp.privacy.DifferentialPrivacy(1.0, 1e-5).trade_off(),
    "Gaussian trade-off": lambda _: sp.privacy.GaussianDP(1.0).trade_off(),
    "run's trade-off": lambda _: sp.privacy.SampledGaussianDP(1.0, 0.1, 10).trade_off(),
    "clients": lambda _: sp.layers.standing_out(updates()[0]),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory, few_neighbours):
    return cache(lambda name: CASES[name](tmp_path_factory.mktemp("result")))


@pytest.fixture(autouse=True)
def no_figure_stays():
    yield
    pyplot.close("all")


@pytest.mark.parametrize("name", CASES)
def test_a_result_is_a_table(made, name):
    result = made(name)
    assert isinstance(result, Listing)
    frame, plain = result.to_pandas(), result.table(library="pandas")
    assert frame.index.nlevels == result.index_columns
    assert list(frame.index.names) == list(plain.columns[: result.index_columns])
    own = frame[[column for column in frame.columns if column in plain.columns]]
    pd.testing.assert_frame_equal(own.reset_index(), plain, check_dtype=False)
    text, page = repr(result), result._repr_html_()
    assert len(text) < 3000
    assert [part for part in ("object at 0x", "array(") if part in text] == []
    assert [part for part in ("<b>", "<i>") if part in page] == []
    if isinstance(result, ResultTable):
        numbers = result.to_numpy()
        np.testing.assert_array_equal(np.asarray(result), numbers)
        if result.value_column in plain:
            np.testing.assert_array_equal(plain[result.value_column], numbers)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("release", "ledger")])
def test_a_result_is_a_picture(made, name):
    result = made(name)
    drawn = np.atleast_1d(result.plot())
    assert all(isinstance(axes, Axes) for axes in drawn)
    given = np.atleast_1d(pyplot.figure().subplots(1, len(drawn)))
    again = np.atleast_1d(result.plot(given if len(given) > 1 else given[0]))
    assert [a is b for a, b in zip(given, again, strict=True)] == [True] * len(drawn)
    given[0].figure.canvas.draw()
    with pytest.raises(sp.InputError, match=r"\.plot\(\)\.figure\.savefig\('x\.png'\)"):
        result.plot("x.png")


@pytest.mark.parametrize("name", ["audit", "audit by attack", "recording"])
def test_an_audit_writes_its_report(made, name, tmp_path):
    page = made(name).report(tmp_path / "own")
    assert "<html" in page.read_text(encoding="utf-8")
    same = sp.report(made(name), tmp_path / "same")
    assert {file.name for file in page.parent.iterdir()} == {f.name for f in same.parent.iterdir()}


def test_an_audit_by_attack_says_its_verdict(tmp_path):
    found = attacked()
    summary = json.loads(
        (found.report(tmp_path / "out").parent / "summary.json").read_text("utf-8")
    )
    assert summary["verdict"]["headline"] in repr(found)


@pytest.mark.parametrize("name", CASES)
def test_numbers_have_a_largest_and_an_order(made, name):
    result = made(name)
    if not isinstance(result, ResultNumbers):
        assert not hasattr(result, "max")
        return
    numbers = result.to_numpy()
    known = numbers[~np.isnan(numbers)]
    assert result.max() == known.max() == np.max(result)
    assert result.min() == known.min() == np.min(result)
    assert result.mean() == pytest.approx(known.mean()) == np.mean(result)
    assert result.median() == np.median(known)
    if not isinstance(result, RankedResult) or not numbers.ndim:
        return
    worst, least = result.sort(), result.sort(reverse=True)
    assert list(worst.labels()) == list(least.labels())[::-1]
    assert list(result.top(2).labels()) == list(worst.labels())[:2]
    assert sorted(map(str, worst.labels())) == sorted(map(str, result.labels()))
    by_label = result.to_pandas()
    pd.testing.assert_frame_equal(worst.to_pandas(), by_label.loc[worst.to_pandas().index])


def test_every_kind_of_result_is_tried(made):
    import_all()
    kinds, found = [Listing], set()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__module__.startswith("seepage.") and not isabstract(kind):
            found.add(kind)
    assert found - {type(made(name)) for name in CASES} == set()


def import_all():
    for room in ("attacks", "bounds", "glm", "layers", "nn", "privacy", "streams"):
        package = getattr(sp, room)
        _ = [getattr(package, name) for name in package.__all__]
    _ = [getattr(sp, name) for name in sp.__all__]


def test_infinite_numbers_are_counted_beside_the_picture():
    values = np.array([np.inf, np.nan, *range(1, 41)], dtype=float)
    for few in (slice(None), slice(10)):
        axes = sp.Result(values[few], "rows", "mse", "bound").plot()
        assert axes.get_title(loc="right") == "2 not shown (infinite or not measured)"
        axes.figure.canvas.draw()


def test_the_leakage_of_a_gradient_is_drawn_with_its_intervals():
    _, net, X, y = torch_run()
    leak = sp.nn.leakage(net, "cross_entropy", X, y, noise_multiplier=1.0, max_grad_norm=1.0)
    axes = leak.plot()
    assert axes.get_ylabel() == "dFIL η̄"
    assert len(axes.collections) == 1  # the band of the intervals
    with pytest.raises(sp.InputError, match="one linear model on a table in memory"):
        leak.report()


def test_a_run_says_what_it_is():
    assert repr(torch_run()[0].accountant_) == "<FisherAccountant: 4 steps on 40 records>"


def test_a_records_curve_is_found_by_its_position():
    individual = torch_run()[0].accountant_.individual_privacy()
    worst = individual.top(2)
    label = int(worst.labels()[1])
    assert worst.membership(label).accuracy() == individual.membership(label).accuracy()
    other = next(k for k in range(40) if k not in worst.labels())
    with pytest.raises(sp.InputError, match=f"no record {other}"):
        worst.membership(other)


def test_what_is_printed_is_what_the_methods_return():
    result = rows().records()
    text = f"median {result.median():.4g}, worst {result.max():.4g} at {result.sort().labels()[0]}>"
    assert repr(result).endswith(text)
    bound = rows().records().mse_bound()
    assert f"worst {bound.min():.4g} at {bound.sort().labels()[0]}>" in repr(bound)
    estimate = torch_run()[0].accountant_.records("dfil")
    frame = estimate.to_pandas()
    low, high = estimate.interval()
    np.testing.assert_array_equal(frame[["low", "high"]], np.stack([low, high], axis=1))
    attack = attacked().strongest.to_pandas()
    assert f"AUC {attack.loc['AUC', 'value']:.3f} [{attack.loc['AUC', 'low']:.3f}, " in repr(
        attacked().strongest
    )
    guarantee = torch_run()[0].accountant_.privacy(1e-5)
    assert f"{guarantee.to_pandas().loc['epsilon', 'value']:.4g}" in str(guarantee)


def test_the_picture_names_the_worst_records():
    ax = rows().plot()
    worst = rows().records().top(3)
    assert [text.get_text() for text in ax.texts] == list(worst.labels())
    heights = ax.lines[0].get_ydata()
    assert heights.tolist() == rows().records().sort().to_numpy().tolist()
    assert outsider().plot().get_ylabel() == "membership inference: success rate"


@pytest.mark.parametrize("library", ["pandas", "matplotlib"])
def test_what_is_missing_is_named_with_the_command(monkeypatch, library):
    here = find_spec
    monkeypatch.setattr(
        result_table, "find_spec", lambda name: None if name == library else here(name)
    )
    method = "to_pandas" if library == "pandas" else "plot"
    with pytest.raises(ImportError, match=f"pip install {library}"):
        getattr(rows().records(), method)()


def test_a_leakage_writes_the_report_of_its_audit(tmp_path, few_neighbours, blank_figures):
    page = rows().report(tmp_path / "report")
    assert page.stat().st_mode & 0o077 == 0
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    X, y = table()
    audit = sp.audit(sp.glm.LogisticRegression(l2=0.1).fit(X, y), X, y, noise=0.1)
    sp.report(audit, tmp_path / "other")
    other = json.loads((tmp_path / "other" / "summary.json").read_text())
    assert [summary[key] for key in ("release", "risks")] == [
        other[key] for key in ("release", "risks")
    ]


@pytest.mark.parametrize(
    ("leakage", "words"),
    [
        (lambda: sp.compose(rows(), rows()), "one linear model on a table in memory"),
        (lambda: _with_attributes(), "leave out attributes="),
        (lambda: _of_predictions(), "one linear model on a table in memory"),
    ],
)
def test_no_report_is_written_of_something_else(tmp_path, leakage, words):
    with pytest.raises(sp.InputError, match=words):
        leakage().report(tmp_path / "report")
    assert not list(tmp_path.iterdir())


def _with_attributes():
    X, y = table()
    model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    return sp.leakage(model, X, y, noise=sp.Gaussian(0.1), attributes={"both": ["age", "sex"]})


def _of_predictions():
    X, y = table()
    model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    release = sp.Predictions(X.head(2))
    return sp.leakage(model, X, y, noise=sp.Gaussian(0.1), release=release)
