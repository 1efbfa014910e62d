"""Weights: how much each row of a dataset counts, so that nobody who says much decides for everybody.

**Cap.** The turns of one subject together weigh at most `subject_turns`, those of nobody in particular at most
`key_turns` by API key: where there are more, each weighs less. Where a dataset has room for some turns only, every
subject's newest `subject_turns` go first. What others' turns weigh never depends on what a subject does.

**Bound.** Let D be the weight of everybody else's rows. Whatever one subject sends, turns and feedback, twice or lying,
the weighted mean reward is within 2 · limit · c / (D + c), where c is `subject_turns`, of what it would be without that
subject: its rows weigh at most c, rewards lie within ± limit, and feedback that names its user speaks for that user's
own turns only. (It is the application that names users, and idempotency keys; who holds an API key speaks for all.)

**Propensity.** Who answers is no fair sample of who was asked. With `propensity_clip` above 1 a turn is weighed by the
inverse of how often turns like it (arm, segment, age) are answered, relative to all, within 1 / clip to clip; the cap
is of the sum. A subject has a part in those rates, so the bound above holds for its own rows alone then.

Age is how much of its window a turn has had: quarters begun, 4 is all of it.
"""

import duckdb

from ingest.config import RewardSettings
from ingest.statements import statements


def choose(join: duckdb.DuckDBPyConnection, rewards: RewardSettings, max_turns: int) -> None:
    """The table `chosen`: the ready turns of a dataset with `place`, their order in it, and `weight`."""
    for statement, parameters in statements("weights.sql", {"max_turns": max_turns, **rewards.weights.model_dump()}):
        join.execute(statement, parameters)
