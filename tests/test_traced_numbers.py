"""Measured numbers on hand-written pages are those of kept results, and no others stand there.

A *tie* is a phrase of a page, written here from kept results: the page must have it word for word.
What a page's own code prints is checked by ``test_docs.py``. Any other number that looks measured
must be listed in ``given_numbers.toml``, with the reason why nothing has to be measured for it.
"""

from __future__ import annotations

import io
import json
import math
import re
import runpy
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from scipy.special import ndtr, ndtri

from seepage.auditing.decision.presets import DEFAULT, PRESETS
from test_docs import FENCE, GENERATED, PAGES, examples, named

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from make_benchmarks_page import (  # noqa: E402
    CHARTS,
    ETA,
    H200,
    PAGE,
    SACRO_PAGE,
    kept,
    opacus_rows,
    page,
    sacro_page,
)

GIVEN = tomllib.loads((ROOT / "tests" / "given_numbers.toml").read_text("utf-8"))
WRITTEN_BY_PROGRAMS = ("docs/benchmarks.md", "docs/beside-sacro.md", "docs/reproduction/")
HAND_WRITTEN = [p for p in PAGES if not named(p).startswith(WRITTEN_BY_PROGRAMS)]
NUMBER = re.compile(r"(?<![\w.,/^×√#-])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?![\w×]|-bit)")
UNIT = re.compile(
    r" ?(?:%|times|of \d|in 100|products|points|[GM]i?B|[mµn]?s\b|seconds|minutes|hours)"
)
NUMBERED = re.compile(r"(?m)^\d{1,2}\. (?=[(`A-Z])")  # a step of a list
NOT_NUMBERS = re.compile(  # code, formulas, addresses of links, citations and years
    r"`[^`]*`|\$\$?[^$]+\$|\]\([^)]*\)|(?<![\d,])00\d\b|\b(?:19|20)\d\d\b"
    r"|\b(?:[Ee]quations?|[Ss]ection|definitions|Python|arXiv:?) ?[\d.]+(?: (?:to|and) \d+)?"
)

Tie = Callable[[], Iterator[str]]
TIES: list[tuple[str, Tie]] = []


def tied(name: str) -> Callable[[Tie], Tie]:
    """Register a function that writes phrases of a page from kept results."""

    def register(phrases: Tie) -> Tie:
        TIES.append((name, phrases))
        return phrases

    return register


@cache
def written(tie: Tie) -> list[str]:
    """Return the phrases of a tie, as they stand in the prose of its page."""
    return [squeezed(phrase) for phrase in tie()]


def squeezed(text: str) -> str:
    """Return a text without emphasis, breaks of lines, and blanks beside the pipes of tables."""
    return re.sub(r" ?\| ?", "|", " ".join(text.replace("*", "").split()))


def prose_of(name: str) -> str:
    """Return a page without what is generated, code and what it prints, and numbers of steps."""
    path, marks = ROOT / name, GENERATED.get(name)
    text = path.read_text("utf-8")
    if marks is not None:
        text = text.partition(marks[0])[0] + text.partition(marks[1])[2] if marks else ""
    printed = {example.printed for example in examples(path)}

    def shown(fence: re.Match[str]) -> str:
        return fence[2] if fence[1] in ("", "text") and fence[2] not in printed else ""

    return squeezed(NUMBERED.sub("", FENCE.sub(shown, text)))


def printed_by(program: str, *options: str) -> str:
    """Return what a benchmark prints."""
    path = ROOT / "benchmarks" / program
    with (
        patch.object(sys, "argv", [str(path), *options]),
        patch.object(sys, "path", [str(path.parent), *sys.path]),
        redirect_stdout(io.StringIO()) as out,
    ):
        assert runpy.run_path(str(path))["main"]() == 0
    return out.getvalue()


def reproduced(name: str) -> dict[str, float]:
    """Return the quantities of a reproduction that were measured."""
    text = (ROOT / "docs" / "reproduction" / f"{name}.json").read_text("utf-8")
    return {one["name"]: one["measured"] for one in json.loads(text)["quantities"]}


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def test_the_page_of_benchmarks_is_fresh():
    assert PAGE.read_text("utf-8") == page(), "run: make benchmarks-page"
    assert SACRO_PAGE.read_text("utf-8") == sacro_page(), "run: make benchmarks-page"
    for chart in re.findall(r"assets/(benchmarks-[a-z-]+\.svg)", page()):
        assert "<svg" in (CHARTS / chart).read_text("utf-8")


@tied("README.md")
def times_of_a_private_step():
    found = opacus_rows("against_opacus-cuda-tf32", H200).values()
    names = (
        "WideResNet-16-4, batch 1,024",
        "GPT-2's shape, batch 16 × 256 tokens",
        "the same with LoRA",
    )
    for name, (_, *cells) in zip(names, found, strict=True):
        yield row(name, *cells)
    products = kept("glm_rows")["d = 784"][ETA]
    yield (
        f"takes {products:.1f} times as long as multiplying the data by the inverse Hessian, "
        "`X·H⁻¹`"
    )


@tied("docs/how-to/out-of-core.md")
def readings_of_a_large_table():
    fit = kept("out-of-core")["fit"]
    assert (fit["rows"], fit["columns"]) == (10_000_000, 50)
    yield (
        f"a logistic regression of 10 million rows of 50 columns reads them "
        f"{fit['readings from excerpt']:.1f} times, and from zero "
        f"{fit['readings from zero']:.1f} times"
    )


@tied("docs/benchmarks.md")
def passes_over_a_large_table():
    shown = printed_by("out_of_core.py", "--kept")
    assert len(re.findall(r"^.*\S +[\d.]+ +[\d.]+ +[\d.]+$", shown, re.MULTILINE)) == 9
    assert shown.count("holds") == 7
    assert "20,000,000 rows × 50 columns, 2 cores" in shown
    ratio, memory = (
        re.search(rf"{what}: ([\d.]+)", shown)[1]
        for what in ("η of every row, times the product", "peak memory, GB")
    )
    yield f"η of 20 million rows of 50 columns takes {float(memory):.1f} GB of memory"
    yield f"{ratio} times as long as reading and one product"


