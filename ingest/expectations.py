"""What data must be like, as Great Expectations suites over the frames of `ingest.frames`.

Each expectation has a name (`meta["name"]`): the gate's check is called so, and a file of the user's own replaces or
disables it by that name (`ingest.suites`).
"""

from typing import TYPE_CHECKING

from ingest.config import GateSettings
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.feedback import Kind
from ingest.contracts.turn import Finish

if TYPE_CHECKING:
    from great_expectations.expectations import Expectation

LOGPROB_ROUNDING = 1e-4
"""A sampled token's logprob is at most 0; float32 log-softmax may round this far above."""

LIKE_THE_LAST = (
    "length like the last dataset's",
    "language like the last dataset's",
    "acceptance like the last dataset's",
)
"""Names of the expectations of a candidate that there are only once a dataset was accepted."""
OF_SOME = ("most were answered", "most senders may judge")
"""Names of those of the lake's tables that there are only where there is a row: the mean of nothing holds nothing."""


def candidate(
    policy: str, settings: GateSettings, last: DatasetManifest | None = None, keys: int = 1
) -> "list[Expectation]":
    """The suite of a candidate. `last` is the policy's last accepted dataset: without one, nothing can drift. Of a
    single key all rows may be; `keys` are those whose turns were judged."""
    from great_expectations import expectations as gxe

    suite: list[Expectation] = [
        gxe.ExpectTableRowCountToBeBetween(min_value=settings.min_rows, meta=_named("enough rows")),
        gxe.ExpectColumnValuesToBeInSet(column="policy", value_set=[policy], meta=_named("one policy")),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["turn_id", "sample"], meta=_named("no turn twice")),
        gxe.ExpectColumnValuesToBeInSet(column="uses_elsewhere", value_set=[0], meta=_named("in no other dataset")),
        gxe.ExpectColumnValuesToBeBetween(column="prompt_tokens", min_value=1, meta=_named("a prompt")),
        gxe.ExpectColumnValuesToBeBetween(column="output_tokens", min_value=1, meta=_named("an answer")),
        gxe.ExpectColumnPairValuesToBeEqual(
            column_A="output_tokens", column_B="logprob_tokens", meta=_named("a logprob for each token")
        ),
        gxe.ExpectColumnValuesToNotBeNull(column="lowest_logprob", meta=_named("logprobs are numbers")),
        gxe.ExpectColumnValuesToBeBetween(
            column="lowest_logprob", min_value=settings.min_logprob, meta=_named("logprobs not too low")
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="highest_logprob", max_value=LOGPROB_ROUNDING, meta=_named("logprobs not above 0")
        ),
        gxe.ExpectColumnValuesToBeInSet(column="spans_tile", value_set=[True], meta=_named("a version for each token")),
        gxe.ExpectColumnValuesToNotBeNull(column="version_age", meta=_named("known versions")),
        gxe.ExpectColumnValuesToBeBetween(
            column="version_age", max_value=settings.max_version_age, meta=_named("recent versions")
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="age_seconds", min_value=0, max_value=settings.max_age_seconds, meta=_named("recent turns")
        ),
        gxe.ExpectColumnValuesToNotBeNull(column="reward", meta=_named("a reward")),
        gxe.ExpectColumnValuesToBeBetween(column="weight", min_value=0, strict_min=True, meta=_named("a weight")),
        gxe.ExpectColumnUniqueValueCountToBeBetween(column="reward", min_value=2, meta=_named("rewards differ")),
        gxe.ExpectColumnValuesToBeBetween(
            column="subject_share", max_value=settings.max_subject_share, meta=_named("no subject dominates")
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="key_share", max_value=settings.max_key_share if keys > 1 else 1, meta=_named("no key dominates")
        ),
    ]
    if last is not None:
        length, rate = last.statistics["mean_output_tokens"], last.statistics["accept_rate"]
        suite += [
            gxe.ExpectColumnMeanToBeBetween(
                column="output_tokens",
                min_value=length / settings.max_length_ratio,
                max_value=length * settings.max_length_ratio,
                meta=_named(LIKE_THE_LAST[0]),
            ),
            gxe.ExpectColumnValuesToBeBetween(
                column="language_drift", max_value=settings.max_language_change, meta=_named(LIKE_THE_LAST[1])
            ),
            gxe.ExpectColumnMeanToBeBetween(
                column="accepted",
                min_value=rate - settings.max_acceptance_change,
                max_value=rate + settings.max_acceptance_change,
                meta=_named(LIKE_THE_LAST[2]),
            ),
        ]
    return suite


def turns(settings: GateSettings, rows: int = 1) -> "list[Expectation]":
    """The suite of the policy's turns in the lake, as far as they are young enough for a dataset; `rows` in number."""
    from great_expectations import expectations as gxe

    suite: list[Expectation] = [
        gxe.ExpectTableRowCountToBeBetween(min_value=1, meta=_named("turns were recorded")),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["turn_id", "sample"], meta=_named("no turn twice")),
        gxe.ExpectColumnValuesToBeInSet(column="finish", value_set=list(Finish), meta=_named("a known end")),
        gxe.ExpectColumnValuesToBeBetween(column="seconds", min_value=0, meta=_named("ended after they began")),
        gxe.ExpectColumnPairValuesToBeEqual(
            column_A="output_tokens",
            column_B="logprob_tokens",
            row_condition="trainable == 1",
            condition_parser="pandas",
            meta=_named("a logprob for each token"),
        ),
    ]
    if rows:
        suite += [
            gxe.ExpectColumnMeanToBeBetween(
                column="failed", max_value=settings.max_failed_share, meta=_named(OF_SOME[0])
            )
        ]
    return suite


def feedback(settings: GateSettings, keys: int = 1, rows: int = 1) -> "list[Expectation]":
    """The suite of what was said of these turns; `rows` signals."""
    from great_expectations import expectations as gxe

    suite: list[Expectation] = [
        gxe.ExpectColumnValuesToBeInSet(column="kind", value_set=list(Kind), meta=_named("a known kind")),
        gxe.ExpectColumnValuesToBeInSet(column="valued", value_set=[1], meta=_named("a number where one belongs")),
        gxe.ExpectColumnValuesToBeBetween(
            column="sender_share",
            max_value=settings.max_key_share if keys > 1 else 1,
            meta=_named("no sender dominates"),
        ),
    ]
    if rows:
        suite += [
            gxe.ExpectColumnMeanToBeBetween(
                column="own", min_value=1 - settings.max_unauthorised_share, meta=_named(OF_SOME[1])
            )
        ]
    return suite


def _named(name: str) -> dict[str, str]:
    return {"name": name}
