"""May an engine load this folder? Checked before anything stops, while the engine still serves.

`verify` reads the files whole: each must have the digest that the checkpoint's manifest gives it. `check` and
`tensors` read headers alone. A folder of weights is one or more safetensors files, each: eight bytes of length, a JSON
header that says each tensor's type, shape and place, and the tensors. A file that was cut short, a shard that its index
names and that is missing, a tensor of another shape than the engine's: all are seen there in milliseconds. What only
the loaded weights can tell is `serving.fleet.swap`'s part.
"""

import json
from pathlib import Path
from typing import Any

from ingest.contracts.checkpoint import CheckpointManifest
from ingest.contracts.errors import ContractError
from ingest.contracts.files import read_manifest, verify_files
from ingest.contracts.fleet import Version

HEADER_LIMIT = 100 << 20


class FolderError(ValueError):
    """A folder that an engine must not load: says which, and what is wrong with it."""


def within(path: str, root: Path) -> Path:
    """`path` with links resolved; raises `FolderError` unless it is a folder below `root`."""
    folder, top = Path(path).resolve(), root.resolve()
    if not folder.is_relative_to(top):
        raise FolderError(f"{path} is outside this engine's weights root: weights load from below {top} only")
    if not folder.is_dir():
        raise FolderError(f"{folder} is not a folder on this engine's host: mount or copy the checkpoint there")
    return folder


def verify(version: Version, root: Path) -> None:
    """Raises `FolderError` unless the folder is this version's export, whole, and below `root`. Reads all of it."""
    folder = within(version.path, root)
    try:
        manifest = read_manifest(folder.parent, CheckpointManifest)
        if manifest.checkpoint_id != version.version:
            raise FolderError(f"{folder} holds the weights of {manifest.checkpoint_id}, not of {version.version}")
        entries = tuple(entry for entry in manifest.files if entry.path.startswith(f"{folder.name}/"))
        if not entries:
            raise FolderError(f"{folder.parent}'s manifest names no file below {folder.name}")
        verify_files(folder.parent, entries)
    except (ContractError, OSError) as error:
        raise FolderError(str(error)) from error


def tensors(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor in the folder's safetensors files, by name; raises `FolderError` where one is damaged."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FolderError(f"{folder} has no safetensors file")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        for name in sorted(set(_object(index).get("weight_map", {}).values())):
            if not (folder / name).is_file():
                raise FolderError(f"{folder / name} is missing, the folder's index names it")
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        shapes.update(_header(file))
    return shapes


def check(folder: Path, like: Path) -> None:
    """Raises `FolderError` unless `folder` holds every tensor that `like` holds, in the same shapes."""
    if not (folder / "config.json").is_file():
        raise FolderError(f"{folder} has no config.json: it is not a complete export")
    ours, theirs = tensors(folder), tensors(like)
    missing = sorted(theirs.keys() - ours.keys()) or sorted(ours.keys() - theirs.keys())
    if missing:
        raise FolderError(f"{folder} is not of the served architecture: it and {like} differ in {missing[0]}")
    for name, shape in ours.items():
        if shape != theirs[name]:
            raise FolderError(f"{folder}: {name} has shape {shape}, the served one {theirs[name]}")


def _object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except ValueError as error:
        raise FolderError(f"{file} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FolderError(f"{file} is not a JSON object")
    return value


def _header(file: Path) -> dict[str, tuple[int, ...]]:
    size = file.stat().st_size
    with file.open("rb") as f:
        length = int.from_bytes(f.read(8), "little")
        if not 2 <= length <= min(HEADER_LIMIT, size - 8):
            raise FolderError(f"{file} is not a safetensors file, or was cut short")
        try:
            header = json.loads(f.read(length))
            shapes = {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise FolderError(f"{file} has no valid safetensors header") from error
    if 8 + length + max(ends, default=0) != size:
        raise FolderError(f"{file} has {size} bytes, its header says {8 + length + max(ends, default=0)}")
    return shapes
