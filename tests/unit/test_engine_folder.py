"""What an engine refuses to load: by its headers, and by its manifest."""

import json
from pathlib import Path
from typing import Any

import pytest

from ingest.contracts.checkpoint import EXPORT
from ingest.contracts.fleet import Version
from serving.fleet.folder import FolderError, check, tensors, verify, within
from tests.checkpoint_folders import make_checkpoint


def write(folder: Path, shapes: dict[str, list[int]], name: str = "model.safetensors", cut: int = 0) -> Path:
    """A folder with one bf16 safetensors file of zeros, `cut` bytes short."""
    folder.mkdir(exist_ok=True)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor, shape in shapes.items():
        size = 2
        for n in shape:
            size *= n
        header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    data = len(raw).to_bytes(8, "little") + raw + bytes(at)
    (folder / name).write_bytes(data[: len(data) - cut])
    (folder / "config.json").write_text("{}")
    return folder


SHAPES = {"model.embed_tokens.weight": [8, 4], "model.norm.weight": [4]}


def test_a_complete_folder_of_the_same_shapes_passes(tmp_path: Path) -> None:
    served, new = write(tmp_path / "a", SHAPES), write(tmp_path / "b", SHAPES)
    check(new, like=served)
    assert tensors(new) == {"model.embed_tokens.weight": (8, 4), "model.norm.weight": (4,)}


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        ({"model.embed_tokens.weight": [8, 4]}, "not of the served architecture"),
        ({**SHAPES, "lm_head.weight": [8, 4]}, "not of the served architecture"),
        ({**SHAPES, "model.norm.weight": [5]}, "model.norm.weight has shape"),
    ],
)
def test_another_architecture_is_refused(tmp_path: Path, shapes: dict[str, list[int]], sentence: str) -> None:
    with pytest.raises(FolderError, match=sentence):
        check(write(tmp_path / "b", shapes), like=write(tmp_path / "a", SHAPES))


@pytest.mark.parametrize("cut", [1, 40, 1000])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, cut: int) -> None:
    with pytest.raises(FolderError, match=r"its header says|cut short|valid safetensors header"):
        tensors(write(tmp_path / "a", SHAPES, cut=cut))


def test_a_missing_shard_or_file_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", SHAPES, name="model-1-of-2.safetensors")
    index = {"weight_map": {"x": "model-1-of-2.safetensors", "y": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FolderError, match="model-2-of-2"):
        tensors(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FolderError, match="no safetensors file"):
        tensors(tmp_path / "empty")


def test_only_folders_below_the_root_are_reached_whatever_links_say(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    (root / "version").mkdir()
    assert within(str(root / "version"), root) == root / "version"
    for path in (str(outside), str(root / "link"), str(root / "version" / ".." / ".." / "outside"), "/"):
        with pytest.raises(FolderError, match="outside this engine's weights root"):
            within(path, root)
    with pytest.raises(FolderError, match="not a folder"):
        within(str(root / "gone"), root)


def test_only_a_whole_export_of_the_version_is_loaded(tmp_path: Path) -> None:
    export = make_checkpoint(tmp_path, "c1") / EXPORT
    verify(Version("c1", str(export)), tmp_path)
    with pytest.raises(FolderError, match="holds the weights of c1, not of c2"):
        verify(Version("c2", str(export)), tmp_path)
    with pytest.raises(FolderError, match="outside this engine's weights root"):
        verify(Version("c1", str(export)), tmp_path / "other")
    (export.parent / "other").mkdir()
    with pytest.raises(FolderError, match="names no file below other"):
        verify(Version("c1", str(export.parent / "other")), tmp_path)
    with pytest.raises(FolderError, match="never completed"):
        verify(Version("c1", str(export.parent)), tmp_path)
    weights = export / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[3] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(FolderError, match="differs from its manifest"):
        verify(Version("c1", str(export)), tmp_path)
    weights.unlink()
    with pytest.raises(FolderError, match="is missing"):
        verify(Version("c1", str(export)), tmp_path)
