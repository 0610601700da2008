"""A folder of results is the old one or the new one, and nobody else's file is ever touched."""

from __future__ import annotations

import json
import os
import random
import stat
import subprocess
import sys
import time

import killed_writer
import pytest

from sampled import sampled
from seepage.errors import InputError
from seepage.support import files as files_module
from seepage.support.files import MANIFEST, hold, read_manifest, whole_folder, write_private


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def writes(folder, texts, kind="report", keep=()):
    with whole_folder(folder, kind, keep) as inside:
        for name, text in texts.items():
            write_private(inside / name, lambda file, text=text: file.write(text.encode()))


def tells(folder, **changes):
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture(params=["exchange", "inside", "another system", "an old library", "no locks"])
def way(request, monkeypatch):
    name, value = {
        "exchange": ("HALF_WRITTEN", ".seepage-part"),
        "inside": ("_exchange", lambda one, other: False),
        "another system": ("sys.platform", "darwin"),
        "an old library": ("ctypes.CDLL", lambda name, use_errno: object()),
        "no locks": ("fcntl", None),
    }[request.param]
    monkeypatch.setattr(f"seepage.support.files.{name}", value)
    return request.param


def test_a_second_run_replaces_the_first(way, tmp_path):
    out = tmp_path / "deep" / "out"
    writes(out, {"a.txt": "1", "figures/b.txt": "1", "gone/c.txt": "1"})
    writes(out, {"a.txt": "2", "figures/d.txt": "2"})
    found = files(out)
    assert set(found) == {"a.txt", "figures/d.txt", MANIFEST}
    assert found["a.txt"] == b"2"
    assert sorted(p.name for p in out.iterdir()) == ["a.txt", "figures", MANIFEST]
    assert [p.name for p in out.parent.iterdir()] == ["out"]
    assert set(read_manifest(out, "report").files) == {"a.txt", "figures/d.txt"}


@pytest.mark.parametrize(
    ("put", "complaint"),
    [
        (lambda out: (out / "mine.txt").write_text("mine"), "'mine.txt'"),
        (lambda out: (out / "figures" / "mine.svg").write_text("mine"), r"'figures/mine\.svg'"),
        (lambda out: (out / "a.txt").write_text("edited"), "was changed after"),
        (lambda out: (out / "link").symlink_to(out.parent), "'link'"),
        (lambda out: (out / MANIFEST).write_text("{}"), "seepage did not write"),
        (lambda out: tells(out, format="seepage-folder/9"), "seepage did not write"),
        (lambda out: tells(out, files={"../a.txt": ""}), "seepage did not write"),
        (lambda out: (out / MANIFEST).write_text('{"files": 5'), "seepage did not write"),
        (lambda out: (out / "\x1b[2Jx").write_text("mine"), r"'\\x1b\[2Jx'"),
    ],
)
def test_a_folder_that_holds_anything_else_is_left_as_it_is(tmp_path, put, complaint):
    out = tmp_path / "out"
    writes(out, {"a.txt": "1", "figures/b.svg": "1"})
    put(out)
    before = files(out)
    with pytest.raises(InputError, match=complaint):
        writes(out, {"a.txt": "2"})
    assert files(out) == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("umask", [0o000, 0o777, 0o022])
def test_modes_are_ours_whatever_the_umask(way, tmp_path, umask):
    """Folders inside were 0777 under a umask of 0, files unreadable under one of 0777."""
    out = tmp_path / "deep" / "out"
    before = os.umask(umask)
    try:
        writes(out, {"a.txt": "1"})
        writes(out, {"a.txt": "2", "figures/more/b.txt": "1"})
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (out.parent, *out.parent.rglob("*"))}
    folders = dict.fromkeys(("deep", "out", "figures", "more"), 0o700)
    assert modes == folders | dict.fromkeys(("a.txt", "b.txt", MANIFEST), 0o600)


def test_all_is_on_the_disk_before_names_are_exchanged(way, tmp_path, monkeypatch):
    """Nothing was synced: after a power failure the new folder could hold empty files."""
    events, real = [], os.fsync
    inode = {}  # of every file and folder, by name

    def fsync(handle):
        events.append(("sync", os.fstat(handle).st_ino))
        real(handle)

    def place(new, out, take=files_module._take_place):
        inode.update({p.name: p.stat().st_ino for p in (new, *new.rglob("*"))})
        events.append(("begin", None))
        take(new, out)
        events.append(("end", None))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(files_module, "_take_place", place)
    writes(tmp_path / "out", {"a.txt": "1", "figures/b.txt": "1"})
    began, ended = events.index(("begin", None)), events.index(("end", None))
    synced = {number for kind, number in events[:began] if kind == "sync"}
    assert {inode[name] for name in ("a.txt", "b.txt", MANIFEST)} <= synced
    synced |= {number for kind, number in events[began:ended] if kind == "sync"}
    assert set(inode.values()) <= synced
    assert ("sync", tmp_path.stat().st_ino) in events[ended:]


def test_a_folder_that_lacks_a_file_of_its_own_is_replaced(tmp_path):
    writes(tmp_path / "out", {"a.txt": "1", "b.txt": "1"})
    (tmp_path / "out" / "a.txt").unlink()
    with pytest.raises(
        InputError, match=r"'a\.txt' in 'out' is missing, or has changed since it was written"
    ):
        read_manifest(tmp_path / "out", "report")
    writes(tmp_path / "out", {"b.txt": "2"})
    assert set(files(tmp_path / "out")) == {"b.txt", MANIFEST}


