"""Models from files: the same leakage as the fitted model, and nothing that is not a model."""

import json
import pickle

import numpy as np
import pytest
from safetensors.numpy import save_file

from seepage.auditing.intake import model_file
from seepage.auditing.intake.model_file import load_model, match_features
from seepage.core.noise import Gaussian
from seepage.errors import InputError, NotTheMinimiserError
from seepage.glm import LinearRegression, LogisticRegression, PoissonRegression, SoftmaxRegression
from seepage.glm.leakage import leakage

N = 80
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 3))
MARGIN = X @ [1.0, -0.5, 0.25]
CASES = {
    "linear": (LinearRegression, MARGIN + RNG.normal(size=N)),
    "logistic": (LogisticRegression, np.where(MARGIN + RNG.normal(size=N) > 0, "yes", "no")),
    "poisson": (PoissonRegression, RNG.poisson(np.exp(MARGIN)).astype(float)),
    "softmax": (SoftmaxRegression, np.digitize(MARGIN + RNG.normal(size=N), [-0.5, 0.5])),
}
GOOD = {"family": "linear", "coefficients": [1.0, 2.0], "intercept": 0.5, "l2": 0.1}


def content(family, model):
    softmax = family == "softmax"
    out = {
        "family": family,
        "coefficients": model.coef_ if softmax else np.ravel(model.coef_),
        "l2": model.l2,
    }
    if model.fit_intercept:
        out["intercept"] = model.intercept_ if softmax else np.ravel(model.intercept_)[0]
    if family in ("logistic", "softmax"):
        out["classes"] = model.classes_.tolist()
    return out


def write_json(path, content):
    text = json.dumps(content, default=lambda value: np.asarray(value).tolist())
    path.write_text(text, encoding="utf-8")
    return path


def write_safetensors(path, content):
    # ascontiguousarray makes a number a list of one: both are read.
    tensors = {
        k: np.ascontiguousarray(content[k]) for k in ("coefficients", "intercept") if k in content
    }
    metadata = {"family": content["family"], "l2": repr(content["l2"])}
    metadata |= {k: json.dumps(content[k]) for k in ("classes", "features") if k in content}
    save_file(tensors, path, metadata)
    return path


def refusal(path):
    with pytest.raises(InputError) as caught:
        load_model(path)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 400
    return message


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_a_loaded_model_leaks_and_predicts_like_the_fitted_one(tmp_path, kind, family, intercept):
    estimator, y = CASES[family]
    model = estimator(l2=1e-2, fit_intercept=intercept).fit(X, y)
    writer = write_json if kind == "json" else write_safetensors
    loaded = load_model(writer(tmp_path / f"model.{kind}", content(family, model)))
    assert type(loaded) is estimator
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    noise = Gaussian(0.5)
    np.testing.assert_allclose(
        leakage(loaded, X, y, noise=noise).rows(), leakage(model, X, y, noise=noise).rows()
    )


def test_another_penalty_is_not_the_minimiser(tmp_path):
    estimator, y = CASES["linear"]
    told = content("linear", estimator(l2=1e-2).fit(X, y)) | {"l2": 1.0}
    loaded = load_model(write_json(tmp_path / "m.json", told))
    with pytest.raises(NotTheMinimiserError):
        leakage(loaded, X, y, noise=Gaussian(1.0))


def test_features_are_put_into_the_order_of_the_table(tmp_path):
    told = GOOD | {"features": ["b", "a"]}
    model = load_model(write_json(tmp_path / "m.json", told))
    match_features(model, ["a", "b"])
    np.testing.assert_array_equal(model.coef_, [2.0, 1.0])
    assert list(model.feature_names_in_) == ["a", "b"]
    with pytest.raises(InputError, match=r"no coefficient for 'c' and has coefficients for 'b'"):
        match_features(model, ["a", "c"])
    with pytest.raises(InputError, match=r"has coefficients for 'b', absent from the table"):
        match_features(model, ["a"])


def test_unnamed_coefficients_are_counted(tmp_path):
    model = load_model(write_json(tmp_path / "m.json", GOOD))
    match_features(model, ["a", "b"])
    np.testing.assert_array_equal(model.coef_, [1.0, 2.0])
    with pytest.raises(InputError, match="2 coefficients, but the encoded table has 3 features"):
        match_features(model, ["a", "b", "c"])


