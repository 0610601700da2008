"""What people type first: each guess works, or is answered by a sentence that says what does."""

import inspect
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import seepage as sp
from seepage.auditing.any_model.findings import AttackAudit
from seepage.auditing.audit import ONLY_NOISE, audit_table
from seepage.auditing.findings import Audit
from seepage.errors import OTHER_NAMES

RNG = np.random.default_rng(5)
X = RNG.standard_normal((60, 3))
Y = (X[:, 0] + 0.5 * RNG.standard_normal(60) > 0).astype(int)
FRAME = pd.DataFrame(X, columns=["age", "bmi", "dose"]).assign(ill=Y)
RIDGE = Ridge(1.0).fit(X, X[:, 0] + Y)
NET = torch.nn.Linear(3, 2)
ROOMS = ("attacks", "bounds", "data", "glm", "layers", "nn", "privacy", "streams")


@pytest.fixture
def quick(monkeypatch):
    """Leave out what takes long and is tested elsewhere."""

    def short(*args, **options):
        return audit_table(*args, **options | {"effort": ONLY_NOISE})

    monkeypatch.setattr("seepage.auditing.entry.tables.audit_table", short)


# One entry ----------------------------------------------------------------------------------------


def test_a_data_frame_with_a_target_is_audited_as_its_file_is(quick, tmp_path):
    file = tmp_path / "people.csv"
    FRAME.to_csv(file, index=False)
    found = sp.audit(FRAME, target="ill")
    read = sp.audit(str(file), target="ill")
    other = sp.audit(pl.from_pandas(FRAME), target="ill")
    assert isinstance(found, Audit)
    assert (found.model, found.target, read.source) == ("logistic", "ill", "people.csv")
    np.testing.assert_allclose(found.eta, read.eta, rtol=1e-9)
    np.testing.assert_allclose(found.eta, other.eta, rtol=1e-9)


def test_a_data_frame_keeps_its_own_labels_and_gives_no_index_away(quick):
    named = FRAME.set_axis([f"p{k}" for k in range(60)])
    found = sp.audit(named, target="ill", noise=0.5)
    assert found.called(7) == "p7"
    assert {one.name for one in found.attributes} == {"age", "bmi", "dose", "ill"}


def test_people_are_named_by_their_identities(quick):
    ids = np.array([f"p{k // 2:02}" for k in range(60)])
    found = sp.audit(FRAME.assign(patient_id=ids), target="ill", person="patient_id")
    assert sorted(found.to_pandas().index) == sorted(set(ids))
    given = sp.audit(RIDGE, X, X[:, 0] + Y, person=ids)
    assert sorted(given.to_pandas().index) == sorted(set(ids))
    worst = int(given.row_index[np.argmax(given.eta)])
    assert given.to_pandas()["eta"].idxmax() == ids[worst]
    assert ids[worst] not in repr(given)


def test_the_target_may_be_a_column_of_the_table(monkeypatch):
    seen = {}

    def looked(model, table, labels, **options):
        seen.update(table=table, labels=labels, **options)

    monkeypatch.setattr("seepage.auditing.entry.audit.audit_linear", looked)
    sp.audit(RIDGE, FRAME, target="ill")
    assert list(seen["table"].columns) == ["age", "bmi", "dose"]
    np.testing.assert_array_equal(seen["labels"], Y)
    assert seen["target"] == "ill"


@pytest.mark.parametrize(
    "model",
    [
        DecisionTreeClassifier(random_state=0),
        make_pipeline(StandardScaler(), RandomForestClassifier(5, random_state=0)),
    ],
    ids=["tree", "pipeline"],
)
def test_other_estimators_are_audited_by_attack(model, tmp_path):
    fitted = model.fit(FRAME[["age", "bmi", "dose"]], Y)
    found = sp.audit(fitted, FRAME.drop(columns="ill"), Y, shadows=4, random_state=3)
    told = sp.audit_estimator(fitted, FRAME.drop(columns="ill"), Y, shadows=4, seed=3)
    assert isinstance(found, AttackAudit)
    assert found.strongest.auc == told.strongest.auc
    assert sp.report(found, tmp_path / "report").name == "report.html"


