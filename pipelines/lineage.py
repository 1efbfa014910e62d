"""Which checkpoint a run's training continues from, and the how-manieth look of the policy's life its evaluation is.

Promoted: from that trainer state. Held: from the challenger's full state, at most `max_holds` times in a row, each
compared with the same champion. Rejected, rolled back, stopped in training, or the champion was changed by a person:
from the champion's state. Runs that ended before training (a gate that failed) say nothing; one that was given up
after its evaluation counts by its verdict.

Looks are counted over the policy's life, whatever came of them: a look that was begun is spent, so that the chance of
ever promoting wrongly stays bounded however often the loop runs.
"""

from collections.abc import Sequence

import msgspec

from pipelines.records import BY_VERDICT, Outcome, Run, RunState, Stage


class Origin(msgspec.Struct, frozen=True):
    """Training continues from `parent`, held `holds` times since `champion`; `look` counts from 1."""

    parent: str
    champion: str
    look: int
    holds: int
    why: str


def _outcome(run: Run) -> Outcome | None:
    if run.state == RunState.DONE:
        return run.outcome
    verdict = run.result(Stage.EVALUATE) if run.state == RunState.ABANDONED else None
    return BY_VERDICT.get((verdict or {}).get("decision", ""))


def _looked(run: Run) -> bool:
    """Whether the run may have seen how its challenger does: it ended before its evaluation, if it did not."""
    record = run.stage(Stage.EVALUATE)
    return record is not None and "ended" not in record.result


def origin(history: Sequence[Run], champion: str, max_holds: int) -> Origin:
    """Where the next run starts. `history` are the policy's runs, the newest first; `champion` the registry's."""
    look = 1 + sum(_looked(run) for run in history)
    holds: list[Run] = []
    for run in history:
        outcome = _outcome(run)
        if outcome in (None, Outcome.GATE_FAILED):
            continue
        held = outcome in (Outcome.HELD, Outcome.CANARY)
        began = run.result(Stage.LINEAGE) or {}
        if not held or began.get("champion") != champion:
            break
        holds.append(run)
        if began.get("parent") == champion:
            break
    if not holds or holds[0].checkpoint_id == champion:
        return Origin(champion, champion, look, 0, "the champion")
    if len(holds) > max_holds:
        why = f"the champion: its challengers were held {len(holds)} times in a row"
        return Origin(champion, champion, look, 0, why)
    return Origin(holds[0].checkpoint_id, champion, look, len(holds), f"held {len(holds)} of at most {max_holds} times")
