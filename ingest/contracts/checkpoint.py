"""Checkpoint: `checkpoints/<policy>/<checkpoint_id>/`, complete or absent.

`export/` is a folder that vLLM and Hugging Face load; `state/` is what training continues from (fp32), absent
for an imported model; `manifest.json` is written last, after fsync: no manifest, no checkpoint. The
checkpoint's id is the weight version that engines report and spans name.
"""

import msgspec

from ingest.contracts.files import FileEntry
from ingest.contracts.versions import version

EXPORT = "export"
STATE = "state"


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Every number that shaped the checkpoint. `kind` is `base`, `full` or `adapter`."""

    schema: int = version(1)
    checkpoint_id: str
    policy: str
    kind: str
    parent: str | None
    created_at: float
    files: tuple[FileEntry, ...]
    dataset_id: str | None = None
    configuration: dict = {}
    configuration_digest: str = ""
    tokenizer_digest: str = ""
    template_digest: str = ""
    step: int = 0
    """Optimizer steps since the base."""
    metrics: dict[str, float] = {}
    realised_update: float | None = None
    """Share of exported weights that differ from the parent's export after rounding; 0 is an error."""
