"""What went wrong with a request -> the answer that says so: {"error": {"code", "message", "field"}}.

Every part of the server raises `ApiError`; `error_response` is the only place that writes such an answer.
"""

import logging
import secrets
from typing import Any, NamedTuple

from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

logger = logging.getLogger(__name__)

MAX_ECHO = 80
"""Characters of what a client sent that an error repeats."""
MAX_MESSAGE = 400
"""Characters of an error: an answer must not grow with what was sent."""

HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    # Seconds; a full queue is worked off in about this time.
    503: {"Retry-After": "1"},
}


class Reason(NamedTuple):
    """Why a request gets no result, for programs and for people."""

    code: str
    description: str


REASONS = {
    401: Reason("unauthorized", "The key is missing or wrong."),
    403: Reason("foreign_origin", "The request comes from a web page of another site."),
    404: Reason("not_found", "There is no such path, or the model does not have this ability."),
    405: Reason("method_not_allowed", "The path takes another method."),
    408: Reason("body_too_slow", "The body did not arrive in time."),
    413: Reason("body_too_large", "The body has too many bytes."),
    415: Reason("not_json", "The content type is not application/json."),
    421: Reason("unknown_host", "The server is not known by the name in the header Host."),
    422: Reason("invalid", "The body is not JSON, or a field of it is wrong; `field` says which."),
    500: Reason("internal", "The server failed. Its log has the details under the id in the message."),
    503: Reason("unavailable", "Too busy to answer in time, not ready yet, or about to stop: try again."),
}
"""Status -> reason."""


class Error(BaseModel):
    """What is wrong."""

    code: str = Field(description="The kind of error, for programs.")
    message: str = Field(description="What is wrong and what to do about it, for people.")
    field: str | None = Field(
        default=None, description="The part of the request that is wrong, such as texts[3]."
    )


class ErrorAnswer(BaseModel):
    """Any answer except a good one."""

    error: Error


class ApiError(HTTPException):
    """Ends a request with an answer of this status, which must be one of `REASONS`.

    Whatever it repeats of the request, it is short: that is seen to here, for all errors.
    """

    def __init__(self, status: int, message: str, *, field: str | None = None) -> None:
        message = shortened(message, most=MAX_MESSAGE)
        super().__init__(status, message, headers=HEADERS.get(status))
        self.error = Error(
            code=REASONS[status].code, message=message, field=None if field is None else shortened(field)
        )


def shortened(text: str, *, most: int = MAX_ECHO) -> str:
    """What somebody else wrote -> the beginning of it, on one line: for an error or the log."""
    # Half of a surrogate pair is not printable either; UTF-8 could not write it.
    line = "".join(letter if letter.isprintable() else "?" for letter in text[:most])
    return line if len(text) <= most else f"{line[:-1]}…"


def error_response(error: ApiError) -> JSONResponse:
    """The answer to a request that ended with an error."""
    content = ErrorAnswer(error=error.error).model_dump(exclude_none=True)
    return JSONResponse(content, status_code=error.status_code, headers=error.headers)


def internal_error(error: Exception, *, what: str) -> ApiError:
    """A failure that is not the client's fault: the client gets an id, the log gets the details."""
    number = secrets.token_hex(4)
    logger.error("%s failed, id %s", shortened(what), number, exc_info=error)
    return ApiError(500, f"the server failed; its log has the details under the id {number}")


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Errors as the description of the API lists them."""
    return {status: {"model": ErrorAnswer, "description": REASONS[status].description} for status in statuses}
