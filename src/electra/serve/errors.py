"""What went wrong with a request -> the answer that says so: {"error": {"code", "message", "field"}}."""

import logging
import secrets
from typing import Any, NamedTuple

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

logger = logging.getLogger(__name__)

HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    # Seconds; in about this time a full queue is worked off.
    503: {"Retry-After": "1"},
}


class Reason(NamedTuple):
    """Why a request is not answered, for programs and for people."""

    code: str
    description: str


REASONS = {
    401: Reason("unauthorized", "The key is missing or wrong."),
    404: Reason("not_found", "There is no such path, or the model has not this ability."),
    405: Reason("method_not_allowed", "The path takes another method."),
    408: Reason("body_too_slow", "The body did not arrive in time."),
    413: Reason("body_too_large", "The body has too many bytes."),
    415: Reason("not_json", "The content type is not application/json."),
    422: Reason("invalid", "The body is no JSON, or a field is not as it should be; `field` says which."),
    500: Reason("internal", "The server failed. Its log tells more under the id that the message names."),
    503: Reason("unavailable", "Too busy to answer in time, not ready yet, or about to stop: ask again."),
}
"""Status -> reason."""


class Error(BaseModel):
    """What is wrong."""

    code: str = Field(description="The kind of error, for programs.")
    message: str = Field(description="What is wrong and how to go on, for people.")
    field: str | None = Field(
        default=None, description="The part of the request that is wrong, such as texts[3]."
    )


class ErrorAnswer(BaseModel):
    """Any answer but a good one."""

    error: Error


class RefusalError(Exception):
    """Ends a request with an answer of this status."""

    def __init__(self, status: int, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = Error(code=REASONS[status].code, message=message, field=field)

    def response(self) -> JSONResponse:
        """The answer."""
        content = ErrorAnswer(error=self.error).model_dump(exclude_none=True)
        return JSONResponse(content, status_code=self.status, headers=HEADERS.get(self.status))


def internal(error: Exception, *, what: str) -> RefusalError:
    """A failure that is not the client's: it gets a number, the log the rest."""
    number = secrets.token_hex(4)
    logger.error("%s failed, id %s", what, number, exc_info=error)
    return RefusalError(500, f"the server failed; its log tells more under the id {number}")


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Refusals as the description of the API lists them."""
    return {status: {"model": ErrorAnswer, "description": REASONS[status].description} for status in statuses}


async def answer_refusal(_: Request, error: Exception) -> JSONResponse:
    """What a route refused."""
    assert isinstance(error, RefusalError)
    return error.response()


async def answer_unrouted(_: Request, error: Exception) -> JSONResponse:
    """An unknown path, or a method that it does not take."""
    assert isinstance(error, HTTPException)
    response = RefusalError(error.status_code, REASONS[error.status_code].description).response()
    response.headers.update(error.headers or {})
    return response


async def answer_failure(request: Request, error: Exception) -> JSONResponse:
    """A mistake in this program."""
    return internal(error, what=f"{request.method} {request.url.path}").response()
