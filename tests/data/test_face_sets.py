"""CelebA and PubFig in their publishers' formats, on small files made for it."""

from __future__ import annotations

from hashlib import md5

import numpy as np
import pytest
from PIL import Image

import seepage.data as sd
from seepage.errors import InputError


def picture(path, colour, size=(178, 218)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def write_celeba(root, identities=True):
    home = root / "celeba"
    for k in range(1, 5):
        picture(home / "img_align_celeba" / f"{k:06}.jpg", (60 * k, 0, 0))
    rows = [f"{k:06}.jpg {-1 if k % 2 else 1:>2}  1" for k in range(1, 5)]
    text = "\n".join(["4", "Eyeglasses Male ", *rows]) + "\n"
    (home / "list_attr_celeba.txt").write_text(text)
    if identities:
        lines = [f"{k:06}.jpg {k // 2}" for k in range(1, 5)]
        (home / "identity_CelebA.txt").write_text("\n".join(lines) + "\n")
    return home


def write_pubfig(root):
    home = root / "pubfig"
    for person in ("Adam Sandler", "Zac_Efron"):
        for k in (3, 12):
            picture(home / "pubfig83" / person / f"{k}.png", (k, 0, 9), (100, 100))
    picture(home / "pubfig83" / "Adam Sandler" / "99.png", (0, 0, 0), (100, 100))
    rows = [
        f"{person}\t{k}\t{score}\t-0.5"
        for person, k, score in (
            ("Adam Sandler", 3, 1.5),
            ("Adam Sandler", 12, -2.0),
            ("Zac Efron", 3, 0.25),
            ("Zac Efron", 12, 0.75),
            ("Nobody Here", 1, 0.0),
        )
    ]
    head = [
        "# PubFig Dataset v1.2 - pubfig_attributes.txt - x",
        "#\tperson\timagenum\tMale\tNo Beard",
    ]
    (home / "pubfig_attributes.txt").write_text("\n".join([*head, *rows]) + "\n")
    return home


def test_celeba(tmp_path):
    write_celeba(tmp_path)
    faces = sd.load_celeba(tmp_path, count=3)
    assert faces.images.shape == (3, 64, 64, 3)
    assert abs(int(faces.images[2, 30, 30, 0]) - 180) < 6
    assert faces.attributes["Eyeglasses"].tolist() == [0.0, 1.0, 0.0]
    assert faces.attributes["Male"].tolist() == [1.0, 1.0, 1.0]
    assert faces.attributes["person"].tolist() == ["0", "1", "1"]
    assert faces.attributes["image"][0] == "000001.jpg"


def test_celeba_without_identities_and_whole(tmp_path):
    write_celeba(tmp_path, identities=False)
    faces = sd.load_celeba(tmp_path, count=None, size=(218, 178))
    assert faces.images.shape == (4, 218, 178, 3)
    assert set(faces.attributes["person"].tolist()) == {""}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("4\n", "5\n", "4 images instead of the stated 5"),
        ("4\n", "", "number of images"),
        ("000003.jpg -1", "000003.jpg 0", "−1 or 1 in line 5"),
        (" 1\n", "\n", "in line 3"),
        ("000002.jpg", "000009.jpg", "does not identify the person in image 000009"),
    ],
)
def test_celeba_broken(tmp_path, old, new, complaint):
    path = write_celeba(tmp_path) / "list_attr_celeba.txt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=complaint):
        sd.load_celeba(tmp_path, count=4)


def test_celeba_images_broken(tmp_path):
    home = write_celeba(tmp_path)
    with pytest.raises(InputError, match="between 1 and 4"):
        sd.load_celeba(tmp_path)
    (home / "img_align_celeba" / "000004.jpg").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"000004\.jpg is truncated or is not an image"):
        sd.load_celeba(tmp_path, count=4)
    (home / "img_align_celeba" / "000004.jpg").unlink()
    with pytest.raises(InputError, match=r"000004\.jpg is missing"):
        sd.load_celeba(tmp_path, count=4)


def test_pubfig(tmp_path):
    home = write_pubfig(tmp_path)
    (home / "pubfig83" / "Adam Sandler" / "Thumbs.db").write_bytes(b"no picture")
    (home / "pubfig83" / "Adam Sandler" / "cover.png").write_bytes(b"no number")
    faces = sd.load_pubfig(tmp_path, join="number")
    assert faces.images.shape == (4, 100, 100, 3)
    assert faces.images[:, 0, 0, 0].tolist() == [12, 3, 12, 3]
    assert faces.attributes["person"].tolist() == ["Adam Sandler"] * 2 + ["Zac Efron"] * 2
    np.testing.assert_array_equal(faces.attributes["pred_Male"], [-2.0, 1.5, 0.75, 0.25])
    np.testing.assert_array_equal(faces.attributes["imagenum"], [12, 3, 12, 3])
    assert "pred_No_Beard" in faces.attributes.columns


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("\tperson\t", " person ", "has no line"),
        ("\t1.5\t", "\tmuch\t", "invalid in line 3"),
        ("\t1.5\t", "\t", "3 fields instead of 4"),
        ("n\t12\t", "n\ttwelve\t", "invalid in line"),
    ],
)
def test_pubfig_broken(tmp_path, old, new, complaint):
    path = write_pubfig(tmp_path) / "pubfig_attributes.txt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=complaint):
        sd.load_pubfig(tmp_path, join="number")


