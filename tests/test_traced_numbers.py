"""The figures that pages show are those of the results that are kept."""

from __future__ import annotations

import re
import runpy
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from make_benchmarks_page import CHARTS, ETA, H200, PAGE, kept, opacus_rows, page  # noqa: E402


def text_of(name):
    return " ".join((ROOT / name).read_text("utf-8").split())


def rows_of(name):
    """Return the cells of every line of every table, without marks of emphasis."""
    lines = (ROOT / name).read_text("utf-8").splitlines()
    return [[c.strip(" *") for c in x.split("|")[1:-1]] for x in lines if x.startswith("|")]


def test_the_page_of_benchmarks_is_fresh():
    assert PAGE.read_text("utf-8") == page(), "run: make benchmarks-page"
    for chart in re.findall(r"assets/(benchmarks-[a-z-]+\.svg)", page()):
        assert "<svg" in (CHARTS / chart).read_text("utf-8")


def test_the_readme_has_the_kept_times():
    shown = [row[1:] for row in rows_of("README.md") if "GiB" in row[1]]
    kept_rows = opacus_rows("against_opacus-cuda-tf32", H200)
    assert shown == [cells[1:] for cells in kept_rows.values()]
    products = kept("glm_rows")["d = 784"][ETA]
    assert f"takes {products:.1f} products `X·H⁻¹` (`benchmarks/glm_rows.py`)" in text_of(
        "README.md"
    )


def test_passes_over_a_large_table():
    found = kept("out-of-core")
    shown = (ROOT / "docs/how-to/out-of-core.md").read_text("utf-8")
    passes = [task for task in found if f"{task}, cores" in found]
    assert len(passes) == 9
    for task in passes:
        seconds, ratio, cores = re.search(
            rf"^{re.escape(task)} +([\d.]+) +([\d.]+) +([\d.]+)$", shown, re.MULTILINE
        ).groups()
        assert float(seconds) == round(found[task], 2)
        assert float(ratio) == round(found[task] / found["product"], 1)
        assert float(cores) == round(found[f"{task}, cores"], 2)
    assert f"peak memory, GB: {found['peak']:.3f}" in shown
    assert f"growth in rows: {found['exponent']:.3f}" in shown


def test_flower_clients_over_seeds():
    found = kept("federated_run")
    shown = {row[0]: row[1] for row in rows_of("docs/how-to/federated.md") if len(row) == 2}
    runs = found["seeds"]
    further = f"{found['further_null_properties_found']} of {found['further_null_properties']}"
    for line, count in {
        "the property of five clients (from the first round on)": "property_found",
        "a property drawn without regard to the data, in the same runs": "null_property_found",
        "the one client with the property stands out": "planted_client_stands_out",
        "another client stands out beside it": "runs_in_which_another_stands_out",
        "among ten like clients, one stands out": "runs_of_like_clients_in_which_one_stands_out",
        "among ten like clients, a property that means nothing": (
            "null_property_of_like_clients_found"
        ),
    }.items():
        assert shown[line] == f"{found[count]} of {runs}"
    assert shown["twenty more of these in each of the runs"] == further


def test_images_rebuilt_from_updates():
    found = [x for x in kept("fedavg_inversion-cpu")["rows"] if x["images per client"] == 1]
    shown = {tuple(row[:2]): row[2:] for row in rows_of("docs/how-to/gradient-inversion.md")}
    assert len(found) == 12
    for one in found:
        ssim = one["ssim"]
        cell = f"{statistics.median(ssim):.3f} ({min(ssim):.3f} to {max(ssim):.3f})"
        place = ("divided", "modelled").index(one["way"])
        assert shown[str(one["local steps"]), one["cost"]][place] == cell


def test_how_far_the_conservative_clip_is_from_the_exact_one():
    shown = {row[0]: row[1] for row in rows_of("docs/how-to/neural-networks.md") if len(row) == 2}
    found = kept("accountant-cpu")["mnist"]["conservative over exact"]
    assert shown["MNIST network of paper 004 at its start"] == f"{found['at the start']:.3f}"
    assert shown["the same, fitted to 200 images of MNIST"] == f"{found['when trained']:.2f}"
    wide = kept("accountant-cuda")["wide"]["conservative over exact"]
    assert shown["WideResNet-16-4 at its start"] == f"{wide:.3f}"


def test_a_network_of_a_billion_parameters():
    shown = (ROOT / "docs/scaling.md").read_text("utf-8")
    for key in ("124M", "1.3B"):
        one = kept("accountant-cuda")[key]
        step, plain = (
            one["times"][task]
            for task in ("update + 1 probe, exact clipping", "plain training step")
        )
        cells = re.search(rf"a step +{one['parameters']:,} +([\d.]+) +([\d.]+) +([\d.]+)", shown)
        assert [float(cell) for cell in cells.groups()] == [
            round(step["seconds"], 3),
            round(step["gib"], 1),
            round(step["seconds"] / plain["seconds"], 2),
        ]


def test_what_remedies_leave(monkeypatch, capsys):
    program = ROOT / "benchmarks" / "layer_remedies.py"
    monkeypatch.syspath_prepend(program.parent)
    monkeypatch.setattr(sys, "argv", [str(program), "--kept"])
    assert runpy.run_path(str(program))["main"]() == 0
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    rows = [row for row in rows_of("docs/how-to/updates.md") if row[-1].isdigit()]
    assert len(rows) == 8
    for row in rows:
        assert " ".join(row) in printed


def test_what_the_folder_of_a_release_tells_of_a_dose():
    found, shown = kept("release_attack"), rows_of("docs/how-to/release.md")
    lines = {row[0]: row[1:] for row in shown if len(row) == 5 and row[0] != "figures"}
    for line, way in {
        "as by default": "default",
        "all declared": "declared",
        "σ the least of the grid, as it was before": "the least of the grid",
    }.items():
        worst = found["worst"][way]
        assert lines[line] == [
            f"{worst['draws']:,}",
            f"{worst['least ratio']:.3f}",
            f"{worst['below 0.9']:,}",
            f"{worst['promised interval kept']:,}",
        ]
    drawn, least = (
        found["each"][way]["η = 1, all alike"]["median σ"]
        for way in ("default", "the least of the grid")
    )
    assert f"{least:g}, while {drawn:g} is drawn mostly" in text_of("docs/how-to/release.md")
    each = found["each"]["default"].items()
    others = min(v["ratio"] for key, v in each if not key.endswith("but one in ten"))
    assert f"none is below {others:.3f}." in text_of("docs/how-to/release.md")
    often = found["worst"]["default"]["σ ten times the median or more"] / 12_000
    assert f"{100 * often:.0f} % of the draws give ten times" in text_of("docs/how-to/release.md")
    sixth = found["worst"]["the least of the grid"]["least median ratio"]
    assert round(1 / sixth) == 6
    assert "can shrink to [a sixth]" in text_of("docs/sharp-edges.md")


def test_what_would_change_with_the_most_exposed_records():
    found, shown = kept("release_folder"), text_of("docs/how-to/release.md")
    demo, iwpc = found["demo"], found["iwpc"]
    disclosed = [f"{x['records with a disclosed change']}" for x in (demo, iwpc)]
    assert f"of the 50, {' and '.join(disclosed)} are listed" in shown
    least = "least sigma of the grid that meets the target"
    assert all(x["sigma"] == x[least] for x in (demo, iwpc))
    assert f"was drawn ({demo['sigma']:g} and {iwpc['sigma']:g})" in shown
