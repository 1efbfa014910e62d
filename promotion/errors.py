"""The errors of this border: a promotion that did not happen."""


class PromotionError(RuntimeError):
    """The registry, the control process or the fleet did not do what was asked: says what to do next."""


class PromotionRefused(PromotionError):
    """The version may not serve users; the reason is the message."""
