"""Logs of everloop's long-running processes: one JSON object a line, and nothing in it that anybody said.

A line has `time` (UTC), `level`, `logger`, `message`, and where there are any `error` (type and place), `stack` (the
places on the way to it, the innermost last) and `trace_id`. An exception's own message is left out, and so is all but
the first line of a log message: both may quote a request.

Commands that people read, and the stage workers that they start, log plain text.
"""

import logging
import sys
import traceback
from datetime import UTC, datetime

import msgspec

_STACK = 30


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage().strip().partition("\n")[0],
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = described(record.exc_info[1])
            frames = list(traceback.walk_tb(record.exc_info[2]))[-_STACK:]
            line["stack"] = [f"{frame.f_code.co_filename}:{at}" for frame, at in frames]
        if trace_id := getattr(record, "trace_id", ""):
            line["trace_id"] = trace_id
        return msgspec.json.encode(line).decode()


class _Said(msgspec.Struct):
    message: str


def structured() -> None:
    """From now on this process logs like that, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)


def are_structured() -> bool:
    """Whether this process logs like that."""
    return any(isinstance(handler.formatter, _Lines) for handler in logging.getLogger().handlers)


def message_of(line: str) -> str:
    """What a line of such a log says, for people; a line of another kind as it is."""
    try:
        return msgspec.json.decode(line, type=_Said).message
    except msgspec.MsgspecError:
        return line


def described(error: BaseException) -> str:
    """An exception's type and where it was raised, without its message."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "an unknown place"
    return f"{type(error).__name__} at {where}"
