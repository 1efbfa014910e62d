"""Which arithmetic a run computes in, decided once, before anything is computed, and written in its manifest.

The weights that engines load are bf16 wherever they are computed; float32 holds every bf16 number exactly, so an
upcast trunk is the same model with less rounding on the way. A CPU without bf16 instructions emulates them, several
times slower than it computes in float32: there, `auto` is float32.
"""

from collections.abc import Mapping

import torch

from trainer.config import TrainerSettings

_NATIVE = ("avx512_bf16", "amx_bf16", "bf16")
"""Names in `torch.cpu.get_capabilities()`: two of x86, one of Arm."""


def computes_bfloat16(capabilities: Mapping[str, object], *, gpu: bool) -> bool:
    """Whether a machine computes in bf16 itself: a GPU, or a CPU with one of the instruction sets for it."""
    return gpu or any(capabilities.get(name) for name in _NATIVE)


def resolve(settings: TrainerSettings) -> TrainerSettings:
    """The settings with `compute_dtype` "auto" replaced by what this machine computes best."""
    if settings.compute_dtype != "auto":
        return settings
    native = computes_bfloat16(torch.cpu.get_capabilities(), gpu=torch.cuda.is_available())
    return settings.model_copy(update={"compute_dtype": "bfloat16" if native else "float32"})


def torch_dtype(settings: TrainerSettings) -> torch.dtype:
    """The resolved `compute_dtype` as torch names it."""
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[settings.compute_dtype]
