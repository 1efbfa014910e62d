"""What a person reads on a model version in the registry: Markdown, from the manifest and the verdict."""

from ingest.contracts.checkpoint import CheckpointManifest
from ingest.contracts.verdict import Verdict


def describe(manifest: CheckpointManifest, verdict: Verdict | None, link: str = "") -> str:
    """The description of a version; `link` leads to the run that has the report."""
    origin = f"parent `{manifest.parent}`" if manifest.parent else "no parent"
    lines = [f"**{manifest.checkpoint_id}** · {manifest.kind} · {origin} · step {manifest.step}"]
    if manifest.dataset_id:
        lines.append(f"Trained on dataset `{manifest.dataset_id}`.")
    if verdict is None:
        return "\n\n".join(lines)
    lines += [
        f"## {verdict.decision} (look {verdict.look}, against `{verdict.champion}`)",
        "\n".join(f"- {reason}" for reason in verdict.reasons),
        f"| | champion | challenger | difference | interval ({verdict.confidence:.1%} one-sided) |\n"
        "|---|---|---|---|---|\n"
        f"| {verdict.target or 'no target'} | {verdict.champion_mean:.3f} | {verdict.challenger_mean:.3f} "
        f"| {verdict.difference:+.3f} | {verdict.low:+.3f} to {verdict.high:+.3f} |",
        f"{verdict.questions} questions, {verdict.samples} answers; guards: "
        f"{sum(g.passed for g in verdict.guards)} of {len(verdict.guards)} held.",
    ]
    if link:
        lines.append(f"[Report, with plots and the answers side by side]({link}) (artifact `report.html`)")
    return "\n\n".join(lines)
