"""Errors as HTTP: the one place where the error tree becomes a status and OpenAI's error body."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from kvstore.core.errors import CallerError, LimitError, StockpotError, UnavailableError


class ApiError(CallerError):
    """A request that is refused, with what OpenAI's error body says about it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """OpenAI's error body; also the data of a stream's error event."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class HttpError:
    status: int
    body: ErrorBody
    headers: Mapping[str, str] = field(default_factory=dict)


def http_error(error: Exception) -> HttpError:
    """What the client is told about `error`; an error that is not of our tree is our bug: 500, no details."""
    match error:
        case ApiError():
            headers = {"www-authenticate": "Bearer"} if error.status == 401 else {}
            detail = ErrorDetail(str(error), error.kind, error.param, error.code)
            return HttpError(error.status, ErrorBody(detail), headers)
        case LimitError():
            detail = ErrorDetail(str(error), "rate_limit_error", code="rate_limit_exceeded")
            return HttpError(429, ErrorBody(detail), _retry_after(error.retry_after_s))
        case UnavailableError():
            detail = ErrorDetail(str(error), "server_error", code="unavailable")
            return HttpError(503, ErrorBody(detail), _retry_after(error.retry_after_s))
        case CallerError():
            return HttpError(400, ErrorBody(ErrorDetail(str(error), "invalid_request_error")))
        case StockpotError():
            return HttpError(500, ErrorBody(ErrorDetail(str(error), "server_error")))
        case _:
            return HttpError(500, ErrorBody(ErrorDetail("internal error; see the gateway's log", "server_error")))


def _retry_after(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, round(seconds)))}
