"""The error of this border: a value that does not keep its contract."""


class ContractError(ValueError):
    """A value that breaks its contract: says what, and where."""
