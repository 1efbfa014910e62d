"""Which arithmetic a run computes in, decided once, before anything is computed, and written in its manifest.

The weights that engines load are bf16 wherever they are computed; float32 holds every bf16 number exactly, so an
upcast trunk is the same model with less rounding on the way. A CPU without bf16 instructions emulates them, several
times slower than it computes in float32: there, `auto` is float32.
"""

import torch

from ingest.machine import native_bfloat16
from trainer.config import TrainerSettings


def resolve(settings: TrainerSettings) -> TrainerSettings:
    """The settings with `compute_dtype` "auto" replaced by what this machine computes best."""
    if settings.compute_dtype != "auto":
        return settings
    native = torch.cuda.is_available() or native_bfloat16()
    return settings.model_copy(update={"compute_dtype": "bfloat16" if native else "float32"})


def torch_dtype(settings: TrainerSettings) -> torch.dtype:
    """The resolved `compute_dtype` as torch names it."""
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[settings.compute_dtype]
