"""The wire formats the gateway speaks, one file each behind `base.Dialect`; never translated into one another."""

from serving.gateway.dialects.base import Dialect
from serving.gateway.dialects.chat import Chat
from serving.gateway.dialects.completions import Completions
from serving.gateway.dialects.messages import Messages
from serving.gateway.dialects.responses import Responses

DIALECTS: dict[str, Dialect] = {dialect.path: dialect for dialect in (Chat(), Completions(), Responses(), Messages())}
"""Every dialect by its path: the registry."""
