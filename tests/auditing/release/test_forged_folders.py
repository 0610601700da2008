"""Folders that others made or changed are refused in one sentence each, and signed ones known."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from release_cases import patients
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import seepage as sp
from seepage.auditing.release.contents import Item, Release
from seepage.auditing.release.released_model import ColumnCoding, ReleasedModel
from seepage.cli import app
from seepage.errors import InputError

COLUMNS = (
    ColumnCoding("age", "numeric", 50.0, 10.0),
    ColumnCoding("sex", "boolean", 0.0, 1.0),
    ColumnCoding("job", "categorical", levels=("baker", "nurse", "smith")),
)
TABLE = pd.DataFrame({"age": [40.0, 60.0], "sex": [0, 1], "job": ["nurse", "baker"]})


@pytest.fixture
def folder(tmp_path):
    """A release of three columns, four features."""
    X = np.random.default_rng(0).normal(size=(40, 4))
    model = sp.release(sp.glm.LinearRegression(l2=0.1).fit(X, X[:, 0]), sp.Gaussian(0.1))
    items = (Item("coefficients", "noised", "Each has noise.", 4), Item("σ", "declared", "Given."))
    return Release(ReleasedModel(model, COLUMNS), items, "# Model card\n").write(tmp_path / "out")


def relisted(folder, name="release.json", content=None):
    """Write a file, and its checksum into the manifest."""
    if content is not None:
        (folder / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def listing(change):
    """Return what changes the parsed list of a folder and states its new checksum."""

    def forge(folder):
        content = json.loads((folder / "release.json").read_text())
        change(content)
        relisted(folder, content=json.dumps(content).encode())

    return forge


def text(old, new):
    """Return what changes the list as it is written."""

    def forge(folder):
        content = (folder / "release.json").read_text()
        assert old in content
        relisted(folder, content=content.replace(old, new, 1).encode())

    return forge


def manifest(change):
    def forge(folder):
        content = json.loads((folder / "manifest.json").read_text())
        change(content)
        (folder / "manifest.json").write_text(json.dumps(content))

    return forge


def column(place, **changes):
    return listing(lambda content: content["columns"][place].update(changes))


def item(**changes):
    return listing(lambda content: content["leaves"][0].update(changes))


def tensors(folder, metadata=None, **changes):
    path = folder / "model.safetensors"
    save_file(load_file(path) | changes, path, metadata or {"family": "linear", "l2": "0.1"})
    relisted(folder, path.name)


def linked(folder):
    (folder / "model-card.md").rename(folder.parent / "card.md")
    (folder / "model-card.md").symlink_to(folder.parent / "card.md")


def sparse(name, size):
    def forge(folder):
        with (folder / name).open("r+b") as file:
            file.truncate(size)

    return forge


SOMEBODY = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
NO_RELEASE = "'out' is not a release written by seepage"
FORGERIES = {
    # the manifest
    "nothing listed": (manifest(lambda m: m["files"].clear()), "does not list 'model.safetensors'"),
    "a file not listed": (manifest(lambda m: m["files"].pop("model-card.md")), "does not list"),
    "a file more": (
        lambda f: (f / "more").write_text(""),
        "'more' in 'out' is not in the manifest",
    ),
    "a file more, listed": (
        lambda f: relisted(f, "run.sh", b"rm -r ."),
        "lists 'run.sh', which is not part of a release",
    ),
    "a folder more": (lambda f: (f / "x").symlink_to(f), "'x' in 'out' is not in the manifest"),
    "a file behind a link": (linked, "'model-card.md' in 'out' is missing, or has changed"),
    "a file gone": (lambda f: (f / "model-card.md").unlink(), "is missing, or has changed since"),
    "another checksum": (
        manifest(lambda m: m["files"].update({"model-card.md": "0" * 64})),
        "is missing, or has changed since it was written",
    ),
    "no checksum": (manifest(lambda m: m["files"].update({"model-card.md": "0"})), NO_RELEASE),
    "an unknown field": (manifest(lambda m: m.update(more=1)), NO_RELEASE),
    "another kind": (manifest(lambda m: m.update(kind="report")), NO_RELEASE),
    "no kind": (manifest(lambda m: m.pop("kind")), NO_RELEASE),
    "a kind that is no text": (manifest(lambda m: m.update(kind=["release"])), NO_RELEASE),
    "a name that leaves": (manifest(lambda m: m["files"].update({"../x": "0" * 64})), NO_RELEASE),
    "a deep manifest": (lambda f: (f / "manifest.json").write_text("[" * 10**6), NO_RELEASE),
    "a manifest of a terabyte": (sparse("manifest.json", 10**12), NO_RELEASE),
    "a manifest that says things twice": (
        lambda f: (f / "manifest.json").write_text(
            (f / "manifest.json").read_text().replace('"kind"', '"kind": "release", "kind"')
        ),
        NO_RELEASE,
    ),
    "a false signature": (
        manifest(lambda m: m.update(signature={"key": SOMEBODY, "value": "0" * 128})),
        "The signature of 'out' does not match its manifest",
    ),
    "a signature too short": (manifest(lambda m: m.update(signature={"key": "00"})), NO_RELEASE),
    # the list
    "another format": (
        listing(lambda c: c.update(format="seepage-release/9")),
        "this file has another format",
    ),
    "no list": (lambda f: relisted(f, content=b"[]"), "the list is not an object"),
    "no JSON": (lambda f: relisted(f, content=b"{"), "it is not valid JSON"),
    "no UTF-8": (lambda f: relisted(f, content=b'{"format": "\xff"}'), "it is not valid JSON"),
    "deep JSON": (lambda f: relisted(f, content=b"[" * 10**6), "it is nested too deeply"),
    "another encoding": (
        lambda f: relisted(f, content=(f / "release.json").read_text("utf-8").encode("utf-16")),
        "it is not valid JSON",
    ),
    "deep JSON in an item": (
        text('"value": null', '"value": ' + "[" * 10**5 + "]" * 10**5),
        "it is nested too deeply",
    ),
    "a list of a terabyte": (sparse("release.json", 10**12), "more than the allowed 8 MB"),
    "a card of a terabyte": (sparse("model-card.md", 10**12), "more than the allowed 8 MB"),
    "a model of a terabyte": (sparse("model.safetensors", 10**12), "more than the allowed 256 MB"),
    "many digits": (text("50.0", "5" * 5000), "cannot be read"),
    "a field more": (listing(lambda c: c.update(more=1)), "the list has the unknown field 'more'"),
    "a field less": (listing(lambda c: c.pop("leaves")), "the list lacks the field 'leaves'"),
    "columns that are no list": (
        listing(lambda c: c.update(columns={})),
        "'columns' of the list must be a list",
    ),
    "a column that is no object": (
        listing(lambda c: c["columns"].__setitem__(0, 7)),
        "column 1 is not an object",
    ),
    "a column with a field more": (column(0, more=1), "column 1 has the unknown field 'more'"),
    "a column with a field less": (
        listing(lambda c: c["columns"][0].pop("unit")),
        "column 1 lacks the field 'unit'",
    ),
    "unit 0": (column(0, unit=0), "'unit' of column 1 must be a finite number above zero"),
    "unit −1": (column(0, unit=-1), "'unit' of column 1 must be a finite number above zero"),
    "unit as text": (column(0, unit="1"), "'unit' of column 1 must be"),
    "unit true": (column(0, unit=True), "'unit' of column 1 must be"),
    "unit NaN": (text("10.0", "NaN"), "it contains NaN, which is not a number"),
    "unit that overflows": (text("10.0", "1e999"), "'unit' of column 1 must be"),
    "unit that is too long": (text("10.0", "9" * 400), "'unit' of column 1 must be"),
    "centre that is too long": (column(0, centre=10**400), "'centre' of column 1 must be a finite"),
    "a field twice": (text('"unit": 10.0', '"unit": 10.0, "unit": 1'), "repeated key"),
    "no known kind": (column(0, kind="angle"), "must be numeric, boolean or categorical"),
    "kind that is a list": (column(0, kind=[]), "must be numeric, boolean or categorical"),
    "levels twice": (
        column(2, levels=["baker", "nurse", "nurse"]),
        "'levels' of column 3 must be a list of different texts",
    ),
    "levels that are numbers": (column(2, levels=[1, 2, 3]), "a list of different texts"),
    "levels that are one text": (column(2, levels="abc"), "a list of different texts"),
    "half a character": (column(2, name="\ud800"), "'name' of column 3 must be a text"),
    "one level": (column(2, levels=["baker"]), "column 3 must have at least two levels"),
    "levels of a number": (column(0, levels=["a", "b"]), "column 1 must have at least two levels"),
    "two columns of one name": (column(1, name="age"), "two columns have the same name"),
    "other features": (column(0, name="height"), "feature names differ from"),
    "too few columns": (
        listing(lambda c: c["columns"].pop()),
        "the number of features of the columns differs from the number of coefficients",
    ),
    "no known protection": (item(protection="sworn"), "'protection' of item 1 of the release"),
    "protection that is a list": (item(protection=[]), "'protection' of item 1 of the release"),
    "count −1": (item(count=-1), "'count' of item 1 of the release must be a non-negative integer"),
    "another count": (item(count=5), "its number of coefficients differs from the model's"),
    "an item twice": (
        listing(lambda c: c["leaves"].append(c["leaves"][0])),
        "it lists an item twice",
    ),
    "nothing leaves": (listing(lambda c: c["leaves"].clear()), "number of coefficients differs"),
    "what is replaced is no checksum": (
        listing(lambda c: c.update(replaces="yes")),
        "'replaces' of the list must be a SHA-256",
    ),
    # the model
    "coefficients that are not finite": (
        lambda f: tensors(f, coefficients=np.array([1.0, np.inf, 0.0, 0.0])),
        "coefficients must be finite",
    ),
    "a tensor more": (lambda f: tensors(f, more=np.zeros(3)), "contains a tensor 'more'"),
    "classes that are nested": (
        lambda f: tensors(f, {"family": "logistic", "l2": "1", "classes": "[" * 10**5}),
        "'classes' must be a JSON list",
    ),
    "half a model": (
        sparse("model.safetensors", 40),
        "is missing, or has changed since it was written",
    ),
    "half a model, listed": (
        lambda f: (sparse("model.safetensors", 40)(f), relisted(f, "model.safetensors")),
        "is not a complete safetensors file",
    ),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_a_forged_folder_is_refused_in_a_sentence(folder, case):
    forge, complaint = FORGERIES[case]
    assert sp.load_release(folder).predict(TABLE).shape == (2,)
    forge(folder)
    with pytest.raises(InputError) as problem:
        sp.load_release(folder)
    said = str(problem.value)
    assert complaint in said
    assert len(said) < 300
    assert said.isprintable()
    told = CliRunner().invoke(app, ["verify", str(folder)])
    assert told.exit_code == 2
    assert told.stderr == f"error: {said}\n"


@pytest.mark.minutes
def test_no_forged_list_takes_much_memory(folder):
    """The largest list that is read, all of it empty lists, within a gigabyte."""
    relisted(folder, content=b"[" + b"[]," * 2_600_000 + b"[]]")
    script = "import seepage as sp, sys\ntry:\n sp.load_release(sys.argv[1])\n" + (
        "except sp.InputError as error:\n print(error)"
    )

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9))

    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    said = subprocess.run(  # noqa: S603
        [sys.executable, "-c", script, str(folder)],
        env=environment,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "the list is not an object" in said.stdout


def test_what_cannot_be_loaded_is_not_written(folder, tmp_path):
    again = sp.load_release(folder)
    columns = [ColumnCoding("a", "numeric", unit=0.0), *COLUMNS[1:]]
    wrong = Release(ReleasedModel(again.estimator, columns), (), "")
    with pytest.raises(InputError, match="'unit' of column 1 must be"):
        wrong.write(tmp_path / "other")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def pem(path, key, password=None):
    locked = BestAvailableEncryption(password) if password else NoEncryption()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)


@pytest.fixture
def keys(tmp_path):
    """Files with keys: ours, another's, one with a password, one of another kind, no key."""
    place = tmp_path / "keys"
    place.mkdir()
    for name, password in (("ours", None), ("theirs", None), ("locked", b"secret")):
        pem(place / f"{name}.pem", Ed25519PrivateKey.generate(), password)
    pem(place / "curve.pem", generate_private_key(SECP256R1()))
    (place / "none.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    return place


def signed(folder, key):
    model = sp.load_release(folder)
    items = (Item("coefficients", "noised", "Each has noise.", 4),)
    return Release(model, items, "# Card\n").write(folder.with_name("signed"), sign=key)


def test_a_signature_says_who_wrote_a_folder(folder, keys):
    out = signed(folder, keys / "ours.pem")
    assert sp.load_release(out).predict(TABLE).shape == (2,)
    assert sp.load_release(out, key=keys / "ours.pub").predict(TABLE).shape == (2,)
    with pytest.raises(InputError, match="'signed' is signed with another key"):
        sp.load_release(out, key=keys / "theirs.pub")
    with pytest.raises(InputError, match="'out' is not signed"):
        sp.load_release(folder, key=keys / "ours.pub")
    told = CliRunner().invoke(app, ["verify", str(out), "--key", str(keys / "ours.pub")])
    assert told.exit_code == 0, told.output
    raw = json.loads((out / "manifest.json").read_text())["signature"]["key"]
    assert hashlib.sha256(bytes.fromhex(raw)).hexdigest() in told.stdout
    # A forger who changes the card and its checksum cannot sign; with another key he can, unseen
    # by those who have no key to compare with.
    relisted(out, "model-card.md", b"# All is well\n")
    with pytest.raises(InputError, match="The signature of 'signed' does not match its manifest"):
        sp.load_release(out)
    again = json.loads((out / "manifest.json").read_text())
    del again["signature"]
    (out / "manifest.json").write_text(json.dumps(again))
    assert sp.load_release(out).predict(TABLE).shape == (2,)
    with pytest.raises(InputError, match="is not signed"):
        sp.load_release(out, key=keys / "ours.pub")


def test_what_is_signed_can_be_checked_by_other_programs(folder, keys):
    """The signed bytes are the manifest without its signature, as compact sorted JSON."""
    key = Ed25519PrivateKey.generate()
    pem(keys / "mine.pem", key)
    told = json.loads((signed(folder, keys / "mine.pem") / "manifest.json").read_text())
    signature = told.pop("signature")
    message = json.dumps(told, sort_keys=True, separators=(",", ":")).encode()
    key.public_key().verify(bytes.fromhex(signature["value"]), message)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("locked.pem", "has a password"),
        ("curve.pem", "is not an Ed25519 key"),
        ("none.pem", "contains no private key"),
        ("ours.pub", "contains no private key"),
        ("missing.pem", "cannot be read: No such file"),
        ("", "cannot be read: Is a directory"),
    ],
)
def test_other_private_keys_are_refused(folder, keys, name, complaint):
    with pytest.raises(InputError, match=complaint):
        signed(folder, keys / name)
    assert not folder.with_name("signed").exists()


