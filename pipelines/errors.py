"""Errors of this border. Each is one sentence: what happened, where, and what to do next."""


class PipelineError(Exception):
    """Something the operator has to know; the command line prints it and ends with exit code 1."""


class ConfigError(PipelineError):
    """The configuration cannot be used. `problems` has one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StageFailed(PipelineError):
    """A stage raised. `kind` is the error's class name, `details` its JSON-like attributes."""

    def __init__(self, kind: str, message: str, details: dict | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = details or {}

    def __reduce__(self) -> tuple:
        # It travels from a worker: the default would call it with its message alone.
        return StageFailed, (self.kind, str(self), self.details)


class RunBusy(PipelineError):
    """Another process is at work on this policy's run."""
