"""What PLIS takes, and what it refuses with a sentence: parts of records, batches of a run."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.nn.privacy.individual_loss import IndividualLoss, gaussian_epsilon
from seepage.nn.susceptibility.attribution import Attribution

torch.set_num_threads(1)

NAMES = ["age", "height", "dose", "weight"]


@pytest.fixture
def table() -> Attribution:
    return Attribution(torch.tensor([[3.0, 4.0, 1.0, 2.0], [0.0, 1.0, 2.0, 2.0]]), names=NAMES)


@pytest.fixture
def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    return net, torch.randn(9, 4, dtype=torch.float64), torch.randint(0, 4, (9,))


def watching(net: nn.Module, **options: object) -> sp.nn.PlisOverTraining:
    given = {"n": 9, "noise_multiplier": 3.0, "max_grad_norm": 0.5, "clip": "smooth", **options}
    return sp.nn.PlisOverTraining(net, "cross_entropy", **given)


def test_what_is_not_known_is_not_private() -> None:
    with np.errstate(all="raise"):
        found = gaussian_epsilon(np.array([np.nan, 1.0, np.inf, 0.0]), 1e-5)
    assert np.isnan(found[0])
    assert found[1] == pytest.approx(4.377, abs=1e-3)
    assert found[2:].tolist() == [np.inf, 0.0]
    loss = IndividualLoss(np.array([np.nan]))
    assert np.isnan(loss.epsilon(1e-5)).all()
    assert np.isnan(loss.table(library="pandas")["epsilon"]).all()


@pytest.mark.parametrize(
    "part",
    [
        [0, 1],
        [0, 0, 1],
        ["age", 0, "height"],
        (0, 1),
        {0, 1},
        range(2),
        np.array([0, 1]),
        np.array([0, 1, -3]),
        torch.tensor([0, 1]),
        pd.Index(["age", "height"]),
        slice(0, 2),
        (slice(0, 2),),
        [True, True, False, False],
        np.array([True, True, False, False]),
        torch.tensor([True, True, False, False]),
        pl.Series([True, True, False, False]),
    ],
    ids=repr,
)
def test_ways_to_name_the_same_two_columns(table: Attribution, part: object) -> None:
    assert table.attributes({"a": part}).values.tolist() == [[5.0], [1.0]]


@pytest.mark.parametrize("part", [2, np.int64(2), "dose", np.str_("dose"), torch.tensor(2), -2])
def test_ways_to_name_one_column(table: Attribution, part: object) -> None:
    assert table.attributes({"a": part}).values.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (True, "True in 'a' is not a column"),
        (np.True_, "True in 'a' is not a column"),
        ([True, 2], "True in 'a' is not a column"),
        ([0.7], "0.7 in 'a' is not a column"),
        (1.0, "1.0 in 'a' is not a column"),
        (np.array([0.0, 1.0]), "0.0 in 'a' is not a column"),
        ([[0, 1]], "is not a column"),
        ([None], "None in 'a' is not a column"),
        (None, "must be columns"),
        ([], "selects no entry"),
        ((), "selects no entry"),
        (slice(9, 12), "selects no entry"),
        (slice(2, 2), "selects no entry"),
        ([False] * 4, "selects no entry"),
        (slice(0, 2.5), "are invalid"),
        (slice(None, None, -1), "are invalid"),
        ([True], r"mask of 'a' has the shape \(1,\)"),
        ([True] * 5, r"mask of 'a' has the shape \(5,\)"),
        (np.array([4]), "no column 4"),
        ("hight", "no column 'hight'"),
    ],
    ids=repr,
)
def test_what_is_no_part_of_a_record(table: Attribution, part: object, words: str) -> None:
    with pytest.raises(sp.InputError, match=words):
        table.attributes({"a": part})


def test_masks_of_images() -> None:
    images = Attribution(torch.ones(2, 3, 4, 5))
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[0, :3] = True
    for given in (mask, mask[None], mask.expand(3, 4, 5), mask.tolist()):
        assert images.attributes({"a": given}).values.tolist() == [[3.0], [3.0]]
    for given in (mask[0], mask[:, :1], mask.expand(2, 4, 5)):
        with pytest.raises(sp.InputError, match="mask of 'a'"):
            images.attributes({"a": given})
    with pytest.raises(sp.InputError, match="names columns, but records"):
        images.attributes({"a": 1})
    with pytest.raises(sp.InputError, match="at least one part"):
        images.attributes(["a"])
    with pytest.raises(sp.InputError, match=r"Records of shape \(3, 4, 5\) have no columns"):
        images.attributes()
    for labels in (mask[0], mask[:, :1], mask.expand(3, 4, 5)):
        with pytest.raises(sp.InputError, match="Labels for 2 images of 4 by 5 pixels cannot"):
            images.superpixels(labels)


def test_parts_do_not_see_the_rest() -> None:
    found = Attribution(torch.tensor([[1.0, torch.nan]]))
    assert found.attributes({"a": 0}).values.tolist() == [[1.0]]


def test_patches_of_any_sides() -> None:
    images = Attribution(torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(0)))
    found = images.patches((2, 3))
    assert found.shape == (2, 2, 2)
    torch.testing.assert_close(found[:, 0, 1], images.values[:, :, :2, 3:].flatten(1).norm(dim=1))
    torch.testing.assert_close(images.patches(np.int64(2)), images.patches((2, 2)))
    for size in (2.5, 0, True, "2", None, (2, 2, 2), (2, 0.5)):
        with pytest.raises(sp.InputError, match="whole number of pixels"):
            images.patches(size)


@pytest.mark.parametrize("made", ["numpy", "pandas", "polars", "list of labels"])
def test_a_run_takes_what_plis_takes(problem: tuple, made: str) -> None:
    net, x, y = problem
    wanted = watching(net)
    wanted.observe(range(9), x, y)
    given = {
        "numpy": (x.numpy(), y.numpy()),
        "pandas": (pd.DataFrame(x.numpy(), columns=NAMES), pd.Series(y.numpy())),
        "polars": (pl.DataFrame(x.numpy(), schema=NAMES), pl.Series(y.numpy())),
        "list of labels": (x, y.tolist()),
    }[made]
    watch = watching(net)
    step = watch.observe(np.arange(9), *given)
    run = watch.result()
    torch.testing.assert_close(run.values, wanted.result().values)
    if made in ("pandas", "polars"):
        assert step.names == run.names == tuple(NAMES)
        parts = run.attributes({"body": ["age", "height"], "drug": "dose"})
        torch.testing.assert_close(parts.values[:, 0], run.values[:, :2].norm(dim=1))
        frame = run.attributes().table()
        assert type(frame).__module__.startswith(made)
        assert list(frame.columns) == ["row", *NAMES]
        again = watching(net)
        again.load_state_dict(watch.state_dict())
        assert again.result().names == tuple(NAMES)


@pytest.mark.filterwarnings("ignore::seepage.nn.SampledBatchWarning")
def test_batches_that_a_run_refuses(problem: tuple) -> None:
    net, x, y = problem
    watch = watching(net)
    for mask in (torch.arange(9) < 2, (np.arange(9) < 2).tolist(), [True, False]):
        with pytest.raises(sp.InputError, match="not a boolean mask"):
            watch.observe(mask, x[:2], y[:2])
    for index in ([0.0, 1.9], torch.tensor([0.0, 1.0]), ["a", "b"]):
        with pytest.raises(sp.InputError, match="as whole numbers"):
            watch.observe(index, x[:2], y[:2])
    with pytest.raises(sp.InputError, match="names 0 records"):
        watch.observe([], x[:2], y[:2])
    with pytest.raises(sp.InputError, match="records is 9, but y has 2 labels"):
        watch.observe([0, 1], x, y[:2])
    with pytest.raises(sp.InputError, match="y contains values of type <U1"):
        watch.observe([0, 1], x[:2], ["a", "b"])
    frame = pd.DataFrame(x.numpy(), columns=NAMES)
    watch.observe([0, 1], frame[:2], y[:2])
    with pytest.raises(sp.InputError, match="differ from those of earlier steps"):
        watch.observe([2, 3], frame[NAMES[::-1]][:2], y[:2])
    assert watch.uses.sum() == 2


@pytest.mark.filterwarnings("ignore:A step left out")
def test_labels_of_a_pandas_index_come_through_a_run(problem: tuple) -> None:
    net, x, y = problem
    frame = pd.DataFrame(x.numpy(), columns=NAMES, index=[f"person {k}" for k in range(len(x))])
    watch = watching(net, n=len(x))
    for rows in (np.arange(5), np.arange(4, 8)):
        watch.observe(rows, frame.iloc[rows], y[rows])
    expected = [*frame.index[:8], 8]  # the last has never taken part
    assert list(watch.result().table()["row"]) == expected
    resumed = watching(net, n=len(x))
    resumed.load_state_dict(watch.state_dict())
    assert list(resumed.result().table()["row"]) == expected
    with pytest.raises(
        sp.InputError, match=r"Record 2 is labelled 'person 3' .* was labelled 'person 2'"
    ):
        watch.observe([2, 4], frame.iloc[[3, 4]], y[:2])
    assert watch.uses.sum() == 9
    nameless = frame.iloc[[5, 6]].reset_index(drop=True)
    watch.observe([5, 6], nameless, y[[5, 6]])
    assert list(watch.result().table()["row"]) == expected


def test_images_of_another_size_do_not_add_up() -> None:
    net = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, 2)).double()
    watch = watching(net, n=2)
    y = torch.tensor([0, 1])
    watch.observe([0, 1], torch.rand(2, 1, 4, 4, dtype=torch.float64), y)
    with pytest.raises(sp.InputError, match="attributes of shape"):
        watch.observe([0, 1], torch.rand(2, 1, 6, 6, dtype=torch.float64), y)


def test_labels_do_not_take_the_names_of_columns(problem: tuple) -> None:
    net, x, y = problem
    frame = pd.DataFrame(x.numpy(), columns=NAMES)
    found = sp.nn.plis(net, "cross_entropy", frame, y, noise_multiplier=1.0, view=sp.nn.Label())
    assert found.values.shape == (9, 4)
    assert found.names is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clip": "bogus"}, "clip must be 'hard', 'smooth' or 'none', not"),
        ({"max_grad_norm": "1"}, "max_grad_norm must be a finite number"),
        ({"max_grad_norm": True}, "max_grad_norm must be a finite number"),
        ({"noise_multiplier": "1"}, "noise_multiplier must be a finite number"),
        ({"view": "label"}, r"view must be sp.nn.Input\(\), sp.nn.Label\(\)"),
        ({"clip": sp.nn.HardClip(1.0), "max_grad_norm": 2.0}, "contradicts clip=HardClip"),
        ({"clip": sp.nn.HardClip(1.0), "noise_multiplier": None}, "not private"),
    ],
)
def test_options_that_make_no_sense(problem: tuple, options: dict, words: str) -> None:
    net, x, y = problem
    with pytest.raises(sp.InputError, match=words):
        sp.nn.plis(net, "cross_entropy", x, y, **{"noise_multiplier": 1.0, **options})
    if options.get("noise_multiplier", "") is not None:
        with pytest.raises(sp.InputError, match=words):
            watching(net, **options).observe(range(9), x, y)


def test_a_network_without_parameters_releases_nothing(problem: tuple) -> None:
    _, x, y = problem
    with pytest.raises(sp.InputError, match="has no parameters, so no gradient is released"):
        sp.nn.plis(nn.Tanh(), "cross_entropy", x, y, noise_multiplier=1.0)


def test_a_ready_clip_is_used(problem: tuple) -> None:
    net, x, y = problem
    ready = sp.nn.plis(net, "cross_entropy", x, y, noise_multiplier=1.0, clip=sp.nn.SmoothClip(0.5))
    wanted = sp.nn.plis(
        net, "cross_entropy", x, y, noise_multiplier=1.0, max_grad_norm=0.5, clip="smooth"
    )
    torch.testing.assert_close(ready.values, wanted.values)
    assert ready.noise == wanted.noise == 0.5