@tied("docs/scaling.md")
def what_larger_tables_and_networks_would_take():
    """What was predicted and what was measured; the constants are in what the program prints."""
    shown = ("held out", "1,000,000,000 rows", "there an accounted")
    for paragraph in printed_by("scaling_model.py", "--kept").split("\n\n"):
        if paragraph.strip().startswith(shown):
            yield squeezed(paragraph)


@tied("docs/how-to/audit.md")
def an_audit_of_a_panel_by_row_and_by_person():
    found = kept("panel")
    row, person = (100 * found[by]["membership"] for by in ("row", "memory"))
    assert found["same"]
    assert found["rows"] == 7 * found["people"]
    yield (
        f"{found['people']} people with seven rows each), an audit by row limits membership "
        f"inference to {row:.0f} % success; refits without all rows of one person reach "
        f"{person:.0f} %"
    )


@tied("docs/how-to/audit.md")
def audits_of_a_forest_and_of_boosting():
    found = kept("attack_audits")
    names = {
        "forest, without fnlwgt": "forest, scikit-learn's default settings, without `fnlwgt`",
        "boosting, without fnlwgt": "gradient boosting, without `fnlwgt`",
        "forest, with fnlwgt": "forest, with `fnlwgt`",
    }
    for key, name in names.items():
        one = found[key]
        assert one["command"] in (ROOT / "docs/how-to/audit.md").read_text("utf-8")
        told, low, high = (100 * value for value in one["auc"])
        rate, least, most = (100 * value for value in one["found at 1 %"])
        certain = one["class disclosure"]
        yield row(
            name,
            f"{told:.0f} ({low:.0f} to {high:.0f})",
            f"{rate:.2g} % ({least:.2g} to {most:.2g})",
            f"{certain:,} records" if certain else "none",
        )
    first = found["forest, without fnlwgt"]
    yield (
        f"covers {first['records']:,} records of UCI Adult, {first['attacked']:,} of them attacked"
    )


@tied("docs/how-to/federated.md")
def flower_clients_over_seeds():
    found = kept("federated_run")
    runs = found["seeds"]
    for line, count in {
        "property of five clients, from the first round on": "property_found",
        "random property, same runs": "null_property_found",
        "the one client with the property is the furthest": "planted_client_is_furthest",
        "random property of like clients": ("null_property_of_like_clients_found"),
    }.items():
        yield row(line, f"{found[count]} of {runs}")
    further = f"{found['further_null_properties_found']} of {found['further_null_properties']}"
    yield row("twenty more random properties in each run", further)


@tied("docs/how-to/federated.md")
def clients_named_by_the_outlier_test():
    found = kept("outlying_clients")
    assert found["holds"]
    yield f"tests twelve clients, each against {found['simulated']} simulated ones"
    assert found["clients"] == 12
    yield "in 200 runs of each kind. The table counts runs in which a client is named"
    yield f"At the 5 % level, {0.05 * 200:.0f} of 200 false positives are expected."
    more = found["more"]
    further = f"In {more['runs']:,} further runs of {more['clients']} clients"
    yield f"{further}, {more['anyone_named']} name one"
    names = {"unequal": "unequal sizes"}
    for kind in dict.fromkeys(one["clients"] for one in found["table"]):
        some = [one for one in found["table"] if one["clients"] == kind]
        assert {one["runs"] for one in some} == {200}
        shifts = [(one["shift"], one["trained"]) for one in some]
        assert shifts == [(0, False), (2, False), (4, False), (0, True)]
        given, *planted, trained = some
        counts = (given["anyone_named"], trained["anyone_named"])
        counts += tuple(one["planted_named"] for one in planted)
        yield row(names.get(kind, kind), *(f"{count} of 200" for count in counts))


@tied("docs/how-to/federated.md")
def properties_found_with_shadow_clients():
    found = kept("planted_property")["table"]
    assert {(one["runs"], one["null_tests"]) for one in found} == {(10, 0), (10, 100)}

    def count(what, case, norm):
        some = [one for one in found if one["batch_norm"] == norm and case in (one["case"], "")]
        return sum(one[what] for one in some)

    for line, case in {
        "brighter corner in 10 % of the images": "10 %",
        "brighter corner in 30 % of the images": "30 %",
        "brighter corner in 100 % of the images": "100 %",
        "natural: brighter images": "natural",
    }.items():
        counts = [
            f"{count(what, case, norm)} of 30"
            for norm in (False, True)
            for what in ("found", "found_without_auxiliary")
        ]
        yield row(line, *counts)
    false = [f"{count('null_found', '', norm)} of 300" for norm in (False, True)]
    yield row("random", false[0], "–", false[1], "–")


@tied("docs/how-to/gradient-inversion.md")
def images_rebuilt_from_updates():
    found = {
        (one["images per client"], one["local steps"], one["cost"], one["way"]): one["ssim"]
        for one in kept("fedavg_inversion-cpu")["rows"]
    }
    alone = sorted((steps, cost) for count, steps, cost, way in found if count == 1)
    assert len(alone) == 12
    steps, costs = (list(dict.fromkeys(one)) for one in zip(*alone, strict=True))
    middle = {
        (cost, way): [f"{statistics.median(found[1, k, cost, way]):.3f}" for k in steps]
        for cost in costs
        for way in ("divided", "modelled")
    }
    assert steps == [1, 5, 10]
    assert {x for (_, way), all_ in middle.items() if way == "modelled" for x in all_} == {"1.000"}
    yield row("median SSIM after local steps", *steps)
    for cost in ("Euclidean", "cosine"):
        yield row(f"divided, {cost} cost", *middle[cost, "divided"])
    yield row("modelled, either cost", *middle["cosine", "modelled"])
    (cost,) = {cost for count, _, cost, _ in found if count == 2}
    divided, few, many = (
        found[2, steps, cost, way]
        for steps, way in ((2, "divided"), (2, "modelled"), (10, "modelled"))
    )
    yield "After two steps, modelling the training reconstructs all ten"
    yield f"(smallest SSIM {min(few):.3f}), and dividing the update"
    yield f"gives {min(divided):.3f} to {max(divided):.3f}."
    middle_one = f"{statistics.median(many):.3f}"
    yield f"After ten steps, modelling reconstructs none (median {middle_one})"


