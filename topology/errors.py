"""The one exception of this package, so that callers can tell bad topology input from a bug."""


class TopologyError(Exception):
    """A topology that cannot be read, built or written.

    The message says what, the value seen and what was wanted; `hint` says what to do about it.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
