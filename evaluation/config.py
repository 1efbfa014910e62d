"""Settings of the evaluation: what is asked, how answers are scored, and when a challenger wins.

The defaults are the recipe that was tried: 8 answers to each held-out question, and a first look at one-sided
95 % (1.70 standard errors at 32 questions).
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

_MODEL = ConfigDict(extra="forbid", frozen=True)


class SamplingSettings(BaseModel):
    """How answers are drawn, alike for champion and challenger."""

    model_config = _MODEL

    answers: int = Field(default=8, ge=1, description="Answers to each question, from each of the two versions.")
    temperature: float = Field(default=1.0, ge=0, description="Sampling temperature: that of the policy's traffic.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling: 1 leaves the distribution whole.")
    max_tokens: int = Field(default=32, ge=1, description="Longest answer, in tokens.")
    concurrency: int = Field(default=64, ge=1, description="Requests in flight at a time.")
    retries: int = Field(
        default=4, ge=0, description="Times a failed request is sent again before the evaluation fails."
    )
    timeout_seconds: float = Field(default=120.0, gt=0, description="Longest wait for one answer, in seconds.")


class GuardBounds(BaseModel):
    """How far the challenger may be from what it is compared with, in each guard.

    `shortest` and `longest` are ratios of mean length in words; the rest are increases of a share (0.1 is ten
    points of a hundred).
    """

    model_config = _MODEL

    shortest: float = Field(default=0.4, ge=0, description="Least mean length, as a ratio.")
    longest: float = Field(default=2.0, gt=0, description="Greatest mean length, as a ratio.")
    empty: float = Field(default=0.05, ge=0, description="Increase in the share of answers without a word.")
    repetition: float = Field(
        default=0.10, ge=0, description="Increase in the share of answers that repeat themselves."
    )
    echo: float = Field(
        default=0.10, ge=0, description="Increase in the share of answers that only repeat the question."
    )
    garble: float = Field(default=0.05, ge=0, description="Increase in the share of answers with unreadable text.")
    script: float = Field(
        default=0.05, ge=0, description="Increase in the share of letters in a script the question lacks."
    )
    refusal: float = Field(default=0.10, ge=0, description="Increase in the share of answers that refuse.")


class EvaluationSettings(BaseModel):
    """One policy's gate."""

    model_config = _MODEL

    suite: Path = Field(description='Held-out questions, JSONL: {"id", "messages" or "question" and "system", "meta"}.')
    target: str | None = Field(
        default=None,
        description="`module:function`, called as f(question, answer, finish) -> 0..1, the value of an answer. "
        "A policy's loop needs one: else there is only non-inferiority, and the best verdict is `canary`.",
    )
    sampling: SamplingSettings = Field(default=SamplingSettings(), description="How answers are drawn.")
    alpha: float = Field(
        default=0.10, gt=0, lt=0.5, description="Chance of a wrong promotion over all looks of the policy's life."
    )
    spending: Literal["series", "constant"] = Field(
        default="series",
        description="`series`: look k of the policy's life may spend alpha/(k(k+1)), alpha over all looks, so that "
        "later looks need larger gains or more questions; `constant`: alpha/2 at each look, for when looks are few and "
        "power counts more.",
    )
    max_holds: int = Field(default=3, ge=0, description="Holds in a row after which an undecided lineage is rejected.")
    parts: int = Field(
        default=2,
        ge=1,
        description="Parts that the suite is cut into; looks ask them in turn, so no question decides twice in a row.",
    )
    min_questions: int = Field(default=8, ge=2, description="Fewest questions on which a verdict may rest.")
    against_champion: GuardBounds = Field(default=GuardBounds(), description="Guards against the champion.")
    against_anchor: GuardBounds = Field(
        default=GuardBounds(shortest=0.25, longest=3.0),
        description="Guards against the fixed anchor, so that small losses cannot add up over promotions.",
    )
