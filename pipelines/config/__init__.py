"""The configuration of one installation: a TOML file, composed from every package's settings.

`[policies.NAME]` is all of one policy: attaching another is one more table. Below this module there are plain
arguments: a stage gets its own settings, and nothing looks a value up. Importing it imports pydantic and no more.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from evaluation.config import EvaluationSettings
from ingest.config import (
    AttributionSettings,
    DatasetSettings,
    GateSettings,
    LakeSettings,
    LogSettings,
    RewardSettings,
)
from pipelines.config.reading import read
from pipelines.errors import ConfigError
from pipelines.home import Home
from promotion.config import PromotionSettings
from serving.config import ControlSettings, GatewaySettings, RedactionSettings
from trainer.config import TrainerSettings

_NAME = r"^[a-z0-9][a-z0-9_-]{0,62}$"
_NO_TABLE_BELOW = re.compile(r"[\x00-\x1f\x7f\[\]\\^|]|%[0-9A-Fa-f]{2}")
"""What delta-rs fails at wherever it stands in a path, and what it takes for another character."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InstallationConfig(_Model):
    """Where this installation keeps its data, and what it needs of the machine."""

    home: Path = Field(default=Path("everloop-home"), description="The home folder.")
    min_free_disk_gb: float = Field(default=5.0, ge=0, description="`everloop up` refuses below this, in GB.")
    min_free_memory_gb: float = Field(default=4.0, ge=0, description="`everloop up` refuses below this, in GB.")
    start_seconds: float = Field(default=600.0, gt=0, description="How long `everloop up` waits for everything.")


class GatewayConfig(GatewaySettings):
    """The gateway, which applications talk to."""

    port: int = Field(default=8700, ge=0, le=65535, description="Port on 127.0.0.1; 0: a free one, chosen once.")
    workers: int = Field(default=1, ge=1, description="Processes, each with its own spool.")
    admin_port: int = Field(default=0, ge=0, le=65535, description="Port of /metrics; 0: a free one, chosen once.")


class ControlConfig(ControlSettings):
    """The control process: keys, engines, desired versions."""

    port: int = Field(default=0, ge=0, le=65535, description="Port on 127.0.0.1; 0: a free one, chosen once.")


class MlflowConfig(_Model):
    """The MLflow server: runs, the model registry, the evaluation reports."""

    port: int = Field(default=0, ge=0, le=65535, description="Port on 127.0.0.1; 0: a free one, chosen once.")


class LogConfig(LogSettings):
    """Where events wait between the gateways and the lake."""

    kind: Literal["embedded", "kafka", "auto"] = Field(  # type: ignore[assignment]
        default="auto",
        description="`embedded`: the gateways' spools on this machine are the log; `kafka`: a forwarder ships them to "
        "a topic; `auto`: Kafka where Java and Maven are present, embedded otherwise. Without `bootstrap`, Kafka is a "
        "broker that `everloop up` runs here.",
    )

    @model_validator(mode="after")
    def _a_broker_acknowledges(self) -> "LogConfig":
        if self.ack == "broker" and self.kind != "kafka":
            raise ValueError('ack = "broker" needs kind = "kafka"')
        return self

    @property
    def own_broker(self) -> bool:
        """Whether Kafka, if it is the log, is a broker that `everloop up` runs."""
        return "bootstrap" not in self.model_fields_set


class LakeConfig(LakeSettings):
    """Where the lake is, how often it is looked after, and how long it keeps what only the past needs."""

    path: str = Field(
        default="lake",
        description="A folder, from the home folder on where it is no absolute path, or the URL of an object store, "
        "`s3://bucket/prefix`. Its credentials come from the environment, as its own tools have them "
        "(`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …): see [the lake in an object store](lake.md).",
    )

    @field_validator("path")
    @classmethod
    def _is_a_place(cls, path: str) -> str:
        if not path.rstrip("/") or path.startswith(("~", "file:")):
            raise ValueError("a folder below the home folder, an absolute path, or the URL of an object store")
        if "://" in path and not re.fullmatch("[a-z0-9+]+://[^/@?#]+(/[^/@?#]+)*/*", path):
            raise ValueError("a URL here is scheme://bucket/prefix; credentials and options belong in the environment")
        return path.rstrip("/")


class EngineConfig(_Model):
    """One vLLM engine on this machine."""

    policy: str = Field(description="The policy it serves.")
    role: Literal["serve", "evaluation"] = Field(
        default="serve",
        description="`serve`: answers users; `evaluation`: loads challengers, which no user meets before a verdict.",
    )
    port: int = Field(default=0, ge=0, le=65535, description="Port on 127.0.0.1; 0: a free one, chosen once.")
    max_num_seqs: int | None = Field(default=None, ge=1, description="Requests decoded at the same time.")
    max_model_len: int | None = Field(default=None, ge=1, description="Longest prompt and answer, in tokens.")
    args: tuple[str, ...] = Field(default=(), description="Further arguments of vLLM's server.")
    environment: dict[str, str] = Field(default={}, description="Further environment variables of the engine.")