@pytest.mark.parametrize("name", ["ours.pem", "curve.pub", "none.pem", "missing.pub", ""])
def test_other_public_keys_are_refused(folder, keys, name):
    with pytest.raises(InputError, match=r"no public Ed25519 key|cannot be read"):
        sp.load_release(folder, key=keys / name)


def test_the_key_does_not_lie_in_the_folder_that_is_shared(folder, keys):
    model = sp.load_release(folder)
    items = (Item("coefficients", "noised", "Each has noise.", 4),)
    with pytest.raises(InputError, match="one contains the other"):
        Release(model, items, "").write(keys, sign=keys / "ours.pem")


def test_a_release_says_what_it_replaces(folder, tmp_path):
    model = sp.load_release(folder)
    items = (Item("coefficients", "noised", "Each has noise.", 4),)
    new = Release(model, items, "").write(tmp_path / "new", replaces=folder)
    digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    assert json.loads((new / "release.json").read_text())["replaces"] == digest
    assert sp.load_release(new).predict(TABLE).shape == (2,)
    told = CliRunner().invoke(app, ["verify", str(new)])
    assert told.exit_code == 0, told.output
    assert digest in told.stdout
    with pytest.raises(InputError, match="'keys' is not a release"):
        Release(model, items, "").write(tmp_path / "newer", replaces=tmp_path / "keys")


