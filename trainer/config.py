"""Settings of a training run. Each field shapes the checkpoint, and all of them are in its manifest.

Speed on a small CPU host also depends on three environment variables of the process, read before Python
starts, so whoever starts the trainer sets them: `OMP_WAIT_POLICY=PASSIVE` (idle threads sleep, where they
would otherwise spin against the model server), `MALLOC_MMAP_THRESHOLD_=4294967296` and
`MALLOC_TRIM_THRESHOLD_=8589934592` (freed tensors are kept for reuse): together 133 → 202 trained
tokens a second on two cores.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LoraSettings(_Settings):
    """Low-rank adapters (Hu et al. 2021), trained in fp32 on a frozen base and merged for export."""

    rank: int = Field(16, ge=1, description="Rank of each adapter.")
    alpha: float = Field(32, gt=0, description="Scale: an adapter adds alpha / rank times its product.")
    targets: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj"), description="Names of the linear layers that get an adapter."
    )


LossName = Literal["cispo", "reinforce", "ppo_clip", "decoupled_ppo", "gspo", "kto"]

BOUNDS: dict[LossName, tuple[float, float]] = {
    "cispo": (0.0, 2.0),
    "ppo_clip": (0.2, 0.2),
    "decoupled_ppo": (0.2, 0.2),
    "gspo": (3e-4, 4e-4),
}
"""Losses that clip → how far down and up, where the settings do not say. For cispo, what the ratio may be itself."""


PROXIMAL: frozenset[LossName] = frozenset({"decoupled_ppo", "kto"})
"""Losses that ask for the logprobs of the run's starting weights: one more pass over the dataset."""


class CorrectionSettings(_Settings):
    """Importance weights for samples of other weights, in losses that have none of their own."""

    by: Literal["token", "row", "mask"] = Field(
        "token", description="token, row: ratios of tokens or whole answers, cut at `most`; mask: 0 beyond the bounds."
    )
    least: float = Field(0.5, ge=0, description="Smallest ratio of a token that counts, with mask.")
    most: float = Field(2.0, gt=0, description="Largest ratio that counts, or that counts as it is.")


class LossSettings(_Settings):
    """What a step minimises."""

    name: LossName = Field("cispo", description="Policy-gradient loss.")
    low: float | None = Field(
        None, ge=0, description="Lower bound of the ratio: absolute for cispo, 1 - low for others. Default: by loss."
    )
    high: float | None = Field(
        None,
        ge=0,
        description="Upper bound of the ratio: absolute for cispo, 1 + high for others. Default: by loss.",
    )
    correction: CorrectionSettings | None = Field(
        None, description="For reinforce and decoupled_ppo; the others have the logged logprobs in their own ratio."
    )
    beta: float = Field(0.1, gt=0, description="How soon a gain counts as gained, for kto, per nat.")
    kl: float = Field(0.02, ge=0, description="Weight of the divergence to the reference, per token.")
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="Estimator of the divergence as a loss.")
    normalize: Literal["constant", "token", "sequence"] = Field(
        "constant",
        description="How tokens add up. constant: over rows times the dataset's mean length; token: over the step's "
        "tokens; sequence: mean over a row's tokens, then over rows, as gspo and kto are meant.",
    )

    @property
    def bounds(self) -> tuple[float, float]:
        """(low, high), the loss's own where nothing was said."""
        low, high = BOUNDS[self.name]
        return low if self.low is None else self.low, high if self.high is None else self.high

    @model_validator(mode="after")
    def _fits(self) -> "LossSettings":
        if self.name not in BOUNDS and (self.low is not None or self.high is not None):
            raise ValueError(f"{self.name} clips nothing: leave out low and high")
        if self.correction is not None and self.name not in ("reinforce", "decoupled_ppo"):
            raise ValueError(f"{self.name} weighs samples by its own ratio, or not at all: leave out correction")
        if self.name in ("gspo", "kto") and self.normalize != "sequence":
            raise ValueError(f'{self.name} is a loss of whole rows: set normalize = "sequence"')
        return self