def test_groups_of_an_attack_may_be_named(tmp_path):
    table = FRAME.drop(columns="ill").assign(sex=np.arange(60) % 2)
    tree = DecisionTreeClassifier(random_state=0).fit(table, Y)
    found = sp.audit(tree, table, Y, shadows=4, groups=["sex"])
    assert set(found.groups) == {"sex"}


def trained(x, y):
    """Train a network as a user would."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


def test_a_trained_network_is_audited_by_attack(tmp_path):
    """Random labels can only be learnt by heart, which the attack must see."""
    torch.manual_seed(0)
    x, y = torch.randn(80, 6), torch.randint(2, (80,))
    net = trained(x, y)
    before = [p.detach().clone() for p in net.parameters()]
    found = sp.audit(net, x, y, shadows=4, train=trained)
    assert found.model == "Sequential of torch"
    assert found.strongest.interval[0] > 0.6
    assert "given training function" in found.steps[0]
    assert sp.report(found, tmp_path / "report").exists()
    for old, new in zip(before, net.parameters(), strict=True):
        torch.testing.assert_close(old, new.detach())


@pytest.mark.parametrize("last", ["scores", "probabilities", "one score", "numbers"])
def test_networks_with_any_last_layer_are_asked_rightly(last):
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    y = torch.randint(2, (40,))
    if last == "numbers":
        net, labels = torch.nn.Linear(3, 1), torch.randn(40)
    elif last == "one score":
        net, labels = torch.nn.Linear(3, 1), y
    elif last == "scores":
        net, labels = torch.nn.Linear(3, 2), y
    else:
        net, labels = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Softmax(1)), y
    found = sp.audit(net, x, labels, shadows=4, train=lambda x, y: net)
    assert 0 <= found.strongest.auc <= 1
    assert found.held_out.error_name == (
        "squared error" if last == "numbers" else "error rate"
    ) or (last == "numbers")


def test_a_network_without_new_weights_is_refused():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(3, 2))

        def forward(self, x):
            return x @ self.weight

    with pytest.raises(sp.InputError, match=r"no reset_parameters\(\)"):
        sp.audit(Own(), X, Y)


def test_the_leakage_of_a_network_is_that_of_its_own_call():
    torch.manual_seed(0)
    x, y = torch.as_tensor(X).float(), torch.as_tensor(Y)
    options = {"noise_multiplier": 0.5, "max_grad_norm": 2.0}
    own = sp.nn.leakage(NET, "cross_entropy", x, y, **options).records("dfil", method="exact")
    for leak in (
        sp.leakage(NET, X, Y, **options),
        sp.leakage(NET, x, y, noise=1.0, max_grad_norm=2.0),
        sp.leakage(
            NET, FRAME[["age", "bmi", "dose"]], Y, noise=sp.Gaussian(1.0), max_grad_norm=2.0
        ),
    ):
        np.testing.assert_allclose(leak.records("dfil", method="exact"), own, rtol=1e-6)
    numbers = sp.leakage(torch.nn.Linear(3, 1), X, X[:, :1], noise=1.0).records("dfil")
    assert numbers.shape == (60,)


def test_a_model_of_hugging_face_is_measured_by_its_batch():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=20, intermediate_size=8, **sizes)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    model = transformers.BertForSequenceClassification(config).eval()
    batch = {"input_ids": torch.randint(20, (3, 5)), "attention_mask": torch.ones(3, 5).long()}
    labels, options = torch.tensor([0, 1, 0]), {"noise_multiplier": 1.0, "max_grad_norm": 1.0}
    whole = batch | {"labels": labels}
    own = sp.nn.leakage(model, whole, **options).records("dfil")
    for leak in (sp.leakage(model, whole, **options), sp.leakage(model, batch, labels, **options)):
        np.testing.assert_allclose(np.asarray(leak.records("dfil")), np.asarray(own), rtol=1e-6)


def test_a_table_needs_no_torch():
    code = (
        "import sys, numpy as np, seepage as sp\n"
        "from sklearn.linear_model import Ridge\n"
        "X = np.random.default_rng(0).standard_normal((50, 3))\n"
        "sp.leakage(Ridge().fit(X, X[:, 0]), X, X[:, 0], noise=0.1).records()\n"
        "sp.audit\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603


# Sentences ----------------------------------------------------------------------------------------

TREE = DecisionTreeClassifier(random_state=0).fit(X, Y)
DECLARED = {"sample_rate": 0.25, "expected_batch": 15}


def trainer(**options):
    return sp.nn.PrivateSGD(NET, "cross_entropy", **DECLARED | options)


VISITS = FRAME.assign(patient_id=np.arange(60) // 2)
SENTENCES = {
    "leakage without noise": (lambda: sp.leakage(RIDGE, X, Y), r"noise=sp\.Gaussian\(sigma\)"),
    "release without noise": (lambda: sp.release(RIDGE), r"noise=sp\.Gaussian\(0\.1\)"),
    "a network without noise": (lambda: sp.leakage(NET, X, Y), "noise_multiplier=1.0"),
    "one step without noise": (
        lambda: sp.nn.leakage(NET, "mse", torch.zeros(2, 3), torch.zeros(2, 2)),
        "noise_multiplier=1.0",
    ),
    "a forest's leakage": (
        lambda: sp.leakage(RandomForestRegressor(3).fit(X, Y), X, Y, noise=0.1),
        r"sp\.audit\(model, X, y\)",
    ),
    "a forest's leakage without noise": (
        lambda: sp.leakage(TREE, X, Y),
        r"^(?!.*noise).*sp\.audit\(model, X, y\)",
    ),
    "a pipeline's leakage without noise": (
        lambda: sp.leakage(make_pipeline(StandardScaler(), TREE).fit(X, Y), X, Y),
        r"^(?!.*noise).*sp\.audit\(model, X, y\)",
    ),
    "an option misspelt": (lambda: sp.audit(RIDGE, X, Y, niose=1.0), "did you mean 'noise'"),
    "an option of leakage misspelt": (
        lambda: sp.leakage(RIDGE, X, Y, noise=1.0, on_mismach="warn"),
        "did you mean 'on_mismatch'",
    ),
    "two names for one option": (
        lambda: sp.release(RIDGE, sp.Gaussian(1.0), seed=1, random_state=1),
        "seed and random_state",
    ),
    "a table without a target": (lambda: sp.audit(FRAME), r"sp\.audit\(table, target='y'\)"),
    "a model without its data": (lambda: sp.audit(RIDGE), r"sp\.audit\(model, X, y\)"),
    "a model without its labels": (lambda: sp.audit(TREE, X), "labels .* is missing"),
    "a class for a model": (lambda: sp.audit(Ridge, X, Y), "Ridge is a class"),
    "text for a network": (lambda: sp.audit(NET, X, ["a"] * 60), "must be numbers"),
    "a training without a network": (
        lambda: sp.audit(NET, X, Y, shadows=4, train=lambda x, y: None),
        "must return a trained network",
    ),
    "noise of a forest": (
        lambda: sp.audit(TREE, X, Y, noise=1.0),
        "noise= applies only to linear models",
    ),
    "shadow models of a linear model": (lambda: sp.audit(RIDGE, X, Y, shadows=4), "by attack"),
    "an own training of a forest": (lambda: sp.audit(TREE, X, Y, train=trained), "networks"),
    "people of a network": (
        lambda: sp.leakage(NET, X, Y, noise_multiplier=1.0, person=Y),
        "person= applies only to linear models",
    ),
    "clipping of a linear model": (
        lambda: sp.leakage(RIDGE, X, Y, max_grad_norm=1.0),
        "max_grad_norm= applies only to networks",
    ),
    "gaps in a data frame": (
        lambda: sp.audit(FRAME.assign(bmi=[None, *X[1:, 1]]), target="ill"),
        "missing='impute'",
    ),
    "a column of identities": (
        lambda: sp.audit(VISITS, target="ill"),
        r"person='patient_id'.*drop=\['patient_id'\].*quantities=\['patient_id'\]",
    ),
    "tokens without noise": (lambda: sp.nn.token_leakage(NET, {}), "noise_multiplier=1.0"),
    "neither steps nor epochs": (trainer, "steps=.*epochs="),
    "a target without its δ": (lambda: trainer(steps=5, target_epsilon=8.0), "target_delta=1e-5"),
    "a target and the noise": (
        lambda: trainer(steps=5, target_epsilon=8.0, target_delta=1e-5, noise_multiplier=1.0),
        "leave out noise_multiplier",
    ),
    "a target without a clip": (
        lambda: trainer(steps=5, target_epsilon=8.0, target_delta=1e-5, clip="none"),
        "Without clipping",
    ),
    "a limit in Python": (
        lambda: sp.audit(RIDGE, X, Y, max_membership=0.6),
        "preset=, or --max-membership on the command line",
    ),
    "an option of nobody": (lambda: trainer(steps=5, learn_rate=1.0), "PrivateSGD has no option"),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_a_guess_that_fails_is_answered_by_a_sentence(case):
    attempt, says = SENTENCES[case]
    with pytest.raises(sp.InputError, match=says) as caught:
        attempt()
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 400


def test_noise_is_calibrated_to_membership_by_the_name_that_the_command_line_uses():
    leak = sp.leakage(RIDGE, X, X[:, 0] + Y, noise=1.0)
    wanted = sp.calibrate(leak, right=0.6).sigma
    assert sp.calibrate(leak, membership=0.6).sigma == wanted
    assert sp.calibrate(leak, max_membership=0.6).sigma == wanted


def test_a_missing_option_is_still_a_type_error():
    with pytest.raises(TypeError):
        sp.release(RIDGE)


def test_noise_may_be_a_number():
    for noise in (0.5, np.float32(0.5), 1):
        told = sp.leakage(RIDGE, X, X[:, 0] + Y, noise=sp.Gaussian(float(noise))).records()
        np.testing.assert_array_equal(
            np.asarray(sp.leakage(RIDGE, X, X[:, 0] + Y, noise=noise).records()), np.asarray(told)
        )


# One name for one idea ----------------------------------------------------------------------------


def public_callables():
    """Yield every public function, class and method, by its name."""
    for package in (sp, *(getattr(sp, room) for room in ROOMS)):
        for name in package.__all__:
            thing = getattr(package, name)
            if not callable(thing) or (inspect.isclass(thing) and issubclass(thing, Exception)):
                continue
            yield f"{package.__name__}.{name}", thing
            if inspect.isclass(thing):
                for own in vars(thing):
                    if not own.startswith("_") and callable(getattr(thing, own)):
                        yield f"{package.__name__}.{name}.{own}", getattr(thing, own)


def test_no_public_name_stands_for_two_things_and_nothing_has_two_names():
    homes = {}
    for package in (sp, *(getattr(sp, room) for room in ROOMS)):
        assert len(set(package.__all__)) == len(package.__all__)
        for name in package.__all__:
            thing = getattr(package, name)
            if hasattr(thing, "__qualname__"):
                homes.setdefault(f"{thing.__module__}.{thing.__qualname__}", []).append(
                    f"{package.__name__}.{name}"
                )
    assert {home: names for home, names in homes.items() if len(names) > 1} == {}


def test_options_have_one_name_and_those_of_other_libraries_are_taken():
    wrong, deaf = {}, []
    own = {"seed", "lr", "optimizer", "jobs"}
    for name, thing in public_callables():
        parameters = inspect.signature(thing).parameters
        # max_membership is a limit of the ledger's, by its own name; calibrate calls it right
        others = set(parameters) & (set(OTHER_NAMES) - {"max_membership"})
        if others:
            wrong[name] = others
        init = thing.__init__ if inspect.isclass(thing) else thing
        if own & set(parameters) and "with_own_names" not in _code_names(init):
            deaf.append(name)
    assert wrong == {}
    # Results that a caller never makes, and the command-line's own
    assert sorted(deaf) == []


def _code_names(function):
    function = getattr(function, "__func__", function)
    return {getattr(getattr(function, "__code__", None), "co_name", "")}


@pytest.mark.parametrize("name", ["seed", "random_state"])
def test_no_seed_by_any_name_yields_a_release(name, tmp_path):
    with pytest.warns(UserWarning, match="fixed seed") as caught:
        released = sp.release(RIDGE, sp.Gaussian(1.0), **{name: 1})
    assert released.release_.seeded
    assert caught[0].filename == __file__
    with pytest.raises(sp.InputError, match="seed"):
        sp.Release.of(released).write(tmp_path / "release")


@pytest.mark.parametrize("name", ["seed", "random_state"])
def test_no_seed_by_any_name_yields_a_guarantee(name):
    run = trainer(steps=2, target_epsilon=8.0, target_delta=1e-5, **{name: 1})
    assert "experiment" in repr(run)
    promise = run.fit(torch.as_tensor(X).float(), torch.as_tensor(Y)).accountant_.privacy(1e-5)
    assert "experiment" in str(promise)
    for ask in (promise.statement, promise.to_json):
        with pytest.raises(sp.InputError, match="seed"):
            ask()


@pytest.mark.parametrize("name", ["seed", "random_state"])
def test_no_seed_by_any_name_yields_a_budget(name):
    budget = sp.privacy.PrivacyFilter(60, sp.privacy.GaussianDP(1.0, "add-or-remove"))
    budget.noisy_sum(X, sp.Gaussian(9.0))
    assert budget.promise().guarantee
    budget.noisy_sum(X, sp.Gaussian(9.0), **{name: 1})
    assert not budget.promise().guarantee


# PrivateSGD ---------------------------------------------------------------------------------------


def epsilon_of(sigma, rate, steps, delta):
    """Return ε by dp-accounting itself."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    return RdpAccountant().compose(step, steps).get_epsilon(delta)


