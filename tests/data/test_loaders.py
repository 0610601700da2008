"""The loaders read files in the publishers' formats, and name a broken file as such."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import publisher_files as files
import pytest

import seepage.data as sd
from seepage.data.readers import read_idx
from seepage.errors import InputError


def test_idx_returns_the_bytes_in_their_shape(tmp_path):
    array = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / "images.gz"
    path.write_bytes(files.idx_bytes(array))
    np.testing.assert_array_equal(read_idx(path, (2, 3, 4), "mnist"), array)


WHOLE = struct.pack(">2I", 0x0801, 4) + bytes([1, 2, 3, 4])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "too short"),
        (b"not gzip at all", "not a gzip file"),
        (gzip.compress(WHOLE, mtime=0)[:-9], "truncated"),
        (gzip.compress(WHOLE, mtime=0)[:-1] + b"\xff", "truncated or is not a gzip file"),
        (gzip.compress(b"\0\0\x08", mtime=0), "too short"),
        (gzip.compress(b"\0\0\x0d\x01" + WHOLE[4:], mtime=0), "magic number 0x00000d01"),
        (
            gzip.compress(struct.pack(">2I", 0x0801, 5) + bytes(5), mtime=0),
            "array of 5 instead of 4",
        ),
        (gzip.compress(WHOLE[:-1], mtime=0), "fewer than the 4 bytes"),
        (gzip.compress(WHOLE + b"\0", mtime=0), "more than the 4 bytes"),
    ],
    # Names that do not hold the content: gzip writes the time of day into it.
    ids=["empty", "no gzip", "cut", "damaged", "stub", "magic", "count", "fewer", "more"],
)
def test_idx_names_what_is_wrong(tmp_path, content, complaint):
    path = tmp_path / "labels.gz"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_idx(path, (4,), "mnist")
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)
    assert "delete it and run `seepage data fetch mnist`" in str(caught.value)


def test_mnist(tmp_path):
    home = files.write_mnist(tmp_path)
    mnist = sd.load_mnist(tmp_path)
    assert mnist.train.pixels.shape == (60_000, 28, 28)
    assert mnist.test.pixels.shape == (10_000, 28, 28)
    assert mnist.train.pixels.dtype == np.uint8
    np.testing.assert_array_equal(mnist.train.pixels[:300, 3, 5], np.arange(300) % 251)
    np.testing.assert_array_equal(mnist.test.labels, np.arange(10_000) % 10)

    wrong = home / "t10k-labels-idx1-ubyte.gz"
    wrong.write_bytes(files.idx_bytes(np.full(10_000, 11)))
    with pytest.raises(InputError, match=r"t10k-labels.*label 11"):
        sd.load_mnist(tmp_path)


@pytest.mark.slow
def test_cifar10_comes_in_height_width_channel_order(tmp_path):
    batches = files.write_cifar10(tmp_path)
    cifar = sd.load_cifar10(tmp_path)
    assert cifar.train.pixels.shape == (50_000, 32, 32, 3)
    assert cifar.test.pixels.shape == (10_000, 32, 32, 3)
    record = np.fromfile(batches / "data_batch_3.bin", dtype=np.uint8).reshape(-1, 3073)[17]
    image = cifar.train.pixels[20_017]
    for row, column, channel in ((0, 0, 0), (4, 9, 1), (31, 30, 2)):
        assert image[row, column, channel] == record[1 + channel * 1024 + row * 32 + column]
    assert cifar.train.labels[20_017] == record[0]
    assert cifar.classes[:2] == ("airplane", "automobile")


@pytest.mark.parametrize("size", [0, 30_729_999, 30_730_001])
def test_cifar10_batch_of_the_wrong_size(tmp_path, size):
    batches = files.write_black_cifar10(tmp_path)
    with (batches / "data_batch_2.bin").open("r+b") as stream:
        stream.truncate(size)
    with pytest.raises(InputError, match=rf"data_batch_2.bin has {size:,} bytes.*30,730,000"):
        sd.load_cifar10(tmp_path)


@pytest.mark.slow
def test_cifar10_class_out_of_range(tmp_path):
    batches = files.write_black_cifar10(tmp_path)
    with (batches / "test_batch.bin").open("r+b") as stream:
        stream.write(b"\x0a")
    with pytest.raises(InputError, match=r"test_batch.bin contains the class 10"):
        sd.load_cifar10(tmp_path)


@pytest.mark.slow
def test_adult(tmp_path):
    files.write_adult(tmp_path)
    adult = sd.load_adult(tmp_path)
    assert len(adult.train) == 32_561
    assert len(adult.test) == 16_281
    assert adult.train["workclass"][:3].tolist() == ["State-gov", "?", "State-gov"]
    assert adult.train["fnlwgt"][0] == 77_516.0
    assert set(adult.test["income"].tolist()) == {"<=50K", ">50K"}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (", White, Male", ", White", "14 fields instead of 15 in line 1"),
        ("77516", "many", "text in the numeric column fnlwgt"),
        (">50K", "rich", "invalid income 'rich' in line 1"),
        (files.ADULT_ROW + "\n\n", "\n", "32,560 records instead of 32,561"),
    ],
)
def test_adult_broken(tmp_path, old, new, complaint):
    path = files.write_adult(tmp_path) / "adult.data"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=complaint) as caught:
        sd.load_adult(tmp_path)
    assert str(path) in str(caught.value)


def test_iwpc_keeps_the_genotype_as_text(tmp_path):
    files.write_iwpc(tmp_path)
    patients = sd.load_iwpc(tmp_path)
    assert len(patients) == 4_819
    assert patients["cyp2c9"][:2].tolist() == ["11", "12"]
    assert patients["age"].dtype == np.float64


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("race,age", "age,race", "header 'age,race,.*instead of 'race,age,"),
        ("asian,0.0,", "asian,", "8 fields instead of 9 in line 2"),
        ("asian,0.0,", "asian,old,", "text in the numeric column age"),
        ("asian,0.0,", "asian,,", "no value in column age of line 2"),
        ("asian,0.0,", '"asian,0.0,', "not a comma-separated text file"),
    ],
)
def test_iwpc_broken(tmp_path, old, new, complaint):
    path = files.write_iwpc(tmp_path) / "iwpc-scaled.csv"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=complaint) as caught:
        sd.load_iwpc(tmp_path)
    assert "seepage data fetch iwpc" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "has the header ''"),
        (files.IWPC_HEADER.encode(), "has no rows"),
        (b"\xff\xfe\x00", "not a comma-separated"),
    ],
)
def test_iwpc_without_rows(tmp_path, content, complaint):
    path = files.write_iwpc(tmp_path) / "iwpc-scaled.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        sd.load_iwpc(tmp_path)


def test_iwpc_cut_off_at_a_line_is_noticed(tmp_path):
    path = files.write_iwpc(tmp_path) / "iwpc-scaled.csv"
    path.write_text("\n".join(path.read_text().splitlines()[:2_001]) + "\n")
    with pytest.raises(InputError, match="2,000 rows instead of 4,819"):
        sd.load_iwpc(tmp_path)


def test_pneumoniamnist(tmp_path):
    files.write_pneumonia(tmp_path)
    images = sd.load_pneumoniamnist(tmp_path)
    assert [len(s) for s in (images.train, images.validation, images.test)] == [4_708, 524, 624]
    assert images.validation.pixels.max() == len("val")
    np.testing.assert_array_equal(images.train.labels, np.arange(4_708) % 2)


@pytest.mark.parametrize(
    ("key", "array", "complaint"),
    [
        ("val_images", np.zeros((524, 28, 27), np.uint8), "524×28×27 uint8 in val_images"),
        ("val_images", np.zeros((524, 28, 28)), "float64 in val_images"),
        ("val_labels", np.zeros(524, np.uint8), "contains 524 uint8 in val_labels"),
        ("train_labels", np.full((4_708, 1), 2, np.uint8), "other than 0 and 1 in train_labels"),
        ("val_images", np.asarray([None]), "objects that are not arrays"),
    ],
)
def test_pneumoniamnist_wrong_arrays(tmp_path, key, array, complaint):
    files.write_pneumonia(tmp_path, **{key: array})
    with pytest.raises(InputError, match=complaint) as caught:
        sd.load_pneumoniamnist(tmp_path)
    assert "pneumoniamnist.npz" in str(caught.value)


def test_pneumoniamnist_cut_off(tmp_path):
    path = files.write_pneumonia(tmp_path) / "pneumoniamnist.npz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="truncated or is not a NumPy archive"):
        sd.load_pneumoniamnist(tmp_path)


def test_pneumoniamnist_flipped_bit(tmp_path):
    path = files.write_pneumonia(tmp_path) / "pneumoniamnist.npz"
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"pneumoniamnist\.npz"):
        sd.load_pneumoniamnist(tmp_path)


def test_pneumoniamnist_lacks_an_array(tmp_path):
    home = files.write_pneumonia(tmp_path)
    arrays = files.pneumonia_arrays()
    del arrays["test_labels"]
    np.savez(home / "pneumoniamnist.npz", **arrays)
    with pytest.raises(InputError, match="lacks the array test_labels"):
        sd.load_pneumoniamnist(tmp_path)


def test_lfw(tmp_path):
    files.write_lfw(tmp_path)
    faces = sd.load_lfw(tmp_path)
    assert faces.images.shape == (3, 62, 47, 3)
    assert faces.attributes["smile_manual"][0] == 1.0
    assert np.isnan(faces.attributes["smile_manual"][1:]).all()
    assert faces.attributes["pred_df_race"].tolist() == ["white", "", ""]


def test_lfw_rows_and_images_must_agree(tmp_path):
    files.write_lfw(tmp_path, faces=4)
    with pytest.raises(InputError, match="3 rows for 4 images") as caught:
        sd.load_lfw(tmp_path)
    assert "replace it" in str(caught.value)


def test_lfw_with_another_header(tmp_path):
    path = files.write_lfw(tmp_path) / "lfw_attributes.csv"
    path.write_text(path.read_text().replace("pred_Male", "Male"))
    with pytest.raises(InputError, match=r"header .*,Male,.* instead of .*,pred_…"):
        sd.load_lfw(tmp_path)


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("breast_cancer", (569, 30), 2),
        ("diabetes", (442, 10), 0),
        ("digits", (1_797, 64), 10),
        ("iris", (150, 4), 3),
        ("wine", (178, 13), 3),
    ],
)
def test_bundled(name, shape, classes):
    tabular = sd.load_bundled(name)
    assert tabular.X.shape == shape
    assert tabular.y.shape == shape[:1]
    assert len(tabular.classes) == classes
    assert tabular.table().column_names == list(tabular.names)


def test_bundled_unknown():
    with pytest.raises(InputError, match="did you mean 'wine'"):
        sd.load_bundled("wines")
