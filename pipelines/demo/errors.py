"""The error of the demo: one sentence that says what failed, where, and what to do next."""

from pipelines.errors import PipelineError


class DemoFailed(PipelineError):
    """The demo cannot go on, or would have to report something that did not happen."""
