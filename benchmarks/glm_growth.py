"""How time and memory grow with the rows n (at d = 50) and with the columns d (at n = 20,000).

Claims, measured in this run: the time for η of all rows (everything after the fit) grows with n by
an exponent of at most 1.1, and the memory beyond the table and the results does not grow with n.
"""

from __future__ import annotations

import sys

import numpy as np

import seepage as sp
from measuring import peak_megabytes, seconds, show

ROWS = (31_250, 62_500, 125_000, 250_000, 500_000, 1_000_000)
COLUMNS = (125, 250, 500, 1_000, 2_000)
WIDTHS = (12, 8, 12, 14, 14)


def measure(n: int, d: int) -> tuple[float, float]:
    """Return the seconds for η of all rows, and the megabytes beyond the table and the results."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) / np.sqrt(d)
    y = X @ rng.standard_normal(d) + 0.3 * rng.standard_normal(n)
    # Linear regression needs one pass to fit; its leakage costs what that of any family does.
    model = sp.glm.LinearRegression(l2=1e-4).fit(X, y)

    def work() -> sp.Result:
        return sp.leakage(model, X, y, noise=sp.Gaussian(1.0)).rows()

    return seconds(work, repeats=3), peak_megabytes(work) - n * 8 / 1e6


def exponent(sizes: tuple[int, ...], times: list[float]) -> float:
    """Return the slope of the straight line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def series(sizes: tuple[int, ...], shapes: list[tuple[int, int]]) -> tuple[float, list[float]]:
    """Measure and print one line per shape; return the exponent of time and the memory of each."""
    show("n", "d", "seconds", "ns per cell", "memory (MB)", widths=WIDTHS)
    times, memory = [], []
    for n, d in shapes:
        taken, megabytes = measure(n, d)
        times.append(taken)
        memory.append(megabytes)
        per_cell = 1e9 * taken / (n * d)
        show(f"{n:,}", d, f"{taken:.3f}", f"{per_cell:.1f}", f"{megabytes:.0f}", widths=WIDTHS)
    slope = exponent(sizes, times)
    print(f"time grows with exponent {slope:.2f}\n")
    return slope, memory


def main() -> int:
    """Measure, print, and compare with the claims."""
    measure(10_000, 50)  # the first call includes imports and thread pools
    print("growth with the rows (memory is over the table and the results)")
    in_rows, memory = series(ROWS, [(n, 50) for n in ROWS])
    print("growth with the columns")
    series(COLUMNS, [(20_000, d) for d in COLUMNS])
    # A few vectors (labels, margins, slopes, curvatures) have an entry per row, each as large as
    # the results; nothing else may depend on n.
    vectors = [8 * n * 12 / 1e6 for n in ROWS]
    bounded = all(used <= held + 150 for used, held in zip(memory, vectors, strict=True))
    claims = [
        (f"exponent in n at most 1.1: {in_rows:.2f}", in_rows <= 1.1),
        (f"memory within a dozen vectors of n numbers and 150 MB: {max(memory):.0f} MB", bounded),
    ]
    for claim, met in claims:
        print(f"{'kept' if met else 'MISSED':<7} {claim}")
    return 0 if all(met for _, met in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
