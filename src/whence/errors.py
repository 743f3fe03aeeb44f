"""What whence raises: sentences that a user can act on."""


class WhenceError(ValueError):
    """Something about the model, the inputs or the request that the user can put right."""


class NoRuleError(WhenceError):
    """An operation stands on the relevance path and the rule set does not say how to pass it."""


class TooLargeError(Exception):
    """A batch takes more memory than it may: it is to go in smaller parts."""


class MemoryShortError(WhenceError):
    """The device's memory is too small: no fault of a sample."""
