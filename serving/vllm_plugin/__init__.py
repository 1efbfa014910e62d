"""everloop inside vLLM: an endpoint plugin (entry point `everloop` of `vllm.endpoint_plugins`).

    plugin      what vLLM drives, and what it needs                   worker      what runs in vLLM's workers
    tap         records what each call of the engine samples          records     by request id, running and finished
    middleware  carries the record at the end of the response         weights     swaps, proven before they serve
    routes      swap, score, state, abort, records

Loaded with `VLLM_PLUGINS=everloop`. Needs in the environment: `EVERLOOP_ENGINE_TOKEN`, `EVERLOOP_WEIGHTS_ROOT` (swaps
load from below it only) and `EVERLOOP_VERSION` (what `--model` is); and `--worker-extension-cls` WORKER_EXTENSION.
"""

from typing import Any

WORKER_EXTENSION = "serving.vllm_plugin.worker.WorkerExtension"


def plugin() -> Any:
    """Makes the plugin; vLLM calls this once per API server."""
    from serving.vllm_plugin.plugin import Plugin

    return Plugin.from_environment()