def test_softmax_features_are_reordered_for_every_class(tmp_path):
    told = {
        "family": "softmax",
        "coefficients": [[1, 2], [3, 4], [5, 6]],
        "l2": 0,
        "classes": ["a", "b", "c"],
        "features": ["v", "u"],
    }
    model = load_model(write_json(tmp_path / "m.json", told))
    match_features(model, ["u", "v"])
    np.testing.assert_array_equal(model.coef_, [[2, 1], [4, 3], [6, 5]])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"family": "probit"}, "linear, logistic, poisson, softmax"),
        ({"family": "logistc"}, "did you mean 'logistic'"),
        ({"family": ["linear"]}, "must be one of"),
        ({"coefficients": []}, "no coefficients"),
        ({"coefficients": 1.0}, "list of numbers"),
        ({"coefficients": [[1.0, 2.0]]}, "list of numbers"),
        ({"coefficients": [1.0, "2"]}, "list of numbers"),
        ({"coefficients": [1.0, True]}, "list of numbers"),
        ({"coefficients": [1.0, None]}, "list of numbers"),
        ({"coefficients": [10**400, 1]}, "list of numbers"),
        ({"intercept": [0.1, 0.2]}, "one number"),
        ({"l2": -1}, "negative"),
        ({"l2": "0.1"}, "one number"),
        ({"classes": ["a", "b"]}, "no classes"),
        ({"family": "logistic"}, "2 different strings"),
        ({"family": "logistic", "classes": ["a"]}, "2 different strings"),
        ({"family": "logistic", "classes": ["a", "a"]}, "2 different strings"),
        ({"family": "logistic", "classes": ["a", 1]}, "2 different strings"),
        ({"family": "logistic", "classes": [0, 2**70]}, "must lie between −2⁶² and 2⁶²"),
        ({"family": "logistic", "classes": [[], {}]}, "2 different strings"),
        ({"family": "softmax", "classes": ["a", "b"]}, "equally long lists"),
        (
            {"family": "softmax", "coefficients": [[1, 2], [3]], "classes": ["a", "b"]},
            "equally long lists",
        ),
        (
            {
                "family": "softmax",
                "coefficients": [[1, 2], [3, 4]],
                "classes": ["a", "b"],
                "intercept": [1, 2, 3],
            },
            "3 intercepts for 2 classes",
        ),
        ({"features": ["a"]}, "1 feature for 2 coefficients"),
        ({"features": ["a", "a"]}, "name each feature once"),
        ({"features": "ab"}, "list of names"),
        ({"lambda": 1}, "has the unknown key"),
        ({"coefficents": [1]}, "did you mean 'coefficients'"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path, change, said):
    assert said in refusal(write_json(tmp_path / "m.json", GOOD | change))


@pytest.mark.parametrize("key", ["family", "coefficients", "l2"])
def test_what_a_model_needs(tmp_path, key):
    told = {k: v for k, v in GOOD.items() if k != key}
    assert repr(key) in refusal(write_json(tmp_path / "m.json", told))


@pytest.mark.parametrize(
    "text",
    [
        '{"family": "linear", "coefficients": [NaN], "l2": 0}',
        '{"family": "linear", "coefficients": [-Infinity], "l2": 0}',
        '{"family": "linear", "coefficients": [1e999], "l2": 0}',
        '{"family": "linear", "family": "poisson", "coefficients": [1], "l2": 0}',
        "[1, 2]",
        "{",
        "",
        "[" * 100_000,
        '{"l2": ' + "9" * 10_000 + "}",
    ],
)
def test_bad_json(tmp_path, text):
    path = tmp_path / "m.json"
    path.write_text(text)
    refusal(path)


def test_a_pickle_is_not_opened(tmp_path):
    marker = tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return (marker.touch, ())

    for name in ("m.pkl", "m.json", "m.safetensors", "m.joblib"):
        (tmp_path / name).write_bytes(pickle.dumps(Trap()))
        refusal(tmp_path / name)
    assert not marker.exists()
    assert "may contain executable code" in refusal(tmp_path / "m.pkl")
    assert "not in a supported format" in refusal(tmp_path / "m.onnx")


def test_no_such_file_and_too_large(tmp_path, monkeypatch):
    assert "no model file" in refusal(tmp_path / "m.json")
    path = write_json(tmp_path / "m.json", GOOD)
    monkeypatch.setattr(model_file, "MOST_BYTES", 10)
    assert "at most" in refusal(path)


def test_safetensors_that_lie_or_are_of_another_kind(tmp_path):
    path = tmp_path / "m.safetensors"
    good = write_safetensors(path, GOOD).read_bytes()
    assert load_model(path).coef_.tolist() == [1.0, 2.0]
    path.write_bytes(good[:-8])
    assert "not a complete" in refusal(path)
    path.write_bytes((2**60).to_bytes(8, "little") + good[8:])
    assert "not a complete" in refusal(path)
    header = json.dumps(
        {"coefficients": {"dtype": "F64", "shape": [10**15], "data_offsets": [0, 16]}}
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    assert "not a complete" in refusal(path)
    metadata = {"family": "linear", "l2": "0.1"}
    save_file({"coefficients": np.arange(3)}, path, metadata)
    assert "I64" in refusal(path)
    save_file({"coefficients": np.ones(3), "optimizer": np.ones(9)}, path, metadata)
    assert "'optimizer'" in refusal(path)
    save_file({"coefficients": np.full(3, np.nan)}, path, metadata)
    assert "finite" in refusal(path)
    save_file({"coefficients": np.ones(3)}, path, {"family": "linear", "l2": "much"})
    assert "'l2' must be a number" in refusal(path)
    save_file({"coefficients": np.ones(3)}, path, {"family": "linear", "l2": "nan"})
    assert "finite" in refusal(path)
    save_file({"coefficients": np.ones(3)}, path, metadata | {"features": "a,b,c"})
    assert "JSON list" in refusal(path)
    save_file({"coefficients": np.ones(3)}, path, metadata | {"intercept": "1"})
    assert "must be a tensor" in refusal(path)
    save_file({"intercept": np.ones(1)}, path, metadata)
    assert "'coefficients'" in refusal(path)
    save_file({"coefficients": np.ones(3)}, path, {"family": "linear"})
    assert "'l2'" in refusal(path)
    save_file({"coefficients": np.ones((2, 3))}, path, metadata)
    assert "coefficients must be a list of numbers" in refusal(path)


def test_single_precision_and_scikit_learns_shapes_are_read(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file(
        {"coefficients": np.array([[1, 2]], np.float32), "intercept": np.array([3], np.float32)},
        path,
        {"family": "logistic", "l2": "0.1", "classes": "[0, 1]", "format": "np"},
    )
    model = load_model(path)
    assert model.coef_.dtype == model.intercept_.dtype == np.float64
    assert model.coef_.tolist() == [[1.0, 2.0]]
    assert model.intercept_.tolist() == [3.0]
    assert model.classes_.tolist() == [0, 1]
