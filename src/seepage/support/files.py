"""Writes files and folders completely or not at all, and replaces only folders that it wrote.

Files contain per-record numbers, so only their owner can read them.

A folder of results contains a manifest: its files with their SHA-256 digests and, if signed, a
signature. A folder is replaced only if it is empty or contains only unchanged files of its
manifest. The new folder is written beside it under a hidden name. The two folders then exchange
names, in one step on Linux (``renameat2``), so that readers see either the old folder or the new
one. If this is not possible (another system, a mounted folder, the working directory), the new
files are written to a hidden subfolder. Renaming the subfolder to :data:`_READY` marks the files as
complete. The complete files are then moved to their final places. If the process is killed, the
next run moves them.

Files and folders are synced to disk (``fsync``) before they are renamed or exchanged, so even a
power failure leaves either the old or the new version.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from seepage.errors import InputError
from seepage.support.signatures import Sign, Signature
from seepage.support.strict_json import TEXT, check_fields, is_digest, is_text, read_json

if TYPE_CHECKING:
    import pyarrow as pa

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

Writer = Callable[[BinaryIO], object]

# A suffix that nobody else gives a file: it marks what a killed writer left.
HALF_WRITTEN = ".seepage-part"

MANIFEST = "manifest.json"
_FORMAT = "seepage-folder/1"
_NEW = ".seepage-new"  # the suffix of a folder that is being written
_READY = ".seepage-ready"  # a folder inside the results, its files still to be moved


def check_path(path: str | os.PathLike[str]) -> None:
    """Raise an error if the system cannot resolve a path, such as a link to itself.

    The path need not exist, since a file to be written does not exist yet.
    """
    place = Path(os.fsdecode(path))
    name = _shown(place.name)
    try:
        place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(
                f"{name} cannot be opened, because the links in its path form a loop; give a path "
                "without links."
            ) from error
        raise InputError(
            f"{name} cannot be opened: {error.strerror or error}; check the path."
        ) from error
    except ValueError as error:  # a zero byte
        raise InputError(f"{name} is not a valid file name; give another.") from error


def check_input(path: str | os.PathLike[str]) -> None:
    """Raise an error if an input path cannot be resolved, or is not valid UTF-8."""
    name = os.fsdecode(path)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"The name {_shown(name)} is not UTF-8, so some libraries cannot open it; rename the "
            "file or folder."
        ) from error
    check_path(path)


def write_private(path: Path, write: Writer) -> None:
    """Call ``write`` with a temporary file beside ``path`` (mode 0600), then rename the file.

    Temporary files that killed processes left for the same path are removed.
    """
    make_folders(path.parent)
    remove_half_written(path)
    handle = -1
    while handle < 0:
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=HALF_WRITTEN
        )
        temporary = Path(name)
        temporary.chmod(0o600)  # whatever the umask
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not os.fstat(handle).st_nlink:  # removed by another process before it was locked
                os.close(handle)
                handle = -1
    try:
        # The lock ends with the handle, and so only after the file has its name.
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:
                temporary.replace(path)
        if fcntl is None:  # Windows renames no open file
            temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents, accessible only to their owner, under any umask."""
    for missing in [f for f in (folder, *folder.parents) if not f.exists()][::-1]:
        with suppress(FileExistsError):  # another process was faster
            missing.mkdir()
            missing.chmod(0o700)


def sync_folder(folder: Path) -> None:
    """Sync the file names in a folder to disk, if the system supports it."""
    with suppress(OSError):  # Windows opens no folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a text to a file that only its owner can read."""
    write_private(path, lambda file: file.write(text.encode("utf-8", "replace")))


def write_tables(tables: Iterator[pa.Table], path: Path) -> None:
    """Write tables with a common schema in sequence to a file that only its owner can read.

    If the disk is full or the folder is not writable, no partial file remains.
    """
    try:
        write_private(path, partial(write_each, tables))
    except OSError as error:
        raise InputError(
            f"{path.name} cannot be written: {error.strerror or error}; no partial file remains. "
            "Choose another path."
        ) from error


def write_frame(table: pa.Table, path: str | os.PathLike[str]) -> Path:
    """Write one table to a Parquet file that only its owner can read, and return its path."""
    out = file_to_write(path)
    write_tables(iter([table]), out)
    return out