def test_folders_that_others_are_writing_stay_and_those_left_behind_go(tmp_path):
    left, alive = (tmp_path / f".out.{8 * c}.seepage-new" for c in "ab")
    left.mkdir()
    alive.mkdir()
    lock = hold(alive)
    try:
        writes(tmp_path / "out", {"a.txt": "1"})
    finally:
        os.close(lock)
    assert {p.name for p in tmp_path.iterdir()} == {"out", alive.name}


def test_a_folder_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    removed = []

    def lock(path):
        handle = hold(path)
        if not removed:  # another process took the new folder for one left behind
            path.rmdir()
            removed.append(handle)
        return handle

    monkeypatch.setattr("seepage.support.files.hold", lock)
    writes(tmp_path / "out", {"a.txt": "1"})
    [handle] = removed
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert set(files(tmp_path / "out")) == {"a.txt", MANIFEST}


def test_another_kind_of_folder_is_refused(tmp_path):
    writes(tmp_path / "out", {"a.txt": "1"}, kind="release")
    with pytest.raises(InputError, match="contains a release, which a report cannot"):
        writes(tmp_path / "out", {"a.txt": "2"})
    with pytest.raises(InputError, match="is not a report written by seepage"):
        read_manifest(tmp_path / "out", "report")


def test_a_folder_behind_a_link_is_looked_into(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "groups-1.svg").write_text("theirs")
    writes(tmp_path / "out", {"a.txt": "1"})
    (tmp_path / "out" / "figures").symlink_to(tmp_path / "theirs")
    with pytest.raises(InputError, match="'figures'"):
        writes(tmp_path / "out", {"figures/groups-1.svg": "2"})
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(InputError, match=r"groups-1\.svg"):
        writes(tmp_path / "link", {"a.txt": "2"})
    assert (tmp_path / "theirs" / "groups-1.svg").read_text() == "theirs"


def test_what_is_read_is_not_written_to(tmp_path):
    out = tmp_path / "out"
    writes(out, {"leakage.parquet": "1"})
    with pytest.raises(InputError, match="one contains the other"):
        writes(out, {"leakage.parquet": "2"}, keep=[out / "leakage.parquet"])
    (tmp_path / "table").mkdir()
    with pytest.raises(InputError, match="one contains the other"):
        writes(tmp_path / "table" / "out", {"a": "2"}, keep=[tmp_path / "table"])
    os.link(out / "leakage.parquet", tmp_path / "same.parquet")
    with pytest.raises(InputError, match="is an input file"):
        writes(out, {"leakage.parquet": "2"}, keep=[tmp_path / "same.parquet"])
    assert (out / "leakage.parquet").read_text() == "1"


def test_the_folder_one_works_in_stays_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inode = tmp_path.stat().st_ino
    writes(tmp_path, {"a.txt": "1", "b.txt": "1"})
    writes(tmp_path, {"a.txt": "2"})
    assert set(files(tmp_path)) == {"a.txt", MANIFEST}
    assert tmp_path.stat().st_ino == inode


def test_a_failure_leaves_what_was_there(way, tmp_path):
    out = tmp_path / "new" / "out"

    def interrupted(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), whole_folder(out, "report") as folder:
        write_private(folder / "half", interrupted)
    assert list(tmp_path.iterdir()) == []


def start(*arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, killed_writer.__file__, *map(str, arguments)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)  # noqa: S603
    assert process.stdout.readline() == b"ready\n"
    return process


def run(*arguments):
    """Return how many moments there were, or that it was killed before all were over."""
    said = start(*arguments).communicate()[0]
    return int(said) if said else None


def version_of(out):
    """Return which version a folder is, if it is one as a whole."""
    found = files(out)
    found.pop(MANIFEST)
    for version, names in killed_writer.NAMES.items():
        if found == dict.fromkeys(names, b"%d" % version * 1000):
            return version
    raise AssertionError(f"a mixture: {sorted(found)}")


@pytest.mark.parametrize("kills", sampled([8, 50], [8], []))
def test_kills_at_chosen_moments_leave_the_old_folder_or_the_new(tmp_path, kills):
    out = tmp_path / "out"
    killed_writer.write(out, 1)
    moments = run(out, 2, 0)
    seen = set()
    for k in range(kills):
        killed_writer.write(out, 1)
        assert run(out, 2, 1 + k * moments // kills) is None
        seen.add(version_of(out))
    killed_writer.write(out, 1)
    assert version_of(out) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert seen == {1, 2}


@pytest.mark.parametrize("kills", sampled([4, 8, 50], 0, [4, 8]))
def test_kills_at_random_moments_leave_the_old_folder_or_the_new(tmp_path, kills):
    out, draw = tmp_path / "out", random.Random(0)  # noqa: S311
    killed_writer.write(out, 1)
    began = time.monotonic()
    killed_writer.write(out, 1)
    took = time.monotonic() - began
    for k in range(kills):
        process = start(out, 1 + k % 2, 0)
        time.sleep(draw.uniform(0, took))
        process.kill()
        process.communicate()
        version_of(out)
    killed_writer.write(out, 1)
    assert version_of(out) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.minutes
def test_without_exchange_the_next_run_completes_what_was_begun(tmp_path, monkeypatch):
    monkeypatch.setattr("seepage.support.files._exchange", lambda one, other: False)
    out, halfway = tmp_path / "out", 0
    killed_writer.write(out, 1)
    moments = run(out, 2, 0, "inside")
    for k in range(1, moments + 1):
        killed_writer.write(out, 1)
        assert run(out, 2, k, "inside") is None
        if (out / ".seepage-ready").is_dir():
            halfway += 1
        else:
            version_of(out)
        killed_writer.write(out, 1)
        assert version_of(out) == 1
        assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert halfway > 5
