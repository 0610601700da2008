"""Membership inference of networks, against the papers' formulas written out here."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import nn

import seepage as sp
from seepage.attacks.membership.inference import MembershipInferenceResult
from seepage.attacks.membership.scores import intervals, offline_constant, score

RECORDS = 64


class Picture(nn.Module):
    """A small CNN."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Sentence(nn.Module):
    """A small transformer that classifies sequences of tokens, called as Hugging Face does."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(12, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.last = nn.Linear(16, 3)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(self.tokens(input_ids)).mean(1))


def trained(net: nn.Module, x: object, y: torch.Tensor, steps: int = 40) -> nn.Module:
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        out = net(**x) if isinstance(x, dict) else net(x)
        nn.functional.cross_entropy(out, y).backward()
        optimizer.step()
    return net


def train_picture(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    return trained(Picture(), x, y)


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, 1, 8, 8, generator=generator)
    return x, torch.randint(0, 3, (RECORDS,), generator=generator)


def sentences() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 12, (RECORDS, 5), generator=generator)
    return {"input_ids": ids}, torch.randint(0, 3, (RECORDS,), generator=generator)


def half_of(x: object, rows: np.ndarray) -> object:
    return {k: v[rows] for k, v in x.items()} if isinstance(x, dict) else x[rows]


def softmax_own(net: nn.Module, x: object, y: torch.Tensor) -> np.ndarray:
    """Return each record's own probability by NumPy, from float64 logits."""
    net.eval()
    with torch.no_grad():
        z = (net(**x) if isinstance(x, dict) else net(x)).double().numpy()
    p = np.exp(z - z.max(1, keepdims=True))
    return (p / p.sum(1, keepdims=True))[np.arange(len(z)), y.numpy()]


def paper_lira(p: np.ndarray, q: np.ndarray, had: np.ndarray, online: bool) -> list[float]:
    """Carlini et al. 2022, algorithm 1 with a common variance (few models), record by record."""

    def phi(v: np.ndarray) -> np.ndarray:
        return np.log(v / (1 - v))

    def common(side: np.ndarray) -> float:
        squares, freedom = 0.0, 0
        for i in range(len(p)):
            some = phi(q[side[:, i], i])
            squares += float(((some - some.mean()) ** 2).sum())
            freedom += len(some) - 1
        return math.sqrt(squares / freedom)

    out, scores = common(~had), []
    inn = common(had)
    for i in range(len(p)):
        without, given = phi(q[~had[:, i], i]), phi(q[had[:, i], i])
        here = phi(p[i])
        if online:
            scores.append(
                norm.logpdf(here, given.mean(), inn) - norm.logpdf(here, without.mean(), out)
            )
        else:
            scores.append(norm.ppf(norm.cdf(here, without.mean(), out)))
    return scores


def paper_rmia(
    p: np.ndarray, q: np.ndarray, had: np.ndarray, online: bool, a: float, gamma: float = 2.0
) -> list[float]:
    """Zarifzadeh et al. 2024, equations 2 to 4 and the offline approximation, pair by pair."""
    usual = []
    for i in range(len(p)):
        without = q[~had[:, i], i].mean()
        with_it = q[had[:, i], i].mean() if online else a * without + (1 - a)
        usual.append((without + with_it) / 2)
    ratio = p / np.array(usual)
    return [
        float(np.mean([ratio[i] / ratio[z] >= gamma for z in range(len(p))])) for i in range(len(p))
    ]


