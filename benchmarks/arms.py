"""What stands between caller and engine in each arm: nothing, everloop's gateway, LiteLLM, vllm-router.

Each with one worker, a key that it checks, and its logging of requests off. LiteLLM and vllm-router run in environments
of their own below `.cache/benchmarks/`, made from the pinned files in `requirements/` when they are missing or when
those have changed.
"""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks import engine, load
from benchmarks.processes import Process, listens
from ingest.contracts.fleet import EngineState, Heartbeat
from pipelines.stack.addresses import free_port

CACHE = Path(__file__).parents[1] / ".cache" / "benchmarks"
_REQUIREMENTS = Path(__file__).with_name("requirements")
_TOKEN = "benchmark-token"
_KEY = "sk-benchmark"
_CONVERSATION = [
    {"role": "system", "content": "You are a helpful assistant of a shop for garden tools. Answer in few words."},
    {"role": "user", "content": "My hedge trimmer does not start any more. It is two years old and was always dry."},
    {"role": "assistant", "content": "Does the battery's light come on when you press its button? " * 3},
    {"role": "user", "content": "It does, and the motor hums, but the blade stands still. What should I try first?"},
]
ENDINGS = {"plain": engine.LAST.encode(), "stream": b"data: [DONE]"}
"""Modes, and what stands near the end of an answer that is whole."""


@dataclass
class Arm:
    """One way to the engine. `process` is the proxy whose time counts, None where there is none."""

    name: str
    port: int
    key: str
    process: Process | None
    startup_seconds: float

    def request(self, mode: str) -> bytes:
        """A request's bytes, in `mode`."""
        body = {"model": engine.MODEL, "messages": _CONVERSATION, "max_tokens": engine.TOKENS, "temperature": 1.0}
        data = json.dumps({**body, "stream": mode == "stream"}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {self.key}\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data

    def answers(self) -> bool:
        """Whether a turn goes through."""
        try:
            load.closed(self.port, self.request("plain"), ENDINGS["plain"], 1, 1.0, at_most=1)
        except (OSError, load.WrongAnswer):
            return False
        return True


class Arms:
    """The arms of one run and their engine, with their files below `home`. Use as `with`: ends every process."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._processes: list[Process] = []
        self._engine_port = free_port()
        self.engine = self._start("engine", [sys.executable, "-m", "benchmarks.engine", str(self._engine_port)])

    def __enter__(self) -> "Arms":
        self.engine.until(lambda: listens(self._engine_port))
        return self

    def __exit__(self, *exc: object) -> None:
        for process in reversed(self._processes):
            process.stop()

    def start(self, name: str) -> Arm:
        """One arm, answering."""
        return _STARTS[name](self)

    def _start(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> Process:
        process = Process(command, self._home / f"{name}.log", environment or {})
        self._processes.append(process)
        return process

    def _up(self, name: str, port: int, key: str, process: Process) -> Arm:
        arm = Arm(name, port, key, process, 0.0)
        arm.startup_seconds = process.until(arm.answers)
        return arm

    def direct(self) -> Arm:
        """No proxy."""
        return Arm("direct", self._engine_port, "", None, 0.0)

    def everloop(self) -> Arm:
        """The gateway with capture required, its control beside it; control's time does not count."""
        port, control_port = free_port(), free_port()
        control_url = f"http://127.0.0.1:{control_port}"
        settings = self._home / "control.json"
        settings.write_text('{"lost_seconds": 1e9}')  # its only engine beats once
        secrets = {"EVERLOOP_CONTROL_TOKEN": _TOKEN, "EVERLOOP_HASH_SECRET": "00" * 32}
        command = [sys.executable, "-m", "serving.control", "--port", str(control_port)]
        command += ["--database", str(self._home / "control.db"), "--settings", str(settings)]
        self._start("control", command, secrets).until(lambda: listens(control_port))
        desired = {"version": "base", "path": "/nowhere"}
        _control(f"{control_url}/v1/policies/{engine.MODEL}", "PUT", {"name": engine.MODEL, "desired": desired})
        beat = Heartbeat(
            policy=engine.MODEL,
            url=f"http://127.0.0.1:{self._engine_port}",
            token=_TOKEN,
            role="serve",
            state=EngineState.READY,
            version="base",
            max_model_len=4096,
        )
        _control(f"{control_url}/v1/engines/engine/heartbeat", "POST", beat)
        key = _control(f"{control_url}/v1/keys", "POST", {"name": "benchmark", "roles": ["inference"]})["key"]
        command = [sys.executable, "-m", "serving.gateway", "--port", str(port), "--control", control_url]
        process = self._start("everloop", [*command, "--spool", str(self._home / "spool")], secrets)
        return self._up("everloop", port, key, process)

    def litellm(self) -> Arm:
        """LiteLLM's proxy, its key the master key: no database."""
        program = _environment("litellm") / "litellm"
        port = free_port()
        parameters = {
            "model": f"openai/{engine.MODEL}",
            "api_base": f"http://127.0.0.1:{self._engine_port}/v1",
            "api_key": "none",
        }
        configuration = {
            "model_list": [{"model_name": engine.MODEL, "litellm_params": parameters}],
            "general_settings": {"master_key": _KEY},
        }
        path = self._home / "litellm.yaml"
        path.write_text(json.dumps(configuration))  # JSON is YAML, too
        command = [str(program), "--config", str(path), "--host", "127.0.0.1", "--port", str(port)]
        quiet = {"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        process = self._start("litellm", [*command, "--num_workers", "1", "--telemetry", "False"], quiet)
        return self._up("litellm", port, _KEY, process)

    def vllm_router(self) -> Arm:
        """vllm-router, which records nothing."""
        program = _environment("vllm-router") / "vllm-router"
        port, metrics_port = free_port(), free_port()
        command = [str(program), "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port)]
        command += ["--worker-urls", f"http://127.0.0.1:{self._engine_port}", "--policy", "round_robin"]
        process = self._start("vllm-router", [*command, "--api-key", _KEY, "--log-level", "error"])
        return self._up("vllm-router", port, _KEY, process)


_STARTS: dict[str, Callable[[Arms], Arm]] = {
    "direct": Arms.direct,
    "everloop": Arms.everloop,
    "litellm": Arms.litellm,
    "vllm-router": Arms.vllm_router,
}
NAMES = tuple(_STARTS)


def versions() -> dict[str, str]:
    """The pinned versions of what is compared with."""
    found = {}
    for path in _REQUIREMENTS.glob("*.txt"):
        (line,) = [line for line in path.read_text().splitlines() if line.partition("==")[0].split("[")[0] == path.stem]
        found[path.stem] = line.partition("==")[2].split()[0]
    return found


def _environment(name: str) -> Path:
    """The folder of the programs of an environment that has what `requirements/<name>.txt` pins."""
    folder, pins = CACHE / name, _REQUIREMENTS / f"{name}.txt"
    made = folder / "installed.txt"
    if not made.exists() or made.read_text() != pins.read_text():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder)], check=True)
        install = [uv, "pip", "install", "-q", "--compile-bytecode", "--require-hashes", "-r", str(pins)]
        subprocess.run([*install, "--python", str(folder / "bin" / "python")], check=True)
        made.write_text(pins.read_text())
    return folder / "bin"


def _control(url: str, method: str, body: object) -> dict:
    headers = {"authorization": f"Bearer {_TOKEN}", "content-type": "application/json"}
    asked = urllib.request.Request(url, msgspec.json.encode(body), headers, method=method)
    with urllib.request.urlopen(asked) as response:
        return msgspec.json.decode(response.read() or b"{}")