@tied("docs/how-to/gradient-inversion.md")
def images_that_look_alike_anyway():
    found = kept("gradient_inversion-cpu")["rows"]
    mean, grey = found["mean training image"], found["plain grey"]
    yield f"SSIM of {mean['ssim smallest']:.2f} to {mean['ssim largest']:.2f} with the first twenty"
    yield f"a plain grey image up to {grey['ssim largest']:.2f}"


@tied("docs/how-to/neural-networks.md")
def how_far_the_conservative_clip_is_from_the_exact_one():
    found = kept("accountant-cpu")["mnist"]["conservative over exact"]
    yield row("MNIST network of Guo et al. 2022, untrained", f"{found['at the start']:.3f}")
    yield row("the same, fitted to 200 images", f"{found['when trained']:.2f}")
    wide = kept("accountant-cuda")["wide"]["conservative over exact"]
    yield row("WideResNet-16-4, untrained", f"{wide:.3f}")


@tied("docs/how-to/neural-networks.md")
def how_many_probes_are_worth_fifty_coordinates():
    found = kept("accountant-cpu")["mnist"]
    start, fitted = (
        found[f"relative deviation {when}"] for when in ("at the start", "when trained")
    )
    worth = [(one["one probe"] / one["50 coordinates"]) ** 2 for one in (start, fitted)]
    assert 2 < worth[0] < 3
    assert 6 < worth[1] < 7
    yield "two or three probes are as precise as the fifty sampled coordinates"
    yield f"one probe deviates by {100 * fitted['one probe']:.0f} % of the value, so six"


@tied("docs/how-to/neural-networks.md")
def how_often_intervals_of_probes_cover():
    found = kept("probe_coverage")
    networks = found["networks"].values()
    shares = [100 * one["covered"] for one in networks]
    least = min(one["worst record"] for one in networks)
    assert found["probes"] == 400
    assert min(one["intervals"] for one in networks) >= 1000
    assert 93 <= min(shares) <= max(shares) <= 97
    yield (
        f"95 % intervals from {found['probes']} probes covered dFIL in "
        f"{min(shares):.1f} to {max(shares):.1f} % of cases"
    )
    yield f"(worst record of any network: {100 * least:.0f} %)"


CHECKS = "checks over a run of 400 steps"


@tied("docs/how-to/neural-networks.md")
def what_the_checks_of_derivatives_cost():
    share, limit, _ = kept("accountant-cpu")["mnist"]["claims"][CHECKS]
    assert share < limit
    yield f"took {100 * share:.1f} % of a run of 400 steps"


@tied("docs/how-to/private-sgd.md")
def one_run_in_five_loops():
    found = kept("training_loops")["loops"]
    assert {"Hugging Face Trainer", "Lightning", "Accelerate", "Opacus", "by hand"} <= set(found)
    clipped = "by hand, norm + 1e-6"  # by Opacus's rule
    assert max(row["off"] for name, row in found.items() if name != clipped) < 1e-6
    assert len({round(row["epsilon"], 6) for row in found.values()}) == 1
    assert max(row["lines"] for row in found.values()) <= 3
    yield "give every record the same η̄ as a loop by hand, to a relative 1e-6"
    apart = f"{found['Opacus']['off from the first row']:.1e}".replace("e-06", "e-6")
    yield f"Opacus divides by the norm plus 1e-6, so its η̄ differs by {apart}"


@tied("docs/how-to/private-sgd.md")
def what_private_fine_tuning_reveals_of_images():
    found = kept("fine_tuning-images-cpu")
    assert found["records not measured"] == found["records whose bound is below that variance"] == 0
    assert found["epsilon"] <= 8
    yield f"fine-tunes it on {found['records']:,} images of four others, with ε = 8"
    before, private, plain = (
        f"{100 * found['results'][name]['accuracy']:.0f}"
        for name in ("before", "private", "without noise")
    )
    yield f"accuracy rises from {before} to {private} % (without noise: {plain} %)"
    worst = found["most exposed"][0]
    yield (
        f"the median η̄ is {found['eta']['median']:.2f}, the largest {worst['eta']:.2f} "
        f"(95 % CI {worst['low']:.2f} to {worst['high']:.2f})"
    )
    bound, variance = 1 / worst["eta"] ** 2, found["variance of an unknown"]
    assert 1 / worst["high"] ** 2 > 10 * variance
    yield f"a bound of {bound:.1f} per pixel, far above the pixels' variance ({variance:.2f})"
    medians = found["medians of the most exposed 5 % and of the others"]
    (loss, losses), (norm, norms) = medians["loss after"], medians["gradient norm after"]
    yield (
        f"for the most exposed 5 %, the median loss is {loss:.1f} (others: {losses:.1f}) and the "
        f"median gradient norm is {norm:.1f} (others: {norms:.1f})"
    )


@tied("docs/how-to/private-sgd.md")
def what_private_fine_tuning_reveals_on_an_accelerator():
    found = kept("fine_tuning-images-cuda")
    assert found["records not measured"] == found["records whose bound is below that variance"] == 0
    private, plain = (
        f"{100 * found['results'][name]['accuracy']:.0f}" for name in ("private", "without noise")
    )
    yield f"{found['records']:,} images), accuracy reaches {private} % (without noise: {plain} %)"
    worst = found["most exposed"][0]
    yield (
        f"The largest η̄ is {worst['eta']:.2f} (95 % CI {worst['low']:.2f} to {worst['high']:.2f})"
    )
    loss, losses = found["medians of the most exposed 5 % and of the others"]["loss after"]
    yield f"(median loss {loss:.2f} and {losses:.2f})"


