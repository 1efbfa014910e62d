"""What training continues from: fp32 weights, optimizer moments and the few numbers beside them.

A state is a folder of plain safetensors and one JSON file, the same in a checkpoint's `state/` and in the
saves of an unfinished run; equal states have equal bytes.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer

from ingest.contracts.files import sync, write_atomically
from trainer.monitors import StepMetrics
from trainer.policy import Policy

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a state."""

    trunk: str
    """Checkpoint whose export lies under the trained weights."""
    step: int = 0
    """Optimizer steps since the base; the learning rate is a function of it."""
    variance: float | None = None
    """Moving variance of advantages; None before the first run."""
    output_tokens: float | None = None
    """Mean output length in the first dataset after the base."""
    run: str = ""
    """Digest of everything that shapes an unfinished run; empty in a checkpoint."""
    history: tuple[StepMetrics, ...] = ()
    """Steps of an unfinished run so far; empty in a checkpoint."""


def write_state(folder: Path, progress: Progress, policy: Policy, optimizer: Optimizer) -> None:
    """Writes a state into the new folder `folder`, synced, its JSON file last."""
    folder.mkdir(parents=True)
    tensors: dict[str, Tensor] = {"rng": torch.get_rng_state()}
    for name, parameter in policy.parameters.items():
        tensors[f"weights/{name}"] = parameter.detach().contiguous()
        tensors |= {f"{moment}/{name}": optimizer.state[parameter][moment] for moment in _MOMENTS}
    path = folder / "state.safetensors"
    save_file(tensors, path)
    sync(path)
    write_atomically(folder / "state.json", msgspec.json.encode(progress))


def read_progress(folder: Path) -> Progress:
    """The numbers of a state."""
    return msgspec.json.decode((folder / "state.json").read_bytes(), type=Progress)


def restore_weights(folder: Path, policy: Policy) -> dict[str, Tensor]:
    """Puts the weights that are trained back as `folder` has them; returns the other tensors of the state.

    Raises `TrainerError` where the policy's parameters are not those of the state.
    """
    tensors = load_file(folder / "state.safetensors")
    weights = {name: tensors.pop(name) for name in list(tensors) if name.startswith("weights/")}
    policy.load_parameters({name.removeprefix("weights/"): value for name, value in weights.items()})
    return tensors


def restore(folder: Path | None, policy: Policy, optimizer: Optimizer) -> None:
    """Puts weights, moments and torch's generator back as `folder` has them; does nothing for None.

    Raises `TrainerError` where the policy's parameters are not those of the state.
    """
    if folder is None:
        return
    tensors = restore_weights(folder, policy)
    step = torch.tensor(float(read_progress(folder).step))
    for name, parameter in policy.parameters.items():
        moments = {moment: tensors[f"{moment}/{name}"].clone() for moment in _MOMENTS}
        optimizer.state[parameter] = {"step": step.clone(), **moments}
    torch.set_rng_state(tensors["rng"])


class Saves:
    """The saved states of an unfinished run: `<work>/step-<n>/`, complete or absent, only the newest kept."""

    def __init__(self, work: Path, run: str) -> None:
        self._work = work
        self._run = run

    def newest(self) -> Path | None:
        """The last save of this very run; what another run left in its place is removed."""
        saves = sorted(self._work.glob("step-*"))
        if saves and read_progress(saves[-1]).run == self._run:
            return saves[-1]
        self.clear()
        return None

    def save(self, progress: Progress, history: Sequence[StepMetrics], policy: Policy, optimizer: Optimizer) -> None:
        """Saves a state; the one before goes once this one is on disk."""
        place = self._work / f"step-{progress.step:08d}"
        partial = self._work / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        named = msgspec.structs.replace(progress, run=self._run, history=tuple(history))
        write_state(partial, named, policy, optimizer)
        os.replace(partial, place)
        sync(self._work)
        for old in self._work.glob("step-*"):
            if old != place:
                shutil.rmtree(old)

    def clear(self) -> None:
        """Removes them all."""
        shutil.rmtree(self._work, ignore_errors=True)