@pytest.fixture(scope="module", params=["cnn", "transformer"])
def family(request: pytest.FixtureRequest) -> tuple:
    torch.manual_seed(3)
    x, y = pictures() if request.param == "cnn" else sentences()
    kind = Picture if request.param == "cnn" else Sentence
    rng = np.random.default_rng(5)
    halves = np.stack([rng.permutation(RECORDS) < RECORDS // 2 for _ in range(4)])
    had = np.concatenate([halves, ~halves])
    members = rng.permutation(RECORDS) < RECORDS // 2
    references = [trained(kind(), half_of(x, h), y[h]) for h in had]
    target = trained(kind(), half_of(x, members), y[members])
    return target, x, y, members, references, had


@pytest.mark.parametrize("online", [True, False])
def test_lira_is_that_of_the_paper(family: tuple, online: bool) -> None:
    target, x, y, members, references, had = family
    attack = sp.attacks.MembershipInference(method="lira", online=online)
    target.train()
    found = attack.against(target, x, y, members, references, had)
    assert target.training  # left as it was, though it was asked without dropout
    q = np.stack([softmax_own(net, x, y) for net in references])
    wanted = np.array(paper_lira(softmax_own(target, x, y), q, had, online))
    finite = np.isfinite(wanted)  # the paper's tail rounds to 1 eight deviations out
    assert finite.sum() > 40
    assert found.scores[0][finite] == pytest.approx(wanted[finite], rel=1e-4, abs=1e-4)
    assert found.references == 8


@pytest.mark.parametrize("online", [True, False])
def test_rmia_is_that_of_the_paper(family: tuple, online: bool) -> None:
    target, x, y, members, references, had = family
    attack = sp.attacks.MembershipInference(method="rmia", online=online)
    found = attack.against(target, x, y, members, references, had)
    q = np.stack([softmax_own(net, x, y) for net in references])
    a = found.constant
    assert (a is None) == online
    wanted = paper_rmia(softmax_own(target, x, y), q, had, online, a or 0.0)
    assert found.scores[0] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_references_are_enough_and_claim_no_interval(family: tuple, count: int) -> None:
    target, x, y, members, references, had = family
    attack = sp.attacks.MembershipInference(method="rmia", online=False)
    found = attack.against(target, x, y, members, references[:count], had[:count])
    known = (~had[:count]).any(axis=0)
    assert np.array_equal(np.isfinite(found.scores[0]), known)
    assert found.reach is None
    assert all(one.interval is None for one in found.exposed(3))
    assert 0 <= found.tpr(0.1).rate <= 1
    if count == 1:
        assert found.constant == 0.3  # nothing to choose it on


def test_references_apart_from_the_records_need_no_memberships(family: tuple) -> None:
    target, x, y, members, references, _ = family
    offline = sp.attacks.MembershipInference(method="lira", online=False)
    assert np.isfinite(offline.against(target, x, y, members, references).scores).all()
    with pytest.raises(sp.InputError, match="pass online=False"):
        sp.attacks.MembershipInference().against(target, x, y, members, references)
    with pytest.raises(sp.InputError, match=r"had= must have the shape \(8, 64\)"):
        offline.against(target, x, y, members, references, np.ones((2, 64)))


def test_exposed_members_come_first_with_intervals_from_eight_references(family: tuple) -> None:
    target, x, y, members, references, had = family
    found = sp.attacks.MembershipInference().against(target, x, y, members, references, had)
    ranked = found.exposed(5)
    assert all(members[one.record] for one in ranked)
    assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
    assert all(one.interval.low < one.score < one.interval.high for one in ranked)
    assert list(found.roc()) == [0.001, 0.01, 0.1]


def test_a_training_function_is_resumed_where_it_was_stopped(tmp_path: Path) -> None:
    x, y = pictures()
    members = np.arange(RECORDS) < RECORDS // 2
    net = train_picture(x[members], y[members])
    calls = []

    def train(inputs: torch.Tensor, labels: torch.Tensor) -> nn.Module:
        calls.append(len(labels))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train_picture(inputs, labels)

    settings = {"shadows": 4, "method": "rmia", "online": False}
    attack = sp.attacks.MembershipInference(train, folder=tmp_path / "kept", **settings)
    with pytest.raises(KeyboardInterrupt):
        attack.against(net, x, y, members)
    assert len(list((tmp_path / "kept").glob("*.safetensors"))) == 2
    resumed = attack.against(net, x, y, members)
    assert len(calls) == 5  # two kept, one interrupted, two more
    whole = sp.attacks.MembershipInference(train_picture, **settings)
    assert whole.against(net, x, y, members).scores == pytest.approx(resumed.scores)
    other = sp.attacks.MembershipInference(train, folder=tmp_path / "kept", **settings)
    with pytest.raises(sp.InputError, match="belongs to another attack"):
        other.against(net, x + 1, y, members)
    file = sorted((tmp_path / "kept").glob("*.safetensors"))[0]
    file.write_bytes(file.read_bytes()[:-3] + b"abc")
    with pytest.raises(sp.InputError, match="is damaged"):
        attack.against(net, x, y, members)


@pytest.mark.minutes
def test_several_processes_agree_with_one() -> None:
    """In float64: processes differ in threads, and training blows up what float32 rounds off."""

    def train(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
        return trained(Picture().double(), x, y)

    x, y = pictures()
    scores = [
        sp.attacks.MembershipInference(train, jobs=jobs, shadows=4).run(x.double(), y, targets=1)
        for jobs in (1, 2)
    ]
    assert scores[0].scores == pytest.approx(scores[1].scores)


def test_checkpoints_are_references(family: tuple, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    target, x, y, members, references, had = family
    paths = []
    for k, net in enumerate(references):
        paths.append(tmp_path / f"{k}.safetensors")
        save_file(net.state_dict(), paths[-1])
    attack = sp.attacks.MembershipInference()
    loaded = attack.against(target, x, y, members, paths, had)
    wanted = attack.against(target, x, y, members, references, had)
    assert loaded.scores == pytest.approx(wanted.scores)
    with pytest.raises(sp.InputError, match=r"The checkpoint .* does not exist"):
        attack.against(target, x, y, members, [tmp_path / "none"] * 8, had)
    (tmp_path / "a.pt").write_bytes(b"")
    with pytest.raises(sp.InputError, match="give load="):
        attack.against(target, x, y, members, [tmp_path / "a.pt"] * 8, had)


def test_queries_average_the_scores(family: tuple) -> None:
    target, x, y, members, references, had = family
    if isinstance(x, dict):
        pytest.skip("tokens have no mirror image")
    alone = sp.attacks.MembershipInference()
    both = sp.attacks.MembershipInference(queries=[lambda v: v.flip(3)])
    plain = alone.against(target, x, y, members, references, had).scores
    mirrored = alone.against(target, x.flip(3), y, members, references, had).scores
    found = both.against(target, x, y, members, references, had).scores
    assert found == pytest.approx((plain + mirrored) / 2)


def test_a_language_model_answers_by_its_own_loss(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    nets = [transformers.GPT2LMHeadModel(config) for _ in range(3)]
    ids = torch.randint(0, 20, (12, 6))
    x = {"input_ids": ids, "labels": ids}
    members = np.arange(12) < 6
    attack = sp.attacks.MembershipInference(method="rmia", online=False)
    found = attack.against(nets[0], x, None, members, nets[1:])

    def likelihood(net: nn.Module, row: torch.Tensor) -> float:
        net.eval()
        with torch.no_grad():
            logs = net(row[None]).logits[0, :-1].double().log_softmax(-1)
        return float(torch.exp(logs[torch.arange(5), row[1:]].mean()))

    p = np.array([likelihood(nets[0], row) for row in ids])
    q = np.array([[likelihood(net, row) for row in ids] for net in nets[1:]])
    wanted = paper_rmia(p, q, np.zeros((2, 12), bool), False, 0.3)
    assert found.scores[0] == pytest.approx(wanted, abs=1e-6)
    folders = [tmp_path / str(k) for k in range(2)]
    for net, folder in zip(nets[1:], folders, strict=True):
        net.save_pretrained(folder)
    loaded = attack.against(nets[0], x, None, members, folders)
    assert loaded.scores == pytest.approx(found.scores)


def test_a_network_alone_is_sent_to_calls_that_work() -> None:
    with pytest.raises(sp.InputError, match="Give a training function"):
        sp.attacks.MembershipInference(Picture())
    x, y = pictures()
    with pytest.raises(sp.InputError, match="Reference models cannot be trained"):
        sp.attacks.MembershipInference().run(x, y)
    bad = sp.attacks.MembershipInference(lambda x, y: None, shadows=4)
    with pytest.raises(sp.InputError, match="must return the trained model"):
        bad.run(x, y)


def made_up(rng: np.random.Generator, mu: float, models: int, n: int = 400) -> tuple:
    """Return log-odds of a target and references for which the truth is known."""
    had = rng.permuted(np.tile(np.arange(models)[:, None] < models // 2, (1, n)), axis=0)
    members = rng.permutation(n) < n // 2
    centre = rng.normal(0, 2, n)
    references = centre + mu * had + rng.standard_normal((models, n))
    target = centre + mu * members + rng.standard_normal(n)
    return target[:, None], references[..., None], had, members, centre


@pytest.mark.parametrize("method", ["lira", "rmia"])
@pytest.mark.parametrize("online", [True, False])
def test_random_memberships_are_found_at_the_nominal_level(method: str, online: bool) -> None:
    """Under the null members exceed a threshold as often as the other records do.

    Members and others are then exchangeable: of m others, k + 1 are at or above the threshold, so
    a member is above it with probability (k + 1)/(m + 1).
    """
    rng = np.random.default_rng(7)
    hits, covered, runs, m = {0.01: 0, 0.1: 0}, 0, 12, 2000
    for _ in range(runs):
        target, references, had, members, _ = made_up(rng, 0.0, 4, 2 * m)
        values = score(target, references, had, method=method, online=online)
        found = MembershipInferenceResult("null", values[None], members[None])
        covered += found.interval.low <= 0.5 <= found.interval.high
        for fpr in hits:
            hits[fpr] += round(found.tpr(fpr).rate * m)
    assert covered >= binom.ppf(0.001, runs, 0.95)
    for fpr, count in hits.items():
        level = (round(fpr * m) + 1) / (m + 1)
        # The threshold varies as much as the count above it does
        assert abs(count - level * runs * m) < 4 * math.sqrt(2 * level * (1 - level) * runs * m)


def test_random_labels_of_membership_are_told_by_chance(family: tuple) -> None:
    """The real attack on real networks, with memberships that have nothing to do with them."""
    target, x, y, _, references, had = family
    rng = np.random.default_rng(11)
    attack = sp.attacks.MembershipInference()
    scores = attack.against(target, x, y, np.arange(RECORDS) < 32, references, had).scores
    covered, runs = 0, 200
    for _ in range(runs):
        labels = rng.permutation(RECORDS) < 32
        ends = MembershipInferenceResult("null", scores, labels[None]).interval
        covered += ends.low <= 0.5 <= ends.high
    assert covered >= binom.ppf(0.001, runs, 0.93)  # DeLong's interval is short at 32 a side


@pytest.mark.parametrize("shadows", [1, 3])
def test_halves_of_few_references_say_nothing_about_the_attacked_model(shadows: int) -> None:
    """Networks that learn nothing: complementary halves would have told members apart."""
    rng = np.random.default_rng(12)
    x, y = (
        torch.tensor(rng.standard_normal((600, 4))).float(),
        torch.tensor(rng.integers(0, 2, 600)),
    )
    attack = sp.attacks.MembershipInference(
        lambda x, y: nn.Linear(4, 2), shadows=shadows, method="rmia", online=False
    )
    found = attack.run(x, y, targets=6)
    assert found.interval.low <= 0.5 <= found.interval.high
    known = np.isfinite(found.scores)
    # Whether a record has a score is independent of membership, too
    assert abs(known[found.members].mean() - known[~found.members].mean()) < 0.08


def test_intervals_over_references_cover_the_score_of_endless_references() -> None:
    """LiRA's score with the true means and variances, from 8 and from 16 reference models."""
    from scipy.special import stdtrit

    rng = np.random.default_rng(8)
    mu = 1.0
    for models in (8, 16):
        target, references, had, _, centre = made_up(rng, mu, models, 2000)
        settings = {"method": "lira", "online": True}
        values = score(target, references, had, **settings)
        reach = intervals(
            target, references, had, quantile=float(stdtrit(models - 1, 0.975)), **settings
        )
        here = target[:, 0] - centre
        truth = here**2 / 2 - (here - mu) ** 2 / 2
        assert np.mean(np.abs(values - truth) <= reach) > 0.90


@pytest.mark.slow
def test_power_at_low_false_positives_lies_in_its_interval() -> None:
    rng = np.random.default_rng(9)
    mu, runs, covered = 2.0, 100, {0.001: 0, 0.01: 0}
    for _ in range(runs):
        members = np.arange(24_000) < 12_000
        values = rng.standard_normal(24_000) + mu * members
        found = MembershipInferenceResult("made up", values[None], members[None])
        for fpr in covered:
            ends = found.tpr(fpr).interval
            covered[fpr] += ends.low <= norm.cdf(norm.ppf(fpr) + mu) <= ends.high
    assert all(count >= binom.ppf(0.001, runs, 0.95) for count in covered.values())


def test_the_offline_constant_is_chosen_on_references_alone() -> None:
    rng = np.random.default_rng(10)
    _, references, had, _, _ = made_up(rng, 2.0, 6)
    chosen = offline_constant(references, had)
    areas = {}
    for a in np.arange(11) / 10:
        total = 0.0
        for k in range(6):
            q = 1 / (1 + np.exp(-np.delete(references[..., 0], k, 0)))
            p = 1 / (1 + np.exp(-references[k, :, 0]))
            out = np.delete(had, k, 0)
            mean = np.array([q[~out[:, i], i].mean() for i in range(400)])
            ratio = p / (((1 + a) * mean + 1 - a) / 2)
            rank = np.array([np.mean(ratio <= r / 2) for r in ratio]) + 1e-9 * ratio / ratio.max()
            inside, outside = rank[had[k]], rank[~had[k]]
            total += float(np.mean(inside[:, None] > outside))
        areas[round(float(a), 1)] = total
    assert areas[chosen] == pytest.approx(max(areas.values()), abs=1e-9)