@tied("docs/how-to/huggingface.md")
def what_private_fine_tuning_reveals_of_texts():
    found = kept("fine_tuning-text-cpu")
    assert found["records not measured"] == 0
    assert found["epsilon"] <= 8
    yield f"on {found['records']} records of data-set descriptions, with ε = 8"
    before, private, plain = (
        f"{found['results'][name]['held-out loss']:.2f}"
        for name in ("before", "private", "without noise")
    )
    yield f"The held-out loss is {before} before, {private} after, and {plain} without noise."
    worst = found["most exposed"][0]
    yield (
        f"The median η̄ is {found['eta']['median']:.2g}, the largest {worst['eta']:.2g} "
        f"(95 % CI {worst['low']:.2g} to {worst['high']:.2g})."
    )
    own, other = (found["attacks"][name]["membership"] for name in ("private", "without noise"))
    low, high = own["auc_interval"]
    yield (
        f"Membership inference has an AUC of {own['auc']:.2f} (95 % CI {low:.2f} to {high:.2f}; "
        f"without noise {other['auc']:.2f})"
    )
    larger = kept("fine_tuning-text-cuda")
    before, private, plain = (
        f"{larger['results'][name]['held-out loss']:.2f}"
        for name in ("before", "private", "without noise")
    )
    own, other = (
        f"{larger['attacks'][name]['membership']['auc']:.2f}"
        for name in ("private", "without noise")
    )
    yield (
        f"reaches a loss of {private} ({before} before, {plain} without noise), with an AUC of "
        f"{own} ({other} without noise)."
    )


@tied("docs/how-to/private-sgd.md")
def an_eleventh_record():
    found = kept("promises")
    assert [(run["records"], run["rate"]) for run in found["opacus"]] == [(11, 0.5), (10, 1.0)]
    promised, declared, real = (
        f"{100 * found['attack'][key]:.1f} %" for key in ("promised", "declared", "real")
    )
    yield (
        f"At 1 % false positives, the guarantee for rate one half allows {promised} true "
        f"positives. The best test reaches {declared} if this rate is declared, and {real} with "
        "Opacus's"
    )


@tied("docs/how-to/private-sgd.md")
def attacks_on_private_training():
    found = kept("training_attack")
    ways = {}
    for one in found["rows"]:
        caught = any(each["beaten"] for each in one["found"])
        power = max(each["power"] for each in one["expected"])
        ways.setdefault(one["way"], []).append((caught, power, one["runs"]))
    assert not any(caught for caught, _, _ in ways["declared"])
    runs = f"{ways['declared'][0][2]:,}"
    yield (
        f"in {len(ways['declared'])} settings, with {runs} runs with the target and {runs} "
        "without. No guarantee at a declared rate is exceeded (overall level "
        f"{100 * found['overall level']:.0f} %)"
    )
    half, sized = (
        (sum(caught for caught, _, _ in ways[way]), sum(power for _, power, _ in ways[way]))
        for way in ("half the noise", "batch_size/n")
    )
    fewer = f"{ways['batch_size/n'][0][2]:,}"
    yield f"with {fewer} runs each. Halved noise is detected in {half[0]} settings "
    yield f"({half[1]:.1f} expected), and a rate of `batch_size/n` in {sized[0]}"
    yield f"({sized[1]:.1f} expected; elsewhere, {fewer} runs are too few)"


@tied("docs/how-to/budgets.md")
def what_budgets_cost():
    found = kept("filtered_runs")["runs"]
    for name in ("UCI Adult", "5,000 digits of MNIST"):
        runs = [one for one in found if one["task"] == name]
        assert all(one["charges that differ by 1e-4"] == 0 for one in runs)
        assert all(one["most spent, of the limit"] <= 1.0001 for one in runs)
        shown = [
            f"{100 * statistics.mean(one[key] for one in runs):.1f} %"
            for key in (
                "stopped, share",
                "accuracy with budgets",
                "accuracy without, at half, ε = 2",
            )
        ]
        yield row(f"{name}, {len(runs)} runs", *shown)


@tied("docs/how-to/budgets.md")
def an_attacker_of_a_record_that_stops():
    found = kept("filtered_runs")["attacks"]
    right, wrong = (found[key]["rates"]["0.01"] for key in ("its own norm", "half of its cost"))
    assert right["true positive rate"] <= right["promised"] + right["doubt"]
    assert wrong["true positive rate"] > wrong["promised"] + wrong["doubt"]
    told, most, control = (
        f"{100 * rate:.1f} %"
        for rate in (right["true positive rate"], right["promised"], wrong["true positive rate"])
    )
    chance = f"{100 * right['doubt']:.1f} percentage points"
    yield (
        f"finds {told} of members at 1 % false positives; the budget allows {most} "
        f"(sampling error: {chance})."
    )
    yield f"If only half of every cost is charged, the attack finds {control}."


@tied("docs/how-to/budgets.md")
def what_smooth_weights_leak():
    found = kept("smooth_weights")
    sharp, slow = ([one for one in found["rows"] if one["width"] == width] for width in (0.1, 1.0))
    assert all(one["records beyond the budget"] == 1 for one in sharp)
    assert all(one["records beyond the budget"] == 0 for one in slow)
    beyond = max(one["records beyond unfiltered"] for one in sharp)
    yield f"falls over the last {100 * sharp[0]['width']:.0f} % of a budget"
    yield f"all {found['records']} records leak more than the budget, and {100 * beyond:.0f} %"


@tied("docs/how-to/budgets.md")
def what_canaries_show():
    runs = kept("canaries")["runs"]
    assert not any(one["refuted"] for one in runs)
    assert {one["canaries"] for one in runs} == {1000}
    promised, shown = (
        "{}, {} and {}".format(*(f"{one[what]:{form}}" for one in runs))
        for what, form in (("promised", ".0f"), ("shown", ".2f"))
    )
    yield f"the lower bounds for runs that claim ε = {promised} are {shown}"


