"""The errors of this border: a promotion that did not happen."""


class PromotionError(RuntimeError):
    """The registry, the control process or the fleet did not do what was asked: says what to do next."""


class PromotionRefused(PromotionError):
    """The version may not serve users; the reason is the message."""


class NotConverged(PromotionError):
    """The fleet does not serve a version everywhere in the time it was given: names who is behind."""


class TakenBack(PromotionError):
    """A version was taken back before the fleet had converged on it; the reason is the message."""
