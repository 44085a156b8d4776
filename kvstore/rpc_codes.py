"""The one place where the error tree and gRPC's codes meet: the node maps there, the client back."""

import grpc

from kvstore.core.errors import (
    CacheDegradedError,
    CallerError,
    LeaseExpiredError,
    LimitError,
    NamespaceUnknownError,
    StockpotError,
    UnavailableError,
)

_CODES: tuple[tuple[type[StockpotError], grpc.StatusCode], ...] = (
    (NamespaceUnknownError, grpc.StatusCode.NOT_FOUND),  # before its parent, CallerError
    (CallerError, grpc.StatusCode.INVALID_ARGUMENT),
    (LimitError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (LeaseExpiredError, grpc.StatusCode.ABORTED),  # before its parent
    (CacheDegradedError, grpc.StatusCode.FAILED_PRECONDITION),
)
_ERRORS: dict[int, type[StockpotError]] = {code.value[0]: kind for kind, code in _CODES}


def status_code(error: StockpotError) -> grpc.StatusCode:
    """The code that a call failing with `error` answers."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def error_of(code: int, message: str) -> StockpotError:
    """What a call raises that was answered with `code` (its number).

    A code that no node of ours sends means that the node cannot be used now."""
    return _ERRORS.get(code, UnavailableError)(message)
