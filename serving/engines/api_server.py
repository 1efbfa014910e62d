"""vLLM's API server on a CPU, with less to import before it serves (decision 0009).

Each of vLLM's three processes is spawned on the CPU build, and so imports torch and vLLM anew: 50 s of processor time
a start. The core process computes nothing with OpenMP, so it can be forked, as vLLM does on other devices; the
worker, whose threads are bound while its libraries load, stays spawned. Being a small main module, this also keeps
the server's routes out of what the spawned worker imports.

    python -m serving.engines.api_server VLLM'S ARGUMENTS
"""

import multiprocessing
import runpy
from functools import partial

if __name__ == "__main__":
    from vllm.platforms import current_platform
    from vllm.v1.engine import utils

    if current_platform.is_cpu():
        utils.get_mp_context = partial(multiprocessing.get_context, "fork")
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
