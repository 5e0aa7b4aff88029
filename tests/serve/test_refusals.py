import json
import logging

import pytest

from electra.serve.errors import REASONS, RefusalError, documented, internal


@pytest.mark.parametrize("status", REASONS)
def test_each_refusal_is_an_error_in_json(status):
    response = RefusalError(status, "too bad", field="texts[3]").response()
    assert response.status_code == status
    error = {"code": REASONS[status].code, "message": "too bad", "field": "texts[3]"}
    assert json.loads(response.body) == {"error": error}


def test_a_field_is_named_only_if_there_is_one():
    assert "field" not in json.loads(RefusalError(404, "nothing").response().body)["error"]


def test_who_is_refused_hears_what_to_do():
    assert RefusalError(503, "busy").response().headers["Retry-After"] == "1"
    assert RefusalError(401, "no key").response().headers["WWW-Authenticate"] == "Bearer"
    assert "Retry-After" not in RefusalError(422, "bad").response().headers


def test_a_failure_is_told_by_a_number_and_kept_in_the_log(caplog):
    with caplog.at_level(logging.ERROR):
        refusal = internal(RuntimeError("secret detail"), what="detect")
    number = refusal.error.message.split()[-1]
    assert number in caplog.text
    assert "secret detail" in caplog.text
    assert "secret" not in refusal.error.message


def test_the_description_lists_refusals():
    assert set(documented(401, 503)) == {401, 503}
    assert documented(401)[401]["description"] == REASONS[401].description
