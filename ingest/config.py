"""Settings of the ingest stages: the log, the lake, attribution, rewards, datasets and their gate."""

from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ingest.contracts.feedback import ImplicitRule

LakePlace: TypeAlias = Path | str
"""A folder, or the URL of an object store as delta-rs takes it, `s3://bucket/prefix`: delta-rs looks for credentials in
the environment, as the store's own tools do."""


class LogSettings(BaseModel):
    """Where events wait between the gateways and the lake."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["embedded", "kafka"] = Field(
        default="embedded",
        description="`embedded`: the gateways' spools on this machine are the log; `kafka`: a forwarder ships them to "
        "a topic.",
    )
    ack: Literal["disk", "broker"] = Field(
        default="disk",
        description="When a turn counts as recorded, and its caller has the end of the answer: `disk`: once it is on "
        "the gateway's own disk; `broker`: once Kafka has it, where that disk may vanish with its machine (about 50 ms "
        'later). While no broker answers, `capture = "required"` is then a 503, and `"best_effort"` goes on.',
    )
    segment_bytes: int = Field(default=64 << 20, gt=0, description="A spool segment is sealed at this size.")
    segment_seconds: float = Field(
        default=2.0, gt=0, description="A spool segment is sealed at this age; what is not sealed cannot be landed."
    )
    max_bytes: int = Field(
        default=16 << 30,
        ge=4 << 20,
        description="All the spools of a machine together; a gateway that must record refuses requests above it.",
    )
    retention_days: float = Field(
        default=7.0, gt=0, description="How long the log keeps what was landed: segments, or Kafka's `retention.ms`."
    )
    bootstrap: str = Field(default="127.0.0.1:9092", description="Kafka: HOST:PORT of brokers, separated by commas.")
    topic: str = Field(default="everloop", description="Kafka: the topic; created where it does not exist.")
    partitions: int = Field(default=8, gt=0, description="Kafka: partitions of a topic that is created.")
    replication: int = Field(
        default=1,
        gt=0,
        description="Kafka: replicas of a topic that is created; 3 in production. From 2 on, two must have a record "
        "before it leaves the spool; with 2 in all, the spools wait while either broker is away.",
    )
    max_record_bytes: int = Field(
        default=8 << 20,
        gt=0,
        description="Kafka: the largest record, of a topic that is created too; a larger event travels in several.",
    )
    lost_after_seconds: float = Field(
        default=3600.0,
        gt=0,
        description="Kafka: a spool not heard from for this long no longer holds back the settling of turns.",
    )


class LakeSettings(BaseModel):
    """How often the lake is looked after, and how long it keeps what only the past needs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    upkeep_seconds: float = Field(
        default=3600.0,
        gt=0,
        description="Landing looks after the lake when the last time is this long ago: small files become large ones, "
        "old ones go.",
    )
    old_files_hours: int = Field(
        default=24,
        ge=1,
        description="Files of the lake that newer ones replaced stay this long, for readers that began before.",
    )
    reproducible_days: float = Field(
        default=30.0,
        gt=0,
        description="A dataset can be frozen again, byte for byte, from the lake for this long after its cut; an "
        "erasure ends it earlier.",
    )
    redact_credentials: bool = Field(
        default=False,
        description="Turns in which detect-secrets finds a credential (a token of AWS, GitHub, Slack and others, a "
        "private key, a password in a URL) land without texts and arrays and are not trained on, feedback without its "
        "text. The log has them until its retention.",
    )


class AttributionSettings(BaseModel):
    """How feedback meets its turns, and when a turn's state is final."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    window_seconds: float = Field(
        default=3600.0, gt=0, description="Feedback received later than this after a turn's end does not count."
    )
    settle_seconds: float = Field(
        default=0.0,
        ge=0,
        description="How long after its last signal a turn waits for a revision before it is settled.",
    )
    retry_seconds: float = Field(
        default=120.0,
        ge=0,
        description="A turn that nobody judged is superseded when its subject sends the identical prompt again, in the "
        "same session, within this time of its end.",
    )
    trusted_keys: tuple[str, ...] = Field(
        default=(),
        description="Ids of keys that may give feedback on any turn (an annotation tool, a simulator); every other key "
        "speaks only for turns that it made itself.",
    )
    fresh_seconds: float = Field(
        default=86_400.0, gt=0, description="A settled turn is ready for training only while it is younger than this."
    )
    fresh_versions: int = Field(
        default=3,
        ge=0,
        description="A settled turn is ready for training only while at most this many newer weight versions have "
        "answered users.",
    )
    engine: Literal["duckdb", "spark"] = Field(
        default="duckdb",
        description="What runs the join: `duckdb`, in the process; `spark`, for a lake too large for one machine. The "
        "results are the same.",
    )
    spark: dict[str, str] = Field(
        default={},
        description="Spark: properties of its session, such as `spark.master`; this machine by default. They stand in "
        "manifests: credentials belong in Spark's own configuration.",
    )
    history_seconds: float = Field(
        default=604_800.0,
        ge=0,
        description="Turns are looked at for so long after they can neither become ready nor change any more. Rates, "
        "counts and baselines are of the turns that are looked at; so is feedback on a session by one of its turns.",
    )


_WORTH = " Absent: it is shown, and counts for nothing."


class ImplicitSettings(BaseModel):
    """Signals computed from the traffic itself: the reward of each, where it is to have one, and how two are told.

    A rule with a number settles a turn as an accept or a reject does, and adds to what users say outright.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    regenerated: float | None = Field(
        default=None,
        ge=-1,
        le=1,
        description="The same subject sent the same prompt again, in the same session, within `retry_seconds`; such a "
        "turn is then settled, not superseded." + _WORTH,
    )
    abandoned: float | None = Field(
        default=None,
        ge=-1,
        le=1,
        description="The answer called a tool, and nothing followed in its session within the window. (Answers that "
        "their caller left before the end are shown under this rule, too, but never trained on.)" + _WORTH,
    )
    dissatisfied: float | None = Field(
        default=None, ge=-1, le=1, description="The user's next words say so, by the classifier." + _WORTH
    )
    invalid_tool_call: float | None = Field(
        default=None,
        ge=-1,
        le=1,
        description="The answer called a tool that was not offered, or with arguments that are no JSON object or do "
        "not fit the tool's schema." + _WORTH,
    )
    tool_error: float | None = Field(
        default=None, ge=-1, le=1, description="A tool that the answer called came back with an error." + _WORTH
    )
    classifier: str = Field(
        default="ingest.dissatisfaction:complains",
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="`module:function`, called as f(text) -> probability, or true or false, that the user's words "
        "complain about the answer before them; 0.5 is enough. It must be deterministic. The default is a short list "
        "of English phrases, and weak.",
    )
    tool_error_prefixes: tuple[str, ...] = Field(
        default=("Error", "Traceback (most recent call last)"),
        description="A tool's result is an error when its text begins with one of these words. OpenAI's formats only: "
        "Anthropic's has a mark of its own.",
    )
    tool_error_keys: tuple[str, ...] = Field(
        default=("error", "is_error", "isError"),
        description="Or when it is a JSON object in which one of these is neither false nor empty.",
    )

    def worth(self) -> dict[str, float]:
        """The rewards that are set, by rule."""
        found = {rule.value: getattr(self, rule.value) for rule in ImplicitRule}
        return {rule: number for rule, number in found.items() if number is not None}


