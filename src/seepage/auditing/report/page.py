"""How a page is made: report.html, one self-contained file that runs only its own script.

Templates are escaped throughout, share one style, and fail on an undefined name.
"""

from __future__ import annotations

import base64
import hashlib
import math
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from seepage.auditing.findings import (
    NUMBERS,
    SCHEMA,
    AttributeFinding,
    Audit,
    GroupFinding,
    GroupingFinding,
    SomeRecords,
)
from seepage.auditing.report.figures import Drawing, find_drawing
from seepage.auditing.report.words import (
    count,
    count_over,
    error_at,
    find_limit,
    in_100,
    judge,
    most_exposed,
    number,
    plain,
    protection,
    relative_error,
    row_name,
    say_error,
    sentence,
    short,
    tell_noise,
    tell_steps,
)
from seepage.bounds.guarantees import Guarantee, Guarantees
from seepage.tables.names import counted

EMBEDDED_ROWS = 100_000  # above this the page holds only the most exposed records
EMBEDDED_CELLS = 6  # sensitive attributes shown per record in the page
SHOWN_RECORDS = 8
SHOWN_VALUES = 30  # columns of values beside a record
LISTED_ATTRIBUTES = 200
LISTED_GROUPS = 40


def render_page(audit: Audit, figures: tuple[Drawing, ...]) -> str:
    """Return the page of an audit."""
    ranked = most_exposed(audit.attributes)
    script = read_template("records.js")
    return render_template(
        "report.html.j2",
        audit=audit,
        verdict=judge(audit),
        sigma_reason=tell_noise(audit),
        steps=tell_steps(audit),
        limit=find_limit(audit),
        over=count_over(audit),
        facts=_pick_facts(audit),
        most=_list_records(audit, audit.records.most(SHOWN_RECORDS)),
        least=_list_records(audit, audit.records.least(SHOWN_RECORDS)),
        shown_values=_choose_values(audit),
        attributes=ranked[:LISTED_ATTRIBUTES],
        guarantees=_list_guarantees(audit.guarantees),
        groupings=[
            (grouping, _choose_groups(grouping), find_drawing(figures, f"groups-{place}"))
            for place, grouping in enumerate(audit.groupings, 1)
        ],
        histogram=find_drawing(figures, "leakage"),
        exposed=find_drawing(figures, "attributes"),
        curve=find_drawing(figures, "curve"),
        records=pack(audit),
        embedded_cells=EMBEDDED_CELLS,
        schema=SCHEMA,
        script=trusted(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _pick_facts(audit: Audit) -> list[dict[str, str]]:
    """Return the numbers printed large: what they are, the number, and what it means."""
    row, worst = audit.records.worst()
    facts = [
        *_risk_facts(audit),
        {
            "name": "Most exposed record",
            "value": f"η = {number(worst)}",
            "note": f"row {row_name(audit, row)}; the median record has "
            f"{number(audit.records.median())}",
        },
    ]
    facts += [_attribute_fact(audit, a) for a in _pick_attribute(audit)]
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
            f"{short(audit.curve.error_name, 40)}; "
            f"{say_error(audit, audit.curve.trivial_error)} for a constant prediction, "
            f"{say_error(audit, audit.curve.noiseless_error)} without noise"
        )
        value = say_error(audit, error)
        facts.append({"name": "Error on held-out records", "value": value, "note": note})
    return facts


def _risk_facts(audit: Audit) -> list[dict[str, str]]:
    """Return the probabilities printed large."""
    risks = audit.risks
    if risks is None:
        return []
    facts = [
        {
            "name": "Recognised as in the data",
            "value": f"{in_100(risks.recognised)} in 100",
            "note": f"at most (row {row_name(audit, risks.recognised_row)}); half of the records "
            f"{in_100(risks.median)} or less; a coin toss: 50",
        }
    ]
    known = [g for g in risks.guesses if g.prior == "frequencies"]
    if known:
        most = max(known, key=lambda guess: guess.gain)
        facts.append(
            {
                "name": f"{short(most.name, 24)} guessed right",
                "value": f"{in_100(most.right)} in 100",
                "note": f"at most (row {row_name(audit, most.row)}), by an attacker who knows "
                f"everything else; {in_100(most.baseline)} without the release",
            }
        )
    return facts


def _pick_attribute(audit: Audit) -> tuple[AttributeFinding, ...]:
    sensitive = tuple(a for a in audit.attributes if a.sensitive)
    return most_exposed(sensitive or audit.attributes)[:1]


def _attribute_fact(audit: Audit, attribute: AttributeFinding) -> dict[str, str]:
    error = relative_error(attribute, attribute.smallest_error)
    against = f"{number(error)} × its spread of ±{number(attribute.spread)}"
    if attribute.kind != "numeric":
        against = "1 is a whole level"
    return {
        "name": f"Easiest {'sensitive ' if attribute.sensitive else ''}column",
        "value": f"±{number(attribute.smallest_error)}",
        "note": f"{short(attribute.name, 30)}, row {row_name(audit, attribute.easiest_row)}: no "
        f"unbiased attack errs less; {against}",
    }


def _list_records(audit: Audit, some: SomeRecords) -> list[dict[str, Any]]:
    longest = audit.records.largest("eta") or 1.0
    eta = some.numbers["eta"]
    return [
        {
            "place": int(some.place[k]),
            "row": row_name(audit, int(some.row[k])),
            "eta": float(eta[k]),
            "share": float(np.clip(eta[k] / longest, 0, 1)),
            "label": float(some.numbers["eta_label"][k]),
            "columns": float(some.numbers["eta_features"][k]),
        }
        for k in range(len(some))
    ]


def _choose_values(audit: Audit) -> list[str]:
    """Return the columns whose values are shown, the sensitive ones first."""
    if audit.values is None:
        return []
    sensitive = {a.name for a in audit.attributes if a.sensitive}
    return sorted(audit.values, key=lambda name: name not in sensitive)[:SHOWN_VALUES]


def _choose_groups(grouping: GroupingFinding) -> list[GroupFinding]:
    ranked = sorted(grouping.groups, key=lambda group: -group.mean_eta)
    half = LISTED_GROUPS // 2
    return ranked if len(ranked) <= LISTED_GROUPS else ranked[:half] + ranked[-half:]


def _list_guarantees(found: Guarantees | None) -> dict[str, Any] | None:
    """Return the bounds by adversary, with numbered assumptions; nothing if there are none."""
    if found is None or not any(line.applies for line in found.rows):
        return None
    texts = list(dict.fromkeys(text for line in found.rows for text in line.assumptions))
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in found.rows:
        note = " ".join(f"[{texts.index(text) + 1}]" for text in line.assumptions)
        groups.setdefault(line.adversary, []).append(
            {
                "name": line.name,
                "said": _say(line),
                "note": note if line.applies else f"does not apply: {line.reason}",
                "tightest": _is_tightest(line, found),
            }
        )
    return {
        "row": found.label,
        "guessing": f"±{number(math.sqrt(found.guessing))}",
        "groups": list(groups.items()),
        "assumptions": texts,
        "indications": any(line.applies and not line.guarantee for line in found.rows),
    }


def _say(line: Guarantee) -> str:
    if line.value is None:
        return "–"
    said = f"±{number(math.sqrt(line.value))}" if line.unit == "mse" else number(line.value)
    return said if line.guarantee else f"{said} *"


def _is_tightest(line: Guarantee, found: Guarantees) -> bool:
    rivals = [r for r in found.rows if r.adversary == line.adversary and r.applies]
    return len(rivals) > 1 and line.unit == "mse" and line is found.tightest(line.adversary)


@dataclass(frozen=True)
class PageColumn:
    """One column of the page's table: its heading, the full heading, and which order is natural."""

    label: str
    title: str
    descending: bool
    values: np.ndarray


def build_columns(records: SomeRecords) -> tuple[PageColumn, ...]:
    """Return what the page shows of every record."""
    eta, features, label, exact = (records.numbers[name] for name in NUMBERS)
    columns = [
        PageColumn("row", "number of the record in the table, 0 for the first", False, records.row),
        PageColumn("leakage η", "about the whole record with its label", True, eta),
        PageColumn("η of columns", "about the record without its label", True, features),
        PageColumn("η of label", "about the label alone", True, label),
        PageColumn(
            "error on all columns",
            "least error of an attack on all its columns at once, in standard deviations",
            False,
            exact,
        ),
    ]
    for name, errors in list(records.errors.items())[:EMBEDDED_CELLS]:
        title = f"least error of an attack on {plain(name)}, in its own units"
        columns.append(PageColumn(f"± on {short(name, 24)}", title, False, errors))
    return tuple(columns)


def pack(audit: Audit) -> dict[str, Any]:
    """Return the records as JSON values: little-endian numbers in base64, one text per column."""
    kept = audit.records.most(EMBEDDED_ROWS)
    columns = build_columns(audit.records.at(np.sort(kept.place)))
    return {
        "count": len(kept),
        "limit": find_limit(audit).eta,
        "columns": [
            {"label": c.label, "title": c.title, "descending": c.descending} for c in columns
        ],
        "rows": _encode(columns[0].values, "<f8"),
        "numbers": [_encode(column.values, "<f4") for column in columns[1:]],
    }


def _encode(values: np.ndarray, kind: str) -> str:
    with np.errstate(over="ignore"):  # beyond single precision counts as infinite
        return base64.b64encode(np.asarray(values).astype(kind).tobytes()).decode("ascii")


def render_template(name: str, **values: Any) -> str:
    """Return a page from the template of this name."""
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(read_template),
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
        "trusted": trusted,
    }
    environment.globals |= {"counted": counted, "style": trusted(read_template("style.css"))}
    return environment.get_template(name).render(**values)


def trusted(text: str) -> Markup:
    """Mark our own style and script and matplotlib's SVG, which escapes its text itself."""
    return Markup(text)  # noqa: S704


def read_template(name: str) -> str:
    """Return the text of a file among the templates."""
    return (files("seepage.auditing.report") / "templates" / name).read_text("utf-8")
