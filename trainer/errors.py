"""The errors of this border: what `train` and the checkpoint functions raise."""


class TrainerError(Exception):
    """A request the trainer cannot carry out: says what, where, and what to do."""


class TrainingStopped(TrainerError):
    """A monitor stopped the run; nothing was published. `monitor` names it, `detail` says what was seen."""

    def __init__(self, monitor: str, detail: str) -> None:
        super().__init__(f"training stopped by {monitor}: {detail}")
        self.monitor = monitor
        self.detail = detail

    def __reduce__(self) -> tuple[type["TrainingStopped"], tuple[str, str]]:
        return TrainingStopped, (self.monitor, self.detail)
