"""What can go wrong between a caller and its answer: one flat family.

An error knows its HTTP status, a code for programs, a sentence for people, and when a retry makes sense.
How it looks on the wire is the dialect's business (`dialects/base.py`).
"""

TOO_LONG = "context_length_exceeded"
"""The code of a prompt that is longer than the model's context: harnesses shorten the conversation on it."""


class GatewayError(Exception):
    """A request that gets no answer, and why. `message` names what happened and what to do next."""

    status = 500
    code = "internal_error"
    kind = "server_error"
    retry_after: int | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What an answer with this error has in its head, beside what every answer has."""
        return [] if self.retry_after is None else [(b"retry-after", b"%d" % self.retry_after)]

    @property
    def in_stream(self) -> str:
        """`message` for mid-answer, where words must say that trying again may help: harnesses see no status there."""
        return self.message if self.retry_after is None else f"Server error. {self.message}"


class BadRequest(GatewayError):
    """The request is not well-formed."""

    status, code, kind = 400, "invalid_request", "invalid_request_error"


class Unauthorized(GatewayError):
    """No key, or one that is unknown or revoked."""

    status, code, kind = 401, "invalid_api_key", "invalid_request_error"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"www-authenticate", b"Bearer")]


class Forbidden(GatewayError):
    """The key lacks the role that this needs."""

    status, code, kind = 403, "insufficient_role", "permission_error"


class NotFound(GatewayError):
    """No such model, or no such path."""

    status, code, kind = 404, "not_found", "invalid_request_error"


class MethodNotAllowed(GatewayError):
    """The path exists, the method does not."""

    status, code, kind = 405, "method_not_allowed", "invalid_request_error"

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self._allowed = allowed

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"allow", self._allowed.encode())]


class BodyTimeout(GatewayError):
    """The client did not send its body in time."""

    status, code, kind = 408, "body_timeout", "invalid_request_error"


class VersionUnavailable(GatewayError):
    """No engine reports the version that was asked for."""

    status, code, kind = 409, "version_unavailable", "invalid_request_error"


class TooLarge(GatewayError):
    """The body is above the limit, or the answer is, or both are more than the spool could ever hold."""

    status, code, kind = 413, "request_too_large", "invalid_request_error"


class HeadTooLarge(GatewayError):
    """The head of the request, its path and headers, is above the limit."""

    status, code, kind = 431, "head_too_large", "invalid_request_error"


class RateLimited(GatewayError):
    """The key is at its limit."""

    status, code, kind, retry_after = 429, "rate_limit_exceeded", "rate_limit_error", 1

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineRefused(GatewayError):
    """What an engine says is wrong with a request, with the engine's own status."""

    kind = "invalid_request_error"

    def __init__(self, status: int, message: str, param: str | None, code: str) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.code = code


class EngineFailed(GatewayError):
    """Engines were asked, and none gave an answer."""

    status, code, retry_after = 502, "engine_failed", 1


class EngineErred(GatewayError):
    """Each engine that was asked failed on this very request."""

    status, code, retry_after = 502, "engine_error", 1

    def __init__(self) -> None:
        super().__init__(
            "Each engine that was asked failed on this request: if it fails again, the request is what they fail on. "
            "Their logs say why."
        )


class EngineLost(GatewayError):
    """The engine went away in mid-answer."""

    status, code, retry_after = 502, "engine_lost", 1


class Unavailable(GatewayError):
    """Nothing can serve this now: no engine is ready, or too much is in progress."""

    status, code, retry_after = 503, "unavailable", 2


class Stopping(Unavailable):
    """The process ends, and waits no longer."""

    def __init__(self) -> None:
        super().__init__("The gateway is stopping: try again in a moment.")


class CaptureFailed(GatewayError):
    """The policy serves no answer without its record, and the record could not be made."""

    status, code, retry_after = 503, "capture_failed", 2
