"""The plugin object that vLLM drives: `attach_router` while the app is built, `init_state` once the engine runs."""

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.contracts.fleet import Version
from serving.fleet.swap import SEQUENCE_TOKENS, TEXTS
from serving.vllm_plugin import routes
from serving.vllm_plugin.border import Border
from serving.vllm_plugin.middleware import Shared, TapMiddleware
from serving.vllm_plugin.tap import Tap
from serving.vllm_plugin.weights import Weights

if TYPE_CHECKING:
    from fastapi import FastAPI


class PluginError(RuntimeError):
    """The plugin cannot work in this server: says what to change. vLLM does not start."""


class Plugin:
    """Satisfies vLLM's `EndpointPlugin`."""

    name = "everloop"
    required_tasks = ("generate",)

    def __init__(self, token: str, weights_root: Path, version: str) -> None:
        self._root = weights_root
        self._version = version
        self._shared = Shared(token)
        self._weights: Weights | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Plugin":
        """Reads the three variables; raises `PluginError` naming one that is missing."""
        names = ("EVERLOOP_ENGINE_TOKEN", "EVERLOOP_WEIGHTS_ROOT", "EVERLOOP_VERSION")
        for name in names:
            if not environment.get(name):
                raise PluginError(f"{name} is not set: the everloop plugin needs it")
        token, root, version = (environment[name] for name in names)
        return cls(token, Path(root), version)

    def attach_router(self, app: "FastAPI") -> None:
        """Routes and middleware."""
        routes.attach(app, self._shared, self._require_weights)
        app.add_middleware(TapMiddleware, shared=self._shared)
        app.add_middleware(Border, shared=self._shared)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Puts the tap between vLLM's serving objects and the engine, and names the version that serves."""
        if (args.api_server_count or 1) > 1:
            raise PluginError(
                f"{args.api_server_count} API server processes share this engine, but aborts, records and swaps of the "
                "everloop plugin work in one: start with --api-server-count 1, and register each data-parallel rank "
                "as an engine of its own"
            )
        build = engine_build(engine_client.vllm_config)
        tap = Tap(engine_client)
        tapped = [
            serving
            for name, serving in vars(state)["_state"].items()
            if name != "engine_client" and getattr(serving, "engine_client", None) is engine_client
        ]
        if not tapped:
            raise PluginError("no serving object of this vLLM holds the engine client: the tap would record nothing")
        for serving in tapped:
            serving.engine_client = tap
        await engine_client.update_weight_version(self._version)
        self._weights = Weights(
            engine=engine_client,
            served=Version(self._version, engine_client.model_config.model),
            root=self._root,
            build=build,
            max_model_len=engine_client.model_config.max_model_len,
            media=engine_client.model_config.is_multimodal_model,
            sequences=fixed_sequences(engine_client.renderer.get_tokenizer()),
        )
        self._shared.engine_build = build
        self._shared.tap = tap

    def _require_weights(self) -> Weights:
        if self._weights is None:
            raise PluginError("the engine is not up yet")
        return self._weights


def engine_build(config: Any) -> str:
    """What decides how an engine rounds: vLLM's version, device, dtype, quantisation, parallel layout, model runner."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    device = current_platform.device_type
    kind = torch.backends.cpu.get_cpu_capability() if device == "cpu" else current_platform.get_device_name()
    model, parallel = config.model_config, config.parallel_config
    layout = f"tp{parallel.tensor_parallel_size}pp{parallel.pipeline_parallel_size}"
    dtype = str(model.dtype).removeprefix("torch.")
    parts = (f"vllm-{vllm.__version__}", f"{device}-{kind}", dtype, model.quantization or "unquantised", layout)
    return "/".join(parts).replace(" ", "-")


def fixed_sequences(tokenizer: Any) -> list[list[int]]:
    """Token ids of `TEXTS`: what every engine with this tokenizer scores."""
    return [tokenizer.encode(text, add_special_tokens=False)[:SEQUENCE_TOKENS] for text in TEXTS]
