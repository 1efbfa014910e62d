"""A worker extension for one test: while a file exists, the tied head is not repaired after a reload.

That is vLLM's CPU build as it comes: new body, old head, and checksums that see nothing. Verification must.
"""

import os
from pathlib import Path

from serving.vllm_plugin.worker import WorkerExtension
from tests.engines import SWITCH


class StaleHead(WorkerExtension):
    """`everloop_repair` does nothing while the file that `SWITCH` names exists."""

    def everloop_repair(self) -> bool:
        return False if Path(os.environ[SWITCH]).exists() else super().everloop_repair()
