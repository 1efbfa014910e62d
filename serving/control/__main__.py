"""`python -m serving.control`: the control process.

EVERLOOP_CONTROL_TOKEN comes by environment. What keeps it from starting is one sentence, and exit code 2.
"""

import argparse
import os
import socket
import sys
from pathlib import Path

import uvicorn
from pydantic import ValidationError

from ingest.contracts.process_logs import structured
from serving.config import ControlSettings
from serving.control.app import create_app
from serving.control.database import Database
from serving.control.errors import DatabaseUnusable


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; the exit code."""
    options = _parser().parse_args(arguments)
    structured()
    token = os.environ.get("EVERLOOP_CONTROL_TOKEN", "")
    if not token:
        return _refuse("EVERLOOP_CONTROL_TOKEN is not set: it comes from run/secrets.json of the home folder")
    sock = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((options.host, options.port))
        sock.listen(128)
    except OSError as error:
        return _refuse(
            f"{options.host}:{options.port} cannot be bound ({error.strerror}): stop what uses it, or name another port"
        )
    try:
        settings = ControlSettings()
        if options.settings:
            settings = ControlSettings.model_validate_json(options.settings.read_bytes())
        app = create_app(Database(options.database), token, settings)
    except (DatabaseUnusable, ValidationError, OSError) as error:
        return _refuse(str(error))
    config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[sock])
    return 0


def _refuse(sentence: str) -> int:
    print(f"everloop control: {sentence}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="everloop control", description="Keys, policies, engines, desired versions.")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: this machine only)")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--database", required=True, metavar="FILE", help="SQLite file, or a SQLAlchemy URL")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="JSON of serving.config.ControlSettings")
    return parser


if __name__ == "__main__":
    sys.exit(main())
