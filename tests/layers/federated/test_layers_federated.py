"""The simulated rounds against plain loops, and what clipping, noise and aggregation do to them."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sampled import sampled
from seepage.errors import InputError
from seepage.layers import record_gradients, record_updates, simulate

LOSS = nn.CrossEntropyLoss()


def problem(clients=2, records=40):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    data = [
        (torch.randn(records, 3, dtype=torch.float64), torch.randint(0, 2, (records,)))
        for _ in range(clients)
    ]
    return net, data


def vector(values):
    return torch.cat([v.flatten() for v in values.values()])


def test_fedsgd_on_whole_clients_is_gradient_descent_on_all_data():
    net, data = problem()
    run = simulate(net, "cross_entropy", data, rounds=7, batch_size=40, lr=0.3)
    plain = copy.deepcopy(net)
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.3)
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    for _ in range(7):
        optimiser.zero_grad()
        LOSS(plain(x), y).backward()
        optimiser.step()
    for a, b in zip(run.net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_fedavg_with_one_step_is_fedsgd():
    net, data = problem()
    options = {"rounds": 5, "batch_size": 8, "lr": 0.1, "seed": 3}
    one = simulate(net, LOSS, data, method="fedsgd", **options)
    other = simulate(net, LOSS, data, method="fedavg", **options)
    for a, b in zip(one.net.parameters(), other.net.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_fedavg_averages_the_clients_models():
    net, data = problem()
    seen = []
    run = simulate(
        net,
        LOSS,
        data,
        rounds=1,
        method="fedavg",
        local_steps=3,
        batch_size=40,
        lr=0.2,
        observe=seen.append,
    )
    models = three_local_steps(net, net.state_dict(), data, partial(torch.optim.SGD, lr=0.2))
    for name, p in run.net.named_parameters():
        torch.testing.assert_close(p, (models[0][name] + models[1][name]) / 2)
    start = dict(net.named_parameters())
    torch.testing.assert_close(
        seen[1].values["0.weight"], (start["0.weight"] - models[1]["0.weight"]) / 0.2
    )


def three_local_steps(net, state, data, optimiser):
    """Return what each client's network holds after three steps from a state, by plain torch."""
    states = []
    for x, y in data:
        local = copy.deepcopy(net)
        local.load_state_dict(state)
        own = optimiser(local.parameters())
        for _ in range(3):
            own.zero_grad()
            LOSS(local(x), y).backward()
            own.step()
        states.append(local.state_dict())
    return states


