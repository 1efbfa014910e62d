"""Errors of the spool, one flat family."""


class SpoolError(Exception):
    """The spool could not do what was asked: says what, where, and what to do."""


class SpoolFull(SpoolError):
    """No room: the bound on the spools is reached, or the disk is. Nothing was recorded."""


class CommitTimeout(SpoolError):
    """No fsync within the time allowed. `recorded`: False where the events were withdrawn, None where unknown."""

    def __init__(self, message: str, recorded: bool | None) -> None:
        super().__init__(message)
        self.recorded = recorded


class BrokerBehind(CommitTimeout):
    """The events are on the disk, and will be on the log; the broker has not acknowledged them in time."""


class SpoolClosed(SpoolError):
    """An append after `close`. Nothing was recorded."""


class SegmentDamaged(SpoolError):
    """SQLite says that the file is not a segment, or is corrupt. It never will be again: set it aside."""


class SegmentUnavailable(SpoolError):
    """The segment cannot be read now (gone, no permission, I/O error). Later ones of its spool must wait for it."""
