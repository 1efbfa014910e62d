"""Manifests written last, digests checked on read.

A folder is complete when its manifest exists. `write_manifest` makes that one atomic act: the folder's
files are synced first, then the manifest is written beside its place, synced, and renamed into it.
"""

import contextlib
import glob
import hashlib
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from ingest.contracts.errors import ContractError
from ingest.contracts.versions import current, refuse_newer

T = TypeVar("T", bound=msgspec.Struct)

_LEFT_SECONDS = 600.0
"""No write takes so long: what is half written and older was left by a writer that was killed."""


class _Head(msgspec.Struct):
    """What can be read of a manifest of any version."""

    schema: int = 1


class FileEntry(msgspec.Struct, frozen=True):
    """One file of a manifest: path relative to the folder, bytes, SHA-256 in hex."""

    path: str
    size: int
    sha256: str


def digest_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def digest_of(value: object) -> str:
    """SHA-256, in hex, of any JSON-like value or struct, whatever the order of its keys."""
    return hashlib.sha256(msgspec.json.encode(msgspec.to_builtins(value), order="deterministic")).hexdigest()


def list_files(folder: Path, manifest: str = "manifest.json") -> tuple[FileEntry, ...]:
    """Every file below `folder` but its manifest, by path, with size and digest."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / manifest)
    return tuple(FileEntry(p.relative_to(folder).as_posix(), p.stat().st_size, digest_file(p)) for p in files)


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
    """`path` holds the old bytes or the new, whatever happens in between, and those in no file of a wider mode.

    What writers of the same file left half written, for they were killed, goes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
        old = os.fstat(f.fileno()).st_mtime - _LEFT_SECONDS  # by the disk's clock, as the others are
    os.replace(partial, path)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with contextlib.suppress(FileNotFoundError):
            if left.stat().st_mtime < old:
                left.unlink()
    sync(path.parent)


def write_manifest(folder: Path, manifest: msgspec.Struct, name: str = "manifest.json") -> None:
    """Syncs every file in `folder`, then writes its manifest: from here on the folder is complete."""
    for path in folder.rglob("*"):
        sync(path)
    write_atomically(folder / name, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


def read_manifest(folder: Path, kind: type[T], name: str = "manifest.json") -> T:
    """The manifest of `folder`; raises `ContractError` where the folder is incomplete or it is not one."""
    path = folder / name
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ContractError(f"{folder} has no {name}: it was never completed") from None
    return decode_manifest(data, kind, path)


def decode_manifest(data: bytes, kind: type[T], path: Path) -> T:
    """The manifest in `data`, the bytes of `path`; raises `ContractError` where it is none, or a newer version's."""
    try:
        if "schema" in kind.__struct_fields__:
            refuse_newer(str(path), msgspec.json.decode(data, type=_Head).schema, current(kind))
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ContractError(f"{path}: {error}") from error


def verify_files(folder: Path, files: tuple[FileEntry, ...]) -> None:
    """Raises `ContractError` naming the first file that is missing or differs from its entry."""
    for entry in files:
        path = folder / entry.path
        if not path.is_file():
            raise ContractError(f"{path} is missing, its manifest names it")
        if path.stat().st_size != entry.size or digest_file(path) != entry.sha256:
            raise ContractError(f"{path} differs from its manifest: damaged, or changed since it was written")
