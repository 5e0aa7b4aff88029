import json
import logging

import pytest

from electra.serve.errors import (
    REASONS,
    ApiError,
    documented,
    error_response,
    internal_error,
    shortened,
)


def body_of(error):
    return json.loads(error_response(error).body)


@pytest.mark.parametrize("status", REASONS)
def test_each_error_is_an_answer_in_json(status):
    error = ApiError(status, "too bad", field="texts[3]")
    assert error_response(error).status_code == status
    assert body_of(error) == {
        "error": {"code": REASONS[status].code, "message": "too bad", "field": "texts[3]"}
    }


def test_a_field_is_named_only_if_there_is_one():
    assert "field" not in body_of(ApiError(404, "nothing"))["error"]


def test_headers_say_what_to_do():
    assert error_response(ApiError(503, "busy")).headers["Retry-After"] == "1"
    assert error_response(ApiError(401, "no key")).headers["WWW-Authenticate"] == "Bearer"
    assert "Retry-After" not in error_response(ApiError(422, "bad")).headers


def test_the_details_of_a_failure_are_only_in_the_log(caplog):
    with caplog.at_level(logging.ERROR):
        error = internal_error(RuntimeError("secret detail"), what="detect")
    number = error.error.message.split()[-1]
    assert error.status_code == 500
    assert number in caplog.text
    assert "secret detail" in caplog.text
    assert "secret" not in error.error.message


def test_the_description_lists_errors():
    assert set(documented(401, 503)) == {401, 503}
    assert documented(401)[401]["description"] == REASONS[401].description


def test_an_error_does_not_grow_with_what_was_sent():
    long = "k" * 1_000_000
    assert len(error_response(ApiError(422, f"{long} is unknown", field=long)).body) < 1_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("texts[3]", "texts[3]"),
        ("é" * 80, "é" * 80),
        ("a" * 81, "a" * 79 + "…"),
        ("one\nERROR two\x1b[31m", "one?ERROR two?[31m"),
        ("\ud800", "?"),
    ],
)
def test_what_others_wrote_becomes_short_and_stays_on_its_line(text, expected):
    assert shortened(text) == expected


def test_the_log_is_no_place_for_others_lines(caplog):
    internal_error(RuntimeError("odd"), what="GET /a\n2026-01-01 all is well" + "x" * 10_000)
    assert "\n" not in caplog.records[0].message
    assert len(caplog.records[0].message) < 200
