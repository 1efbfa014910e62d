"""Writes the folder that engines load: the reference's own files, with the trained tensors replaced.

Names, shards, data types and metadata are the reference's, and tokenizer, template and configuration are
copied byte for byte, so that an export can differ from its base in nothing but the values of weights.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from trainer.errors import TrainerError, TrainingStopped


def write_export(source: Path, changed: Callable[[str], Tensor | None], parent: Path, destination: Path) -> float:
    """Writes `destination` from the export `source`, rounding `changed(name)` to each tensor's own data type.

    Returns the realised update: the share of all weights that differ from the export `parent` after rounding.
    Raises `TrainerError` where none does, `TrainingStopped("nan")` where one is not finite.
    One shard is in memory at a time.
    """
    destination.mkdir(parents=True)
    differ = total = 0
    for path in sorted(source.iterdir()):
        if path.suffix != ".safetensors":
            shutil.copyfile(path, destination / path.name)
            continue
        shard = {}
        with safe_open(path, framework="pt") as old, safe_open(parent / path.name, framework="pt") as before:
            for name in old.keys():  # noqa: SIM118
                tensor = old.get_tensor(name)
                value = changed(name)
                shard[name] = tensor if value is None else _rounded(name, value, tensor.dtype)
                differ += int((shard[name] != before.get_tensor(name)).sum())
                total += tensor.numel()
            metadata = old.metadata()
        save_file(shard, destination / path.name, metadata=metadata)
    if not differ:
        raise TrainerError(
            f"the update is lost in rounding: no weight in {destination.name} differs from the parent's export; "
            "raise the learning rate or train on more rows"
        )
    return differ / total


def _rounded(name: str, value: Tensor, dtype: torch.dtype) -> Tensor:
    if not bool(torch.isfinite(value).all()):
        raise TrainingStopped("nan", f"{name} has weights that are not finite after the last step")
    return value.to(dtype).contiguous()
