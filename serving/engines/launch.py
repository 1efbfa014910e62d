"""How vLLM is started: its command line and environment, from an engine's settings. Pure."""

import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ingest.contracts.fleet import Version
from ingest.machine import native_bfloat16

WORKER_EXTENSION = "serving.vllm_plugin.worker.WorkerExtension"
CPU_STEP_TOKENS = 512
"""Tokens of one step on a CPU. A swap waits for the step in progress, and a CPU takes seconds over vLLM's own 2048."""


class EngineSettings(BaseModel):
    """One engine and its agent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine_id: str = Field(description="Name of this engine in the fleet, unique in it.")
    policy: str = Field(description="The policy that this engine serves; also the model name in requests to it.")
    role: str = Field("serve", pattern="^(serve|evaluation)$", description="Whom it may answer: users, or evaluation.")
    control: str = Field(description="URL of the control process.")
    host: str = Field("127.0.0.1", description="Address that vLLM binds to.")
    port: int = Field(gt=0, lt=65536, description="Port that vLLM binds to.")
    url: str = Field(description="URL at which gateways reach this engine.")
    model: Path = Field(description="Folder of the weights that it starts with.")
    version: str = Field(description="Version of the weights in that folder.")
    weights_root: Path = Field(description="Weights load from below this folder only.")
    max_model_len: int = Field(4096, gt=0, description="Longest prompt plus answer, in tokens.")
    max_num_seqs: int = Field(64, gt=0, description="Requests computed at once.")
    drain_seconds: float = Field(30.0, ge=0, description="How long requests in flight may take before a stop.")
    start_seconds: float = Field(900.0, gt=0, description="How long vLLM may take to start.")
    otlp_endpoint: str | None = Field(None, description="OTLP/HTTP URL that vLLM's own spans go to; none: no traces.")
    extra: tuple[str, ...] = Field((), description="Further arguments of vLLM, as they are.")


def command(settings: EngineSettings, served: Version, *, cpu: bool) -> list[str]:
    """vLLM's command line with `served` as its weights."""
    arguments = {
        "--model": served.path,
        "--served-model-name": settings.policy,
        "--host": settings.host,
        "--port": str(settings.port),
        "--dtype": "float32" if cpu and not native_bfloat16() else "bfloat16",
        "--max-model-len": str(settings.max_model_len),
        "--max-num-seqs": str(settings.max_num_seqs),
        # Defaults of the model's own file (temperature 0.6, top-p, …) would make traffic untrainable unasked.
        "--generation-config": "vllm",
        "--worker-extension-cls": WORKER_EXTENSION,
    }
    if cpu:
        arguments["--max-num-batched-tokens"] = str(max(CPU_STEP_TOKENS, settings.max_num_seqs))
    if settings.otlp_endpoint is not None:
        arguments["--otlp-traces-endpoint"] = settings.otlp_endpoint
    flags = ["--disable-uvicorn-access-log", *(["--enforce-eager"] if cpu else [])]
    start = [sys.executable, "-m", "serving.engines.api_server"]
    return [*start, *(word for pair in arguments.items() for word in pair), *flags, *settings.extra]


def environment(base: Mapping[str, str], settings: EngineSettings, served: Version, token: str) -> dict[str, str]:
    """vLLM's environment: `base`, save for control's token, which no engine needs, and what makes its start slow.

    Without compiled modules (container images often set PYTHONDONTWRITEBYTECODE) each of vLLM's processes compiles
    torch and vLLM from source again: half a minute of processor time each, at every cold load.
    """
    dropped = {"EVERLOOP_CONTROL_TOKEN", "PYTHONDONTWRITEBYTECODE"}
    kept = {name: value for name, value in base.items() if name not in dropped}
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OTEL_SERVICE_NAME": "everloop-engine",
        **kept,
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",  # as the gateway's, so that one endpoint takes both
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # an allowed host must not send the engine on to another
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "everloop",
        "VLLM_API_KEY": token,
        "EVERLOOP_ENGINE_TOKEN": token,
        "EVERLOOP_WEIGHTS_ROOT": str(settings.weights_root),
        "EVERLOOP_VERSION": served.version,
    }
