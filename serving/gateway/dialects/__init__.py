"""The wire formats the gateway speaks, one file each behind `base.Dialect`; never translated into one another."""

from serving.gateway.dialects.base import Dialect
from serving.gateway.dialects.chat import Chat
from serving.gateway.dialects.completions import Completions
from serving.gateway.dialects.messages import Messages
from serving.gateway.dialects.responses import Responses

DIALECTS: dict[str, Dialect] = {dialect.path: dialect for dialect in (Chat(), Completions(), Responses(), Messages())}
"""Every dialect by its path: the registry."""
_PLAIN = "/v1/chat/completions"


def answering(path: str, *, of_anthropic: bool) -> Dialect:
    """Whose form the answers and errors of any path have; Anthropic's, too, for those who name its version."""
    known = DIALECTS.get(path)
    return known or DIALECTS["/v1/messages" if of_anthropic or path.startswith("/v1/messages") else _PLAIN]
