"""A seed is no privacy: what it gives away, and where every statement about such a run says so."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from sampled import sampled
from seepage.errors import InputError
from seepage.nn.accounting.joining import gather_shares
from seepage.nn.privacy.run_privacy import Ledger
from seepage.nn.training.checkpoints import read_checkpoint, write_checkpoint
from seepage.nn.training.secure_noise import quick_noise, secure_noise
from seepage.support.keyed_stream import KeyedStream

SEED, RATE, SIZE = 37, 0.5, 30
MARKS = {"seed": "experiment, noise from a seed", "fast": "experiment, noise from a fast generator"}
RUNS = {  # the options of a run, and which marks its statements must carry
    "secure": ({}, ()),
    "seed": ({"seed": SEED}, ("seed",)),
    "fast": ({"randomness": "fast"}, ("fast",)),
    "both": ({"seed": SEED, "randomness": "fast"}, ("seed", "fast")),
}


def data():
    draw = torch.Generator().manual_seed(5)
    return torch.randn(60, 6, generator=draw), torch.randint(3, (60,), generator=draw)


def trained(**options):
    torch.manual_seed(0)  # the network's start: nothing of the noise
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
    given = {"steps": 2, "batch_size": SIZE, "lr": RATE, "evaluate_every": 1}
    return sp.nn.PrivateSGD(net, "cross_entropy", **given | options)


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def marks(words):
    """Return which marks stand in some words."""
    return tuple(name for name, text in MARKS.items() if text in words)


@pytest.mark.parametrize("randomness", ["secure", "fast"])
def test_seeds_are_tried_until_the_noise_is_gone(randomness):
    """Who sees the models before and after a step, and tries 100 seeds, has the clipped sum."""
    X, y = data()
    run = trained(steps=1, seed=SEED, randomness=randomness)
    before = {name: p.detach().clone() for name, p in run.net.named_parameters()}
    start = trained().net
    run.fit(X, y)
    sent = {
        name: (before[name] - p.detach()) * SIZE / RATE for name, p in run.net.named_parameters()
    }
    kind = secure_noise if randomness == "secure" else quick_noise

    def without_noise(seed):
        add = kind(KeyedStream.of_seed(seed), 0)
        return flat(total - add(n, torch.zeros_like(total), 1.0) for n, total in sent.items())

    guess = min(range(100), key=lambda seed: float(without_noise(seed).norm()))
    batch = sp.nn.PoissonSampler(len(X), SIZE, seed=guess).batch(0)  # and so are the batches
    truth = sp.nn.Engine(start, "cross_entropy").clipped_gradient(X[batch], y[batch]).gradient
    exact = flat(truth.values())
    assert guess == SEED
    assert float((flat(sent.values()) - exact).norm()) > 15  # where the noise had put it
    assert float((without_noise(guess) - exact).norm()) < 0.01
    assert marks(str(run.accountant_.privacy(1e-5)))  # and the run's ε says so


@pytest.mark.parametrize("case", RUNS)
def test_every_statement_says_that_the_noise_can_be_drawn_again(case):
    options, wanted = RUNS[case]
    run = trained(sketch=2, sketch_records=[0, 1, 2], **options).fit(*data())
    accountant = run.accountant_
    own = accountant.individual_privacy()
    found = accountant.records("dfil")
    statements = {
        "ε": (str(accountant.privacy(1e-5)), accountant.privacy(1e-5).conditions),
        "individual": (repr(own), own.conditions),
        "loss": (repr(accountant.individual_loss()), accountant.individual_loss().conditions),
        "dFIL": (repr(found), found.conditions),
        "its bound": (repr(found.mse_bound()), found.mse_bound().assumptions),
        "worst": (repr(found.top(2)), found.top(2).conditions),
        "gathered": (str(gather_shares(accountant).privacy()), accountant.ledger.conditions),
        "FIL": (repr(accountant.fil()), accountant.fil().conditions),
    }
    for name, (words, conditions) in statements.items():
        assert marks(words) == wanted, name
        told = " ".join(conditions)
        assert ("neither know nor guess the seed" in told) == ("seed" in wanted), name
        assert ("regenerate the batches" in told) == ("seed" in wanted), name
        assert ("32 bits of a seed" in told) == ("fast" in wanted), name
        assert "was not stated" not in told, name
    assert marks(str(accountant.ledger)) == wanted
    assert [marks(now.condition) for now in run.history_] == [wanted] * 2
    for table in (accountant.individual_loss().table(), found.table()):
        column = table["condition"].to_pylist() if "condition" in table.column_names else [""]
        assert {marks(text) for text in column} == {wanted}
    secure = trained().fit(*data()).accountant_
    assert float(accountant.privacy(1e-5)) == float(secure.privacy(1e-5))  # the number is the same


@pytest.mark.parametrize("case", RUNS)
def test_the_guarantee_of_an_experiment_does_not_leave(case):
    """Neither as text to publish nor as a promise that bounds follow from."""
    options, wanted = RUNS[case]
    found = trained(**options).fit(*data()).accountant_.privacy(1e-5)
    for leave in (found.to_json, found.statement):
        if wanted:
            with pytest.raises(InputError, match="cannot be published; train again without seed="):
                leave()
        else:
            leave()
    if not wanted:
        told = json.loads(found.to_json())
        assert told["epsilon"] == found.epsilon
        assert told["relation"] == "replace one record"
        assert told["conditions"]
        promise = found.statement()
        assert (promise.epsilon, promise.delta) == (found.epsilon, 1e-5)
        assert promise.neighbours == "replace"


@pytest.mark.parametrize(("randomness", "wanted"), [("secure", ()), ("seed", ("seed",))])
def test_susceptibility_over_a_run_says_so_too(randomness, wanted):
    X, y = data()
    watch = sp.nn.PlisOverTraining(
        trained().net,
        "cross_entropy",
        n=60,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        randomness=randomness,
    )
    watch.observe(range(60), X, y)
    found = watch.result()
    assert marks(repr(found)) == wanted
    assert marks(" ".join(found.table(library="pyarrow").column_names)) == ()
    assert ("condition" in found.table(library="pyarrow").column_names) == bool(wanted)
    assert ("neither know nor guess" in " ".join(found.conditions)) == bool(wanted)


@pytest.mark.parametrize("case", sampled(list(RUNS), ["seed"]))
def test_curves_of_membership_say_so_too(case):
    options, wanted = RUNS[case]
    accountant = trained(**options).fit(*data()).accountant_
    for curve in (accountant.membership(), accountant.individual_privacy().membership(3)):
        told = " ".join(curve.conditions)
        assert ("neither know nor guess the seed" in told) == ("seed" in wanted)
        assert ("32 bits of a seed" in told) == ("fast" in wanted)
        assert marks(repr(curve)) == wanted
    assert marks(str(accountant.privacy(1e-5, method="pld"))) == wanted


@pytest.mark.parametrize("case", ["secure", "seed", "fast"])
def test_a_stored_run_keeps_the_mark(case, tmp_path):
    options, wanted = RUNS[case]
    path = tmp_path / "run.safetensors"
    run = trained(checkpoint=path, **options).fit(*data())
    again = trained(checkpoint=path, **options).fit(*data())  # nothing is left to do but to read
    longer = trained(checkpoint=path, steps=3, **options).fit(*data())
    torch.manual_seed(0)
    fresh = sp.nn.FisherAccountant(
        trained().net, "cross_entropy", n=60, batch_size=SIZE, noise_multiplier=1.0
    )
    fresh.load_state_dict(run.accountant_.state_dict() | {"facts": _alike(run, fresh)})
    for accountant in (again.accountant_, longer.accountant_, fresh):
        assert marks(str(accountant.privacy(1e-5))) == wanted
    assert [marks(now.condition) for now in longer.history_] == [wanted] * 3
    merged = sp.nn.merge_runs([run.accountant_, again.accountant_])
    assert marks(str(merged.privacy(1e-5))) == wanted


def _alike(run, fresh):
    """Return the facts of a run as if the accountant had announced the same steps."""
    facts, own = json.loads(run.accountant_.state_dict()["facts"]), fresh.run.facts()
    return json.dumps(facts | {"measurement": own["measurement"]})


def test_a_checkpoint_from_before_the_mark_is_told_by_its_settings(tmp_path):
    """Its ledger did not say where the noise came from, but its settings do."""
    path = tmp_path / "run.safetensors"
    trained(checkpoint=path, seed=SEED).fit(*data())
    tensors, facts = read_checkpoint(path)
    stored = json.loads(facts["accountant"])
    entries = [
        {name: value for name, value in entry.items() if name != "randomness"}
        for entry in json.loads(stored["ledger"])
    ]
    facts["accountant"] = json.dumps(stored | {"ledger": json.dumps(entries)})
    for now in facts["history"]:
        del now["condition"]
    write_checkpoint(path, tensors, facts)
    again = trained(checkpoint=path, seed=SEED).fit(*data())
    assert marks(str(again.accountant_.privacy(1e-5))) == ("seed",)
    assert [marks(now.condition) for now in again.history_] == [("seed",)] * 2
    assert "was not stated" in Ledger.from_json(json.dumps(entries)).conditions[0]


def test_a_loop_of_ones_own_states_its_randomness_or_it_is_an_assumption():
    X, y = data()

    def observed(**options):
        accountant = sp.nn.FisherAccountant(
            trained().net,
            "cross_entropy",
            n=60,
            sample_rate=1.0,
            noise_multiplier=1.0,
            seed=3,  # of the probes
            **options,
        )
        accountant.observe(range(60), X, y)
        return accountant.privacy(1e-5)

    silent = observed()
    assert marks(str(silent)) == ()
    assert "was not stated" in silent.conditions[-1]
    assert len(observed(randomness="secure").conditions) == len(silent.conditions) - 1
    assert marks(str(observed(randomness="seed"))) == ("seed",)
    with pytest.raises(InputError, match="randomness must be 'secure', 'seed'"):
        observed(randomness="sead")


def test_steps_of_different_origin_are_not_joined_into_one():
    run = trained(seed=SEED).fit(*data())
    ledger = Ledger(tuple(run.accountant_.ledger))
    ledger.add(replace(next(iter(ledger)), randomness="secure"))
    assert len(ledger) == 2
    assert marks(" ".join([str(ledger)])) == ("seed",)
    assert ledger.conditions == run.accountant_.ledger.conditions


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("generator", sampled([None, 2], [2]))
def test_opacus_outside_its_secure_mode_is_marked(generator):
    opacus = pytest.importorskip("opacus")
    from torch.utils.data import DataLoader, TensorDataset

    X, y = data()
    net = trained().net
    loader = DataLoader(TensorDataset(torch.arange(60), X, y), batch_size=SIZE)
    drawn = None if generator is None else torch.Generator().manual_seed(generator)
    module, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        noise_generator=drawn,
    )
    accountants = [sp.nn.attach(optimizer, module, "cross_entropy", loader)]
    accountants[0].detach()
    optimizer.secure_mode = True  # as PrivacyEngine(secure_mode=True) does, with torchcsprng
    accountants.append(sp.nn.attach(optimizer, module, "cross_entropy", loader))
    for accountant, wanted in zip(accountants, [("fast",), ()], strict=True):
        accountant._after_step()
        assert marks(str(accountant.privacy(1e-5))) == wanted
        assert marks(repr(accountant.individual_privacy())) == wanted
        assert np.isfinite(float(accountant.privacy(1e-5)))
