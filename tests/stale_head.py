"""A worker extension for one test: while a file exists, a reload leaves the tied head at its old weights.

That is vLLM's CPU build as it comes where the processor lets it pack the head (AVX-512): new body, old head, and
checksums that see nothing. Verification must. Here the old head is kept by hand, so that the test means the same
on every processor.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

from serving.vllm_plugin.worker import WorkerExtension
from tests.engines import SWITCH


def stale_linear(linear: Any, old: Any, x: Any, weight: Any, bias: Any) -> Any:
    """`linear` with the weights that were, whatever it is given."""
    return linear(x, old, bias)


class StaleHead(WorkerExtension):
    """`everloop_repair` does the opposite of its name while the file that `SWITCH` names exists."""

    def everloop_repair(self) -> bool:
        head = self.model_runner.get_model().lm_head
        if Path(os.environ[SWITCH]).exists():
            head.cpu_linear = partial(stale_linear, *self._everloop_head)
            return False
        repaired = super().everloop_repair()
        self._everloop_head = (head.cpu_linear, head.weight.detach().clone())
        return repaired

    def everloop_score(self, sequences: list[list[int]]) -> list[list[float]] | None:
        if not hasattr(self, "_everloop_head"):
            head = self.model_runner.get_model().lm_head
            self._everloop_head = (head.cpu_linear, head.weight.detach().clone())
        return super().everloop_score(sequences)