def test_the_commands_sign_replace_and_verify(tmp_path, keys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(patients(), "patients.parquet")
    limits = ("--max-membership", "1", "--max-guess-gain", "1", "--max-guess-tpr", "1")
    command = ["release", "patients.parquet", "--target", "response", "--sigma", "1", *limits]

    def run(*more):
        return CliRunner().invoke(app, [*command, *more])

    for wrong in (("--sign", "keys/none.pem"), ("--replaces", "keys")):
        said = run(*wrong)
        assert said.exit_code == 2
        assert not (tmp_path / "seepage-ledger.json").exists()  # refused before anything is spent
    assert run("--sign", "keys/ours.pem", "--out", "first").exit_code == 0
    again = run("--sign", "keys/ours.pem", "--out", "second", "--replaces", "first")
    assert again.exit_code == 0, again.output
    told = CliRunner().invoke(app, ["verify", "second", "--key", "keys/ours.pub"])
    assert told.exit_code == 0, told.output
    assert hashlib.sha256((tmp_path / "first" / "manifest.json").read_bytes()).hexdigest() in (
        told.stdout
    )
    told = CliRunner().invoke(app, ["verify", "second", "--key", "keys/theirs.pub"])
    assert told.exit_code == 2
    assert "signed with another key" in told.stderr