def far_apart():
    """Clients whose inputs lie far apart, of different sizes, and a network that normalises."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()
    data = []
    for place, records in enumerate((30, 10, 60)):
        x = torch.randn(records, 3, dtype=torch.float64) + 5 * place
        data.append((x, (x[:, 0] > 5 * place).long()))
    return net.train(), data


@pytest.mark.parametrize("together", [1, 3])
def test_fedavg_averages_running_statistics_by_record_counts(together):
    net, data = far_apart()
    run = simulate(
        net,
        LOSS,
        data,
        rounds=2,
        method="fedavg",
        local_steps=3,
        batch_size=60,
        lr=0.1,
        together=together,
    )
    state = copy.deepcopy(net.state_dict())
    for _ in range(2):
        states = three_local_steps(net, state, data, partial(torch.optim.SGD, lr=0.1))
        for name, value in state.items():
            mean = 0.3 * states[0][name] + 0.1 * states[1][name] + 0.6 * states[2][name]
            state[name] = mean.to(value.dtype)
    torch.testing.assert_close(run.net.state_dict(), state)


@pytest.mark.parametrize(
    "optimiser",
    [
        lambda parameters: torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    ],
)
def test_clients_train_by_epochs_with_the_optimiser_they_are_given(optimiser):
    net, data = far_apart()
    seen = []
    options = {"method": "fedavg", "local_epochs": 3, "batch_size": 60, "optimizer": optimiser}
    run = simulate(net, LOSS, data, rounds=2, observe=seen.append, **options)
    state = copy.deepcopy(net.state_dict())
    for _ in range(2):
        states = three_local_steps(net, state, data, optimiser)
        shown, state = (
            state,
            {
                name: (0.3 * a + 0.1 * states[1][name] + 0.6 * states[2][name]).to(a.dtype)
                for name, a in states[0].items()
            },
        )
    torch.testing.assert_close(run.net.state_dict(), state)
    for name in dict(net.named_parameters()):
        torch.testing.assert_close(seen[5].values[name], shown[name] - states[2][name])
    assert all(p.grad is None for p in run.net.parameters())


def test_an_epoch_meets_every_record_once():
    net, data = problem(clients=1, records=10)
    met = []
    net.register_forward_pre_hook(lambda _, given: met.append(given[0]))
    simulate(net, LOSS, data, rounds=1, method="fedavg", local_epochs=2, batch_size=4)
    assert [len(batch) for batch in met] == [2] + [4, 4, 2] * 2  # the first two check the labels
    for half in (met[1:4], met[4:]):
        rows = torch.cat(half)
        torch.testing.assert_close(
            rows[rows[:, 0].argsort()], data[0][0][data[0][0][:, 0].argsort()]
        )


@pytest.mark.parametrize("method", ["fedsgd", "fedavg"])
def test_the_order_of_the_clients_changes_nothing(method):
    net, data = far_apart()
    options = {"rounds": 20, "method": method, "batch_size": 60, "lr": 0.3}
    one, other = (simulate(net, LOSS, order, **options).net for order in (data, data[::-1]))
    torch.testing.assert_close(one.state_dict(), other.state_dict())
    for x, y in data:
        right = [float((each.eval()(x).argmax(1) == y).double().mean()) for each in (one, other)]
        assert right[0] == right[1]


def test_with_noise_every_client_counts_the_same():
    net, data = far_apart()
    seen = []
    options = {"method": "fedavg", "max_norm": 1e-3, "noise_multiplier": 1e-9, "lr": 0.1}
    run = simulate(net, LOSS, data, rounds=1, observe=seen.append, **options)
    for name, value in run.net.state_dict().items():
        if name in dict(net.named_parameters()):
            step = 0.1 * sum(u.values[name] for u in seen) / 3
            torch.testing.assert_close(value, net.state_dict()[name] - step)


def test_buffers_are_seen_as_they_leave():
    net, data = far_apart()
    net.register_buffer("mask", torch.tensor([True, False]))
    seen = []
    run = simulate(net, LOSS, data, rounds=1, max_norm=1e-6, batch_size=60, observe=seen.append)
    recorded = record_updates(net, seen)
    assert recorded.layers == ("mask", "0", "1", "1.buffers", "3")
    x = data[2][0]
    # BatchNorm moves a tenth of the way from 0 to the mean of the batch; clipping leaves that.
    moved = -0.1 * net[0](x).mean(0).detach()
    torch.testing.assert_close(seen[2].values["1.running_mean"], moved)
    assert [u.values["1.num_batches_tracked"].item() for u in seen] == [-1.0] * 3
    assert run.net.state_dict()["1.num_batches_tracked"].item() == 1
    assert run.net.state_dict()["mask"].tolist() == [True, False]


def test_the_network_handed_in_stays_as_it_was():
    net, data = problem()
    before = copy.deepcopy(net.state_dict())
    simulate(net, LOSS, data, rounds=3)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, before[name])


def test_snapshots_are_what_clients_received():
    net, data = problem()
    run = simulate(net, LOSS, data, rounds=6, snapshots=[0, 4, 6], lr=0.5)
    assert list(run.snapshots) == [0, 4, 6]
    torch.testing.assert_close(run.snapshots[0]["0.weight"], net.state_dict()["0.weight"])
    four = simulate(net, LOSS, data, rounds=4, lr=0.5)
    models = dict(run.models())
    torch.testing.assert_close(models[4][0].weight, four.net[0].weight)
    torch.testing.assert_close(models[6][2].bias, run.net[2].bias)


def test_updates_are_clipped_over_all_layers():
    net, data = problem()
    loose, tight = [], []
    simulate(net, LOSS, data, rounds=1, observe=loose.append)
    simulate(net, LOSS, data, rounds=1, max_norm=0.01, observe=tight.append)
    for a, b in zip(loose, tight, strict=True):
        assert float(vector(b.values).norm()) == pytest.approx(0.01)
        torch.testing.assert_close(
            vector(b.values) / 0.01, vector(a.values) / vector(a.values).norm()
        )


@pytest.mark.parametrize("together", sampled([1, 2, 4], [2]))
def test_the_sum_that_is_seen_carries_the_noise_asked_for(together):
    net, data = problem(clients=4)
    clear, noisy = [], []
    options = {"rounds": 40, "lr": 1e-12, "max_norm": 0.5, "together": together}
    simulate(net, LOSS, data, observe=clear.append, **options)
    simulate(net, LOSS, data, noise_multiplier=2.0, observe=noisy.append, **options)
    # Other draws of batches follow the noise, so only the spread is compared, and noise rules it.
    sums = torch.stack([vector(u.values) * len(u.clients) for u in noisy])
    plain = torch.stack([vector(u.values) * len(u.clients) for u in clear])
    assert float((sums - plain.mean(0)).std()) == pytest.approx(1.0, rel=0.15)


@pytest.mark.slow
def test_the_group_of_those_left_over_carries_the_same_noise():
    net, data = problem(clients=5)
    noisy = []
    options = {"lr": 1e-12, "max_norm": 1e-3, "together": 2, "noise_multiplier": 1000.0}
    simulate(net, LOSS, data, rounds=150, observe=noisy.append, **options)
    for size in (2, 3):
        sums = torch.stack([size * vector(u.values) for u in noisy if len(u.clients) == size])
        assert float(sums.std()) == pytest.approx(1.0, rel=0.06)  # 1.22 with the shares of two


def test_secure_aggregation_shows_means_of_groups_only():
    net, data = problem(clients=5)
    single, grouped = [], []
    simulate(net, LOSS, data, rounds=1, observe=single.append)
    run = simulate(net, LOSS, data, rounds=1, together=2, observe=grouped.append, lr=0.1)
    assert [u.clients for u in grouped] == [(0, 1), (2, 3, 4)]
    expected = sum(vector(single[c].values) for c in (2, 3, 4)) / 3
    torch.testing.assert_close(vector(grouped[1].values), expected)
    # Groups of different sizes weigh as many clients as they have.
    step = sum(vector(u.values) for u in single) / 5
    moved = torch.cat([p.flatten() for p in net.parameters()]) - 0.1 * step
    torch.testing.assert_close(torch.cat([p.flatten() for p in run.net.parameters()]), moved)


def test_some_clients_take_part():
    net, data = problem(clients=6)
    seen = []
    simulate(net, LOSS, data, rounds=30, per_round=2, observe=seen.append)
    assert len(seen) == 60
    assert {u.clients[0] for u in seen} == set(range(6))
    assert all(a.clients < b.clients for a, b in zip(seen[::2], seen[1::2], strict=True))


def test_the_same_seed_gives_the_same_run():
    net, data = problem()
    runs = [simulate(net, LOSS, data, rounds=4, batch_size=5, seed=s) for s in (1, 1, 2)]
    first, again, other = (torch.cat([p.flatten() for p in r.net.parameters()]) for r in runs)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_recorded_updates_are_the_gradients_of_the_batches():
    net, data = problem()
    seen = []
    simulate(net, LOSS, data, rounds=1, batch_size=40, observe=seen.append)
    updates = record_updates(net, [u.values for u in seen])
    arrays = [{name: v.numpy() for name, v in u.values.items()} for u in seen]
    for same in (seen, arrays):
        np.testing.assert_array_equal(record_updates(net, same)["0"], updates["0"])
    gradients = record_gradients(net, LOSS, data)
    for layer in ("0", "2"):
        np.testing.assert_allclose(updates[layer], gradients[layer], rtol=1e-6)
    np.testing.assert_allclose(updates.norms, gradients.norms)
    flat = vector(seen[0].values).numpy()
    np.testing.assert_allclose(updates["all layers"][0], flat, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"method": "fedprox"}, "method must be"),
        ({"local_steps": 2}, "use method='fedavg'"),
        ({"optimizer": torch.optim.Adam}, "without epochs or an optimiser"),
        ({"local_epochs": 1}, "without epochs or an optimiser"),
        ({"method": "fedavg", "local_epochs": 0}, "at least 1"),
        ({"method": "fedavg", "local_epochs": 2, "local_steps": 2}, "not both"),
        ({"lr": 0.0}, "lr must be a finite number above zero"),
        ({"noise_multiplier": 1.0}, "give max_norm too"),
        ({"max_norm": 0.0}, "max_norm must be a finite number above zero"),
        ({"together": 3}, "together is 3"),
        ({"per_round": 3}, "per_round is 3"),
        ({"rounds": -1}, "rounds must be at least 0"),
        (
            {"noise_multiplier": float("nan"), "max_norm": 1.0},
            "noise_multiplier must be a finite number",
        ),
        ({"max_norm": float("nan")}, "max_norm must be a finite number above zero"),
        ({"snapshots": [0, 2]}, "contains round 2"),
        ({"snapshots": [-1]}, "contains round -1"),
    ],
)
def test_what_cannot_be(options, complaint):
    net, data = problem()
    with pytest.raises(InputError, match=complaint):
        simulate(net, LOSS, data, **({"rounds": 1} | options))


def test_clients_need_data():
    net, data = problem()
    with pytest.raises(InputError, match="Client 1 has 0 records"):
        simulate(net, LOSS, [data[0], (torch.zeros(0, 3), torch.zeros(0))], rounds=1)
    with pytest.raises(InputError, match="There are no clients"):
        simulate(net, LOSS, [], rounds=1)
    with pytest.raises(InputError, match="Client 0 must be a pair"):
        simulate(net, LOSS, data[0], rounds=1)
    x, y = data[1]
    with pytest.raises(InputError, match="Client 1 contains NaN"):
        simulate(net, LOSS, [data[0], (x / 0 * 0, y)], rounds=1)
    with pytest.raises(InputError, match="Client 1 has the label 2, but the network has 2"):
        simulate(net, LOSS, [data[0], (x, y + 1)], rounds=1)


def test_diverging_training_is_not_silent():
    net, data = problem()
    seen = []
    with pytest.raises(InputError, match=r"updates of round \d+ are not finite"):
        simulate(
            net, "mse", [(x, x[:, :2]) for x, _ in data], rounds=300, lr=1e6, observe=seen.append
        )
    assert all(bool(vector(u.values).isfinite().all()) for u in seen)


def test_arrays_serve_as_data():
    net, data = problem()
    arrays = [(x.numpy(), y.numpy().astype(np.int32)) for x, y in data]
    one, other = (simulate(net, LOSS, each, rounds=2).net for each in (data, arrays))
    torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_updates_of_another_network_are_refused():
    net, _ = problem()
    with pytest.raises(InputError, match=r"lacks the entry '0\.weight'"):
        record_updates(net, [{"0.weight": torch.zeros(2, 2)}])
    with pytest.raises(InputError, match="nothing to record"):
        record_updates(net, [])
    with pytest.raises(InputError, match="An update must be"):
        record_updates(net, [torch.zeros(3)])


def test_a_frozen_network_does_not_train():
    net, data = problem()
    with pytest.raises(InputError, match=r"no parameter with requires_grad.*; unfreeze some"):
        simulate(net.requires_grad_(False), "cross_entropy", data, rounds=1)
