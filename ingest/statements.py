"""The SQL of this package: files of statements below `sql/`, each with named parameters, `$name`.

A `;` at the end of a line ends a statement; a line that begins with `--` is a comment.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "sql"
_PARAMETER = re.compile(r"\$(\w+)")


def statements(script: str, parameters: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The statements of a file in their order, each with those of the parameters that it names."""
    lines = (_FOLDER / script).read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("--"))
    for statement in filter(None, (part.strip() for part in text.split(";\n"))):
        yield statement, {name: parameters[name] for name in _PARAMETER.findall(statement)}
