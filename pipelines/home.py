"""The home folder: where one installation keeps everything, and the only place that spells its paths.

spool/ lake/ datasets/<policy>/ checkpoints/<policy>/   events, tables, datasets, checkpoints
evaluations/<run>/   simulate/                          evaluations by hand; what simulated users did
control/control.db   mlflow/   datadocs/   kafka/       databases and pages of the processes
pipelines.db   receipts.db                              runs, schedule, lease; what was asked to be forgotten
suites.toml                                             what the gate asks besides, by the user
logs/<process>.log   run/                               of the processes on this machine
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.config import LakePlace

if TYPE_CHECKING:
    from pipelines.config import Config

BASE = "base"
"""The id of the checkpoint that a policy's model was imported as: the fixed reference of every training run."""


@dataclass(frozen=True)
class Home:
    """The paths below `root`, an absolute path, and the lake, which may be elsewhere. Nothing is created before
    `create` is called."""

    root: Path
    lake: LakePlace

    @classmethod
    def of(cls, config: "Config") -> "Home":
        """The home folder of a configuration."""
        return cls.at(config.everloop.home, config.lake.path)

    @classmethod
    def at(cls, root: Path, lake: str = "lake") -> "Home":
        """The home folder at `root`, made absolute; the lake at a URL, or in a folder below."""
        root = root.expanduser().resolve()
        return cls(root, lake if "://" in lake else root / lake)

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def datasets(self) -> Path:
        return self.root / "datasets"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, policy: str, checkpoint_id: str) -> Path:
        """The folder of one checkpoint."""
        return self.checkpoints / policy / checkpoint_id

    @property
    def control(self) -> Path:
        return self.root / "control" / "control.db"

    @property
    def mlflow(self) -> Path:
        return self.root / "mlflow"

    @property
    def docs(self) -> Path:
        return self.root / "datadocs"

    @property
    def evaluations(self) -> Path:
        return self.root / "evaluations"

    @property
    def simulate(self) -> Path:
        return self.root / "simulate"

    def suites(self, named: Path | None) -> Path:
        """The file with the gate's suites of the user's own: the one that the configuration names, or the default."""
        return self.root / (named or "suites.toml")

    @property
    def kafka(self) -> Path:
        return self.root / "kafka"

    @property
    def database(self) -> Path:
        return self.root / "pipelines.db"

    @property
    def receipts(self) -> Path:
        return self.root / "receipts.db"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def kept(self) -> tuple[Path, ...]:
        """All that stands here besides the lake."""
        folders = (self.spool, self.datasets, self.checkpoints, self.control.parent, self.mlflow, self.docs)
        more = (self.evaluations, self.simulate, self.kafka, self.logs, self.run)
        return *folders, *more, self.database, self.receipts, self.suites(None)

    def create(self) -> "Home":
        """Makes the folders that processes expect to exist; `run` only for its owner (it holds the secrets)."""
        for folder in (
            self.spool,
            self.datasets,
            self.checkpoints,
            self.control.parent,
            self.docs,
            self.logs,
        ):
            folder.mkdir(parents=True, exist_ok=True)
        (self.mlflow / "artifacts").mkdir(parents=True, exist_ok=True)
        self.run.mkdir(mode=0o700, exist_ok=True)
        return self