@pytest.mark.parametrize(("rate", "epochs", "epsilon"), [(0.25, 5, 8.0), (0.01, 2, 1.0), (1, 3, 3)])
def test_a_target_gives_the_least_noise_that_keeps_it(rate, epochs, epsilon):
    run = trainer(
        sample_rate=rate, epochs=epochs, target_epsilon=epsilon, target_delta=1e-5, lr=0.1
    )
    assert run.steps == round(epochs / rate)
    assert epsilon_of(run.noise_multiplier, rate, run.steps, 1e-5) <= epsilon
    assert epsilon_of(run.noise_multiplier - 0.001, rate, run.steps, 1e-5) > epsilon
    assert f"noise_multiplier={run.noise_multiplier:.4g}" in repr(run)


def test_a_batch_size_waits_for_the_number_of_records():
    run = sp.nn.PrivateSGD(
        torch.nn.Linear(3, 2),
        "cross_entropy",
        batch_size=15,
        epochs=1.5,
        target_epsilon=20.0,
        target_delta=1e-3,
        learning_rate=0.1,
    )
    assert "epochs=1.5" in repr(run)
    run.fit(torch.as_tensor(X).float(), torch.as_tensor(Y))
    assert (run.steps, run.lr) == (6, 0.1)
    assert run.accountant_.privacy(1e-3).epsilon <= 20.0
    assert "6 steps taken" in repr(run)
    assert "(ε = 20, δ = 0.001) to replace one record" in repr(run)


def test_the_promise_of_a_run_is_at_the_declared_delta():
    net = torch.nn.Linear(3, 2)
    options = {"target_epsilon": 8.0, "target_delta": 1e-5, "steps": 3} | DECLARED
    run = sp.nn.PrivateSGD(net, "cross_entropy", **options)
    assert "(ε = 8, δ = 1e-05) to add or remove one record" in repr(run)
    found = run.fit(torch.as_tensor(X).float(), torch.as_tensor(Y)).accountant_
    assert found.privacy().delta == 1e-5
    assert found.privacy().epsilon == found.privacy(1e-5).epsilon <= 8.0


def test_the_old_name_trains_the_same():
    x, y = torch.as_tensor(X).float(), torch.as_tensor(Y)
    runs = []
    for name in ("lr", "learning_rate"):
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2)
        options = {"steps": 3, "seed": 2, name: 0.7} | DECLARED
        runs.append(sp.nn.PrivateSGD(net, "cross_entropy", **options).fit(x, y).net.weight)
    torch.testing.assert_close(*runs, rtol=0, atol=0)
