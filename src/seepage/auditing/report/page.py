"""Renders report.html: one file that needs nothing else and runs only the script it came with."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from seepage.auditing.measures.findings import (
    AttributeFinding,
    Findings,
    GroupFinding,
    GroupingFinding,
)
from seepage.auditing.measures.records import SomeRecords
from seepage.auditing.report.assurance import list_guarantees
from seepage.auditing.report.canvas import Drawing
from seepage.auditing.report.exposure import (
    count_over,
    error_at,
    find_limit,
    most_exposed,
    protection,
    relative_error,
)
from seepage.auditing.report.figures import (
    SHOWN_GROUPINGS,
    draw_attributes,
    draw_curve,
    draw_grouping,
    draw_histogram,
)
from seepage.auditing.report.records import EMBEDDED_CELLS, pack
from seepage.auditing.report.summary import SCHEMA
from seepage.auditing.report.verdict import judge
from seepage.auditing.report.wording import count, counted, number, plain, sentence, short

SHOWN_RECORDS = 8
SHOWN_VALUES = 30  # columns of values beside a record
LISTED_ATTRIBUTES = 200
LISTED_GROUPS = 40


def draw_figures(audit: Findings) -> tuple[Drawing, ...]:
    """Return the figures of an audit, those of the groupings numbered from 1."""
    drawn = [draw_histogram(audit), draw_attributes(audit)]
    drawn += [draw_grouping(g, i) for i, g in enumerate(audit.groupings[:SHOWN_GROUPINGS], 1)]
    drawn.append(draw_curve(audit))
    return tuple(figure for figure in drawn if figure is not None)


def render_page(audit: Findings, figures: tuple[Drawing, ...]) -> str:
    """Return the page of an audit."""
    ranked = most_exposed(audit.attributes)
    script = _read("records.js")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            audit=audit,
            verdict=judge(audit),
            limit=find_limit(audit),
            over=count_over(audit),
            facts=_pick_facts(audit),
            most=_list_records(audit, audit.records.most(SHOWN_RECORDS)),
            least=_list_records(audit, audit.records.least(SHOWN_RECORDS)),
            shown_values=_choose_values(audit),
            attributes=ranked[:LISTED_ATTRIBUTES],
            guarantees=list_guarantees(audit.guarantees),
            groupings=[
                (grouping, _choose_groups(grouping), _find(figures, f"groups-{place}"))
                for place, grouping in enumerate(audit.groupings, 1)
            ],
            histogram=_find(figures, "leakage"),
            exposed=_find(figures, "attributes"),
            curve=_find(figures, "curve"),
            records=pack(audit),
            embedded_cells=EMBEDDED_CELLS,
            schema=SCHEMA,
            style=_trusted(_read("style.css")),
            script=_trusted(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("seepage.auditing.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "count": count,
        "plain": plain,
        "short": short,
        "sentence": sentence,
        "protection": protection,
        "trusted": _trusted,
    }
    environment.globals |= {"counted": counted}
    return environment


def _trusted(text: str) -> Markup:
    """Mark our own style and script and matplotlib's SVG, which escapes its text itself."""
    return Markup(text)  # noqa: S704


def _read(name: str) -> str:
    return (files("seepage.auditing.report") / "templates" / name).read_text("utf-8")


def _find(figures: tuple[Drawing, ...], name: str) -> Drawing | None:
    return next((figure for figure in figures if figure.name == name), None)


def _pick_facts(audit: Findings) -> list[dict[str, str]]:
    """Return the numbers worth a large print: what they are, the number, and what it means."""
    row, worst = audit.records.worst()
    facts = [
        {
            "name": "Most exposed record",
            "value": f"η = {number(worst)}",
            "note": f"row {row}; the median record has {number(audit.records.median())}",
        }
    ]
    facts += [_attribute_fact(a) for a in _pick_attribute(audit)]
    if audit.groupings:
        grouping = max(audit.groupings, key=lambda g: g.ratio)
        facts.append(
            {
                "name": f"Groups by {short(grouping.column, 24)}",
                "value": f"{number(grouping.ratio)} ×",
                "note": f"mean leakage of {short(grouping.least_protected, 24)} over that of "
                f"{short(grouping.most_protected, 24)}",
            }
        )
    error = error_at(audit, audit.sigma)
    if error is not None:
        note = (
            f"{short(audit.curve.error_name, 40)}; {number(audit.curve.noiseless_error)} without "
            f"noise, {number(audit.curve.trivial_error)} for always the same answer"
        )
        facts.append({"name": "Error on held-out records", "value": number(error), "note": note})
    return facts


def _pick_attribute(audit: Findings) -> tuple[AttributeFinding, ...]:
    sensitive = tuple(a for a in audit.attributes if a.sensitive)
    return most_exposed(sensitive or audit.attributes)[:1]


def _attribute_fact(attribute: AttributeFinding) -> dict[str, str]:
    error = relative_error(attribute, attribute.smallest_error)
    against = f"{number(error)} × its spread of ±{number(attribute.spread)}"
    if attribute.kind != "numeric":
        against = "1 is a whole level"
    return {
        "name": f"Easiest {'sensitive ' if attribute.sensitive else ''}column",
        "value": f"±{number(attribute.smallest_error)}",
        "note": f"{short(attribute.name, 30)}, row {attribute.easiest_row}: no unbiased attack "
        f"errs less; {against}",
    }


def _list_records(audit: Findings, some: SomeRecords) -> list[dict[str, Any]]:
    longest = audit.records.largest("eta") or 1.0
    eta = some.numbers["eta"]
    return [
        {
            "place": int(some.place[k]),
            "row": int(some.row[k]),
            "eta": float(eta[k]),
            "share": float(np.clip(eta[k] / longest, 0, 1)),
            "label": float(some.numbers["eta_label"][k]),
            "columns": float(some.numbers["eta_features"][k]),
        }
        for k in range(len(some))
    ]


def _choose_values(audit: Findings) -> list[str]:
    """Return the columns whose values are shown, the sensitive ones first."""
    if audit.values is None:
        return []
    sensitive = {a.name for a in audit.attributes if a.sensitive}
    return sorted(audit.values, key=lambda name: name not in sensitive)[:SHOWN_VALUES]


def _choose_groups(grouping: GroupingFinding) -> list[GroupFinding]:
    ranked = sorted(grouping.groups, key=lambda group: -group.mean_eta)
    half = LISTED_GROUPS // 2
    return ranked if len(ranked) <= LISTED_GROUPS else ranked[:half] + ranked[-half:]