@tied("docs/how-to/layers.md")
def intervals_of_layers():
    found = kept("layer_statistics")
    between = [x["held"] for x in found["information"]["rows"] if 0 < x["truth"] < 0.69]
    assert len(between) == 5
    yield f"({100 * min(between):.0f} to {100 * max(between):.0f} in the simulations)"
    repeats = [x for x in found["areas"]["rows"] if "× 5" in x["interval"]]
    bare = [100 * x["held without groups"] for x in repeats]
    yield f"contained the true AUC only {min(bare):.0f} to {max(bare):.0f} % of the time"
    assert found["few clients"]["holds"]
    few = [one for one in found["few clients"]["rows"] if one["truth"] < 1]
    fewest = tuple(f"AUC, {count} + " for count in (3, 4, 5))
    below = [100 * one["held"] for one in few if one["interval"].startswith(fewest)]
    more = [100 * one["held"] for one in few if not one["interval"].startswith(fewest)]
    yield f"simulated coverage is {min(more):.1f} to {max(more):.1f} % from six of each kind"
    yield f"({len(more)} settings), and {min(below):.1f} to {max(below):.1f} % with three to five"
    figure = reproduced("layers-figure1")
    equal, own = (figure[f"AlexNet: AUC from all layers{mix}"] for mix in ("", ", confounded"))
    yield f"AUC from all layers of AlexNet is {equal:.2f} with an equal mix and {own:.2f} without"


@tied("docs/how-to/updates.md")
def what_remedies_leave():
    printed = printed_by("layer_remedies.py", "--kept").splitlines()
    start = printed.index("Differences from the update as it is, paired:")
    table = [re.split(r" {2,}", line.strip()) for line in printed[2:start] if line[-1:].isdigit()]
    assert len(table) == 8
    _, auc, _, accuracy, _, runs = next(cells for cells in table if cells[0] == "as it is")
    assert int(runs) == max(int(cells[-1]) for cells in table)
    yield f"each of up to {runs} runs"
    yield (
        f"Without a remedy, the attack has an AUC of {auc} and the model an accuracy of {accuracy}"
    )
    gaps = {}
    for line in printed[start + 1 :]:
        name, *cells = re.split(r" {2,}", line.strip())
        if len(cells) == 3:
            gaps[name] = [[float(x) for x in re.findall(r"[+-][\d.]+", cell)] for cell in cells]
    two = {name: cells for name, cells in gaps.items() if "fc1, fc2" in name and "conv" not in name}
    assert len(two) == 4
    assert all(low < 0 < high for (_, low, high), _, _ in two.values())
    most = max(abs(auc) for (auc, _, _), _, _ in two.values())
    yield f"The AUC changes by at most {most:.3f}, and every interval includes zero"
    prices = [
        -100 * accuracy for name, (*_, (accuracy, _, _)) in two.items() if "noise" not in name
    ]
    yield f"{min(prices):.1f} to {max(prices):.1f} percentage points for freezing"
    auc, bits, accuracy = gaps["noise 0.045 on conv1, conv2, conv3, fc1, fc2"]
    yield "lowers the AUC by {:.3f} ({:.3f} to {:.3f})".format(*(-auc[k] for k in (0, 2, 1)))
    yield "V-information by {:.3f} bits ({:.3f} to {:.3f})".format(*(-bits[k] for k in (0, 2, 1)))
    fall = "the accuracy falls by {:.3f} ({:.3f} to {:.3f})"
    yield fall.format(*(-accuracy[k] for k in (0, 2, 1))).replace("-", "−")
    protect = [run["protect"] for run in kept("layer_remedies")["runs"] if run["protect"]]
    assert min(map(len, protect)) == 4
    assert {"conv1", "conv2", "conv3", "fc1", "fc2"} == set().union(*protect)
    yield "named at least four of the five layers in every run"


@tied("docs/how-to/outsider.md")
def what_one_fit_predicts_of_lira():
    found = kept("outsider")["tables"]
    names = (
        *("breast cancer, 0.01", "breast cancer, 0.1"),
        *("IWPC, 0.01", "RAND, 0.01", "Adult, 0.01"),
    )
    assert set(names) == set(found)
    for figure, words in {
        "mean area": "The predicted mean AUC is within {:.3f} of LiRA's",
        "top 1 %": "that of the most exposed 1 % within {:.3f}",
    }.items():
        far = (abs(one[f"{figure}, predicted"] - one[f"{figure}, LiRA"]) for one in found.values())
        yield words.format(max(far))
    alike = [one["correlation"] for one in found.values()]
    yield f"their correlation over records is {min(alike):.3f} to {max(alike):.3f}"
    yield "on breast cancer, IWPC, RAND and Adult"
    off = [100 * one["off by"] for one in found.values()]
    yield f"The predicted mean of AUC − ½ is {min(off):.1f} to {max(off):.1f} % above LiRA's"


@tied("docs/how-to/outsider.md")
def what_refits_say_of_the_coefficients():
    found = kept("outsider")["white box"].values()
    off = [abs(x - y) for one in found for x, y in zip(one["given"], one["refitted"], strict=True)]
    errors = [
        math.hypot(x, y)
        for one in found
        for x, y in zip(
            one["given, standard errors"], one["refitted, standard errors"], strict=True
        )
    ]
    agree = sum(x <= 0.03 or x <= 2 * y for x, y in zip(off, errors, strict=True))
    assert all(sum(one["most exposed"]) == 10 and len(one["records"]) == 20 for one in found)
    assert agree == len(off)
    yield "20 records per table, including the 10 most exposed, the predicted success rate of"
    yield "within 3 percentage points or two standard errors of that in refits on other people"


@tied("docs/how-to/outsider.md")
def what_known_sets_leave():
    found = kept("outsider")["partial knowledge"]
    few, many = found["300 patients, 0.1"], found["RAND, 0.01"]
    assert [one["others unknown"] for one in (few[0], many[0])] == [299, 2999]
    assert all((one[0]["known"], one[-1]["known"]) == (0, 0.95) for one in (few, many))
    yield "0 to 95 % of 300 patients or 3,000 people of RAND"
    answered = [one for one in (*few, *many) if not one["refused"]]
    off = max(abs(one["predicted"] / one["measured"] - 1) for one in answered)
    yield f"within {100 * off:.1f} % of the prediction"
    most = max(one["most above the prediction"] for one in answered)
    yield f"succeeds up to {100 * most:.0f} percentage points more often than predicted"
    assert all(one["right, by histograms"] <= one["right, predicted"] for one in answered)


