"""A local folder comes first, and what is missing is said with the way to get it."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import publisher_files as files
import pytest

import seepage.data as sd
from seepage.data.obtain import cache_folder, find, searched_folders
from seepage.data.registry import DATA_SETS
from seepage.errors import InputError


def test_the_argument_hides_everything_else(monkeypatch, tmp_path):
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path / "variable"))
    assert searched_folders(tmp_path / "named") == (tmp_path / "named",)


def test_the_variable_comes_before_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert searched_folders() == (tmp_path / "variable", tmp_path / "cache" / "seepage" / "data")
    monkeypatch.delenv("SEEPAGE_DATA")
    assert searched_folders() == (tmp_path / "cache" / "seepage" / "data",)


def test_a_relative_cache_variable_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder() == tmp_path / ".cache" / "seepage" / "data"


def test_a_set_is_found_in_the_cache_when_the_variable_lacks_it(monkeypatch, tmp_path):
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = tmp_path / "seepage" / "data"
    root.mkdir(parents=True)
    home = files.write_iwpc(root)
    assert find(DATA_SETS["iwpc"]) == home
    assert sd.locate("iwpc", download=False) == home


def test_a_set_with_a_missing_file_is_not_there(tmp_path):
    home = files.write_adult(tmp_path)
    assert find(DATA_SETS["adult"], tmp_path) == home
    (home / "adult.test").unlink()
    assert find(DATA_SETS["adult"], tmp_path) is None


def test_absent_and_not_to_be_downloaded(tmp_path):
    with pytest.raises(InputError, match="run `seepage data fetch mnist`") as caught:
        sd.load_mnist(tmp_path, download=False)
    assert str(tmp_path / "mnist") in str(caught.value)


def test_a_set_to_be_put_in_place_by_hand(tmp_path):
    for call in (lambda: sd.load_lfw(tmp_path), lambda: sd.fetch("lfw", tmp_path)):
        with pytest.raises(InputError, match=r"lfw_62x47\.npz") as caught:
            call()
        assert str(tmp_path / "lfw") in str(caught.value)


def test_a_bundled_set_has_no_folder():
    with pytest.raises(InputError, match="is part of scikit-learn"):
        sd.locate("iris")


def test_an_unknown_name():
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        sd.locate("cifar-10")


def test_the_registry_is_consistent():
    for name, entry in DATA_SETS.items():
        assert name == entry.name
        assert entry.bundled or entry.files
        assert entry.bundled or bool(entry.downloads) != bool(entry.by_hand)
        for file in entry.downloads:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert all(url.startswith("https://") for url in file.urls)
        if entry.downloads:
            assert entry.size == sum(file.size for file in entry.downloads)


def test_every_public_name_is_there():
    for name in sd.__all__:
        # A module of the same name would take the place of what it defines.
        assert not isinstance(getattr(sd, name), types.ModuleType)
    assert dir(sd) == sd.__all__
    with pytest.raises(AttributeError, match="load_imagenet"):
        _ = sd.load_imagenet


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, seepage.data\n"
        "heavy = {'numpy', 'sklearn', 'scipy', 'pyarrow', 'tqdm', 'torch'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr
