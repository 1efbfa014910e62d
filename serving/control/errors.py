"""What control answers instead of what was asked: one flat family, each with its HTTP status."""


class ControlError(Exception):
    """A request that cannot be done; the message is the sentence that the caller gets."""

    status = 400


class NotFound(ControlError):
    """There is no such policy, engine or key."""

    status = 404


class InvalidTransition(ControlError):
    """An engine cannot go from its state to the one it reports."""

    status = 409


class ReferenceDiffers(ControlError):
    """A cold load does not behave as the first one of its version and build did."""

    status = 409


class TooLarge(ControlError):
    """The body is above the limit."""

    status = 413


class DatabaseUnusable(Exception):
    """The database cannot be opened or migrated: why control does not start."""
