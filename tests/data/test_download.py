"""Downloads from a small server: whole, interrupted, resumed, wrong; never half a file."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from seepage.data import registry
from seepage.data.download import download
from seepage.data.obtain import fetch, locate
from seepage.data.registry import DataSet, RemoteFile
from seepage.errors import InputError

CONTENT = bytes(range(256)) * 1_000


class Server(ThreadingHTTPServer):
    """Serves ``content``; hangs up after ``cut`` bytes of a body; may not know ranges."""

    content = CONTENT
    cut: int | None = None
    knows_ranges = True
    wrong_range = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        body, total = self.server.content, len(self.server.content)
        if self.path == "/absent":
            self.send_error(404)
            return
        if asked and self.server.knows_ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if self.server.wrong_range:
                start = 0
            body = body[start:]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.server.cut is None else body[: self.server.cut])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def remote(*urls: str, content: bytes = CONTENT, archive: bool = False) -> RemoteFile:
    digest = hashlib.sha256(content).hexdigest()
    return RemoteFile("file.bin", urls, len(content), digest, archive=archive)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_whole_file(server, tmp_path):
    path = download(remote(server.url), tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["file.bin"]
    assert server.ranges == [None]


def test_a_file_that_is_there_is_checked_and_not_asked_for(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT)
    download(remote(server.url), tmp_path)
    assert server.ranges == []
    (tmp_path / "file.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(InputError, match="not the published file"):
        download(remote(server.url), tmp_path)


def test_a_wrong_file_leaves_nothing(server, tmp_path):
    server.content = CONTENT[:-1] + b"x"
    with pytest.raises(InputError, match=r"SHA-256.*it was deleted"):
        download(remote(server.url), tmp_path)
    assert names(tmp_path) == []


def test_a_longer_file_leaves_nothing_and_is_not_read_to_its_end(server, tmp_path):
    server.content = CONTENT + b"more"
    with pytest.raises(InputError, match="longer than 256,000 bytes"):
        download(remote(server.url), tmp_path)
    assert names(tmp_path) == []


def test_an_interrupted_download_goes_on_where_it_ended(server, tmp_path):
    server.cut = 100_000
    with pytest.raises(InputError, match=r"100,000 of 256,000 bytes.*file\.bin\.part"):
        download(remote(server.url), tmp_path)
    assert names(tmp_path) == ["file.bin.part"]
    server.cut = None
    assert download(remote(server.url), tmp_path).read_bytes() == CONTENT
    assert names(tmp_path) == ["file.bin"]
    assert server.ranges == [None, "bytes=100000-"]


def test_a_server_without_ranges_starts_over(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"?" * 1_000)
    server.knows_ranges = False
    assert download(remote(server.url), tmp_path).read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-"]


def test_a_server_that_answers_with_another_range_is_not_appended(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1_000])
    server.wrong_range = True
    assert download(remote(server.url), tmp_path).read_bytes() == CONTENT


def test_a_complete_part_needs_no_server(tmp_path, server):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert download(remote(server.url), tmp_path).read_bytes() == CONTENT
    assert server.ranges == []


def test_a_spoiled_part_is_thrown_away(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"?" * 1_000)
    with pytest.raises(InputError, match="SHA-256"):
        download(remote(server.url), tmp_path)
    assert names(tmp_path) == []
    assert download(remote(server.url), tmp_path).read_bytes() == CONTENT


def test_the_next_address_is_tried(server, tmp_path):
    absent = server.url.replace("file.bin", "absent")
    assert download(remote(absent, server.url), tmp_path).read_bytes() == CONTENT


def test_every_failure_is_named(server, tmp_path):
    absent = server.url.replace("file.bin", "absent")
    with pytest.raises(InputError, match="answered 404") as caught:
        download(remote(absent), tmp_path)
    assert absent in str(caught.value)


def test_a_server_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as idle:
        url = idle.url
    with pytest.raises(InputError, match="cannot be reached"):
        download(remote(url), tmp_path)


def test_only_the_web_is_asked(tmp_path):
    with pytest.raises(InputError, match="not a web address"):
        download(remote("file:///etc/hostname"), tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(InputError, match="cannot be created"):
        download(remote("http://127.0.0.1/"), tmp_path / "taken" / "folder")


def tar_bytes(*members: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in members:
            info = tarfile.TarInfo(name)
            info.size = 5
            tar.addfile(info, io.BytesIO(b"bytes"))
    return buffer.getvalue()


def invent(monkeypatch, *downloads: RemoteFile, files: tuple[str, ...]) -> None:
    about = {"name": "invented", "title": "", "licence": "", "source": ""}
    entry = DataSet(**about, folder="home", files=files, downloads=downloads)
    monkeypatch.setitem(registry.DATA_SETS, "invented", entry)


def test_fetch_unpacks_and_removes_the_archive(server, tmp_path, monkeypatch):
    server.content = tar_bytes("inner/a.bin", "inner/b.bin")
    file = remote(server.url, content=server.content, archive=True)
    invent(monkeypatch, file, files=("inner/a.bin",))
    home = fetch("invented", tmp_path)
    assert (home / "inner" / "a.bin").read_bytes() == b"bytes"
    assert names(home) == ["inner"]
    assert locate("invented", tmp_path) == home
    assert len(server.ranges) == 1


def test_fetch_uses_an_archive_that_was_put_there_and_keeps_it(tmp_path, monkeypatch):
    content = tar_bytes("inner/a.bin")
    file = remote("http://127.0.0.1/", content=content, archive=True)
    invent(monkeypatch, file, files=("inner/a.bin",))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "file.bin").write_bytes(content)
    assert names(fetch("invented", tmp_path)) == ["file.bin", "inner"]


def test_fetch_says_when_the_archive_lacks_a_file(server, tmp_path, monkeypatch):
    server.content = tar_bytes("inner/b.bin")
    file = remote(server.url, content=server.content, archive=True)
    invent(monkeypatch, file, files=("inner/a.bin",))
    with pytest.raises(InputError, match=r"still lacks inner/a\.bin"):
        fetch("invented", tmp_path)


def test_loading_fetches_what_is_missing_and_leaves_the_rest(server, tmp_path, monkeypatch):
    invent(monkeypatch, remote(server.url), files=("file.bin", "other"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "other").write_text("mine")
    home = locate("invented", tmp_path)
    assert (home / "file.bin").read_bytes() == CONTENT
    assert (home / "other").read_text() == "mine"


def test_fetch_asks_only_for_the_files_that_are_missing(server, tmp_path, monkeypatch):
    mine = RemoteFile("mine.bin", ("http://127.0.0.1/",), 5, hashlib.sha256(b"other").hexdigest())
    invent(monkeypatch, mine, remote(server.url), files=("mine.bin", "file.bin"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mine.bin").write_bytes(b"mine!")
    home = fetch("invented", tmp_path)
    assert (home / "mine.bin").read_bytes() == b"mine!"
    assert (home / "file.bin").read_bytes() == CONTENT
    assert len(server.ranges) == 1