class WeightSettings(BaseModel):
    """What each row of a dataset weighs (`ingest.weights`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    subject_turns: float = Field(
        default=16.0,
        gt=0,
        description="The turns of one subject weigh together at most as much as this many of others do; a dataset that "
        "has no room for all takes each subject's newest so many first.",
    )
    key_turns: float = Field(
        default=1024.0, gt=0, description="The same for turns of no subject, those of one API key together."
    )
    propensity_clip: float = Field(
        default=1.0,
        ge=1,
        description="Above 1: a turn weighs more where turns like it (arm, segment, age) are answered less often, and "
        "less where they are answered more often, at most by this factor.",
    )


class RewardSettings(BaseModel):
    """The reward specification: which number each signal is. Its digest is in every dataset's manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = Field(
        default=1,
        ge=1,
        description="Counts up when you change what signals are worth; in every manifest, beside the digest.",
    )
    accept: float = Field(default=0.75, ge=-1, le=1, description="Reward of an accepted answer.")
    reject: float = Field(default=-0.25, ge=-1, le=1, description="Reward of a rejected answer.")
    abstain: float = Field(default=0.0, ge=-1, le=1, description="Reward of a model that chose not to act.")
    score_scale: float = Field(default=1.0, description="A score's value times this is its reward.")
    outcome_scale: float = Field(default=1.0, description="An outcome's value times this is its reward.")
    limit: float = Field(default=1.0, gt=0, description="A turn's summed reward is clipped to ± this.")
    segment: str = Field(
        default="key",
        pattern=r"^(key|none|metadata:[A-Za-z0-9_]+)$",
        description="What a turn's baseline is shared by: `key` (the API key), `none`, or `metadata:<name>` (a field "
        "of the request's metadata).",
    )
    implicit: ImplicitSettings = Field(default=ImplicitSettings())
    weights: WeightSettings = Field(default=WeightSettings())

    @model_validator(mode="after")
    def _accept_is_better(self) -> "RewardSettings":
        if self.accept <= self.reject:
            raise ValueError(f"accept ({self.accept}) must be worth more than reject ({self.reject})")
        return self


class DatasetSettings(BaseModel):
    """How large a dataset is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_turns: int = Field(default=4096, gt=0, description="A dataset takes at most this many turns, newest first.")


class GateSettings(BaseModel):
    """What a candidate dataset must be like to be trained on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_rows: int = Field(default=32, gt=0, description="Fewest rows of a dataset.")
    max_age_seconds: float = Field(
        default=172_800.0, gt=0, description="Oldest turn of a dataset, seconds before its cut."
    )
    max_version_age: int = Field(
        default=4, ge=0, description="Most newer weight versions that any token of a dataset may have behind it."
    )
    min_logprob: float = Field(default=-50.0, lt=0, description="Lowest believable log-probability of a sampled token.")
    max_subject_share: float = Field(
        default=0.5, gt=0, le=1, description="Largest share of the rows that one subject may have."
    )
    max_key_share: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="Largest share of the rows, and of the signals, that one API key may have, where turns of several "
        "keys were judged. Turns of nobody in particular count by their key.",
    )
    max_failed_share: float = Field(
        default=0.5, gt=0, le=1, description="Largest share of the policy's turns that may have failed."
    )
    max_unauthorised_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Largest share of the signals that may come from a key that may not judge the turn.",
    )
    max_length_ratio: float = Field(
        default=3.0,
        gt=1,
        description="Mean answer length may be at most this many times the last dataset's, or its inverse.",
    )
    max_acceptance_change: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Share of rewards above 0 may differ by at most this from the last dataset's.",
    )
    max_language_change: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Shares of the answers' languages may differ by at most this from the last dataset's: half the sum "
        "of the differences.",
    )
    suites: Path | None = Field(
        default=None,
        description="TOML file that adds expectations, and replaces or disables everloop's; below the home folder. "
        "Default: `suites.toml` there, where there is one.",
    )