@tied("docs/how-to/risks.md")
def the_attack_beside_the_limit():
    found = kept("lira_limit")
    assert found["holds"]
    least, most = (100 * way for way in found["least and most of the way to the limit"])
    yield "attacks twelve records"
    yield f"LiRA reaches {least:.0f} to {most:.0f} % of the gain that the limit allows over chance"


@tied("docs/how-to/membership-networks.md")
def membership_of_networks():
    found = kept("membership_networks")
    sets = small, large, xrays = [found[name] for name in ("small", "large", "xrays")]
    gaps = found["largest error of transferred success, by tenths"]
    apart = max(gap for pair, gap in gaps.items() if len(set(pair.split(" to "))) == 2)
    yield f"were off by up to {apart:.3f} (mean over a tenth of the records)"
    yield f"{small['networks']} small CNNs and {large['networks']} large residual networks"
    yield f"CIFAR-10, {xrays['networks']} small CNNs on x-rays"
    columns = ("1 %: small", "large", "x-rays", "0.1 %: small", "large")
    yield row("members found (%) [95 % interval] at a false positive rate of", *columns)
    for name in (
        "LiRA, online",
        "RMIA, online",
        "LiRA, online, 4 references",
        "RMIA, online, 4 references",
        "loss alone",
    ):
        rates = [one["attacks"][name]["1 %"] for one in sets]
        rates += [one["attacks"][name]["0.1 %"] for one in sets[:2]]
        percents = [[100 * value for value in rate] for rate in rates]
        yield row(name, *(f"{p[0]:.1f} [{p[1]:.1f}, {p[2]:.1f}]" for p in percents))
    for name in small["rank correlations"]["scores"]:
        ranks = [one["rank correlations"]["scores"][name] for one in sets]
        yield row(
            "gradient norm" if name == "norm" else name,
            *(f"{each['members'][0]:.2f}" for each in ranks),
            *(f"{each['mean rank over 8']:.2f}" for each in ranks),
        )
    halves = (f"{one['rank correlations']['split-half of μ']:.2f}" for one in sets)
    yield row("correlation of LiRA's distances from two halves of the shadow models", *halves)
    seconds = zip(
        *(one["seconds of training and of scores, a network"] for one in sets), strict=True
    )
    names = ("seconds on an H200, training a network", "seconds on an H200, scoring it")
    for name, each in zip(names, seconds, strict=True):
        yield row(name, *(f"{one:.2f}" for one in each))


@tied("docs/how-to/gradient-inversion.md")
def which_records_are_rebuilt():
    found = kept("inversion_study")
    attacks = [found[f"{network}-{seed}"] for network in ("deep", "strided") for seed in (0, 1)]
    records, steps = ({each[what] for each in attacks} for what in ("records", "steps"))
    yield f"On {records.pop()} X-rays"
    yield f"{steps.pop():,} steps, converged"
    assert all(each["share better than the mean image"] == 1 for each in attacks)
    middles = [each["least and quartiles"]["SSIM"][2] for each in attacks]
    yield f"(median SSIM {min(middles):.2f} to {max(middles):.2f})"
    names = {"plis": "PLIS", "fil": "FIL", "dfil": "dFIL", "gradient_norm": "norm of the gradient"}
    names |= {name: name for name in ("loss", "contrast of the image")}
    for name, shown in names.items():
        spans = [found["mean over attacks"][name][what] for what in ("squared error", "SSIM")]
        cells = (f"{middle:.2f} ({low:.2f} to {high:.2f})" for middle, low, high in spans)
        yield row(shown, *cells).replace("-", "−")
    error, similar = (
        [found["mean over attacks"][f"plis, {label}"][what][0] for label in ("normal", "pneumonia")]
        for what in ("squared error", "SSIM")
    )
    yield f"(−{-error[0]:.2f} among normal X-rays, −{-error[1]:.2f} with pneumonia)"
    yield f"and SSIM only with pneumonia ({similar[0]:.2f} normal, {similar[1]:.2f} pneumonia)"


@tied("docs/how-to/gradient-inversion.md")
def what_inversion_recovers():
    found = {(one["attack"], one["setting"]): one for one in kept("inversion_table")["rows"]}
    settings = (
        "one record",
        "mean of 8 (secure aggregation)",
        "5 local steps",
        "clipped",
        "8 bits",
        "first layer not sent",
        "clipped, noise at ε = 8",
    )
    for attack, shown in {
        "images, ReLU": "images, ReLU network: SSIM",
        "text": "text: tokens at their place",
        "table": "table: cells",
        "malicious server": "malicious server: images, exactly",
    }.items():
        cells = [found[attack, setting] for setting in settings]
        yield row(
            shown,
            *(f"{cell['value']:.2f}" for cell in cells),
            f"{cells[0]['chance']:.2f}" if cells[0]["chance"] else "0",
        )
    bare, running, own, noisy = (
        found["images, BatchNorm", setting]["value"]
        for setting in (
            "no statistics (FedBN)",
            "running statistics",
            "the batch's statistics",
            "the same, noise at ε = 8",
        )
    )
    yield (
        f"SSIM is {bare:.2f} without statistics, {running:.2f} with running statistics and "
        f"{own:.2f} with the batch's ({noisy:.2f} with noise)"
    )
    many = found["text", "mean of 16 (secure aggregation)"]
    assert many["more"]["set of tokens"] == 1
    yield (
        "A mean of 16 texts still reveals all tokens, but the attack places only "
        f"{many['value']:.2f} of them correctly"
    )
    published = found["images, ReLU", "as published: CIFAR-10, 4 local steps of 2"]["value"]
    yield (
        f"With four CIFAR-10 images after four local steps, SSIM is {published:.2f} through our "
        "two convolutions"
    )
    server = found["malicious server", "mean of 32 (secure aggregation)"]
    yield (
        f"reconstructs {server['value']:.2f} of the images in a mean of 32 (expected: "
        f"{server['more']['expected']:.2f})"
    )


