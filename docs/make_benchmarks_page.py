"""Write the page of benchmarks and draw its charts from kept results: ``make benchmarks-page``.

Nobody types a number there: every figure of the page is taken from ``benchmarks/results``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
SACRO_PAGE = ROOT / "docs" / "beside-sacro.md"
CHARTS = ROOT / "docs" / "assets"
PLAIN = "plain training step"
WAYS = {  # of a private step: what the results call it, and what the page does
    "Opacus, hooks": "Opacus, hooks",
    "Opacus, ghost clipping": "Opacus, ghost",
    "seepage, without accounting": "seepage",
    "seepage, every record accounted for": "every record accounted for",
}
PARAMETERS = "seepage, the same by steps of the parameters"
QUARTER = "seepage, every fourth step of a record accounted for"
H200 = {  # networks of the comparison with Opacus, on the accelerator
    "wide": "WideResNet-16-4, batch 1,024",
    "124M": "GPT-2's shape, 162 M, batch 16 × 256",
    "LoRA": "the same, LoRA of rank 16",
}
CORES = {
    "wide": "WideResNet-16-4, batch 32",
    "LoRA": "GPT-2's shape, LoRA of rank 16, batch 2 × 64",
    "README": "the README's, batch 200",
    "CNN": "MNIST CNN, batch 200",
}
TABLES = {
    "d = 784": "MNIST 0/1, n = 12,665, d = 784",
    "d = 86": "UCI Adult, n = 30,162, d = 86",
    "d = 20": "MNIST 0/1, 20 components",
}
ETA = "η of all rows, everything after the fit"
CLIPPED = "update + 1 probe, exact clipping"
SAFE = "update + 1 probe, conservative"


def kept(name: str) -> dict[str, Any]:
    """Return the kept results of a benchmark."""
    text = (ROOT / "benchmarks" / "results" / f"{name}.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            "# Benchmarks\n",
            "*Generated from `benchmarks/results` by `make benchmarks-page`. The command above "
            "each table repeats its measurement.*\n",
            *_linear(),
            *_networks(),
            *_against_opacus(),
        ]
    )


def _linear() -> Iterator[str]:
    found = kept("glm_rows")
    threads = _threads(found["made"])
    yield "## Linear models\n"
    yield (
        f"`benchmarks/glm_rows.py` measures times after the fit ({threads}), relative to one "
        "product `X·H⁻¹`. The last column shows how many times as long singular values of "
        "dense Jacobians take (extrapolated):\n"
    )
    rows = []
    for key, name in TABLES.items():
        one = found[key]
        cells = []
        for task in (ETA, "exact Cramér–Rao bound of all rows", "η of the whole data set"):
            taken = f"{one[task + ' seconds']:.2g} s"
            # A product of a narrow table takes less time than a call: no unit to measure in
            cells.append(taken if one[ETA] > 30 else f"{one[task]:.1f} ({taken})")
        rows.append((name, *cells, f"{one['dense']:,.0f}×"))
    head = ("table", "η of all records", "exact Cramér–Rao", "η of the table")
    yield _table((*head, "dense, slower by"), rows)
    error = max(found[key]["error"] for key in TABLES)
    disk = kept("out-of-core")
    fit = disk["fit"]
    yield "![Seconds for η of all records, by seepage and densely](assets/benchmarks-linear.svg)\n"
    yield (
        f"The largest relative difference from the dense results is {error:.1g}. From Parquet "
        f"(`benchmarks/out_of_core.py`), η of {disk['rows'] // 10**6} million rows of "
        f"{disk['columns']} columns takes {disk['peak']:.1f} GB of memory and "
        f"{disk['η of every row']:.0f} s, {disk['η of every row'] / disk['product']:.1f} times as "
        "long as reading and one product. Time grows as the number of rows to the power "
        f"{disk['exponent']:.2f}. A logistic regression of "
        f"{fit['rows'] // 10**6} million rows reads the table "
        f"{fit['readings from excerpt']:.1f} times, and "
        f"{fit['readings from zero']:.1f} times if it starts from zero.\n"
    )


def _networks() -> Iterator[str]:
    cpu, full = kept("accountant-cpu"), kept("accountant-cuda")
    claims = cpu["mnist"]["claims"]
    wide, middle, large = full["wide"], full["124M"], full["1.3B"]
    yield "## Networks\n"
    yield (
        "Costs are multiples of a float32 training step of the same run "
        "(`benchmarks/accountant.py`; on the H200 with `--device cuda`):\n"
    )
    rows = [
        (
            "MNIST CNN, batch 200",
            _threads(cpu),
            "update, exact clipping, 3 probes",
            f"{claims['accounted over vmap step'][0]:.1f} `vmap` DP-SGD steps (50 coordinates, "
            f"as published: {claims['50 coordinates over accounted'][0]:.0f} times that)",
        ),
        (
            "WideResNet-16-4, batch 1,024",
            "H200",
            "update, one probe",
            _over_vmap(wide, CLIPPED) + f"; conservative clipping {_over_vmap(wide, SAFE, '')}",
        ),
        *(
            (
                f"GPT-2's shape, {name}",
                "H200",
                "one probe, token embeddings",
                f"{_plain_steps(one, '1 probe')} plain steps; "
                f"{_plain_steps(one, '1 probe, exact clipping')} clipped, "
                f"{one['claims']['peak GiB'][0]:.0f} GiB",
            )
            for name, one in (
                ("124 M, batch 16", middle),
                ("1.3 B, batch 8", large),
            )
        ),
    ]
    yield _table(("network", "where", "what", "takes"), rows)
    yield from _precisions()
    yield from _lora()


def _precisions() -> Iterator[str]:
    yield (
        "In lower precision, plain steps are faster and probes are finite differences "
        "(`--precision high` for TF32, `--autocast bf16`). Costs are multiples of a plain eager "
        "step of the same precision:\n"
    )
    rows, worst = [], {"TF32": 0.0, "bf16": 0.0}
    for key, name in (
        ("124M", "GPT-2's shape, 124 M"),
        ("1.3B", "GPT-2's shape, 1.3 B"),
        ("wide", "WideResNet-16-4"),
    ):
        for precision, short in (("TF32", "tf32"), ("bf16", "bf16")):
            one = kept(f"accountant-cuda-{short}")[key]
            probe = _plain_steps(one, "1 probe") if "1 probe" in one["times"] else ""
            both = _plain_steps(one, CLIPPED)
            apart = kept(f"accountant-cuda-{short}").get(f"{key}, conservative")
            safe = one if apart is None else apart
            both += f"; {_plain_steps(safe, SAFE)} conservative"
            if apart is not None:
                off = one["claims"]["worst record against float32"][0]
                worst[precision] = max(worst[precision], 100 * off)
            compiled = _plain_steps(one, f"{PLAIN}, compiled")
            rows.append((name, precision, probe, both, compiled))
    head = ("network, H200", "precision", "one probe", "update and probe, clipped")
    yield _table((*head, "compiled plain step"), rows)
    full, steps = (
        [kept(name)[key]["claims"]["PLIS over a plain step"][0] for key in ("124M", "1.3B", "wide")]
        for name in ("plis-cuda", "plis-cuda-tf32")
    )
    yield (
        "Conservative steps bound the clip's derivative from above. For four records of each GPT, "
        "leakage deviated from float32 along the same "
        f"directions by up to {worst['TF32']:.2g} % (TF32) and {worst['bf16']:.2g} % (bf16). PLIS "
        f"(`benchmarks/plis.py`) takes {full[0]:.1f}, {full[1]:.1f} and {full[2]:.1f} plain steps "
        f"of these three networks in float32, and {steps[0]:.1f}, {steps[1]:.1f} and "
        f"{steps[2]:.1f} in TF32.\n"
    )


def _lora() -> Iterator[str]:
    found, steps = kept("lora-cuda"), kept("step_ladders-cuda")["7B"]
    one, safe = found["7B"], found["7B, conservative"]
    yield (
        f"LoRA of rank 16 on Llama's shape ({one['parameters'] / 1e9:.3g} billion parameters in "
        "bf16, adapters in float32), on 4 × 512 tokens, takes these seconds and GiB of eager steps "
        "(`python benchmarks/lora.py --device cuda --only 7B`, and `--only '7B, conservative'`):\n"
    )
    rows = []
    for name, ending in (("", ""), ("checkpointed", ", checkpointed")):
        tasks = (PLAIN, "1 probe", CLIPPED)
        cells = [_bare(_cost(one["times"][task + ending])) for task in tasks]
        rows.append((name, *cells, _bare(_cost(safe["times"][SAFE + ending]))))
    head = ("", "plain step", "one probe", "update and probe, clipped", "conservative")
    yield _table(head, rows)
    first = [one["times"][f"1 probe{ending}"]["gib at first"] for ending in ("", ", checkpointed")]
    apart = max(map(abs, one["records against float32"]))
    most = one["most records on a card of 24 GB"]
    peak = one["peak GiB of update and probe, checkpointed, by records of 512 tokens"][str(most)]
    yield (
        f"The first step needs up to {first[0]:.1f} GiB ({first[1]:.1f} GiB with checkpointing). "
        f"With checkpointing, a 24 GB card holds batches of {most} × 512 tokens ({peak:.1f} GiB, "
        "processed in parts). After correction for rounding and curvature, the leakage of four "
        f"records was within {100 * apart:.1f} % of the float32 result (stated uncertainty "
        f"{100 * one['doubt']:.1f} %), and within {100 * steps['worst record']:.1f} % along three "
        f"other directions (up to {100 * steps['uncertainties'][1]:.1f} %; "
        "`benchmarks/step_ladders.py`).\n"
    )


def opacus_rows(name: str, networks: dict[str, str]) -> dict[str, list[str]]:
    """Return what a plain step and every way of a private one take, by network."""
    found = kept(name)
    digits = 3 if "cuda" in name else 2
    return {
        network: [_cost(found[key]["times"][task], digits) for task in (PLAIN, *WAYS)]
        for key, network in networks.items()
    }


def _against_opacus() -> Iterator[str]:
    yield "## A private step, against Opacus\n"
    yield (
        "The table compares Opacus 1.6 and seepage, both with exact clipping "
        "(`benchmarks/against_opacus.py --device cuda --precision high`), on an H200 in TF32, in "
        "seconds and GiB. Accounted leakage is an upper bound. The GPT's weights are untied, as "
        "Opacus requires:\n"
    )
    rows = [
        (network, *map(_bare, cells), f"{quarter:.2f} of ours")
        for (network, cells), quarter in zip(
            opacus_rows("against_opacus-cuda-tf32", H200).items(),
            _quarters("against_opacus-cuda-tf32"),
            strict=True,
        )
    ]
    yield _table(("network", "plain", *WAYS.values(), "a quarter measured"), rows)
    lora = kept("against_opacus-cuda-tf32")["LoRA"]
    runs = lora["other runs"]
    theirs = [each["Opacus's faster"] for each in runs]
    ratios = [
        each["every record accounted for"] / them for each, them in zip(runs, theirs, strict=True)
    ]
    held = [
        min(times[task]["reserved gib"] for task in tasks)
        for times in (kept("against_opacus-cuda-tf32")[key]["times"] for key in list(H200)[:2])
        for tasks in (["seepage, every record accounted for"], list(WAYS)[:2])
    ]
    yield (
        f"With LoRA, Opacus waits for Python: in {len(runs)} other runs, its step took "
        f"{min(theirs):.3f} to {max(theirs):.3f} s, ours {min(ratios):.2f} to {max(ratios):.2f} of "
        f"that. Recorded passes reserve more: {held[0]:.1f} and {held[2]:.1f} GiB for the "
        f"first two networks (Opacus's leaner method: {held[1]:.1f} and {held[3]:.1f}).\n"
    )
    cores = kept("against_opacus-cpu")
    yield (
        f"With {_threads(cores)} of a CPU, as multiples of Opacus's faster step "
        "(`benchmarks/against_opacus.py`):\n"
    )
    yield _table(
        ("network", "plain", *WAYS.values(), "by steps of the parameters", "a quarter"),
        [(network, *_over_opacus(cores[key]["times"])) for key, network in CORES.items()],
    )
    lora = _over_opacus(cores["LoRA"]["times"])[0]
    yield (
        'The last two columns are `method="parameters"`. With LoRA, a '
        "probe takes as long as a plain step, because neither computes frozen weights' "
        f"gradients; two alone take {2 * float(lora):.2f} of Opacus's step.\n"
    )
    yield (
        "![Time and memory of a private step on an H200, with Opacus and with seepage]"
        "(assets/benchmarks-private-step.svg)\n"
    )


def _quarters(name: str) -> list[float]:
    """Return, by network, our step with a quarter measured over the one without accounting."""
    times = [kept(name)[key]["times"] for key in H200]
    own = "seepage, without accounting"
    return [float(each[QUARTER]["seconds"] / each[own]["seconds"]) for each in times]


def _opacus_seconds(times: dict[str, Any]) -> float:
    """Return the seconds of Opacus's faster method."""
    return min(float(times[task]["seconds"]) for task in list(WAYS)[:2])