def test_pubfig_without_images(tmp_path):
    home = write_pubfig(tmp_path)
    (home / "pubfig83").rename(home / "elsewhere")
    with pytest.raises(InputError, match="no scores for any image"):
        sd.load_pubfig(tmp_path, join="number")


def list_checksums(home, box="0,0,100,100"):
    """Write the publishers' list for the images as they are now."""
    lines = ["# PubFig Dataset v1.2 - dev_urls.txt", "# person\timagenum\turl\trect\tmd5sum"]
    for path in sorted((home / "pubfig83").glob("*/*.png")):
        checksum = md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        person = path.parent.name.replace("_", " ")
        lines.append(f"{person}\t{path.stem}\thttp://a/{path.name}\t{box}\t{checksum}")
    (home / "dev_urls.txt").write_text("\n".join(lines) + "\n")


def renumber(home):
    """Give everybody's images the numbers 1, 2, …, in another order."""
    for person in (home / "pubfig83").iterdir():
        for k, path in enumerate(sorted(person.glob("*.png"), reverse=True), start=1):
            path.rename(path.with_name(f"0{k}.png"))


def test_pubfig_finds_renumbered_images_by_their_checksums(tmp_path):
    home = write_pubfig(tmp_path)
    list_checksums(home)
    renumber(home)
    faces = sd.load_pubfig(tmp_path)
    scores = dict(zip(faces.attributes["image"], faces.attributes["pred_Male"], strict=True))
    assert scores == {
        "Adam Sandler_3": 1.5,
        "Adam Sandler_12": -2.0,
        "Zac Efron_3": 0.25,
        "Zac Efron_12": 0.75,
    }
    # The colour of a picture was its number.
    np.testing.assert_array_equal(faces.images[:, 0, 0, 0], faces.attributes["imagenum"])


def test_pubfig_crops_whole_images_to_the_face(tmp_path):
    home = write_pubfig(tmp_path)
    path = home / "pubfig83" / "Zac_Efron" / "3.png"
    whole = np.zeros((100, 100, 3), dtype=np.uint8)
    whole[20:60, 10:50] = 200
    Image.fromarray(whole).save(path)
    list_checksums(home, "10,20,50,60")
    faces = sd.load_pubfig(tmp_path, size=(40, 40))
    (face,) = faces.images[faces.attributes["image"] == "Zac Efron_3"]
    assert (face == 200).all()


def test_pubfig_refuses_what_it_cannot_join(tmp_path):
    home = write_pubfig(tmp_path)
    with pytest.raises(InputError, match=r"dev_urls\.txt and eval_urls\.txt are not in"):
        sd.load_pubfig(tmp_path)
    list_checksums(home)
    for path in (home / "pubfig83").glob("*/*.png"):
        path.write_bytes(path.read_bytes() + b" ")  # saved again
    with pytest.raises(InputError, match="None of the 5 images in pubfig83 has a checksum"):
        sd.load_pubfig(tmp_path)
    assert len(sd.load_pubfig(tmp_path, join="number")) == 4
    renumber(home)
    with pytest.raises(InputError, match=r"numbered without a gap \(Adam Sandler: 1 to 3\)"):
        sd.load_pubfig(tmp_path, join="number")
    with pytest.raises(InputError, match="join"):
        sd.load_pubfig(tmp_path, join="name")
    (home / "dev_urls.txt").write_text("Zac Efron\t3\thttp://a\t1,2,3\tabc\n")
    with pytest.raises(InputError, match=r"dev_urls\.txt is invalid in line 1"):
        sd.load_pubfig(tmp_path)


def test_pubfig_leaves_out_a_checksum_with_two_numbers(tmp_path):
    home = write_pubfig(tmp_path)
    list_checksums(home)
    copy = (home / "dev_urls.txt").read_text().replace("Zac Efron\t12", "Zac Efron\t3", 1)
    (home / "eval_urls.txt").write_text(copy)
    assert "Zac Efron_12" not in sd.load_pubfig(tmp_path).attributes["image"]


@pytest.mark.parametrize(
    ("load", "file"), [(sd.load_celeba, "list_attr"), (sd.load_pubfig, "pubfig83")]
)
def test_both_say_what_to_put_where(tmp_path, load, file):
    with pytest.raises(InputError, match=file):
        load(tmp_path)
