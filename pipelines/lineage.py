"""Which checkpoint a run's training continues from, and the how-manieth look its evaluation is.

Promoted: from that trainer state. Held: from the challenger's full state, at most `max_holds` times in a row, each
compared with the same champion as one more look. Rejected, stopped in training, or the champion was changed by a
person: from the champion's state, at a first look. Runs that ended before training (a gate that failed) say nothing;
one that was given up after its evaluation counts by its verdict, for a look that was taken is spent.
"""

from collections.abc import Iterable

import msgspec

from pipelines.records import Outcome, Run, RunState, Stage


class Origin(msgspec.Struct, frozen=True):
    """Training continues from `parent`; `look` counts from 1."""

    parent: str
    champion: str
    look: int
    why: str


_BY_VERDICT = {
    "promote": Outcome.PROMOTED,
    "canary": Outcome.CANARY,
    "hold": Outcome.HELD,
    "reject": Outcome.REJECTED,
}


def _outcome(run: Run) -> Outcome | None:
    if run.state == RunState.DONE:
        return run.outcome
    verdict = run.result(Stage.EVALUATE) if run.state == RunState.ABANDONED else None
    return _BY_VERDICT.get((verdict or {}).get("decision", ""))


def origin(history: Iterable[Run], champion: str, max_holds: int) -> Origin:
    """Where the next run starts. `history` are the policy's runs, the newest first; `champion` the registry's."""
    holds: list[Run] = []
    for run in history:
        outcome = _outcome(run)
        if outcome in (None, Outcome.GATE_FAILED):
            continue
        held = outcome in (Outcome.HELD, Outcome.CANARY)
        if not held or (run.result(Stage.LINEAGE) or {}).get("champion") != champion:
            break
        holds.append(run)
        if (run.result(Stage.LINEAGE) or {}).get("look") == 1:
            break
    if not holds or holds[0].checkpoint_id == champion:
        return Origin(champion, champion, 1, "the champion")
    if len(holds) > max_holds:
        return Origin(champion, champion, 1, f"the champion: its challengers were held {len(holds)} times in a row")
    return Origin(holds[0].checkpoint_id, champion, len(holds) + 1, f"held {len(holds)} of at most {max_holds} times")
