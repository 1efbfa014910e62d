"""The wire formats the gateway speaks, one file each behind `base.Dialect`; never translated into one another."""

from serving.gateway.dialects.base import Dialect
from serving.gateway.dialects.chat import Chat
from serving.gateway.dialects.completions import Completions

DIALECTS: dict[str, Dialect] = {dialect.path: dialect for dialect in (Chat(), Completions())}
"""Every dialect by its path: the registry."""
