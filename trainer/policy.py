# ruff: noqa: F722 (shapes in jaxtyping annotations are strings)
"""The model as the trainer sees it: token ids in, logprob and entropy of each output token out.

`Policy` holds what is trained, always in fp32: adapters on a frozen trunk (LoRA), or all weights. A trunk is in the
run's compute dtype; its weights are bf16 on disk, and float32 holds those exactly. What the policy exports is the
trunk's own files with the changed tensors replaced, so nothing else can differ. The trunk stays in memory between
runs of one process (`load_trunk`), and is handed back as it was.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from trainer.batches import Sequences, cut, sequences
from trainer.config import TrainerSettings
from trainer.errors import TrainerError
from trainer.precision import torch_dtype

_ADAPTER = "default"


class Scorer(nn.Module):
    """A causal language model that scores only output positions: logits elsewhere are never computed.

    `dtype` bfloat16 computes a model held in fp32 in bf16 (torch's autocast).
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = model
        self._dtype = dtype

    def forward(self, batch: Sequences) -> tuple[Float[Tensor, " tokens"], Float[Tensor, " tokens"]]:
        """Logprob of each target (with gradient) and entropy of its distribution (without), in nats, temperature 1."""
        with torch.autocast(self.model.device.type, self._dtype, enabled=self._dtype != torch.float32):
            states = self.model.base_model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
            logits = self.model.get_output_embeddings()(states.flatten(0, 1)[batch.positions]).float()
        distribution = torch.log_softmax(logits, dim=-1)
        chosen = distribution.gather(-1, batch.targets[:, None]).squeeze(-1)
        with torch.no_grad():
            entropy = -(distribution.exp() * distribution).sum(-1)
        return chosen, entropy


@torch.no_grad()
def score(scorer: Scorer, rows: Sequence[tuple[np.ndarray, np.ndarray]], budget: int) -> tuple[list[np.ndarray], float]:
    """Logprobs of each row's output tokens, float32, and the mean entropy per token, in nats.

    `rows` are (prompt ids, output ids); `budget` bounds the tokens of one forward pass, padding included.
    """
    logprobs: list[np.ndarray] = [np.empty(0, np.float32)] * len(rows)
    entropy = 0.0
    for group in cut([len(prompt) + len(output) for prompt, output in rows], budget):
        chosen, entropies = scorer(sequences([rows[i][0] for i in group], [rows[i][1] for i in group]))
        entropy += float(entropies.sum())
        ends = np.cumsum([len(rows[i][1]) for i in group])
        for i, values in zip(group, np.split(chosen.numpy(), ends[:-1]), strict=True):
            logprobs[i] = values
    return logprobs, entropy / sum(len(output) for _, output in rows)


def load(export: Path, dtype: torch.dtype) -> PreTrainedModel:
    """An export folder's model in `dtype`, frozen, without dropout. Raises `TrainerError` where its head is unusual."""
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(export, dtype=dtype, local_files_only=True)
    if getattr(model.config, "final_logit_softcapping", None) or getattr(model.config, "logits_scaling", 1) != 1:
        raise TrainerError(
            f"{export}: this model rescales its logits after the head, which the trainer does not do yet"
        )
    return model.eval().requires_grad_(False)


@lru_cache(maxsize=1)
def load_trunk(export: Path, digest: str, dtype: torch.dtype) -> PreTrainedModel:
    """`load(export, dtype)`, kept while `digest` (of the checkpoint's files) and `dtype` stay those asked for."""
    return load(export, dtype)


class Policy:
    """What is trained: `scorer` for DeepSpeed, `parameters` (fp32, by name), and `changed` for the export."""

    def __init__(self, scorer: Scorer, changed: Callable[[str], Tensor | None]) -> None:
        self.scorer = scorer
        self.changed = changed
        """Name of a tensor in the export → its new value in fp32; None where training leaves it alone."""
        self.parameters = {n: p for n, p in scorer.model.named_parameters() if p.requires_grad}

    def load_parameters(self, values: dict[str, Tensor]) -> None:
        """Puts saved values in place. Raises `TrainerError` where names or shapes differ from the settings'."""
        shapes = {n: p.shape for n, p in self.parameters.items()}
        if shapes != {n: v.shape for n, v in values.items()}:
            raise TrainerError(
                "the parent's state was trained with other adapters than these settings describe (weights, lora.rank, "
                "lora.targets); keep them as they were, or start again from an imported model"
            )
        with torch.no_grad():
            for name, value in values.items():
                self.parameters[name].copy_(value)


@contextmanager
def open_policy(settings: TrainerSettings, trunk: Path, digest: str) -> Iterator[Policy]:
    """A policy that starts as the model in `trunk` (an export folder), by the settings' kind of weights."""
    if settings.weights == "full":
        model = load(trunk, torch.float32).requires_grad_(True)
        yield Policy(Scorer(model, torch_dtype(settings)), model.state_dict().get)
        return
    torch.manual_seed(settings.seed)
    lora = settings.lora
    adapted = get_peft_model(
        load_trunk(trunk, digest, torch_dtype(settings)),
        LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.targets), lora_dropout=0.0),
    )
    model = adapted.get_base_model()
    layers = {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, LoraLayer)}

    def merged(name: str) -> Tensor | None:
        if name not in layers:
            return None
        layer = layers[name]
        return layer.get_base_layer().weight.detach().float() + layer.get_delta_weight(_ADAPTER).detach()

    try:
        yield Policy(Scorer(model), merged)
    finally:
        adapted.unload()
