"""What happens before the first update: inputs are read and verified, rows become the steps of the run.

    leave out stale rows → score the reference → check the engine gap → advantages → minibatches

All of it is a function of dataset, parent, reference and settings, so a resumed run prepares the same steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingest.contracts.checkpoint import EXPORT, STATE, CheckpointManifest
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.files import digest_of
from trainer.advantages import advantages
from trainer.batches import Example, Minibatch, minibatches
from trainer.checkpoints import checkpoint_digest, distance, export_digest, lineage, verify_checkpoint
from trainer.config import PROXIMAL, StalenessSettings, TrainerSettings
from trainer.dataset import Row, read_dataset
from trainer.errors import TrainerError
from trainer.gap import check_gap
from trainer.monitors import Anchor, check_length, check_staleness
from trainer.policy import Scorer, load, load_trunk, open_policy, score
from trainer.precision import torch_dtype
from trainer.state import Progress, read_progress, restore_weights


@dataclass(frozen=True)
class Inputs:
    """What goes into a run, verified."""

    dataset: DatasetManifest
    rows: list[Row]
    parent: CheckpointManifest
    parent_folder: Path
    parent_state: Path | None
    """The folder training continues from; None where the parent has none, as an imported model."""
    reference: CheckpointManifest
    reference_folder: Path
    start: Progress
    """The numbers of the parent's state; step 0 on its own export where it has none."""

    @property
    def trunk(self) -> Path:
        """The checkpoint whose export lies under the trained weights."""
        return self.parent_folder.parent / self.start.trunk

    def digest(self, settings: TrainerSettings) -> str:
        """Identifies the run: everything that shapes its result."""
        return digest_of(
            [
                settings.model_dump(mode="json"),
                self.dataset,
                checkpoint_digest(self.parent),
                checkpoint_digest(self.reference),
            ]
        )


@dataclass(frozen=True)
class Plan:
    """The steps of a run and what they rest on."""

    steps: list[Minibatch]
    anchor: Anchor
    variance: float
    metrics: dict[str, float]


def read_inputs(policy: str, dataset: Path, parent: Path, reference: Path) -> Inputs:
    """Reads and verifies dataset, parent and reference. Raises `TrainerError` for the first that cannot be used."""
    manifest, rows = read_dataset(dataset)
    parent_manifest, reference_manifest = verify_checkpoint(parent), verify_checkpoint(reference)
    for what, found in (("dataset", manifest), ("parent", parent_manifest), ("reference", reference_manifest)):
        if found.policy != policy:
            raise TrainerError(f"the {what} belongs to policy {found.policy!r}, this run trains {policy!r}")
    if parent_manifest.tokenizer_digest != reference_manifest.tokenizer_digest:
        raise TrainerError(f"parent {parent} and reference {reference} have different tokenizers")
    state = parent / STATE
    return Inputs(
        dataset=manifest,
        rows=rows,
        parent=parent_manifest,
        parent_folder=parent,
        parent_state=state if state.is_dir() else None,
        reference=reference_manifest,
        reference_folder=reference,
        start=read_progress(state) if state.is_dir() else Progress(trunk=parent_manifest.checkpoint_id),
    )


def prepare(inputs: Inputs, settings: TrainerSettings) -> Plan:
    """The steps of a run. Raises `TrainingStopped` for staleness, gap, length and variance."""
    rows, versions = fresh_rows(inputs, settings.staleness)
    exports = {version: inputs.parent_folder.parent / version / EXPORT for version in versions}
    dtype = torch_dtype(settings)

    reference = load_trunk(inputs.reference_folder / EXPORT, export_digest(inputs.reference), dtype)
    texts = [(row.prompt_ids, row.output_ids) for row in rows]
    proximal = score_start(inputs, settings, texts) if settings.loss.name in PROXIMAL else None
    reference_logprobs, reference_entropy = score(Scorer(reference), texts, settings.forward_tokens)

    scored = {inputs.reference.checkpoint_id: reference_logprobs}

    def rescore(version: str, chosen: Sequence[int]) -> list[np.ndarray]:
        if version in scored:
            return [scored[version][i] for i in chosen]
        return score(Scorer(load(exports[version], dtype)), [texts[i] for i in chosen], settings.forward_tokens)[0]

    gap = check_gap(rows, rescore, settings.gap)

    mean_output_tokens = float(np.mean([len(row.output_ids) for row in rows]))
    anchor = Anchor(reference_entropy, inputs.start.output_tokens or mean_output_tokens)
    check_length(mean_output_tokens, anchor, settings.monitors)
    scaled = advantages(
        [row.reward for row in rows],
        [row.segment for row in rows],
        inputs.dataset.baselines,
        inputs.start.variance,
        settings.advantage,
    )
    examples = [
        Example(
            prompt_ids=row.prompt_ids,
            output_ids=row.output_ids,
            behaviour=row.logprobs,
            proximal=proximal[i] if proximal else np.full_like(row.logprobs, np.nan),
            reference=reference_logprobs[i],
            advantage=float(scaled.values[i]),
            weight=row.weight,
            reward=row.reward,
        )
        for i, row in enumerate(rows)
    ]
    order = (settings.seed, inputs.start.step)
    return Plan(
        steps=minibatches(
            examples, settings.minibatch, settings.epochs, settings.forward_tokens, order, settings.loss.normalize
        ),
        anchor=anchor,
        variance=scaled.variance,
        metrics={
            "gap_mean": gap.mean,
            "gap_p99": gap.p99,
            "rows": len(rows),
            "rows_stale": len(inputs.rows) - len(rows),
            "output_tokens_mean": mean_output_tokens,
            "reference_entropy": reference_entropy,
            "advantage_deviation": scaled.variance**0.5,
        },
    )


def score_start(
    inputs: Inputs, settings: TrainerSettings, texts: Sequence[tuple[np.ndarray, np.ndarray]]
) -> list[np.ndarray]:
    """Logprobs under the very weights that the run starts from, the parent's fp32 state: the proximal policy."""
    trunk = inputs.trunk / EXPORT
    with open_policy(settings, trunk, export_digest(verify_checkpoint(inputs.trunk))) as policy:
        if inputs.parent_state is not None:
            restore_weights(inputs.parent_state, policy)
        return score(policy.scorer, texts, settings.forward_tokens)[0]


def fresh_rows(inputs: Inputs, settings: StalenessSettings) -> tuple[list[Row], set[str]]:
    """Rows young enough to learn from, and the versions they name. Raises `TrainingStopped("staleness")`.

    A row is as old as the oldest weights in it; weights of which no checkpoint is left here are too old.
    """
    folder = inputs.parent_folder.parent
    line = lineage(folder, inputs.parent.checkpoint_id)
    steps = {v: distance(folder, line, v) for v in {span.version for row in inputs.rows for span in row.spans}}
    near = {version for version, found in steps.items() if found is not None and found <= settings.versions}
    rows = [
        row
        for row in inputs.rows
        if all(span.version in near for span in row.spans)
        and inputs.dataset.cut_at - row.finished_at <= settings.seconds
    ]
    check_staleness(len(inputs.rows) - len(rows), len(inputs.rows), settings)
    return rows, near
