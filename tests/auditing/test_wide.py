"""Tables of many one-hot columns: every number as for the same table done column by column."""

import numpy as np
import pyarrow as pa
import pytest

import seepage as sp
from seepage.auditing.measures.measure import measure
from seepage.auditing.measures.subject import Attribute, Subject


@pytest.fixture(scope="module")
def subject():
    """120 records of three categories with twelve levels and two numbers."""
    rng = np.random.default_rng(0)
    codes = [rng.permutation(np.arange(120) % 12) for _ in range(3)]
    blocks = [(c[:, None] == np.arange(1, 12)).astype(float) for c in codes]
    X = np.column_stack([*blocks, rng.standard_normal((120, 2))])
    y = X @ rng.standard_normal(X.shape[1]) + rng.standard_normal(120)
    attributes = [
        Attribute(f"c{k}", "categorical", tuple(range(11 * k, 11 * k + 11)), np.eye(11), 0.9)
        for k in range(3)
    ] + [Attribute(f"x{k}", "numeric", (33 + k,), np.eye(1), 1.0) for k in range(2)]
    model = sp.glm.LinearRegression(l2=1e-3, fit_intercept=True).fit(X, y)
    return Subject(model, X, y, tuple(attributes), "y", "numeric", 1.0, np.arange(120))


def test_attributes_agree_with_the_written_out_jacobian(subject):
    found = measure(subject)
    names = [f"f{j}" for j in range(subject.X.shape[1])]
    table = pa.table(dict(zip(names, subject.X.T, strict=True)))
    groups = {a.name: [names[j] for j in a.columns] for a in subject.attributes}
    leak = sp.leakage(subject.model, table, subject.y, noise=sp.Gaussian(1.0), attributes=groups)
    for entry in found.attributes[:-1]:
        name = entry.attribute.name
        informations = [
            np.asarray(leak.information(i, columns=groups[name])) for i in range(len(subject.y))
        ]
        largest = np.array([np.linalg.eigvalsh(matrix)[-1] for matrix in informations])
        assert entry.smallest == pytest.approx(1 / np.sqrt(largest.max()), rel=1e-9)
        assert entry.eta == pytest.approx(float(leak.subset(columns=groups[name])), rel=1e-9)