@tied("docs/how-to/flower.md")
def what_recording_costs():
    found = kept("federated_recording")
    assert found["holds"]
    assert (found["rounds"], found["clients"]) == (200, 12)
    (first, last), (anew, at_last) = (
        [one[f"milliseconds a round, {part} fifth"] for part in ("first", "last")]
        for one in found["recorders"].values()
    )
    yield (
        f"For twelve clients, a round takes {first:.0f} ms of processor time in the first 40 of "
        f"200 rounds and "
        f"{last:.0f} ms in the last 40"
    )
    yield f"{anew:.0f} and {at_last:.0f} ms with a new recorder in every round"
    (size,) = {one["bytes a round"] for one in found["recorders"].values()}
    yield f"adds {size / 1e6:.2f} MB"


@tied("docs/how-to/risks.md")
def what_finite_changes_cost():
    found = kept("finite_changes")
    cases = {
        (table, penalty, question): {
            what.removeprefix(f"{question} "): value
            for what, value in found[table][f"λ = {penalty}"].items()
        }
        for table in ("MNIST 0/1", "UCI Adult")
        for penalty in ("0.01", "0.0001")
        for question in ("membership", "label")
    }
    assert all(one["inside"] == one["lower ends above zero"] == 1 for one in cases.values())
    strong, weak = (
        [one for (_, penalty, _), one in cases.items() if penalty == which]
        for which in ("0.01", "0.0001")
    )
    assert all(one["share"] == 1 for one in strong)
    products, faster = ([one[what] for one in strong] for what in ("products", "ratio"))
    yield (
        "With λ = 0.01, all intervals are within ±5 %. Computing them takes as long as "
        f"{min(products):.1f} to {max(products):.1f} products `X·H⁻¹` (data by inverse Hessian), "
        f"and is {min(faster):,.0f} to {max(faster):,.0f} times faster"
    )
    products = [one["products"] for one in weak]
    worst, *shares = sorted(one["share"] for one in weak)
    assert worst == cases["MNIST 0/1", "0.0001", "label"]["share"] == 0
    yield (
        f"With λ = 0.0001, this takes {min(products):.1f} to {max(products):.1f} products, and "
        f"{100 * shares[0]:.4g} to {100 * shares[-1]:.4g} % of intervals are within ±5 %"
    )


@tied("docs/how-to/release.md")
def what_the_folder_of_a_release_tells_of_a_dose():
    found = kept("release_attack")
    for line, way in {
        "as by default": "default",
        "all declared": "declared",
        "σ the smallest sufficient point of the grid": "the least of the grid",
    }.items():
        worst = found["worst"][way]
        yield row(
            line,
            f"{worst['draws']:,}",
            f"{worst['least ratio']:.3f}",
            f"{worst['below 0.9']:,}",
            f"{worst['promised interval kept']:,}",
        )
    drawn, least = (
        found["each"][way]["η = 1, all alike"]["median σ"]
        for way in ("default", "the least of the grid")
    )
    yield f"{least:g} is sufficient and {drawn:g} is usually drawn"
    often = found["worst"]["default"]["σ ten times the median or more"] / 12_000
    yield f"{100 * often:.0f} % of draws are at least ten times the median"


@tied("docs/how-to/verify.md")
def how_often_releases_of_two_tables_are_told_apart():
    found = kept("release_attack-worlds")
    for name, (absent, *others) in found["each"].items():
        assert absent["change"] == "left out"
        most = max(others, key=lambda attack: attack["seen"])
        shares = [attack[what] for attack in (absent, most) for what in ("seen", "stated")]
        yield row(name, *(f"{100 * share:.1f} %" for share in shares))
    assert found["told apart more often than stated"] == 0
    first, *_ = found["each"].values()  # by other categories as well, in another table
    (refuted,) = (a for a in first if a["ε alone refuted"])
    seen, alone = (f"{100 * refuted[what]:.1f} %" for what in ("seen", "by ε alone"))
    yield f"ε alone would give a limit of {alone}, but the attack succeeds {seen} of the time."
    yield f"In none of the {found['tests']} tests"


@tied("docs/how-to/forgetting.md")
def what_forgetting_leaves():
    found = kept("forgetting")
    people = found["people"]
    assert found["told apart more often than stated"] == 0
    yield f"removes {people} people from UCI Adult one at a time"
    yield f"including the {people // 2} most exposed"
    yield f"All {found['certificates that hold']} refits, by independent code"
    largest, median = (100 * found[f"{which} share of the move"] for which in ("largest", "median"))
    yield f"{largest:.1f} % of the model's movement (median {median:.1f} %)"
    yield f"(μ up to {found['largest mu']:.1f}) do not recognise anybody"


@tied("docs/how-to/extraction.md")
def what_comes_out_of_a_language_model():
    first, *others = kept("extraction")["planted codes"].items()
    for found in first[1]:
        bits, tries = found["exposure in bits, median"], found["tries, median"]
        yield row(found["repetitions"], f"{bits:.1f}", two_digits(tries))
    names = ("5 epochs", "deduplicated", "gradient ascent")
    assert all(name in run for name, (run, _) in zip(names, others, strict=True))
    few, once, forgotten = (two_digits(rows[3]["tries, median"]) for _, rows in others)
    yield f"With 16 copies, training for 5 epochs instead of 20 raises the tries to {few}"
    yield f"deduplication raises them to {once}"
    yield f"Unlearning by gradient ascent does not protect ({forgotten} tries)"
    rates = kept("extraction-cuda")["rates"]
    closed, drawn = (
        f"{rates[f'{name}, sampling at temperature 1']['a second']:.0f}"
        for name in ("closed form", "generating")
    )
    yield f"scoring processes {closed} records and sampling {drawn} tries per second"
    yield "7 billion parameters"


def two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):,g}"


@tied("docs/sharp-edges.md")
def how_far_an_interval_can_shrink():
    sixth = kept("release_attack")["worst"]["the least of the grid"]["least median ratio"]
    assert round(1 / sixth) == 6
    yield "can shrink to [a sixth]"


