"""One driver for each harness: how it is started so that only a base URL, a key and a model name point to everloop.

A driver writes the harness's settings, which let it compact early, and makes the command that begins a task with a
prompt, or that goes on with the last one. `run` starts it in a home and a working folder of its own, without a
terminal, telemetry or any variable of this process's environment but the path, and waits for its end.
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

CONTEXT = 65536
"""The context that a harness is told of, in tokens."""
FULL = 65_000
"""At so many it compacts: above Hermes' threshold, and still within the context."""
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


Driver = Callable[..., Launch]
"""Called with a place, one prompt or several, and `resume`."""


@dataclass(frozen=True)
class Ran:
    """How it ended, and all that it printed."""

    status: int
    output: str


def claude_code(place: Place, prompt: str, *, resume: bool = False) -> Launch:
    """Claude Code on messages."""
    (program,) = install.node_modules().glob("@anthropic-ai/claude-code-*/claude")
    models = ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL")
    environment = dict.fromkeys(models, place.model) | {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_API_KEY": place.key,
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "IS_SANDBOX": "1",
    }
    command = [program, *(["--continue"] if resume else []), "-p", "--dangerously-skip-permissions", prompt]
    return Launch(command, environment)


def codex(place: Place, prompt: str, *, resume: bool = False) -> Launch:
    """Codex on responses."""
    home = place.home / ".codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(f"""\
model = "{place.model}"
model_provider = "everloop"
check_for_update_on_startup = false
model_auto_compact_token_limit = {FULL}

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
    again = ["resume", "--last"] if resume else []
    command = [node, modules / "@openai" / "codex" / "bin" / "codex.js", "exec", *freely, *again, prompt]
    return Launch(command, {"CODEX_HOME": str(home), "EVERLOOP_KEY": place.key})


def pi(api: str) -> Driver:
    """Pi on `openai-completions`, `openai-responses` or `anthropic-messages`; takes several prompts in a row."""

    def on(place: Place, *prompts: str, resume: bool = False) -> Launch:
        home = place.home / ".pi"
        home.mkdir(exist_ok=True)
        base = place.url if api == "anthropic-messages" else f"{place.url}/v1"
        model = {"id": place.model, "contextWindow": CONTEXT, "compat": {"sendSessionAffinityHeaders": True}}
        provider = {"baseUrl": base, "api": api, "apiKey": place.key, "models": [model]}
        (home / "settings.json").write_text(
            json.dumps({"compaction": {"keepRecentTokens": 1}, "retry": {"baseDelayMs": 100}})
        )
        (home / "models.json").write_text(json.dumps({"providers": {"everloop": provider}}))
        program = install.node_modules() / "@mariozechner" / "pi-coding-agent" / "dist" / "cli.js"
        command = [install.node() / "bin" / "node", program, "--provider", "everloop", "--model", place.model]
        environment = {"PI_CODING_AGENT_DIR": str(home), "PI_OFFLINE": "1", "PI_TELEMETRY": "0"}
        return Launch([*command, *(["--continue"] if resume else []), "-p", *prompts], environment)

    return on


def hermes(place: Place, prompt: str, *, resume: bool = False) -> Launch:
    """Hermes on chat. Its `--oneshot` waits for subagents and goes on with nothing; `chat -q` does the opposite."""
    home = place.home / ".hermes"
    home.mkdir(exist_ok=True)
    provider = {"base_url": f"{place.url}/v1", "api_key": place.key, "default_model": place.model}
    model = {"provider": "everloop", "default": place.model, "context_length": CONTEXT}
    compression = {"protect_last_n": 1, "target_ratio": 0.1}
    settings = {"model": model, "providers": {"everloop": provider}, "compression": compression}
    (home / "config.yaml").write_text(json.dumps(settings))
    how = ["chat", "--quiet", "--yolo", "--continue", "-q"] if resume else ["--oneshot"]
    command = [install.hermes() / "bin" / "hermes", *how, prompt]
    return Launch(command, {"HERMES_HOME": str(home), "TIRITH_ENABLED": "false"})


def openhands(place: Place, prompt: str, *, resume: bool = False) -> Launch:
    """OpenHands' SDK on chat, in the program beside this one, which goes on with what it finds in its folder."""
    python, environment = install.openhands()
    program = Path(__file__).with_name("openhands_agent.py")
    command = [python, program, f"{place.url}/v1", place.model, prompt]
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENHANDS_SUPPRESS_BANNER": "1"}
    return Launch(command, environment | quiet | {"EVERLOOP_KEY": place.key})


HARNESSES: dict[str, tuple[Driver, str]] = {
    "claude-code": (claude_code, "messages"),
    "codex": (codex, "responses"),
    "pi": (pi("openai-completions"), "chat"),
    "pi-responses": (pi("openai-responses"), "responses"),
    "pi-messages": (pi("anthropic-messages"), "messages"),
    "hermes": (hermes, "chat"),
    "openhands": (openhands, "chat"),
}
"""How each is started, and the format that it speaks."""


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