class AdvantageSettings(_Settings):
    """How a reward becomes an advantage: minus the segment's shrunken baseline, over a moving deviation."""

    shrink: float = Field(8, ge=0, description="A baseline from n rewards counts n / (n + shrink).")
    keep: float = Field(0.7, ge=0, lt=1, description="Share of the moving variance kept at each run.")
    minimum_deviation: float = Field(0.1, gt=0, description="Advantages are divided by at least this.")
    clip: float = Field(3.0, gt=0, description="Advantages are clipped to plus or minus this.")


class OptimizerSettings(_Settings):
    """AdamW (Loshchilov & Hutter 2019), run by DeepSpeed."""

    learning_rate: float = Field(7e-4, gt=0, description="Learning rate after warm-up.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.95, ge=0, lt=1, description="Decay of the second moment.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay.")
    warmup_steps: int = Field(2, ge=0, description="Steps of linear warm-up, counted since the base.")
    clip_norm: float = Field(1.0, gt=0, description="Gradients are scaled down to this global norm.")


class StalenessSettings(_Settings):
    """Which rows are too old to learn from. They are left out and counted."""

    versions: int = Field(8, ge=0, description="Most checkpoints between the parent and a row's oldest version.")
    seconds: float = Field(7 * 86400, gt=0, description="Oldest age of a row at the dataset's cut.")
    share: float = Field(0.5, ge=0, le=1, description="The run stops when more than this share of rows is too old.")


class GapSettings(_Settings):
    """Check before the first update: the weights a row names must give the logprobs it carries."""

    rows: int = Field(32, ge=1, description="Rows scored again, spread over the versions in the dataset.")
    bound: float = Field(0.1, gt=0, description="Largest mean absolute difference per token, in nats.")


class MonitorSettings(_Settings):
    """Bounds outside which a run stops and publishes nothing."""

    kl: float = Field(2.0, gt=0, description="Largest k3 divergence to the reference, mean per token of a step.")
    effective_samples: float = Field(0.1, ge=0, le=1, description="Smallest effective sample size over tokens.")
    clipped: float = Field(0.5, ge=0, le=1, description="Largest share of tokens whose ratio was clipped.")
    gradient_norm: float = Field(100.0, gt=0, description="Largest gradient norm of a step, before clipping.")
    entropy: float = Field(0.1, ge=0, description="Smallest entropy, as a share of the first step's after the base.")
    length: float = Field(4.0, gt=1, description="Largest factor, up or down, of mean output length since the base.")


class TrainerSettings(_Settings):
    """A training run: one pass over one dataset."""

    weights: Literal["lora", "full"] = Field("lora", description="Train adapters, or all weights (held in fp32).")
    compute_dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto",
        description="Arithmetic of forward and backward passes; exports are bf16 either way. auto: bfloat16 on a GPU "
        "and on a CPU with instructions for it, else float32. The manifest has the one that was used.",
    )
    lora: LoraSettings = Field(LoraSettings(), description="Adapters, where weights is lora.")
    loss: LossSettings = Field(LossSettings(), description="The loss.")
    advantage: AdvantageSettings = Field(AdvantageSettings(), description="From reward to advantage.")
    optimizer: OptimizerSettings = Field(OptimizerSettings(), description="The optimizer.")
    staleness: StalenessSettings = Field(StalenessSettings(), description="Bounds on the age of rows.")
    gap: GapSettings = Field(GapSettings(), description="The check of logged logprobs.")
    monitors: MonitorSettings = Field(MonitorSettings(), description="Bounds that stop a run.")
    minibatch: int = Field(16, ge=1, description="Rows of one optimizer step.")
    epochs: int = Field(1, ge=1, description="Passes over the dataset.")
    forward_tokens: int = Field(4096, ge=1, description="Most tokens of one forward pass, padding included.")
    save_every: int = Field(4, ge=1, description="Optimizer steps between saved states of an unfinished run.")
    threads: int = Field(2, ge=1, description="CPU threads. Part of what a checkpoint's digest depends on.")
    seed: int = Field(0, ge=0, description="Seed of adapters and of the order of rows.")