def file_to_write(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file; raise an error for a folder or an unresolvable path."""
    check_path(path)
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder; give the path of the Parquet file to write.")
    return Path(path)


def write_each(tables: Iterator[pa.Table], file: BinaryIO) -> None:
    """Write tables with a common schema in sequence to an open file."""
    import pyarrow.parquet as pq

    first = next(tables)
    # Nearly all numbers are different: a dictionary of them would be wasted.
    with pq.ParquetWriter(file, first.schema, use_dictionary=False) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)


def remove_half_written(path: Path, inside: Path | None = None, suffix: str = HALF_WRITTEN) -> None:
    """Remove what killed processes left of ``path``, but not what is in use.

    These are temporary files or, with the suffix :data:`_NEW`, folders; they are beside ``path``
    unless ``inside`` is another folder.
    """
    folder, ours = inside or path.parent, _half_written(path, suffix)
    is_kind = Path.is_dir if suffix == _NEW else Path.is_file
    for left in folder.iterdir() if folder.is_dir() else ():
        if ours.fullmatch(left.name) and is_kind(left) and not left.is_symlink():
            with open_if_deserted(left) as deserted:
                if deserted and suffix == _NEW:
                    _remove(left)
                elif deserted:
                    left.unlink(missing_ok=True)


def _half_written(path: Path, suffix: str) -> re.Pattern[str]:
    """Return the regular expression for the names of temporary files or folders for ``path``."""
    return re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}" + re.escape(suffix))


@contextmanager
def open_if_deserted(path: Path) -> Iterator[bool]:
    """Lock a file or folder inside this context; yield whether no other process had locked it.

    The system releases the locks of dead processes. On Windows, which has no such locks, the
    context always yields false, so nothing is removed as abandoned.
    """
    if fcntl is None:
        yield False
        return
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        yield False
        return
    try:
        yield True
    finally:
        os.close(handle)


def hold(path: Path) -> int | None:
    """Lock a file or folder and return the handle that holds the lock, or ``None`` on Windows."""
    if fcntl is None:
        return None
    handle = os.open(path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Wait until no other process or thread is inside this context for the same path.

    Use it for code that reads a file, adds to it and writes it back. The lock is on a hidden file
    beside ``path``; this file is not removed. The system releases the lock when a process dies. On
    Windows, which has no such locks, there is no waiting.
    """
    make_folders(path.parent)
    handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def whole_folder(
    out: Path,
    kind: str,
    keep: Sequence[Path] = (),
    complete: Callable[[Path], object] | None = None,
    sign: Sign | None = None,
) -> Iterator[Path]:
    """Yield an empty folder to fill; it replaces ``out`` when it is complete.

    Parameters
    ----------
    out
        The folder of results. The folder must be new, empty, or an unchanged folder of the same
        kind that seepage wrote.
    kind
        The kind of folder, as one word such as ``report``.
    keep
        Input files and folders, which must not be overwritten.
    complete
        A function that is called with the complete folder before it replaces ``out``. If the
        function raises an error, ``out`` is not replaced.
    sign
        The function that signs the manifest, if any.

    Raises
    ------
    InputError
        If ``out`` is not as described, or writing it would overwrite one of ``keep``; ``out`` is
        then left unchanged.
    """
    check_path(out)
    out = out.resolve()
    check_folder(out, kind, keep)
    if (out / _READY).is_dir():  # a run was killed while it moved files to their places
        _move_into_place(out)
        check_folder(out, kind, keep)
    made = [folder for folder in out.parents if not folder.exists()]  # the innermost first
    make_folders(out.parent)
    try:
        for folder in (out.parent, out):
            remove_half_written(out, folder, _NEW)
        new, handle = _start(out)
        try:
            yield new
            files = {name: digest_of(new / name) for name in sorted(_files_of(new))}
            manifest = Manifest(kind, files)
            write_text(new / MANIFEST, (manifest.signed(sign) if sign else manifest).text())
            check_folder(out, kind, keep)
            if complete is not None:
                complete(new)
            _take_place(new, out)
            sync_folder(out.parent)
        finally:
            if new.is_dir():  # by now the old one, or one never completed
                _remove(new)
            if handle is not None:
                os.close(handle)
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def check_folder(out: Path, kind: str, keep: Sequence[Path] = ()) -> None:
    """Raise an error if writing a folder of results would replace other files."""
    for path in (out, *keep):
        check_path(path)
    out = out.resolve()
    name = _shown(out.name)
    if out.exists() and not out.is_dir():
        raise InputError(f"{name} is a file; give a folder for the {kind} with --out.")
    for source in keep:
        real = source.resolve()
        if real.is_relative_to(out) or (real.is_dir() and out.is_relative_to(real)):
            raise InputError(
                f"{_shown(source.name)} is an input, so the {kind} cannot be written to {name}: "
                "one contains the other; choose another folder with --out."
            )
    if not out.is_dir() or (out / _READY).is_dir():
        return
    found = _files_of(out)
    if not found:
        return
    manifest = Manifest.of(out)
    own, held = manifest.files, manifest.kind
    foreign = sorted(found - set(own) - {MANIFEST})
    if held is not None and held != kind:
        raise InputError(
            f"{name} contains a {held}, which a {kind} cannot replace; choose another folder."
        )
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise InputError(
            f"{name} contains {', '.join(map(_shown, foreign[:3]))}{more}, which seepage did not "
            "write, and was left unchanged; choose another or an empty folder with --out."
        )
    inputs = [source.stat() for source in keep if source.exists()]
    for file, digest in own.items():
        path = out / file
        if not path.is_file():
            continue
        if any(os.path.samestat(path.stat(), other) for other in inputs):
            raise InputError(
                f"{_shown(file)} in {name} is an input file; choose another folder with --out."
            )
        if digest_of(path) != digest:
            raise InputError(
                f"{_shown(file)} in {name} was changed after it was written, so it is not "
                "replaced; choose another folder with --out, or remove the file."
            )


def read_manifest(
    folder: Path, kind: str, wanted: Mapping[str, int] | None = None, key: bytes | None = None
) -> Manifest:
    """Return the manifest of a folder after checking every file against it.

    A missing file, or a file that is not in the manifest, raises an error. ``wanted`` lists exactly
    the files that the manifest must name, each with its largest allowed size in bytes, which is
    checked before any file is read. A signature must match its own key. If a public ``key`` is
    given, the folder must be signed with that key.
    """
    check_input(folder)
    manifest, name = Manifest.of(folder), _shown(folder.name)
    again = f"get a new copy of the {kind}"
    if manifest.kind != kind:
        raise InputError(f"{name} is not a {kind} written by seepage; choose another folder.")
    own = manifest.files
    for file in wanted or ():
        if file not in own:
            raise InputError(
                f"The manifest of {name} does not list {_shown(file)}, so that file cannot be "
                f"verified; {again}."
            )
    if wanted is not None and (others := sorted(set(own) - set(wanted))):
        raise InputError(
            f"The manifest of {name} lists {_shown(others[0])}, which is not part of a {kind}; "
            f"{again}."
        )
    foreign = sorted(_files_of(folder) - set(own) - {MANIFEST})
    if foreign:
        raise InputError(
            f"{_shown(foreign[0])} in {name} is not in the manifest of the {kind}; remove it, or "
            f"{again}."
        )
    for file, most in (wanted or {}).items():
        if (folder / file).is_file() and (size := (folder / file).stat().st_size) > most:
            raise InputError(
                f"{_shown(file)} in {name} is {size / 1e6:,.0f} MB, more than the allowed "
                f"{most / 1e6:g} MB; {again}."
            )
    for file, digest in own.items():
        path = folder / file
        if path.is_symlink() or not path.is_file() or digest_of(path) != digest:
            raise InputError(
                f"{_shown(file)} in {name} is missing, or has changed since it was written; "
                f"{again}."
            )
    signature = manifest.signature
    if signature is not None and not signature.fits(manifest.signed_bytes):
        raise InputError(f"The signature of {name} does not match its manifest; {again}.")
    if key is not None and (signature is None or signature.key != key):
        signed = "is not signed" if signature is None else "is signed with another key"
        raise InputError(f"{name} {signed}, so its origin is unknown; {again} from its author.")
    return manifest


def _files_of(folder: Path) -> set[str]:
    """Return the paths of all files and links in a folder, except in its temporary folders."""
    paths = set()
    for root, folders, files in os.walk(folder):
        inside = Path(root)
        if inside == folder:
            folders[:] = [d for d in folders if not _half_written(folder, _NEW).fullmatch(d)]
        names = [*files, *(d for d in folders if (inside / d).is_symlink())]
        paths |= {(inside / n).relative_to(folder).as_posix() for n in names}
    return paths


def _start(out: Path) -> tuple[Path, int | None]:
    """Return a new folder to fill, with a lock that marks the folder as in use."""
    # Another folder can take the name of one that is neither mounted nor the working directory.
    fixed = out.is_mount() or not os.access(out.parent, os.W_OK) or Path.cwd().is_relative_to(out)
    inside = out.is_dir() and fixed
    while True:
        new = Path(
            tempfile.mkdtemp(dir=out if inside else out.parent, prefix=f".{out.name}.", suffix=_NEW)
        )
        with suppress(FileNotFoundError):  # removed by another process before it was locked
            handle = hold(new)
            if new.is_dir():
                new.chmod(0o700)  # whatever the umask
                return new, handle
            if handle is not None:
                os.close(handle)


def _take_place(new: Path, out: Path) -> None:
    """Replace ``out`` by a complete folder, after the folder has been synced to disk."""
    for inside in {new, *((new / name).parent for name in _files_of(new))}:
        sync_folder(inside)
    if not out.exists():
        new.rename(out)
    elif new.parent == out or not _exchange(new, out):
        new.rename(out / _READY)
        _move_into_place(out)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step; return whether the system supports this."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def _move_into_place(out: Path) -> None:
    """Move complete files to their final places; if interrupted, the next run continues."""
    ready = out / _READY
    before, after = Manifest.of(out).files, Manifest.of(ready).files
    if after:
        for name in before:
            if name not in after:
                (out / name).unlink(missing_ok=True)
        _remove_empty_folders(out, before)
        for name in after:
            if (ready / name).exists():
                make_folders((out / name).parent)
                (ready / name).replace(out / name)
        (ready / MANIFEST).replace(out / MANIFEST)
        sync_folder(out)
    shutil.rmtree(ready)


def _remove(folder: Path) -> None:
    """Remove a temporary folder; if it has a manifest, remove only the files listed there."""
    own = Manifest.of(folder).files
    if not own:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for name in own:
        (folder / name).unlink(missing_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    _remove_empty_folders(folder, own)
    with suppress(OSError):  # somebody put a file of their own there in the meantime
        folder.rmdir()


def _remove_empty_folders(folder: Path, names: Iterable[str]) -> None:
    above = {parent for name in names for parent in (folder / name).parents}
    for empty in sorted(above, key=lambda path: -len(path.parts)):
        if empty != folder and empty.is_relative_to(folder):
            with suppress(OSError):
                empty.rmdir()


def _shown(name: str) -> str:
    return ascii(name) if not name.isprintable() else repr(name)


@dataclass(frozen=True)
class Manifest:
    """The files of a folder and its kind; the kind is ``None`` if there is no valid manifest."""

    kind: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    signature: Signature | None = None

    @classmethod
    def of(cls, folder: Path) -> Manifest:
        """Return the manifest of a folder, which is empty if there is no valid manifest file."""
        path = folder / MANIFEST
        if path.is_symlink() or not path.is_file():
            return cls()
        try:
            content = read_json(path)
            check_fields(content, _FIELDS, "the manifest", optional=("signature",))
        except (OSError, ValueError):
            return cls()
        signed = content.get("signature")
        signature = signed and Signature(*(bytes.fromhex(signed[k]) for k in ("key", "value")))
        return cls(content["kind"], content["files"], signature)

    @property
    def signed_bytes(self) -> bytes:
        """The signed bytes: format, kind and files as JSON, with sorted keys and no spaces."""
        return json.dumps(self._plain(), sort_keys=True, separators=(",", ":")).encode()

    def signed(self, sign: Sign) -> Manifest:
        """Return this manifest with a signature."""
        return replace(self, signature=sign(self.signed_bytes))

    def text(self) -> str:
        """Return the contents of the manifest file."""
        content = self._plain()
        if self.signature is not None:
            signed = {"key": self.signature.key.hex(), "value": self.signature.value.hex()}
            content["signature"] = signed
        return json.dumps(content, indent=2) + "\n"

    def _plain(self) -> dict[str, Any]:
        return {"format": _FORMAT, "kind": self.kind, "files": dict(self.files)}


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _are_files(value: Any) -> bool:
    """Return whether all names have digests, and no name leads out of the folder on any system."""
    if not isinstance(value, dict) or not all(map(is_digest, value.values())):
        return False
    parts = {part for name in value for part in name.split("/")}
    inside = parts.isdisjoint(("", ".", "..")) and "\\" not in "".join(parts)
    return inside and all(map(is_text, value))


def _is_signature(value: Any) -> bool:
    try:
        sizes = {name: len(bytes.fromhex(part)) for name, part in value.items()}
    except (AttributeError, TypeError, ValueError):
        return False
    return sizes == {"key": 32, "value": 64}


_FIELDS = {
    "format": (lambda value: value == _FORMAT, f"{_FORMAT!r}"),
    "kind": TEXT,
    "files": (_are_files, "names in the folder with their SHA-256 digests"),
    "signature": (_is_signature, "a key and a value in hexadecimal digits"),
}