def _over_opacus(times: dict[str, Any]) -> list[str]:
    best = _opacus_seconds(times)
    return [f"{times[task]['seconds'] / best:.2f}" for task in (PLAIN, *WAYS, PARAMETERS, QUARTER)]


# What SACRO-ML calls its structural checks, and which of ours answers each
SACRO_CHECKS = {
    "dof_risk": ("residual degrees of freedom", "degrees of freedom"),
    "k_anonymity_risk": ("k-anonymity", "answers shared by few"),
    "class_disclosure_risk": ("class disclosure", "classes ruled out"),
    "smallgroup_risk": ("small groups", "small groups"),
    "unnecessary_risk": ("unnecessary risk", "settings"),
    "gen_error_risk": ("generalisation gap", "generalisation gap"),
}
SACRO_TABLE = "Adult"  # the table whose checks and columns the page lists
SACRO_COLUMNS = "random forest"  # and the model whose columns


def sacro_page() -> str:
    """Return the page that compares audits by attack with SACRO-ML's."""
    return "\n".join(_beside_sacro())


def _beside_sacro() -> Iterator[str]:
    found = {name: one for name, one in kept("beside_sacro").items() if name != "made"}
    yield "# Beside SACRO-ML\n"
    yield ("*Generated by `make benchmarks-page` from `benchmarks/beside_sacro.py`.*\n")
    yield (
        "[SACRO-ML](https://pypi.org/project/sacroml/2.0.1/) 2.0.1 is used by output checkers in "
        "trusted research environments. Both tools audit the same estimators on six columns of "
        "breast cancer (569 records) and UCI Adult (1,000). For membership inference, each tool "
        "trains 18 models on halves of the records; SACRO-ML's attribute inference uses 80 "
        "records.\n"
    )
    rows = [
        (
            f"{table}, {model}",
            f"{one['theirs']['LiRA']:.2f}, {one['theirs']['worst case']:.2f}",
            "{:.2f} ({:.2f} to {:.2f})".format(*one["ours"]["auc"]),
            "{:.0f}, {:.0f}".format(*(100 * error for error in one["ours"]["error"])),
            f"{sum(one['theirs']['seconds'].values()):.0f}",
            f"{sum(one['ours']['seconds'].values()):.0f}",
        )
        for table, models in found.items()
        for model, one in models.items()
    ]
    yield "**Membership inference**: area under the curve (95 % CI), error rate, processor time.\n"
    head = ("table, model", "SACRO-ML: LiRA, worst case", "seepage: best attack")
    yield _table((*head, "error, %: model, constant", "seconds: SACRO-ML", "seepage"), rows)
    yield (
        "**Structural checks**: SACRO-ML answers yes or no; seepage states a number and *found*, "
        "*no* or – (does not apply).\n"
    )
    models = found[SACRO_TABLE]
    lines = [
        (
            name if name == own else f"{name} ({own})",
            *(_sacro_cell(one, check, own) for one in models.values()),
        )
        for check, (name, own) in SACRO_CHECKS.items()
    ]
    lines.append(
        ("stored records", *(_stored_cell(one) for one in models.values())),
    )
    yield _table((SACRO_TABLE, *models), lines)
    yield (
        "Where nearly every record has a unique prediction (logistic regression, network, SVC, "
        "XGBoost), SACRO-ML flags groups of one; seepage states the number without flagging it. "
        "SACRO-ML reports no risk for models whose parameters it cannot count, and tests the "
        "generalisation gap on losses (Kolmogorov–Smirnov); seepage adds an interval over 18 "
        "models.\n"
    )
    yield (
        f"**Attribute inference**, {SACRO_COLUMNS} on {SACRO_TABLE}. For numbers, SACRO-ML reports "
        "the share of training and test records at risk; for categories, the success rate, the "
        "share of records with a guess, and (in brackets) the most frequent value's share. seepage "
        "reports success rates without the model, for non-members and for members, and the "
        "members' excess in percentage points (95 % CI).\n"
    )
    lines = [
        (
            name,
            _risk_cell(one["theirs"]["attributes"][name]),
            "→".join(f"{100 * own[key]:.0f}" for key in ("baseline", "outsiders", "members")),
            "{:+.1f} ({:+.1f} to {:+.1f})".format(
                *(100 * value for value in (own["difference"], *own["difference_interval"]))
            ).replace("-", "−"),
        )
        for one in [models[SACRO_COLUMNS]]
        for name, own in one["ours"]["attributes"].items()
    ]
    rest = found["breast cancer"][SACRO_COLUMNS]["ours"]["attributes"].values()
    clear = sum(own["difference_interval"][0] > 0 for own in rest)
    most = 100 * max(own["difference"] for own in rest)
    head = ("column", "SACRO-ML, %: training, test", "seepage, %: no model→non-members→members")
    yield _table((*head, "excess"), lines)
    yield (
        f"On breast cancer, the excess is significantly above zero for {clear} of {len(rest)} "
        f"columns (largest {most:+.1f} percentage points), although SACRO-ML's training shares "
        "exceed its test shares for some columns. SACRO-ML tests whether the model is most certain "
        "near a record's value; seepage counts correct guesses.\n"
    )
    yield (
        "Only SACRO-ML has wrappers that warn during training (safemodel), PDF reports, attacks on "
        "PyTorch classifiers by the same command, and a quantile-regression attack without shadow "
        "models. Only seepage has intervals for all attacks, a baseline that uses the other "
        "columns, regression, models in pipelines, the error compared with a constant prediction, "
        "and exact limits for linear models.\n"
    )


