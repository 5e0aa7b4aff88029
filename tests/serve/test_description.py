"""The description of the API, and requests that are made up from it."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from pydantic import TypeAdapter
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from electra.prediction.load import load
from electra.serve.app import build_app
from electra.serve.limits import Limits
from electra.serve.requests import ENDPOINTS, task_endpoint
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.options import Options
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.table import task_abilities
from electra.tasks.families.tagging import Tagging
from running import ask, serving

KEY = "a-secret-key"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
MODELS = {
    "a run": (None, ["detect", "fill", "corrupt", "score", "choose", "embed"]),
    "classes": (Classification(("bad", "good")), ["classify"]),
    "labels": (MultiLabel(("red", "blue")), ["classify"]),
    "values": (Regression(low=1.0, high=5.0), ["classify"]),
    "similarity": (Similarity(), ["similarity"]),
    "tags": (Tagging(("B-X", "E-X", "I-X", "O", "S-X"), "entities"), ["tag"]),
    "answers": (QuestionAnswering(answerability="on", max_query_length=8), ["answer"]),
    "choices": (MultipleChoice(), ["choose"]),
    "options": (Options(("bad", "good"), ("old", "new")), ["classify"]),
}


@pytest.fixture(scope="module")
def describe(run, make_tuned):
    """`describe(family)`: a server of such a model, or of a run, by its address and its description."""

    def serve(family):
        folder = run if family is None else make_tuned(family)[1]
        return serving(build_app(load(folder), limits=Limits(), key=KEY))

    return serve


def description_of(url):
    return ask(url, "/openapi.json", X_API_Key=KEY).content


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_made_up_requests_get_documented_answers(describe, model):
    family, abilities = MODELS[model]
    with describe(family) as url:
        schema = schemathesis.openapi.from_dict(description_of(url))
        schema.config.update(base_url=url)
        seen = set()
        for ability in abilities:
            for mode in GenerationMode:

                @settings(
                    max_examples=30,
                    deadline=None,
                    derandomize=True,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                )
                @given(case=schema[f"/{ability}"]["POST"].as_strategy(generation_mode=mode))
                def check(case):
                    response = case.call_and_validate(checks=CHECKS, headers={"X-API-Key": KEY})
                    seen.add(response.status_code)

                check()
    assert seen >= {200, 422}


def test_every_ability_is_described():
    assert set(ENDPOINTS) == {"detect", "fill", "corrupt", "score", "choose", "embed"}
    assert set(task_abilities()) == {"similarity", "classify", "tag", "answer", "choose"}
    for ability in task_abilities():
        schema = task_endpoint(ability).request.model_json_schema()
        assert schema["description"]
        assert schema["examples"] == [task_endpoint(ability).example]
        assert all(field["description"] for field in schema["properties"].values())
        assert TypeAdapter(task_endpoint(ability).results).json_schema()["type"] == "array"


def test_fields_of_a_family_are_described_and_checked():
    schema = task_endpoint("choose").request.model_json_schema()
    assert schema["required"] == ["questions", "choices"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["choices"]["items"] == {"items": {"type": "string"}, "type": "array"}
    assert task_endpoint("classify").request.model_json_schema()["required"] == ["texts"]
    (chosen,) = TypeAdapter(task_endpoint("choose").results).json_schema()["$defs"].values()
    assert set(chosen["properties"]) == {"choice", "text", "probabilities"}
    assert chosen["additionalProperties"] is False
    assert "from 0" in chosen["properties"]["choice"]["description"]


def test_paths_are_those_that_the_model_has(describe):
    with describe(None) as url:
        paths = description_of(url)["paths"]
    assert set(paths) == {
        *("/health/live", "/health/ready", "/model"),
        *("/embed", "/detect", "/fill", "/corrupt", "/score", "/choose"),
    }
    detect = paths["/detect"]["post"]
    assert detect["operationId"] == "detect"
    errors = {"401", "403", "408", "413", "415", "421", "422", "500", "503"}
    assert set(detect["responses"]) == {"200", *errors}
    assert {"HTTPBearer": []} in detect["security"]
    assert {"APIKeyHeader": []} in detect["security"]
    assert "security" not in paths["/health/live"]["get"]
    assert "[MASK]" in json.dumps(paths["/fill"])
