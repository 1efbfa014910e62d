"""The errors of this border: an evaluation that could not reach a verdict."""


class EvaluationError(RuntimeError):
    """No verdict: says what happened, where, and what to do next. Nothing is decided on part of the samples."""


class SuiteError(EvaluationError):
    """The suite or the target is not usable: a mistake in the configuration or in a file."""


class SamplingError(EvaluationError):
    """An answer could not be had from the gateway within its retries."""
