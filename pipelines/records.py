"""What a run is: its states, its stages, and the tables of valid transitions.

A run is one turn of the loop for one policy. It is minted once, with the ids of the dataset and the checkpoint it
will make, so that a stage that is done again makes the same thing under the same name.
"""

from enum import StrEnum

import msgspec


class Stage(StrEnum):
    """The stages of a run, in their order."""

    LAND = "land"
    """Log to lake, and each turn's state; says how many turns are ready."""
    FREEZE = "freeze"
    """Ready turns to a candidate dataset."""
    GATE = "gate"
    """The dataset's expectations."""
    LINEAGE = "lineage"
    """Which checkpoint training continues from."""
    TRAIN = "train"
    REGISTER = "register"
    EVALUATE = "evaluate"
    DECIDE = "decide"
    ROLL_OUT = "roll_out"


class RunState(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    """A process is at it, or was until it was killed: then the next one takes it up."""
    WAITING = "waiting"
    """Too few turns are ready; the next trigger counts again."""
    INTERRUPTED = "interrupted"
    """Stopped on request between or within stages."""
    FAILED = "failed"
    """A stage raised; the next trigger tries that stage again, a bounded number of times."""
    ABANDONED = "abandoned"
    """Its stage failed too often: the next trigger begins a new run."""
    DONE = "done"
    """It came to an end: `outcome` says which."""


R = RunState
RUN_TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    R.RUNNING: frozenset({R.RUNNING, R.WAITING, R.INTERRUPTED, R.FAILED, R.ABANDONED, R.DONE}),
    R.WAITING: frozenset({R.RUNNING}),
    R.INTERRUPTED: frozenset({R.RUNNING}),
    R.FAILED: frozenset({R.RUNNING, R.ABANDONED}),
    R.ABANDONED: frozenset(),
    R.DONE: frozenset(),
}
UNFINISHED = (R.RUNNING, R.WAITING, R.INTERRUPTED, R.FAILED)


class Outcome(StrEnum):
    """Why a run came to its end."""

    PROMOTED = "promoted"
    CANARY = "canary"
    """Not worse, and nothing more is known: a person decides; the next run goes on from it."""
    HELD = "held"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"
    """Promoted, but the engines did not take it in: the version before serves on."""
    GATE_FAILED = "gate_failed"
    TRAINING_STOPPED = "training_stopped"


BY_VERDICT = {
    "promote": Outcome.PROMOTED,
    "canary": Outcome.CANARY,
    "hold": Outcome.HELD,
    "reject": Outcome.REJECTED,
}
"""What becomes of a run by its verdict's decision, where nothing else comes between."""


class StageState(StrEnum):
    """Where a stage of a run stands."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    WAITING = "waiting"
    """Done, and to be done again: there was too little to go on with."""


S = StageState
STAGE_TRANSITIONS: dict[StageState, frozenset[StageState]] = {
    S.RUNNING: frozenset({S.RUNNING, S.FINISHED, S.FAILED, S.INTERRUPTED, S.WAITING}),
    S.FAILED: frozenset({S.RUNNING}),
    S.INTERRUPTED: frozenset({S.RUNNING}),
    S.WAITING: frozenset({S.RUNNING}),
    S.FINISHED: frozenset(),
}


class StageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of one run. `result` is what it returned; `progress` what it said on its way."""

    stage: Stage
    state: StageState
    attempts: int
    started_at: float
    finished_at: float | None = None
    result: dict = {}
    progress: dict = {}
    error: str = ""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of the loop. Times are Unix seconds."""

    run_id: str
    policy: str
    number: int
    state: RunState
    started_at: float
    updated_at: float
    finished_at: float | None = None
    outcome: Outcome | None = None
    reason: str = ""
    stages: tuple[StageRecord, ...] = ()

    @property
    def dataset_id(self) -> str:
        """The dataset this run freezes."""
        return "d" + self.run_id[1:]

    @property
    def checkpoint_id(self) -> str:
        """The checkpoint this run trains."""
        return "c" + self.run_id[1:]

    def stage(self, stage: Stage) -> StageRecord | None:
        """The record of `stage`, None where the run has not come to it."""
        return next((s for s in self.stages if s.stage == stage), None)

    def result(self, stage: Stage) -> dict | None:
        """What `stage` returned, None where it has not finished."""
        record = self.stage(stage)
        return record.result if record and record.state == StageState.FINISHED else None

    def waiting(self, stage: Stage) -> dict | None:
        """What `stage` returned when it last found too little to go on with; None where that is not how it stands."""
        record = self.stage(stage)
        return record.result if record and record.state == StageState.WAITING else None
