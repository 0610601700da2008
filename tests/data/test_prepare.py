"""The preparations do what the papers say, on small data worked out by hand."""

from __future__ import annotations

import numpy as np
import publisher_files as files
import pytest

import seepage.data as sd
from seepage.data.loaders import ADULT_COLUMNS, ADULT_CONTINUOUS, Adult
from seepage.data.structures import Images, ImageSet, Records
from seepage.errors import InputError


@pytest.fixture
def colours():
    rng = np.random.default_rng(3)

    def images(n):
        pixels = rng.integers(0, 256, size=(n, 2, 3, 3), dtype=np.uint8)
        return Images(pixels, np.arange(n) % 3)

    return ImageSet("small", images(60), images(30), ("a", "b", "c"))


def test_pixels(colours):
    problem = sd.two_class_pixels(colours, classes=(2, 0))
    rows = np.flatnonzero(colours.train.labels != 1)
    assert problem.X.shape == (40, 18)
    assert problem.X_test.shape == (20, 18)
    np.testing.assert_array_equal(problem.y, colours.train.labels[rows] == 0)
    # Height, width, channel: the last pixel's blue is the last feature.
    np.testing.assert_array_equal(problem.X[:, -1], colours.train.pixels[rows, 1, 2, 2] / 255)
    assert problem.names[-1] == "pixel_1_2_2"
    assert problem.attributes == {}


def test_pca_agrees_with_a_singular_value_decomposition(colours):
    raw = sd.two_class_pixels(colours)
    problem = sd.two_class_pca(colours, dimensions=4)
    X = raw.X / np.linalg.norm(raw.X, axis=1).max()
    X_test = raw.X_test / np.linalg.norm(raw.X_test, axis=1).max()
    mean = X.mean(axis=0)
    _, values, basis = np.linalg.svd(X - mean, full_matrices=False)
    for got, rows in ((problem.X, X), (problem.X_test, X_test)):
        np.testing.assert_allclose(np.abs(got), np.abs((rows - mean) @ basis[:4].T), atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(problem.X, axis=0), values[:4], rtol=1e-12)
    np.testing.assert_allclose(problem.X.mean(axis=0), 0, atol=1e-14)
    np.testing.assert_array_equal(problem.y, raw.y)
    assert problem.names == ("pc1", "pc2", "pc3", "pc4")


def test_preparing_leaves_the_images_alone(colours):
    before = colours.train.pixels.copy()
    sd.two_class_pca(colours, dimensions=2)
    np.testing.assert_array_equal(colours.train.pixels, before)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"classes": (0, 7)}, "No image has the class 7"),
        ({"classes": (1, 1)}, "must differ"),
        ({"dimensions": 0}, "between 1 and 18"),
        ({"dimensions": 19}, "between 1 and 18"),
    ],
)
def test_pca_bad_arguments(colours, arguments, complaint):
    with pytest.raises(InputError, match=complaint):
        sd.two_class_pca(colours, **arguments)


def test_iwpc(tmp_path):
    files.write_iwpc(tmp_path)
    patients = sd.load_iwpc(tmp_path)
    problem = sd.iwpc_one_hot(patients)
    assert problem.X.shape == (3_855, 14)
    assert problem.X_test.shape == (964, 14)
    assert problem.names == (
        "age",
        "amiodarone",
        "cyp2c9=12",
        "cyp2c9=13",
        "cyp2c9=22",
        "cyp2c9=23",
        "cyp2c9=33",
        "decr",
        "height",
        "race=black",
        "race=white",
        "vkorc1=CT",
        "vkorc1=TT",
        "weight",
    )
    assert problem.attributes["vkorc1"] == ("vkorc1=CT", "vkorc1=TT")
    assert problem.indices()["vkorc1"] == (11, 12)
    assert problem.indices()["race"] == (9, 10)
    assert list(problem.attributes) == ["cyp2c9", "race", "vkorc1"]
    assert problem.table().column_names == list(problem.names)
    # The sixth kind of patient in the file: age 0.5, genotype 33, asian, TT.
    row = problem.X[np.flatnonzero(np.isclose(problem.y, 0.7143))[0]]
    np.testing.assert_array_equal(row, [0.5, 0, 0, 0, 0, 0, 1, 1, 0.5, 0, 0, 0, 1, -0.25])


def test_the_split_of_iwpc_never_changes():
    n = 4_819
    text = np.asarray(["a", "b"] * n)[:n]
    number = np.arange(n, dtype=float)
    columns = ("race", "age", "height", "weight", "amiodarone", "decr", "cyp2c9", "vkorc1")
    nominal = ("race", "cyp2c9", "vkorc1")
    patients = Records(
        {name: text if name in nominal else number for name in columns} | {"dose": number}
    )
    problem = sd.iwpc_one_hot(patients)
    # Recorded once: results on this split must stay comparable from version to version.
    assert problem.y[:5].tolist() == [855.0, 921.0, 3697.0, 269.0, 2693.0]
    assert sorted(np.concatenate([problem.y, problem.y_test]).tolist()) == number.tolist()


def people(*rows: str) -> Records:
    table = zip(*(row.split(", ") for row in rows), strict=True)
    return Records(
        {
            name: np.asarray(values, dtype=float)
            if name in ADULT_CONTINUOUS
            else np.asarray(values)
            for name, values in zip(ADULT_COLUMNS, table, strict=True)
        }
    )


ROW = files.ADULT_ROW
MARRIED = (
    ROW.replace("Never-married", "Married-spouse-absent")
    .replace("39,", "41,")
    .replace("77516", "77520")
    .replace("State-gov", "Private")
    .replace("13,", "9,")
    .replace("2174, 0, 40", "0, 5, 50")
    .replace("<=", ">")
    .replace("Male", "Female")
)
UNKNOWN = ROW.replace("United-States", "?").replace("39", "90")


def test_adult():
    problem = sd.adult_one_hot(Adult(people(ROW, MARRIED, UNKNOWN), people(MARRIED, UNKNOWN)))
    assert problem.names == (
        "age",
        "workclass=Private",
        "fnlwgt",
        "education-num",
        "marital-status=not-married",
        "sex=Female",
        "capital-gain",
        "capital-loss",
        "hours-per-week",
    )
    assert problem.attributes["marital-status"] == ("marital-status=not-married",)
    assert problem.attributes["education"] == ()
    half = np.sqrt(0.5)  # two values lie half a sample deviation times √2 from their mean
    expected = [
        [-half, 0, -half, half, 1, 0, half, -half, -half],
        [half, 1, half, -half, 0, 1, -half, half, half],
    ]
    np.testing.assert_allclose(problem.X, expected, atol=1e-12)
    np.testing.assert_allclose(problem.X_test, expected[1:], atol=1e-12)
    np.testing.assert_array_equal(problem.y, [0, 1])
    np.testing.assert_array_equal(problem.y_test, [1])


def test_adult_with_a_level_only_the_test_records_have():
    other = MARRIED.replace("White", "Other")
    with pytest.raises(InputError, match="'Other' for race"):
        sd.adult_one_hot(Adult(people(ROW, MARRIED), people(other)))
