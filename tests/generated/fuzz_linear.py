"""Draw linear models at random and compare what is said of their leakage with the truth.

``python tests/generated/fuzz_linear.py 2000`` tries 2,000 problems on every view and measure, and
2,000 on membership and guesses, other ones every time unless the environment variable ``SEED`` says
where to start: a long run is the sum of short ones. It prints counts by kind of problem and
refusals by reason, and fails where an answer is off by more than ten times its stated accuracy, a
well-conditioned problem is answered poorly or refused, or anything but the package's own errors is
raised. A problem that breaks a rule is shown by ``… fuzz_linear.py 1`` with its ``SEED``.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import checking
import risk_checking
from checking import Verdict

SHOWN = 40


def main(count: int) -> int:
    """Try so many problems of both sorts; return 1 where a rule was broken."""
    start = int(os.environ.get("SEED", secrets.randbelow(10**9)))
    seeds = range(start, start + count)
    print(f"{count:,} problems of both sorts from seed {start}")
    broken = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for title, judge in (
            ("VIEWS AND MEASURES", checking.judge),
            ("RISKS", risk_checking.judge),
        ):
            print(f"\n{title}")
            broken += _shown(list(pool.map(judge, seeds, chunksize=8)))
    return 1 if broken else 0


def _shown(verdicts: list[Verdict]) -> int:
    """Print what the problems showed; return how many rules were broken."""
    for key in ("kind", "family"):
        _table(key, verdicts)
    answers, once = (sum(getattr(v, key) for v in verdicts) for key in ("answers", "once"))
    print(f"\nbeyond what is stated: {once:,} of {answers:,} numbers, {once / max(answers, 1):.2%}")
    print(f"questions that 60 digits do not decide: {sum(v.undecided for v in verdicts):,}")
    reasons = Counter(reason for verdict in verdicts for reason in verdict.refusals)
    print("refusals by reason")
    for reason, times in reasons.most_common():
        print(f"{times:>8,}  {reason}")
    broken = [(v, sentence) for v in verdicts for sentence in v.broken]
    print(f"{len(broken):,} rules broken, by {len({v.seed for v, _ in broken}):,} problems")
    for verdict, sentence in broken[:SHOWN]:
        print(f"  SEED={verdict.seed} {verdict.kind}, {verdict.family}: {sentence}")
    return len(broken)


def _table(key: str, verdicts: list[Verdict]) -> None:
    columns = ("problems", "numbers", "refused", "> stated", "> 10 ×", "error/stated", "stated")
    print(f"\n{key:<26}" + "".join(f"{column:>13}" for column in columns))
    for name in sorted({getattr(v, key) for v in verdicts}):
        mine = [v for v in verdicts if getattr(v, key) == name]
        counts = (
            len(mine),
            sum(v.answers for v in mine),
            sum(bool(v.refusals) for v in mine),
            sum(v.once for v in mine),
            sum(v.ten for v in mine),
        )
        worst, stated = max(v.worst for v in mine), max(v.least_stated for v in mine)
        figures = "".join(f"{count:>13,}" for count in counts)
        print(f"{name:<26}{figures}{worst:>13.2g}{stated:>13.1e}")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