class ScheduleConfig(_Model):
    """When a policy's loop runs."""

    every_seconds: float | None = Field(default=None, gt=0, description="Look for turns this often; or `cron`.")
    cron: str | None = Field(default=None, description='Five fields, UTC: "0 */3 * * *" looks every three hours.')
    min_turns: int = Field(
        default=256, ge=1, description="A run goes on only when so many turns are ready (settled, trainable, unused)."
    )
    misfire_grace_seconds: int = Field(
        default=3600,
        ge=1,
        description="A look that was missed by less than this (the machine slept) is made up for, once.",
    )
    retry_seconds: float = Field(
        default=30.0,
        ge=0,
        description="A failed run is tried again after this, then twice this, up to an hour; a failed gate too.",
    )
    stop_seconds: float = Field(
        default=20.0, ge=0, description="How long a stage may go on when the scheduler is asked to stop."
    )
    engine_seconds: float = Field(
        default=300.0, gt=0, description="How long an evaluation engine may take to load a challenger."
    )
    rollout_seconds: float = Field(default=300.0, gt=0, description="How long the fleet may take to swap.")

    @model_validator(mode="after")
    def _one_trigger(self) -> "ScheduleConfig":
        if self.every_seconds is not None and self.cron is not None:
            raise ValueError("every_seconds and cron are both set: choose one")
        return self


class PolicyConfig(_Model):
    """One policy: the model it starts from, and how it learns."""

    model: Path = Field(description="Folder of the model it starts from, as Hugging Face stores it.")
    capture: Literal["required", "best_effort"] = Field(
        default="required",
        description="`required`: no answer without its record; `best_effort`: it goes out, the loss is counted.",
    )
    sampling: dict[str, float] = Field(
        default={}, description="Sampling parameters that requests cannot change, so that traffic stays trainable."
    )
    redaction: RedactionSettings = Field(default=RedactionSettings())
    attribution: AttributionSettings = Field(default=AttributionSettings())
    rewards: RewardSettings = Field(default=RewardSettings())
    dataset: DatasetSettings = Field(default=DatasetSettings())
    gate: GateSettings = Field(default=GateSettings())
    trainer: TrainerSettings = Field(default=TrainerSettings())
    evaluation: EvaluationSettings
    schedule: ScheduleConfig = Field(default=ScheduleConfig())

    @model_validator(mode="after")
    def _a_target(self) -> "PolicyConfig":
        if self.evaluation.target is None:
            raise ValueError(
                "evaluation.target is not set, and without one the best verdict is canary: a rollout to some users, "
                'which everloop does not do yet. Name what values an answer, target = "module:function"'
            )
        return self


class Config(_Model):
    """The whole file."""

    everloop: InstallationConfig = Field(default=InstallationConfig())
    gateway: GatewayConfig = Field(default=GatewayConfig())
    control: ControlConfig = Field(default=ControlConfig())
    mlflow: MlflowConfig = Field(default=MlflowConfig())
    log: LogConfig = Field(default=LogConfig())
    lake: LakeConfig = Field(default=LakeConfig())
    promotion: PromotionSettings = Field(default=PromotionSettings())
    engines: tuple[EngineConfig, ...] = Field(default=())
    policies: dict[str, PolicyConfig] = Field(default={})

    @model_validator(mode="after")
    def _whole(self) -> "Config":
        for name in self.policies:
            if not re.match(_NAME, name):
                raise ValueError(f'policies.{name}: a policy\'s name has lower-case letters, digits, "-" and "_" only')
            roles = {engine.role for engine in self.engines if engine.policy == name}
            for role in ("serve", "evaluation"):
                if self.engines and role not in roles:
                    raise ValueError(
                        f'policy "{name}" has no engine of the role "{role}": add [[engines]] with policy = "{name}", '
                        f'role = "{role}"'
                    )
        for engine in self.engines:
            if engine.policy not in self.policies:
                raise ValueError(
                    f'an engine names the policy "{engine.policy}", which has no table [policies.{engine.policy}]'
                )
        ports: dict[int, str] = {}
        named = [("[gateway] port", self.gateway.port), ("[gateway] admin_port", self.gateway.admin_port)]
        named += [("[control] port", self.control.port), ("[mlflow] port", self.mlflow.port)]
        named += [(f"engines[{n}].port", engine.port) for n, engine in enumerate(self.engines)]
        for name, port in named:
            if port and port in ports:
                raise ValueError(f"{name} and {ports[port]} are both {port}: give each its own")
            ports[port] = name
        return self

    def log_settings(self, kafka: str | None) -> LogSettings:
        """The log's settings once it is known what `auto` means: `kafka` is HOST:PORT, or None for the embedded log."""
        values = self.log.model_dump()
        if kafka is None:
            return LogSettings(**values | {"kind": "embedded"})
        return LogSettings(**values | {"kind": "kafka", "bootstrap": kafka})


def load(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """The configuration in the file `path` under `environment`; raises `ConfigError`, one sentence a problem.

    Modules beside the file can be imported afterwards: `module:function` may name them, and the stack runs there.
    """
    config = read(path, environment, Config)
    folder = path.resolve().parent
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    home = folder / config.everloop.home
    config = config.model_copy(update={"everloop": config.everloop.model_copy(update={"home": home})})
    if said := _wrong_with_the_lake(Home.of(config)):
        raise ConfigError([f"lake.path: {said}"])
    return config


def _wrong_with_the_lake(home: Home) -> str:
    """Known only once it is known where the home folder is; empty where nothing is wrong."""
    if found := _NO_TABLE_BELOW.search(str(home.lake)):
        return (
            f"the lake would be at {home.lake}, and there can be no tables where a path has {found[0]!r}: name another "
            "folder or prefix, or another [everloop] home"
        )
    if isinstance(home.lake, str):
        return ""
    lake = home.lake.resolve()
    if home.root.is_relative_to(lake):
        return f"{lake} holds the home folder: name a folder that is the lake's alone"
    if other := next((place for place in home.kept if lake.is_relative_to(place.resolve())), None):
        return f"{home.lake} is where {other} is kept: name a folder that is the lake's alone"
    return ""
