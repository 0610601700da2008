"""Archives are unpacked into their folder and nowhere else."""

from __future__ import annotations

import io
import tarfile

import pytest

from seepage.data.download import unpack
from seepage.errors import InputError


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    info.size = 5 if kind == tarfile.REGTYPE else 0
    return info


def write_tar(path, *members: tarfile.TarInfo) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for info in members:
            tar.addfile(info, io.BytesIO(b"bytes") if info.isfile() else None)


def everything(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_files_and_folders(tmp_path):
    archive = tmp_path / "a.tar.gz"
    write_tar(archive, member("inner", tarfile.DIRTYPE), member("inner/x.bin"), member("y.bin"))
    unpack(archive, tmp_path)
    assert everything(tmp_path) == ["a.tar.gz", "inner", "inner/x.bin", "y.bin"]
    assert (tmp_path / "inner" / "x.bin").read_bytes() == b"bytes"


def test_an_incomplete_folder_is_completed(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "x.bin").write_bytes(b"by")
    archive = tmp_path / "a.tar.gz"
    write_tar(archive, member("inner/x.bin"))
    unpack(archive, tmp_path)
    assert (tmp_path / "inner" / "x.bin").read_bytes() == b"bytes"


@pytest.mark.parametrize(
    ("evil", "complaint"),
    [
        (member("../outside.bin"), "outside the folder"),
        (member("inner/../../outside.bin"), "outside the folder"),
        (member("..\\outside.bin"), "outside the folder"),
        (member("C:outside.bin"), "outside the folder"),
        (member("{absolute}"), "outside the folder"),
        (member("link", tarfile.SYMTYPE, "/etc"), "link or a device"),
        (member("link", tarfile.SYMTYPE, "y.bin"), "link or a device"),
        (member("hard", tarfile.LNKTYPE, "../outside.bin"), "link or a device"),
        (member("pipe", tarfile.FIFOTYPE), "link or a device"),
        (member("disk", tarfile.BLKTYPE), "link or a device"),
    ],
)
def test_members_that_would_leave_the_folder(tmp_path, evil, complaint):
    home = tmp_path / "home"
    home.mkdir()
    archive = home / "a.tar.gz"
    evil.name = evil.name.format(absolute=tmp_path / "outside.bin")
    write_tar(archive, member("good.bin"), evil)
    with pytest.raises(InputError, match=complaint) as caught:
        unpack(archive, home)
    assert str(archive) in str(caught.value)
    # Refused as a whole: not even the harmless member before it was written.
    assert everything(tmp_path) == ["home", "home/a.tar.gz"]


def test_a_link_and_a_file_behind_it(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    archive = home / "a.tar.gz"
    write_tar(archive, member("out", tarfile.SYMTYPE, str(tmp_path)), member("out/evil.bin"))
    with pytest.raises(InputError, match="link or a device"):
        unpack(archive, home)
    assert everything(tmp_path) == ["home", "home/a.tar.gz"]


@pytest.mark.parametrize("keep", [0, 10, -20])
def test_a_cut_off_archive(tmp_path, keep):
    archive = tmp_path / "a.tar.gz"
    write_tar(archive, member("y.bin"))
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(InputError, match="cannot be unpacked"):
        unpack(archive, tmp_path)
    assert everything(tmp_path) == ["a.tar.gz"]
