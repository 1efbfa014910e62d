"""Calls to the model registry that need a value read first: they run in a worker, for MLflow is heavy."""

from pathlib import Path

from ingest.contracts.files import read_manifest
from ingest.contracts.verdict import Verdict


def record(*, mlflow: str, checkpoint: Path) -> None:
    """Records the verdict in the folder `checkpoint`, and its report, on the checkpoint's version."""
    from promotion.registry import record_verdict

    verdict = read_manifest(checkpoint, Verdict, "verdict.json")
    record_verdict(mlflow=mlflow, verdict=verdict, report=checkpoint / "report.html")