@tied("docs/how-to/release.md")
def what_would_change_with_the_most_exposed_records():
    found = kept("release_folder")
    demo, iwpc = found["demo"], found["iwpc"]
    changed = "records with a disclosed change"
    assert iwpc[changed] == 0
    yield f"for {demo[changed]} of the 50 patients of the demo, and for none of IWPC's"
    least = "least sigma of the grid that meets the target"
    assert all(x["sigma"] == x[least] for x in (demo, iwpc))
    yield f"was drawn: {demo['sigma']:g} and {iwpc['sigma']:g}, respectively"


@tied("docs/how-to/release.md")
def what_figures_can_do_to_an_interval():
    """Arithmetic: the odds of every event change by exp(ε) at most."""
    t, epsilon = 0.025, 0.45
    moved = t * math.exp(epsilon) / (1 - t + t * math.exp(epsilon))
    width = ndtri(1 - moved) / ndtri(1 - t)
    assert width >= 0.9
    yield f"For ε = {epsilon}, this is the central {100 * (1 - 2 * moved):.1f} % interval"
    least = math.floor(100 * width) / 100
    yield f"For a normal prior, this interval has at least {least:.2f} of the width"


@tied("docs/how-to/release.md")
def noise_of_another_shape():
    found = kept("shaped_noise")
    for penalty in ("0.01", "0.1"):
        one = found[f"λ = {penalty}"]
        shares = [one[name] for name in ("without noise", "plain noise", "shaped noise")]
        yield row(penalty, *(f"{100 * share:.1f} %" for share in shares))
    most = max(
        found[f"λ = {penalty}"]["largest η with a shape from the private records"]
        for penalty in ("0.01", "0.1")
    )
    yield f"η of single records is up to {most:.1f}"


@tied("docs/sharp-edges.md")
def labels_that_are_rounded():
    """Arithmetic: an error of s, normal, rounded."""
    for s in (0.25, 0.5, 1, 2):
        yield row(s, f"{100 * ndtr(0.5 / s):.0f} %")


@tied("docs/how-to/decide.md")
def limits_by_who_will_see_a_release():
    """Arithmetic: the odds and ε of membership, and of a value that one in a hundred has."""
    odds, found = [], []
    for name, one in PRESETS.items():
        right, tpr = one.max_membership, one.max_guess_tpr
        gain = f"{100 * one.max_guess_gain:.0f}"
        yield row(f"`{name}`", one.audience, f"{100 * right:.0f} %", gain, f"{100 * tpr:.0f} %")
        odds.append(right / (1 - right))
        found.append(0.01 * tpr / (0.01 * tpr + 0.99 * 0.01))
    first, second, third = odds
    yield (
        f"at most {first:.2g} : 1 for `open`, {second:.2g} : 1 for `partners` and {third:.2g} : 1 "
        "for `internal`"
    )
    first, second, third = map(math.log, odds)
    yield f"allows the same odds with ε = {first:.2f}, {second:.1f} and {third:.1f}, respectively"
    first, second, third = (round(100 * share) for share in found)
    yield (
        f"at most {first} % have it for `open`, {second} % for `partners` and {third} % for "
        "`internal`"
    )


@tied("docs/how-to/release.md")
def limits_without_options():
    default = PRESETS[DEFAULT]
    yield (
        f"`{DEFAULT}` by default (`--max-membership {default.max_membership:g}`, "
        f"`--max-guess-gain {default.max_guess_gain:g}`, "
        f"`--max-guess-tpr {default.max_guess_tpr:g}`)"
    )


@pytest.mark.parametrize("tie", TIES, ids=lambda tie: f"{tie[0]}:{tie[1].__name__}")
def test_a_page_has_the_kept_numbers(tie):
    name, phrases = tie
    prose = prose_of(name)
    missing = [phrase for phrase in written(phrases) if phrase not in prose]
    assert not missing, f"{name} should say:\n" + "\n".join(missing)


def numbers_in_code(path: Path) -> set[str]:
    """Return the numbers in the code of a page and in what it prints, without separators."""
    code = " ".join(f"{example.code} {example.printed}" for example in examples(path))
    found = re.findall(r"\d+(?:[,_]\d{3})*(?:\.\d+)?(?:e-?\d+)?", code)
    return {number.replace("_", "").replace(",", "") for number in found}


def untraced(found: re.Match[str], known: set[str]) -> bool:
    """Say whether a number may be a result that the code of its page does not show.

    Small bare counts are mostly rules. A number with a unit must be tied or given; any other may be
    one that the code shows, or such a one rounded to two digits or more.
    """
    digits = found[0].replace(",", "")
    if UNIT.match(found.string, found.end()):
        return True
    if digits in known or (digits.isdigit() and int(digits) < 10):
        return False
    decimals = len(digits.partition(".")[2])
    if not decimals or "e" in digits or len(digits.replace(".", "").lstrip("0")) < 2:
        return True
    return all(f"{float(one):.{decimals}f}" != digits for one in known if "." in one)


@pytest.mark.parametrize("path", HAND_WRITTEN, ids=named)
def test_no_measured_number_is_untraced(path):
    name = named(path)
    prose = prose_of(name)
    given = [squeezed(phrase) for phrase in GIVEN.get(name, {})]
    unused = [phrase for phrase in given if phrase not in prose]
    assert not unused, f"given_numbers.toml lists for {name} what it no longer says: {unused}"
    phrases = [phrase for owner, tie in TIES if owner == name for phrase in written(tie)]
    for phrase in sorted([*phrases, *given], key=len, reverse=True):
        prose = prose.replace(phrase, " … ")
    prose = NOT_NUMBERS.sub(" … ", prose)
    known = numbers_in_code(path)
    left = [
        prose[max(0, found.start() - 60) : found.end() + 30]
        for found in NUMBER.finditer(prose)
        if untraced(found, known)
    ]
    assert not left, (
        f"{name} has numbers that no kept result, test or code of the page accounts for; tie them "
        "to a kept result above, or give the reason in given_numbers.toml:\n" + "\n".join(left)
    )


def test_tests_that_are_named_as_reasons_exist():
    for phrases in GIVEN.values():
        for reason in phrases.values():
            for path in re.findall(r"tests/[\w/]+\.py", reason):
                assert (ROOT / path).is_file(), path
