"""Seven hundred files that are damaged, odd or malicious: a sentence or an audit, nothing else.

`make test` tries a few of every kind, `make test-slow` all of them.
"""

from __future__ import annotations

import io
import json
import signal
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from sampled import sampled
from seepage.cli import app

ROWS = 30
NAMES = [
    "=cmd()|x",
    "\x1b[2J",
    "<script>",
    "a,b",
    '"',
    "",
    " ",
    "\u202eexe",
    "y",
    "\x00",
    "NaN",
    "1",
    "x" * 3000,
    "../..",
    "{{7*7}}",
    "\ud7ff",
    "row\x00",
    "a\nb",
    "www.evil.example",
    "é" * 40,
]
CELLS = [
    "",
    "NA",
    "nan",
    "inf",
    "-inf",
    "1e309",
    "1e-400",
    "-0",
    "0x10",
    "1,5",
    "1_000",
    "true",
    "٣",
    "\x00",
    "\x1b[31m",
    "'",
    '"',
    '""',
    "a\nb",
    "a\r\nb",
    "=1+1",
    "9" * 400,
    "1e308",
    "-1e308",
    "2020-01-01",
    "null",
    "None",
    "<b>",
    "\\N",
    "\ufeff1",
    " 1 ",
    "1e5",
    "NaN",
    "é",
    "\U0001f525",
]


def table(draw):
    """Return a table with a good target and a few columns, some of odd values."""
    columns = {"x": draw.normal(size=ROWS), "y": draw.integers(0, 2, ROWS)}
    for _ in range(draw.integers(1, 4)):
        name = NAMES[draw.integers(len(NAMES))]
        kind = draw.integers(5)
        if kind == 0:
            values = [CELLS[k] for k in draw.integers(0, len(CELLS), ROWS)]
        elif kind == 1:
            values = draw.normal(size=ROWS) * 10.0 ** draw.integers(-320, 309)
        elif kind == 2:
            odd = np.array([np.nan, np.inf, -np.inf, 5e-324, 1.7e308, 0.0, 1.0])
            values = odd[draw.integers(0, draw.integers(1, 8), ROWS)]
        elif kind == 3:
            values = draw.integers(-(2**63), 2**63 - 1, ROWS)
        else:
            values = [CELLS[draw.integers(len(CELLS))]] * (ROWS - 1) + ["1"]
        columns[name] = values
    return columns


def damaged(content, draw):
    """Return a file with bytes changed, cut off, repeated or put in."""
    content = bytearray(content)
    way = draw.integers(4)
    at = int(draw.integers(len(content)))
    if way == 0:
        for _ in range(draw.integers(1, 9)):
            content[draw.integers(len(content))] = draw.integers(256)
    elif way == 1:
        del content[at:]
    elif way == 2:
        content[at:at] = content[at // 2 : at]
    else:
        content[at:at] = bytes(draw.integers(0, 256, draw.integers(1, 40), dtype=np.uint8))
    return bytes(content)


def as_csv(draw):
    columns = table(draw)
    end = ["\n", "\r\n", "\r"][draw.integers(3)]
    lines = [",".join(str(name) for name in columns)]
    for row in zip(*columns.values(), strict=True):
        lines.append(",".join(str(cell) for cell in row[: len(row) - int(draw.random() < 0.02)]))
    return end.join(lines).encode("utf-8", "surrogatepass")


def as_parquet(draw):
    file = io.BytesIO()
    pq.write_table(pa.table({k: pa.array(v) for k, v in table(draw).items()}), file)
    return file.getvalue()


def as_feather(draw):
    file = io.BytesIO()
    found = pa.table({k: pa.array(v) for k, v in table(draw).items()})
    feather.write_feather(found, file, compression="uncompressed")
    return file.getvalue()


def as_json(draw):
    columns = {k: np.asarray(v, dtype=object).tolist() for k, v in table(draw).items()}
    lines = [
        json.dumps(dict(zip(columns, row, strict=True)), default=str)
        for row in zip(*columns.values(), strict=True)
    ]
    return "\n".join(lines).encode()


def as_model(draw):
    told = {
        "family": ["logistic", "linear", "softmax", "", 5, None][draw.integers(6)],
        "coefficients": [[0.5], [1e308, 0], [], "a", [[1]], None, [float("inf")]][draw.integers(7)],
        "intercept": [0.1, None, "a", [1, 2], 1e400][draw.integers(5)],
        "l2": [0.001, -1, "x", None, 1e300, 0][draw.integers(6)],
        "classes": [["0", "1"], [0, 1], [], "ab", None, [1]][draw.integers(6)],
    }
    return json.dumps(told).encode()


@contextmanager
def no_longer_than(seconds):
    def over(*arguments):
        raise AssertionError(f"a file took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(arguments, content):
    """Run a command, which must end with an answer or one clean sentence."""
    with no_longer_than(30):
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (0, 2), (arguments, content[:400], result.output, result.exception)
    assert "Traceback" not in result.output
    assert "\x1b" not in result.output
    if result.exit_code == 2:
        assert result.stdout == ""
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
    return result.exit_code


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("files", sampled([4, 20, 50], [4], [20]))
@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize(
    ("make", "ending"),
    [
        (as_csv, ".csv"),
        (as_csv, ".tsv"),
        (as_parquet, ".parquet"),
        (as_feather, ".feather"),
        (as_json, ".jsonl"),
        (as_model, ".json"),
        (as_parquet, "-folder/part.parquet"),
    ],
)
def test_every_file_is_answered_or_refused_in_a_sentence(tmp_path, make, ending, spoilt, files):
    good = tmp_path / "good.csv"
    draw = np.random.default_rng([len(ending), ord(ending[1]), spoilt])
    rows = zip(draw.normal(size=ROWS), draw.integers(0, 2, ROWS), strict=True)
    good.write_text("x,y\n" + "".join(f"{x},{y}\n" for x, y in rows))
    statuses = []
    for k in range(files):
        content = damaged(make(draw), draw) if spoilt else make(draw)
        path = tmp_path / f"hostile{ending}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        if ending == ".json":
            asked = [str(good), "--model-file", str(path)]
        else:
            whole = path.parent if "/" in ending else path
            asked = [str(whole), "--missing", ["refuse", "drop", "impute"][k % 3]]
        statuses.append(check(["calibrate", *asked, "--target", "y", "--json"], content))
        if k % 10 == 0:  # an audit writes a whole report or nothing
            out = tmp_path / f"out-{k}"
            status = check(["audit", *asked, "--target", "y", "--out", str(out)], content)
            assert (out / "manifest.json").is_file() == (status == 0)
            assert out.exists() == (status == 0)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    assert files < 50 or statuses.count(2) > 5  # some of them are bad indeed
