"""The evidence of a verdict in MLflow: a run with its numbers, its report and its samples.

Only the report's files are uploaded, by name: the folder they lie in holds the weights too.
"""

from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from ingest.contracts.verdict import Verdict
from promotion.names import TAG_CHECKPOINT, TAG_DECISION, TAG_VERDICT_DIGEST

_REPORT_FILES = ("verdict.json", "samples.jsonl", "report.html")


def log_evaluation(client: MlflowClient, verdict: Verdict, digest: str, checkpoint: Path) -> tuple[str, str]:
    """Experiment id and run id of the run that carries this verdict, made unless a finished one is there."""
    name = f"{verdict.policy} evaluation"
    found = client.get_experiment_by_name(name)
    experiment = found.experiment_id if found else client.create_experiment(name)
    done = client.search_runs(
        [experiment], f"tags.`{TAG_VERDICT_DIGEST}` = '{digest}' and attributes.status = 'FINISHED'", max_results=1
    )
    if done:
        return experiment, done[0].info.run_id
    now = int(verdict.created_at * 1000)
    run = client.create_run(experiment, start_time=now, run_name=f"{verdict.challenger} against {verdict.champion}")
    numbers = {
        "champion_mean": verdict.champion_mean,
        "challenger_mean": verdict.challenger_mean,
        "difference": verdict.difference,
        "low": verdict.low,
        "high": verdict.high,
        **{f"guard.{g.name.replace('@', '.')}": g.challenger for g in verdict.guards},
    }
    words = {
        "challenger": verdict.challenger,
        "champion": verdict.champion,
        "target": verdict.target,
        "confidence": str(verdict.confidence),
        "questions": str(verdict.questions),
        "samples": str(verdict.samples),
        "look": str(verdict.look),
    }
    client.log_batch(
        run.info.run_id,
        metrics=[Metric(key, value, now, 0) for key, value in numbers.items()],
        params=[Param(key, value) for key, value in words.items()],
        tags=[
            RunTag(TAG_CHECKPOINT, verdict.challenger),
            RunTag(TAG_DECISION, str(verdict.decision)),
            RunTag(TAG_VERDICT_DIGEST, digest),
        ],
    )
    for file in _REPORT_FILES:
        if (checkpoint / file).exists():
            client.log_artifact(run.info.run_id, str(checkpoint / file))
    client.set_terminated(run.info.run_id, end_time=now)
    return experiment, run.info.run_id
