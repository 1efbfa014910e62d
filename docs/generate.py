"""The pages that are made from the code, so that they cannot fall behind it.

`python -m docs.generate` writes them; a test compares them with what stands in the folder. They are the
configuration reference, the gateway's OpenAPI document, the JSON Schemas of what is logged and kept, and the pictures
of the state machines, drawn from the tables of transitions that the code obeys.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa

from ingest.contracts.checkpoint import CheckpointManifest
from ingest.contracts.dataset import DatasetManifest
from ingest.contracts.erasure import Erasure
from ingest.contracts.events import Lost
from ingest.contracts.feedback import Feedback
from ingest.contracts.fleet import ENGINE_TRANSITIONS
from ingest.contracts.rollout import TRANSITIONS, Rollout
from ingest.contracts.tap import TapRecord
from ingest.contracts.turn import Turn
from ingest.contracts.verdict import Verdict
from ingest.contracts.versions import current
from ingest.lake import REJECTS
from ingest.lake import SCHEMAS as LAKE
from ingest.receipts import RECEIPT_TRANSITIONS, Receipt
from pipelines.config import Config
from pipelines.config.reference import render
from pipelines.records import RUN_TRANSITIONS, STAGE_TRANSITIONS
from serving.gateway.openapi import document

DOCS = Path(__file__).resolve().parent
SCHEMAS = (Turn, Feedback, Erasure, Lost, TapRecord, DatasetManifest, CheckpointManifest, Verdict, Rollout, Receipt)
_JSON = {
    pa.string(): {"type": "string"},
    pa.int64(): {"type": "integer"},
    pa.float64(): {"type": "number"},
    pa.binary(): {"type": "string", "contentEncoding": "base64"},
    pa.list_(pa.string()): {"type": "array", "items": {"type": "string"}},
}
State = TypeVar("State", bound=StrEnum)


def diagram(table: Mapping[State, frozenset[State]]) -> str:
    """A Mermaid state diagram of a table of transitions."""
    lines = [f"  {a} --> {b}" for a, reached in table.items() for b in sorted(reached)]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def states() -> str:
    """The page of state machines."""
    machines = [
        ("A version on its way to the users", "ingest/contracts/rollout.py", TRANSITIONS),
        ("An engine", "ingest/contracts/fleet.py", ENGINE_TRANSITIONS),
        ("A run of the loop", "pipelines/records.py", RUN_TRANSITIONS),
        ("A stage of a run", "pipelines/records.py", STAGE_TRANSITIONS),
        ("A receipt of what is to be forgotten", "ingest/receipts.py", RECEIPT_TRANSITIONS),
    ]
    parts = ["# State machines", "Drawn by `python -m docs.generate` from the tables that the code obeys."]
    for title, source, table in machines:
        parts += [f"## {title}", f"`{source}`", diagram(table)]
        notes = [f"- `{state}`" for state in table if not table[state]]
        if notes:
            parts += ["Ends:", "\n".join(notes)]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[Path, str]:
    """Every generated page: its path and its text."""
    made = {DOCS / "configuration.md": render(Config), DOCS / "states.md": states()}
    made[DOCS / "openapi.json"] = indented(document())
    for kind in SCHEMAS:
        made[DOCS / "schemas" / f"{kind.__name__.lower()}.json"] = indented(json_schema(kind))
    made[DOCS / "schemas" / "reject.json"] = indented(reject())
    return made


def json_schema(kind: type[msgspec.Struct]) -> dict:
    """The JSON Schema of a contract, with the newest version of it that is read."""
    made = msgspec.json.schema(kind)
    if "schema" in kind.__struct_fields__:
        made["$defs"][kind.__name__]["properties"]["schema"]["maximum"] = current(kind)
    return made


def reject() -> dict:
    """The JSON Schema of a row of the table of rejects, by the names and types of its columns."""
    columns = {field.name: _JSON[field.type] for field in LAKE[REJECTS]}
    said = (
        "What could not be read of the log: where it stood, why, its bytes, whom it is about (digests), and the code."
    )
    return {
        "title": "Reject",
        "description": said,
        "type": "object",
        "properties": columns,
        "required": list(columns),
    }


def indented(value: dict) -> str:
    """JSON for people."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def main() -> None:
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
