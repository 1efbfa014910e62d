"""Closes vLLM's server to everyone without the engine's token, save for what tells that it lives.

vLLM's own API key guards a few prefixes (/v1, /v2, …); beside them it answers anybody, /invocations with whole
completions, past keys, limits, record and log. What the plugin adds authenticates itself as well (`routes`).
"""

from collections.abc import MutableMapping
from hmac import compare_digest
from typing import Any

from serving.vllm_plugin.middleware import TOKEN, App, Receive, Send, Shared, header

OPEN = frozenset({"/health", "/ping", "/version", "/metrics"})
_REFUSAL = b'{"error":"this server answers callers with the engine\'s token only: ask the gateway"}'


class Border:
    """See the module. The token comes in `x-everloop-tap`, or as vLLM's API key."""

    def __init__(self, app: App, shared: Shared) -> None:
        self._app = app
        self._shared = shared

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._open(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(_REFUSAL)).encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _open(self, scope: MutableMapping[str, Any]) -> bool:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in OPEN:
            return True
        if self._shared.admits(header(scope, TOKEN)):
            return True
        scheme, _, token = (header(scope, b"authorization") or b"").partition(b" ")
        return scheme.lower() == b"bearer" and compare_digest(token, self._shared.token)
