"""What happened in the demo, as values: everything that the report is made from, and nothing that it concludes."""

from dataclasses import dataclass

from pipelines.demo.measure import Measured
from pipelines.records import Run
from pipelines.simulate.traffic import Exchange, Tally


@dataclass(frozen=True)
class Addresses:
    """Where the pages are that stay up."""

    gateway: str
    mlflow: str
    data_docs: str


@dataclass(frozen=True)
class Facts:
    """One demo. Times are Unix seconds; `steps` seconds by step of the demo, in order.

    `turns` and `captured` are the ids of all turns that the demo asked for, and of those that the lake holds; `states`
    counts the lake's turns by state.
    """

    planned_cycles: int
    started_at: float
    finished_at: float
    steps: dict[str, float]
    runs: tuple[Run, ...]
    exchanges: tuple[Exchange, ...]
    tally: Tally
    before: Measured
    after: Measured
    turns: frozenset[str]
    captured: frozenset[str]
    states: dict[str, int]
    log: str
    addresses: Addresses
    seed: int = 0