def _sacro_cell(one: dict[str, Any], check: str, own: str) -> str:
    said = "yes" if one["theirs"]["structure"][check] else "no"
    risk = one["ours"]["structure"][own]
    found = {True: "found", False: "no", None: "–"}[risk["found"]]
    value = risk["value"]
    if value is None:
        return f"{said}; –"
    if own == "generalisation gap":
        return f"{said}; {value:.2f}, {found}"
    return f"{said}; {value:,.0f}, {found}".replace("-", "−")


def _stored_cell(one: dict[str, Any]) -> str:
    stored = one["theirs"]["stored records"] or {}
    risk = one["ours"]["structure"]["records inside the model"]
    return f"{stored.get('n_stored_instances', '–')}; {risk['records']}"


def _risk_cell(parts: list[Any]) -> str:
    if not isinstance(parts[0], list):
        return ", ".join(f"{100 * part:.1f}" for part in parts)
    return ", ".join(
        f"{100 * right:.0f} of {100 * made:.0f} ({100 * base:.0f})"
        if right is not None
        else "no guess"
        for right, made, base in parts
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"|{'|'.join(line)}|" for line in lines) + "\n"


def _threads(made: dict[str, Any]) -> str:
    count = made["machine"]["threads"]
    return "one thread" if count == 1 else f"{count} threads"


