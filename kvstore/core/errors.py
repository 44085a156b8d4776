"""The error tree of the whole project.

Four kinds, and the kind says what to do: the caller's fault is never retried; an unavailable part is
tried elsewhere or later; a degraded cache means recompute; an assertion is our bug. A miss is a value,
not an error. Codes of gRPC and HTTP are mapped from this tree in one place each.
"""


class StockpotError(Exception):
    """Root: everything that Stockpot raises on purpose. The message says what happened, what was
    expected and what to do."""


class CallerError(StockpotError):
    """The request can never work as it is; do not retry."""


class ConfigError(CallerError):
    """A setting is wrong; the process does not start."""


class NamespaceUnknownError(CallerError):
    """The namespace is not open on this node; call OpenNamespace (again) and then repeat the call."""


class LimitError(StockpotError):
    """A queue, quota or size limit is reached; retry after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(StockpotError):
    """A part is down, draining or too slow; try another one, or again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CacheDegradedError(StockpotError):
    """Stored KV cannot be trusted or reached; recompute instead. Never fails a turn."""


class BlockCorruptError(CacheDegradedError):
    """A block is not what its key promises: it must be dropped, counted and recomputed."""


class LeaseExpiredError(CacheDegradedError):
    """A lease ended while its memory was in use: what was read may be another block's bytes."""
