"""DeepSpeed in this process, without its launcher: one process group, one engine a run.

Weights that are trained are fp32 parameters of the model itself, so the optimizer is a plain AdamW at ZeRO 0.
DeepSpeed's `bf16` setting stays off: it would turn the adapters into bf16 and keep the fp32 ones out of sight.
Gradients of a step's parts add up until `engine.step()` (`managed_gradient_accumulation: false`).
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import deepspeed
import torch
import torch.distributed
from deepspeed.ops import __compatible_ops__ as usable_extensions
from torch import nn

from trainer.config import OptimizerSettings
from trainer.policy import Policy


def learning_rate_factor(step: int, warmup_steps: int) -> float:
    """Linear warm-up, then constant. `step` counts from 0 at the base."""
    return min(1.0, (step + 1) / max(1, warmup_steps))


def _join_process_group() -> None:
    """One process, one rank: no launcher, no port, loopback only. Does nothing the second time.

    DeepSpeed's table of usable extensions is told to leave out its shared-memory collectives: one rank has nobody to
    talk to, while their first use needs a compiler for 20 s or more, and a process killed in that moment leaves a
    lock that hangs every later start.
    """
    if torch.distributed.is_initialized():
        return
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("LOCAL_RANK", "0")
    usable_extensions["deepspeed_shm_comm"] = False
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, dist_init_required=False)


@contextmanager
def start_engine(policy: Policy, settings: OptimizerSettings, first_step: int) -> Iterator[deepspeed.DeepSpeedEngine]:
    """A DeepSpeed engine over the policy's parameters, whose learning rate goes on from `first_step`."""
    _join_process_group()
    configuration = {
        "train_micro_batch_size_per_gpu": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": settings.clip_norm,
        "zero_optimization": {"stage": 0},
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": settings.learning_rate,
                "betas": [settings.beta1, settings.beta2],
                "weight_decay": settings.weight_decay,
                "torch_adam": True,
            },
        },
        "steps_per_print": sys.maxsize,
    }
    engine, *_ = deepspeed.initialize(
        model=policy.scorer,
        model_parameters=list(policy.parameters.values()),
        config=configuration,
        dist_init_required=False,
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda n: learning_rate_factor(first_step + n, settings.warmup_steps)
        ),
    )
    try:
        yield engine
    finally:
        engine.destroy()


def gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    """Global L2 norm of the gradients as they stand, before clipping."""
    return float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
