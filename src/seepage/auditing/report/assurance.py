"""The table of bounds on the most exposed record, as the page shows it."""

from __future__ import annotations

import math
from typing import Any

from seepage.auditing.report.wording import number
from seepage.bounds.guarantees import Guarantee, Guarantees


def list_guarantees(found: Guarantees | None) -> dict[str, Any] | None:
    """Return the bounds by adversary, with their assumptions numbered; nothing for none."""
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
