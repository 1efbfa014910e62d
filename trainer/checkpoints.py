"""Checkpoints on disk: `checkpoints/<policy>/<checkpoint_id>/`, complete or absent.

Importing a base, reading and verifying, lineage, retention, and what identifies a tokenizer. Nothing here
loads a model; `export.py` writes weights.
"""

import json
import shutil
import time
from collections.abc import Collection
from pathlib import Path

from safetensors import safe_open

from ingest.contracts.checkpoint import EXPORT, CheckpointManifest
from ingest.contracts.errors import ContractError
from ingest.contracts.files import digest_file, digest_of, list_files, read_manifest, verify_files, write_manifest
from trainer.errors import TrainerError

BASE = "base"
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json",
              "special_tokens_map.json", "added_tokens.json")  # fmt: skip
_WEIGHTS_OF_OTHERS = (".bin", ".pt", ".pth", ".h5", ".gguf", ".onnx", ".msgpack")


def import_model(source: Path, checkpoints: Path, policy: str, *, now: float | None = None) -> CheckpointManifest:
    """Copies a Hugging Face folder (bf16 safetensors, tokenizer, template) in as the policy's base, once.

    The second call returns the manifest that is there, whatever `source` is by then: a base never changes.
    Raises `TrainerError` where `source` is not such a folder.
    """
    folder = checkpoints / policy / BASE
    if is_complete(folder):
        return read_checkpoint(folder)
    _check_importable(source)
    shutil.rmtree(folder, ignore_errors=True)
    export = folder / EXPORT
    export.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.startswith(".") and path.suffix not in _WEIGHTS_OF_OTHERS:
            shutil.copyfile(path, export / path.name)
    manifest = CheckpointManifest(
        checkpoint_id=BASE,
        policy=policy,
        kind="base",
        parent=None,
        created_at=time.time() if now is None else now,
        files=list_files(folder),
        tokenizer_digest=tokenizer_digest(export),
        template_digest=template_digest(export),
    )
    write_manifest(folder, manifest)
    return manifest


def _check_importable(source: Path) -> None:
    weights = sorted(source.glob("*.safetensors"))
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (source / name).is_file()]
    if not weights or missing:
        raise TrainerError(
            f"{source} is not a Hugging Face model folder: {', '.join(missing) or 'no *.safetensors'} missing; "
            "write one with save_pretrained of model and tokenizer"
        )
    for path in weights:
        with safe_open(path, framework="numpy") as tensors:
            kinds = {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
        if kinds - {"BF16", "F32", "I64", "I32", "BOOL"} or "BF16" not in kinds:
            raise TrainerError(f"{path} holds {sorted(kinds)}: convert the model to bfloat16 first")


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint is there, in full."""
    return (folder / "manifest.json").is_file()


def read_checkpoint(folder: Path) -> CheckpointManifest:
    """The manifest of a checkpoint; raises `TrainerError` where there is none."""
    try:
        return read_manifest(folder, CheckpointManifest)
    except ContractError as error:
        raise TrainerError(f"no checkpoint: {error}") from error


def verify_checkpoint(folder: Path) -> CheckpointManifest:
    """The manifest, after every file was checked against it; raises `TrainerError` naming the first that differs."""
    manifest = read_checkpoint(folder)
    try:
        verify_files(folder, manifest.files)
    except ContractError as error:
        raise TrainerError(f"checkpoint {manifest.checkpoint_id} cannot be used: {error}") from error
    return manifest


def export_digest(manifest: CheckpointManifest) -> str:
    """Identifies what an engine loads: the digest of all files of the export."""
    return digest_of([entry for entry in manifest.files if entry.path.startswith(f"{EXPORT}/")])


def checkpoint_digest(manifest: CheckpointManifest) -> str:
    """Identifies a checkpoint's bytes, state included; the same for two runs that did the same."""
    return digest_of(manifest.files)


def tokenizer_digest(export: Path) -> str:
    """Digest of the files that turn text into ids."""
    return digest_of({name: digest_file(export / name) for name in _TOKENIZER if (export / name).is_file()})


def template_digest(export: Path) -> str:
    """Digest of the chat template, whichever file holds it."""
    template = export / "chat_template.jinja"
    if template.is_file():
        return digest_file(template)
    configuration = export / "tokenizer_config.json"
    return digest_of(json.loads(configuration.read_bytes()).get("chat_template") if configuration.is_file() else None)


def list_checkpoints(folder: Path) -> list[CheckpointManifest]:
    """Every complete checkpoint of a policy (`folder` is `checkpoints/<policy>`), oldest first."""
    found = [read_checkpoint(path.parent) for path in folder.glob("*/manifest.json")]
    return sorted(found, key=lambda manifest: (manifest.created_at, manifest.checkpoint_id))


def lineage(folder: Path, checkpoint_id: str) -> list[str]:
    """`checkpoint_id`, its parent, and so on to the base. Raises `TrainerError` where an ancestor is missing."""
    line = [checkpoint_id]
    while (parent := read_checkpoint(folder / line[-1]).parent) is not None:
        line.append(parent)
    return line


def distance(folder: Path, line: list[str], version: str) -> int | None:
    """Checkpoints between `version` and the head of `line` (a lineage), through their nearest common ancestor.

    0 for the head itself; None where `version` is not a checkpoint of this policy.
    """
    if not is_complete(folder / version):
        return None
    other = lineage(folder, version)
    for steps, ancestor in enumerate(other):
        if ancestor in line:
            return steps + line.index(ancestor)
    return None


def retain(folder: Path, keep: Collection[str], newest: int) -> list[str]:
    """Removes old checkpoints of a policy and returns their ids, oldest first.

    What stays: every id in `keep` (what is served, desired, under evaluation, or named by a turn not yet in a
    dataset), the `newest` most recent, the base, and every ancestor of these.
    """
    present = list_checkpoints(folder)
    ids = [manifest.checkpoint_id for manifest in present]
    roots = {BASE, *keep, *(ids[-newest:] if newest else [])} & set(ids)
    stay = {ancestor for root in roots for ancestor in lineage(folder, root)}
    removed = [checkpoint_id for checkpoint_id in ids if checkpoint_id not in stay]
    for checkpoint_id in removed:
        (folder / checkpoint_id / "manifest.json").unlink()
        shutil.rmtree(folder / checkpoint_id)
    return removed
