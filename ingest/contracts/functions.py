"""Functions that a configuration names as `module:function`: somebody's own code, imported where it is needed."""

import importlib
from collections.abc import Callable
from typing import Any

from ingest.contracts.errors import ContractError


def load_function(path: str) -> Callable[..., Any]:
    """The function at `module:function`; raises `ContractError` with what is wrong with it."""
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever somebody's module raises
        raise ContractError(f"cannot be imported ({error})") from error
    if not callable(function):
        raise ContractError("is no function")
    return function
