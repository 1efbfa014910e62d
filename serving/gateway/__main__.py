"""`python -m serving.gateway`: one gateway, with one or several worker processes.

Secrets come by environment: EVERLOOP_CONTROL_TOKEN, EVERLOOP_HASH_SECRET (hex). What keeps it from starting
is one sentence, and exit code 2.
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from ingest.config import LogSettings
from serving.config import GatewaySettings
from serving.gateway.app import App
from serving.gateway.server import serve
from serving.gateway.workers import CannotStart

_LOG = ("ack", "segment_bytes", "segment_seconds", "max_bytes")
"""What the gateway is told of `[log]`."""


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; the exit code."""
    options = parser().parse_args(arguments)
    try:
        settings = GatewaySettings()
        if options.settings:
            settings = GatewaySettings.model_validate_json(options.settings.read_bytes())
        application = partial(
            App,
            settings=settings,
            control=options.control,
            control_token=_secret("EVERLOOP_CONTROL_TOKEN"),
            hash_secret=bytes.fromhex(_secret("EVERLOOP_HASH_SECRET")),
            spool=options.spool,
            log=LogSettings(**{name: getattr(options, name) for name in _LOG}),
            snapshot=options.snapshot or options.spool.parent / "gateway-snapshot.json",
            workers=options.workers,
        )
        serve(
            application,
            settings,
            host=options.host,
            port=options.port,
            admin_port=options.admin_port,
            workers=options.workers,
        )
    except (CannotStart, ValidationError, OSError, ValueError) as error:
        print(f"everloop gateway: {_sentence(error)}", file=sys.stderr)
        return 2
    return 0


def _secret(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise CannotStart(f"{name} is not set: it comes from run/secrets.json of the home folder")
    return value


def _sentence(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"settings: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(error, ValueError) and "fromhex" in str(error):
        return "EVERLOOP_HASH_SECRET must be hexadecimal"
    return str(error)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="everloop gateway", description="Serves users and records their turns.")
    found.add_argument("--host", default="127.0.0.1", help="address to bind (default: this machine only)")
    found.add_argument("--port", type=int, required=True)
    found.add_argument("--control", required=True, metavar="URL", help="the control process")
    found.add_argument("--spool", type=Path, required=True, metavar="DIR", help="where turns are made durable")
    for name in _LOG:
        field = LogSettings.model_fields[name]
        option = f"--{name.replace('_', '-')}"
        found.add_argument(option, type=type(field.default), default=field.default, help=field.description)
    found.add_argument("--workers", type=int, default=1, help="processes that share the port")
    found.add_argument("--admin-port", type=int, help="port for /metrics, of all workers")
    found.add_argument("--snapshot", type=Path, help="where the last snapshot of control is kept")
    found.add_argument("--settings", type=Path, metavar="FILE", help="JSON of serving.config.GatewaySettings")
    return found


if __name__ == "__main__":
    sys.exit(main())