def _cost(one: dict[str, float], digits: int = 3) -> str:
    return f"{one['seconds']:.{digits}f} s, {one['gib']:.1f} GiB"


def _bare(cell: str) -> str:
    """Return a cost without its units, which stand above the table."""
    return cell.replace(" s,", ",").replace(" GiB", "")


def _plain_steps(one: dict[str, Any], task: str) -> str:
    return f"{one['times'][task]['seconds'] / one['times'][PLAIN]['seconds']:.2f}"


def _over_vmap(one: dict[str, Any], task: str, unit: str = " `vmap` DP-SGD steps") -> str:
    step = one["times"]["vmap DP-SGD step"]
    taken = one["times"][task]
    return (
        f"{taken['seconds'] / step['seconds']:.2f}{unit}, "
        f"{taken['gib'] / step['gib']:.2f} of their memory"
    )


def draw() -> None:
    """Draw the charts."""
    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.hashsalt": "seepage", "font.size": 9, "svg.fonttype": "none"})
    found = kept("against_opacus-cuda-tf32")
    figure, axes = pyplot.subplots(1, 2, figsize=(8.5, 3), layout="constrained")
    colours = ("#b0bec5", "#78909c", "#00796b", "#4db6ac")
    for axis, unit in zip(axes, ("seconds", "gib"), strict=True):
        for k, (task, name) in enumerate(WAYS.items()):
            heights = []
            for key in H200:
                times = found[key]["times"]
                whole = times[PLAIN]["seconds"] if unit == "seconds" else 1.0
                heights.append(times[task][unit] / whole)
            places = [place + 0.2 * (k - 1.5) for place in range(len(H200))]
            axis.bar(
                places, heights, 0.2, label=name if k < 3 else f"seepage, {name}", color=colours[k]
            )
        axis.set_xticks(range(len(H200)), ["WideResNet-16-4", "GPT-2's shape", "with LoRA"])
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_title("time, in plain training steps")
    axes[1].set_title("memory allocated in a step, GiB")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    _save(figure, "benchmarks-private-step.svg")

    found = kept("glm_rows")
    figure, axis = pyplot.subplots(figsize=(6, 2.4), layout="constrained")
    ours = [found[key][f"{ETA} seconds"] for key in TABLES]
    dense = [taken * found[key]["dense"] for taken, key in zip(ours, TABLES, strict=True)]
    for k, (name, times) in enumerate((("seepage", ours), ("the dense way", dense))):
        places = [place + 0.35 * (k - 0.5) for place in range(len(times))]
        axis.barh(places, times, 0.35, label=name, color=("#00796b", "#b0bec5")[k])
        for place, taken in zip(places, times, strict=True):
            axis.text(
                taken * 1.15,
                place,
                f"{taken:,.2g} s" if taken < 99 else f"{taken:,.0f} s",
                va="center",
                fontsize=8,
            )
    axis.set_yticks(range(len(TABLES)), list(TABLES.values()))
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlim(right=max(dense) * 12)
    axis.set_xlabel("seconds for η of all records")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower right")
    _save(figure, "benchmarks-linear.svg")


def _save(figure: Any, name: str) -> None:
    figure.savefig(CHARTS / name, metadata={"Date": None})
    # Lines without blanks at their ends, as everywhere else.
    lines = (CHARTS / name).read_text("utf-8").splitlines()
    (CHARTS / name).write_text("\n".join(line.rstrip() for line in lines) + "\n", "utf-8")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SACRO_PAGE.write_text(sacro_page(), encoding="utf-8")
    draw()
