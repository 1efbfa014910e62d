"""The run history: `pipelines.db`, SQLite, written by the scheduler, the command line and the stage workers.

Each call is one short transaction, so that threads and processes may share the file. A transition that the tables in
`pipelines.records` do not allow raises; a stage's result is written in the transaction that finishes it.

Invariant: a stage that is finished is never begun again.
"""

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pipelines.database import Database
from pipelines.errors import PipelineError
from pipelines.records import (
    RUN_TRANSITIONS,
    STAGE_TRANSITIONS,
    UNFINISHED,
    Outcome,
    Run,
    RunState,
    Stage,
    StageRecord,
    StageState,
)

MAX_ATTEMPTS = 5
"""How often one stage of one run is begun before the run is abandoned."""


class Runs:
    """The runs of all policies in one database. `clock` gives Unix seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock, self._database = clock, Database(path)

    # --- reading -------------------------------------------------------------------------------------------------

    def get(self, run_id: str) -> Run:
        """The run with this id; raises `PipelineError` where there is none."""
        runs = self._select("WHERE run_id = ?", (run_id,))
        if not runs:
            raise PipelineError(f'there is no run "{run_id}": `everloop runs` lists them')
        return runs[0]

    def history(self, policy: str | None = None, limit: int = -1) -> list[Run]:
        """Runs, the newest first."""
        where, values = ("WHERE policy = ?", (policy,)) if policy else ("", ())
        return self._select(f"{where} ORDER BY started_at DESC, number DESC LIMIT {int(limit)}", values)

    def unfinished(self, policy: str) -> Run | None:
        """The run of `policy` that a trigger should go on with, if there is one."""
        states = ", ".join(f"'{s}'" for s in UNFINISHED)
        runs = self._select(f"WHERE policy = ? AND state IN ({states}) ORDER BY number DESC LIMIT 1", (policy,))
        return runs[0] if runs else None

    # --- the life of a run ---------------------------------------------------------------------------------------

    def create(self, policy: str) -> Run:
        """A new running run, numbered from 1 within its policy: `r0003-1f9a2b`."""
        now = self._clock()
        with self._database.write() as db:
            number = db.execute("SELECT coalesce(max(number), 0) + 1 FROM runs WHERE policy = ?", (policy,)).fetchone()[
                0
            ]
            run_id = f"r{number:04d}-{secrets.token_hex(3)}"
            db.execute(
                "INSERT INTO runs (run_id, policy, number, state, started_at, updated_at) VALUES (?, ?, ?, ?, ?, ?)",
                (run_id, policy, number, RunState.RUNNING, now, now),
            )
        return self.get(run_id)

    def move(self, run_id: str, to: RunState, reason: str = "", outcome: Outcome | None = None) -> Run:
        """Brings the run to the state `to`; raises `PipelineError` where the table does not allow it."""
        now = self._clock()
        with self._database.write() as db:
            state = RunState(db.execute("SELECT state FROM runs WHERE run_id = ?", (run_id,)).fetchone()["state"])
            if to not in RUN_TRANSITIONS[state]:
                raise PipelineError(f"run {run_id} is {state} and cannot become {to}")
            ended = now if to in (RunState.DONE, RunState.ABANDONED) else None
            # The turns that a run waits for belong to the time before it: it starts when it has enough.
            started = now if state == RunState.WAITING else None
            db.execute(
                "UPDATE runs SET state = ?, reason = ?, outcome = ?, updated_at = ?, finished_at = ?,"
                " started_at = coalesce(?, started_at) WHERE run_id = ?",
                (to, reason, outcome, now, ended, started, run_id),
            )
        return self.get(run_id)

    # --- the life of a stage -------------------------------------------------------------------------------------

    def begin(self, run_id: str, stage: Stage) -> StageRecord:
        """Marks the stage as running. Its `attempts` leave out those that were stopped on request."""
        now = self._clock()
        with self._database.write() as db:
            self._check(db, run_id, stage, StageState.RUNNING)
            db.execute(
                "INSERT INTO stages (run_id, stage, state, attempts, started_at) VALUES (?, ?, ?, 1, ?)"
                " ON CONFLICT DO UPDATE SET attempts = CASE state"
                " WHEN 'waiting' THEN 1 WHEN 'interrupted' THEN attempts ELSE attempts + 1 END,"
                " state = excluded.state, started_at = excluded.started_at, finished_at = NULL, error = '',"
                " progress = '{}'",
                (run_id, stage, StageState.RUNNING, now),
            )
        record = self.get(run_id).stage(stage)
        assert record is not None
        return record

    def end(self, run_id: str, stage: Stage, state: StageState, result: Mapping | None = None, error: str = "") -> None:
        """Ends the stage's attempt, with its result or its error, in one transaction."""
        now = self._clock()
        with self._database.write() as db:
            self._check(db, run_id, stage, state)
            db.execute(
                "UPDATE stages SET state = ?, finished_at = ?, result = ?, error = ? WHERE run_id = ? AND stage = ?",
                (state, now, json.dumps(result or {}), error, run_id, stage),
            )
            db.execute("UPDATE runs SET updated_at = ? WHERE run_id = ?", (now, run_id))

    def progress(self, run_id: str, stage: Stage, values: Mapping) -> None:
        """What a running stage has to say of itself: the latest values."""
        with self._database.write() as db:
            db.execute(
                "UPDATE stages SET progress = ? WHERE run_id = ? AND stage = ? AND state = 'running'",
                (json.dumps(values), run_id, stage),
            )

    # --- requests ------------------------------------------------------------------------------------------------

    def request(self, policy: str, min_turns: int | None = None) -> None:
        """Asks the scheduler to look at this policy now, with another `min_turns` than the configured where given."""
        with self._database.write() as db:
            db.execute("INSERT OR REPLACE INTO requests VALUES (?, ?, ?)", (policy, self._clock(), min_turns))

    def requested(self, policy: str) -> bool:
        """Whether a request of this policy waits to be taken."""
        with self._database.read() as db:
            return db.execute("SELECT 1 FROM requests WHERE policy = ?", (policy,)).fetchone() is not None

    def take_requests(self) -> dict[str, int | None]:
        """The policies that were asked for, each once, with their `min_turns`."""
        with self._database.write() as db:
            rows = db.execute("DELETE FROM requests RETURNING policy, min_turns").fetchall()
        return {row["policy"]: row["min_turns"] for row in rows}

    # --- inside --------------------------------------------------------------------------------------------------

    def _check(self, db: sqlite3.Connection, run_id: str, stage: Stage, to: StageState) -> None:
        row = db.execute("SELECT state FROM stages WHERE run_id = ? AND stage = ?", (run_id, stage)).fetchone()
        allowed = STAGE_TRANSITIONS[StageState(row["state"])] if row else frozenset({StageState.RUNNING})
        if to not in allowed:
            state = row["state"] if row else "not begun"
            raise PipelineError(f"stage {stage} of run {run_id} is {state} and cannot become {to}")

    def _select(self, clause: str, values: tuple) -> list[Run]:
        with self._database.read() as db:
            runs = db.execute(f"SELECT * FROM runs {clause}", values).fetchall()
            return [self._run(db, row) for row in runs]

    def _run(self, db: sqlite3.Connection, row: sqlite3.Row) -> Run:
        order = {stage: n for n, stage in enumerate(Stage)}
        stages = [
            StageRecord(
                stage=Stage(s["stage"]),
                state=StageState(s["state"]),
                attempts=s["attempts"],
                started_at=s["started_at"],
                finished_at=s["finished_at"],
                result=json.loads(s["result"]),
                progress=json.loads(s["progress"]),
                error=s["error"],
            )
            for s in db.execute("SELECT * FROM stages WHERE run_id = ?", (row["run_id"],))
        ]
        return Run(
            run_id=row["run_id"],
            policy=row["policy"],
            number=row["number"],
            state=RunState(row["state"]),
            started_at=row["started_at"],
            updated_at=row["updated_at"],
            finished_at=row["finished_at"],
            outcome=Outcome(row["outcome"]) if row["outcome"] else None,
            reason=row["reason"],
            stages=tuple(sorted(stages, key=lambda s: order[s.stage])),
        )
