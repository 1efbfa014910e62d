"""Settings of the serving processes: frozen, unknown keys refused, each described where it stands."""

import re
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RedactionSettings(_Settings):
    """What is taken out of a policy's turns and feedback before they are recorded; users' answers are not touched. A
    turn in which something was found keeps its text without it, loses its ids and logprobs, and is not trained on."""

    patterns: tuple[Literal["email", "credit_card", "iban", "phone", "secret"], ...] = Field(
        (), description="Well-known patterns; `secret`: API keys, tokens, private keys, passwords in URLs."
    )
    expressions: dict[str, str] = Field(
        {}, description="Further regular expressions, in RE2's syntax, by the name that stands in their place."
    )
    function: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="`module:function` of your own, from text to text; gateways import it.",
    )

    @model_validator(mode="after")
    def _names(self) -> Self:
        for name in self.expressions:
            if not re.fullmatch(r"[a-z0-9_]{1,40}", name):
                raise ValueError(f'the expression "{name}" must be named with 1 to 40 of: a-z, 0-9, "_"')
        return self


class GatewaySettings(_Settings):
    """What a gateway does with requests, beyond what keys and policies say."""

    default_policy: str | None = Field(
        None, description="Policy that answers model names which no policy has; absent: such a request is a 404."
    )
    max_body_bytes: int = Field(16 << 20, gt=0, description="Largest request body; above it: 413.")
    max_samples: int = Field(16, ge=1, description="Largest number of samples of one request (n, times prompts).")
    max_in_flight: int = Field(2048, ge=1, description="Turns in progress per worker; above it: 503.")
    max_in_flight_bytes: int = Field(
        128 << 20,
        gt=0,
        description="Bytes that the bodies of all turns in progress may have together, per worker; above it: 503. In "
        "memory a body mostly takes 3 to 10 times its size.",
    )
    max_answer_bytes: int = Field(
        64 << 20,
        gt=0,
        description="Largest answer of an engine, all its samples together, as it came; above it the turn is ended and "
        "recorded as failed, and its caller is told: 413. A streamed token takes some 250 bytes, and 100 more for each "
        "of its `top_logprobs`. In memory an answer takes up to 5 times its size.",
    )
    body_seconds: float = Field(
        30.0, gt=0, description="How long a client may take to send the head of a request, and then its body."
    )
    send_seconds: float = Field(
        30.0, gt=0, description="A client that reads nothing of its answer for so long is taken for gone."
    )
    engine_wait_seconds: float = Field(
        15.0, ge=0, description="How long a request waits for an engine to become ready before it gets a 503."
    )
    engine_silence_seconds: float = Field(
        300.0, gt=0, description="A stream of an engine in which nothing comes for so long is taken for lost."
    )
    turn_seconds: float = Field(3600.0, gt=0, description="Longest time that one turn may take.")
    drain_seconds: float = Field(
        30.0,
        ge=0,
        description="How long turns in progress may go on when the process is told to end; then each is "
        "recorded as it is, and its caller is told.",
    )
    commit_seconds: float = Field(5.0, gt=0, description="Deadline of a turn's commit to the spool.")
    media_domains: tuple[str, ...] = Field(
        (), description="Hosts from which engines may fetch images, audio and video that a request names by URL."
    )
    otlp_endpoint: str | None = Field(
        None,
        pattern="^https?://",
        description="OTLP/HTTP URL that traces of turns go to, from gateways and from the engines that `everloop up` "
        'starts: "http://localhost:4318/v1/traces". Absent: no traces. Needs everloop[tracing].',
    )
    poll_seconds: float = Field(
        0.5, gt=0, le=1, description="How often the snapshot is asked of control; revoked keys are served that long."
    )


class ControlSettings(_Settings):
    """How the control process judges the fleet."""

    lost_seconds: float = Field(5.0, gt=0, description="An engine without a heartbeat for so long is lost.")
    sweep_seconds: float = Field(0.5, gt=0, description="How often silent engines are looked for.")
