"""JSON over HTTP for the reconciler: MLflow's REST interface and the control process, without importing MLflow.

A failure is an `Away` when the other side may come back (no connection, timeout, 5xx), a `Refusal` when it
answered and said no.
"""

import aiohttp

from promotion.errors import PromotionError


class Away(PromotionError):
    """The other side does not answer now."""


class Refusal(PromotionError):
    """The other side answered with an error: `status`, and `code` where it gives one."""

    def __init__(self, message: str, status: int, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class JsonClient:
    """Requests to one base URL within one `aiohttp` session; `name` says in errors who did not answer."""

    def __init__(self, session: aiohttp.ClientSession, name: str, base: str, token: str = "") -> None:
        self._session, self._name, self._base = session, name, base.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def call(self, method: str, path: str, *, params: dict[str, str] | None = None, body: object = None) -> dict:
        """The JSON answer of `method path`; raises `Away` or `Refusal`."""
        try:
            async with self._session.request(
                method, self._base + path, params=params, json=body, headers=self._headers
            ) as response:
                answer = await response.json(content_type=None) if response.content_type.endswith("json") else {}
                status = response.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Away(f"{self._name} does not answer ({type(error).__name__}): see that it runs") from error
        answer = answer if isinstance(answer, dict) else {}
        if status >= 500:
            raise Away(f"{self._name} answered {method} {path} with {status}: see its log")
        if status >= 400:
            said = answer.get("message") or answer.get("error") or ""
            raise Refusal(
                f"{self._name} refused {method} {path} ({status}): {said}", status, answer.get("error_code", "")
            )
        return answer
