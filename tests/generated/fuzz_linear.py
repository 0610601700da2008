"""Draw linear models at random and compare every view and measure of their leakage with the truth.

``python tests/generated/fuzz_linear.py 2000`` tries 2,000 problems, other ones every time unless
the environment variable ``SEED`` says where to start. It prints counts by kind of problem and
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

from checking import Verdict, judge

SHOWN = 40


def main(count: int) -> int:
    """Try so many problems; return 1 where a rule was broken."""
    start = int(os.environ.get("SEED", secrets.randbelow(10**9)))
    print(f"{count:,} problems from seed {start}")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        verdicts = list(pool.map(judge, range(start, start + count), chunksize=8))
    for title, key in (("kind", "kind"), ("family", "family")):
        _table(title, key, verdicts)
    reasons = Counter(reason for verdict in verdicts for reason in verdict.refusals)
    print("\nrefusals by reason")
    for reason, times in reasons.most_common():
        print(f"{times:>8,}  {reason}")
    broken = [(v, sentence) for v in verdicts for sentence in v.broken]
    print(f"\n{len(broken):,} rules broken, by {len({v.seed for v, _ in broken}):,} problems")
    for verdict, sentence in broken[:SHOWN]:
        print(f"  SEED={verdict.seed} {verdict.kind}, {verdict.family}: {sentence}")
    return 1 if broken else 0


def _table(title: str, key: str, verdicts: list[Verdict]) -> None:
    print(
        f"\n{title:<26}{'problems':>9}{'numbers':>10}{'refused':>9}{'error/stated':>14}{'stated':>10}"
    )
    for name in sorted({getattr(v, key) for v in verdicts}):
        mine = [v for v in verdicts if getattr(v, key) == name]
        print(
            f"{name:<26}{len(mine):>9,}{sum(v.answers for v in mine):>10,}"
            f"{sum(bool(v.refusals) for v in mine):>9,}{max(v.worst for v in mine):>14.2g}"
            f"{max(v.least_stated for v in mine):>10.1e}"
        )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
