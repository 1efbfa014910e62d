"""One driver for each harness: how it is started so that only a base URL, a key and a model name point to everloop.

`run` gives a harness a prompt in an empty home and working folder, without a terminal, telemetry or any variable
of this process's environment but the path, and waits for its end.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop import install

SECONDS = 180.0
"""How long a harness may take: many times what it needs, for a busy machine."""
NO_WAY_OUT = {"HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
"""Updates, telemetry and price lists are at https addresses: all that is asked of them fails at once."""


@dataclass(frozen=True)
class Place:
    """Where a harness works, and which model it asks. `url` is the gateway's, without a path."""

    home: Path
    work: Path
    url: str
    key: str
    model: str

    @classmethod
    def below(cls, folder: Path, url: str, key: str, model: str) -> "Place":
        """With an empty home and an empty working folder in `folder`."""
        home, work = folder / "home", folder / "work"
        home.mkdir()
        work.mkdir()
        return cls(home, work, url, key, model)


@dataclass(frozen=True)
class Launch:
    """A command line and what its environment has besides home and path."""

    command: list[str | Path]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ran:
    """How it ended, and all that it printed."""

    status: int
    output: str


def claude_code(place: Place, prompt: str) -> Launch:
    """Claude Code on messages."""
    (program,) = install.node_modules().glob("@anthropic-ai/claude-code-*/claude")
    models = ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL")
    environment = dict.fromkeys(models, place.model) | {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_API_KEY": place.key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "IS_SANDBOX": "1",
    }
    return Launch([program, "-p", "--dangerously-skip-permissions", prompt], environment)


def codex(place: Place, prompt: str) -> Launch:
    """Codex on responses."""
    home = place.home / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(f"""\
model = "{place.model}"
model_provider = "everloop"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.everloop]
name = "everloop"
base_url = "{place.url}/v1"
env_key = "EVERLOOP_KEY"
wire_api = "responses"
""")
    node, modules = install.node() / "bin" / "node", install.node_modules()
    freely = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    command = [node, modules / "@openai" / "codex" / "bin" / "codex.js", "exec", *freely, prompt]
    return Launch(command, {"CODEX_HOME": str(home), "EVERLOOP_KEY": place.key})


def pi(api: str) -> Callable[[Place, str], Launch]:
    """Pi on `openai-completions`, `openai-responses` or `anthropic-messages`."""

    def on(place: Place, prompt: str) -> Launch:
        home = place.home / ".pi"
        home.mkdir()
        base = place.url if api == "anthropic-messages" else f"{place.url}/v1"
        provider = {"baseUrl": base, "api": api, "apiKey": place.key, "models": [{"id": place.model}]}
        (home / "models.json").write_text(json.dumps({"providers": {"everloop": provider}}))
        program = install.node_modules() / "@mariozechner" / "pi-coding-agent" / "dist" / "cli.js"
        command = [install.node() / "bin" / "node", program, "--provider", "everloop", "--model", place.model]
        return Launch(
            [*command, "-p", prompt], {"PI_CODING_AGENT_DIR": str(home), "PI_OFFLINE": "1", "PI_TELEMETRY": "0"}
        )

    return on


def hermes(place: Place, prompt: str) -> Launch:
    """Hermes on chat."""
    home = place.home / ".hermes"
    home.mkdir()
    provider = {"base_url": f"{place.url}/v1", "api_key": place.key, "default_model": place.model}
    model = {"provider": "everloop", "default": place.model, "context_length": 65536}
    (home / "config.yaml").write_text(json.dumps({"model": model, "providers": {"everloop": provider}}))
    command = [install.hermes() / "bin" / "hermes", "--oneshot", prompt]
    return Launch(command, {"HERMES_HOME": str(home), "TIRITH_ENABLED": "false"})


def openhands(place: Place, prompt: str) -> Launch:
    """OpenHands' SDK on chat, in the program beside this one."""
    python, environment = install.openhands()
    program = Path(__file__).with_name("openhands_agent.py")
    command = [python, program, f"{place.url}/v1", place.model, prompt]
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENHANDS_SUPPRESS_BANNER": "1"}
    return Launch(command, environment | quiet | {"EVERLOOP_KEY": place.key})


def run(launch: Launch, place: Place) -> Ran:
    """Runs it to its end; one that does not end in time is killed with all that it started, its status negative."""
    environment = {"HOME": str(place.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"} | NO_WAY_OUT
    process = subprocess.Popen(
        [str(word) for word in launch.command],
        cwd=place.work,
        env=environment | launch.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return Ran(process.returncode, output.decode(errors="replace"))
