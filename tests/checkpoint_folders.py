"""Checkpoint folders for tests of what reads them: complete, with a manifest and a few bytes for weights."""

from pathlib import Path

import msgspec

from ingest.contracts.checkpoint import EXPORT, CheckpointManifest
from ingest.contracts.files import list_files, write_atomically, write_manifest
from ingest.contracts.verdict import Decision, Guard, Verdict


def make_checkpoint(
    checkpoints: Path, checkpoint_id: str, *, policy: str = "assistant", kind: str = "full", parent: str | None = "base"
) -> Path:
    """`checkpoints/<policy>/<checkpoint_id>`, complete."""
    folder = checkpoints / policy / checkpoint_id
    (folder / EXPORT).mkdir(parents=True)
    (folder / EXPORT / "model.safetensors").write_bytes(f"weights of {checkpoint_id}".encode())
    return complete(folder, kind=kind, parent=parent)


def complete(folder: Path, *, kind: str = "full", parent: str | None = "base") -> Path:
    """Writes the manifest of `<policy>/<checkpoint_id>`, over what is in it."""
    manifest = CheckpointManifest(
        checkpoint_id=folder.name,
        policy=folder.parent.name,
        kind=kind,
        parent=None if kind == "base" else parent,
        created_at=1.0,
        files=list_files(folder),
    )
    write_manifest(folder, manifest)
    return folder


def make_verdict(checkpoint: Path, decision: Decision, *, champion: str = "base") -> Verdict:
    """A verdict about a checkpoint, with its report, in its folder."""
    verdict = Verdict(
        run_id=f"run-{checkpoint.name}",
        policy=checkpoint.parent.name,
        challenger=checkpoint.name,
        champion=champion,
        decision=decision,
        reasons=(f"because it is a test of {decision}",),
        target="tests:target",
        champion_mean=0.4,
        challenger_mean=0.5,
        difference=0.1,
        low=0.05,
        high=0.15,
        confidence=0.95,
        questions=32,
        samples=512,
        look=1,
        guards=(Guard("echo@anchor", 0.1, 0.1, 0.2, True),),
        created_at=2.0,
    )
    (checkpoint / "report.html").write_text("<!doctype html><title>report</title>")
    (checkpoint / "samples.jsonl").write_text('{"id": "q"}\n')
    write_atomically(checkpoint / "verdict.json", msgspec.json.encode(verdict))
    return verdict
