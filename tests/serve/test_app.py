"""The app behind a real server on loopback: what it answers, also to those who mean ill."""

import asyncio
import contextlib
import dataclasses
import json
import runpy
import threading
import time
from pathlib import Path

import pytest

from electra.errors import InputError
from electra.prediction.load import load
from electra.prediction.model import Model
from electra.serve import limits
from electra.serve.app import BATCHES_AT_ONCE, PAGE, build_app, listen, url_of
from electra.serve.limits import Limits
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging
from running import PATIENCE, ask, connect, read_answer, serving, wait_until

KEY = "a-secret-key"
LIMITS = Limits(
    body_seconds=120, chunk_seconds=120, deadline=120, max_texts=16, max_characters=5_000, max_body=100_000
)
MEGABYTES = 60


@pytest.fixture(scope="module")
def model(run):
    return load(run)


@pytest.fixture(scope="module", autouse=True)
def long_linger():
    """On a busy machine 60 MB take longer than the server reads what it has refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LINGER_SECONDS", 120.0)
        yield


@pytest.fixture(scope="module")
def url(model):
    with serving(build_app(model, limits=LIMITS)) as address:
        yield address


@pytest.fixture(scope="module")
def locked(model):
    with serving(build_app(model, limits=LIMITS, key=KEY)) as address:
        yield address


CASES = [
    ("detect", {"texts": ["the old river", "", "music"]}, {}),
    ("fill", {"texts": ["the [MASK] river"]}, {"top": 3}),
    ("corrupt", {"texts": ["the old river was in a small city"]}, {"mask_prob": 0.5, "seed": 4}),
    ("embed", {"texts": ["the old river"]}, {"pooling": "cls"}),
    ("score", {"texts": ["the old river", ""]}, {}),
    ("score", {"texts": ["the old river", "music"]}, {"by": "detection", "tokens": "show"}),
]


@pytest.mark.parametrize(("ability", "columns", "options"), CASES)
def test_answers_are_those_of_the_model(url, model, ability, columns, options):
    answer = ask(url, f"/{ability}", {**columns, **options})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.content == {"results": getattr(model, ability)(**columns, **options)}


TUNED = [
    (Classification(("bad", "good")), "classify", {"texts": ["the river"], "pairs": ["music"]}),
    (Classification(("bad", "good")), "classify", {"texts": ["the river"]}),
    (Similarity(), "similarity", {"texts": ["the river"], "pairs": ["music"]}),
    (
        Tagging(("B-X", "E-X", "I-X", "O", "S-X"), "entities"),
        "tag",
        {"texts": ["the river", ["old", "music"]]},
    ),
    (
        QuestionAnswering(answerability="off", max_query_length=8),
        "answer",
        {"questions": ["the river"], "contexts": ["the old river was in a small city"]},
    ),
    (MultipleChoice(), "choose", {"questions": ["the river"], "choices": [["old", "music", "café"]]}),
]


@pytest.mark.parametrize(("family", "ability", "body"), TUNED)
def test_a_fine_tuned_model_has_its_own_path(make_tuned, family, ability, body):
    _, folder = make_tuned(family)
    model = load(folder)
    with serving(build_app(model, limits=Limits())) as url:
        answer = ask(url, f"/{ability}", body)
        facts = ask(url, "/model").content
        assert ask(url, "/detect", {"texts": []}).status == 404
    assert answer.content == {"results": getattr(model, ability)(**body)}
    assert (facts["abilities"], facts["task"]) == (["embed", ability], "task")
    assert facts["labels"] == list(model.labels)


def test_a_question_that_the_model_cannot_read_is_named(make_tuned, make_text):
    _, folder = make_tuned(QuestionAnswering(answerability="off", max_query_length=8))
    with serving(build_app(load(folder), limits=Limits())) as url:
        answer = ask(url, "/answer", {"questions": ["a", make_text(20)], "contexts": ["a", "b"]})
    assert (answer.status, answer.error["field"]) == (422, "questions[1]")


def test_a_gap_and_a_missing_network_are_named(url, make_run):
    answer = ask(url, "/score", {"texts": ["music", "the [MASK]"]})
    assert (answer.status, answer.error["field"]) == (422, "texts[1]")
    with serving(build_app(load(make_run("mlm")), limits=LIMITS)) as other:
        answer = ask(other, "/score", {"texts": ["music"], "by": "detection"})
    assert (answer.status, answer.error["field"]) == (422, "by")


def test_a_question_without_a_choice_is_named(make_tuned):
    _, folder = make_tuned(MultipleChoice())
    with serving(build_app(load(folder), limits=Limits(max_characters=1000))) as url:
        answer = ask(url, "/choose", {"questions": ["a", "b"], "choices": [["a", "b"], ["c"]]})
        assert (answer.status, answer.error["field"]) == (422, "choices[1]")
        answer = ask(url, "/choose", {"questions": ["a"], "choices": []})
        assert (answer.status, answer.error["field"]) == (422, "choices")
        # A question is read once for each choice.
        answer = ask(url, "/choose", {"questions": ["a" * 300], "choices": [["b"] * 4]})
        assert (answer.status, answer.error["field"]) == (422, "questions")


def test_a_long_text_is_read_to_its_end(url, model, make_text):
    text = make_text(300)
    assert ask(url, "/detect", {"texts": [text]}).content["results"][0]["tokens"][-1]["end"] == len(text)


def test_no_texts_are_no_results(url):
    assert ask(url, "/detect", {"texts": []}).content == {"results": []}


def test_the_facts_are_for_the_page(url, run):
    facts = ask(url, "/model").content
    assert facts == {
        "name": run.name,
        "abilities": ["embed", "detect", "fill", "corrupt", "score", "choose"],
        "task": None,
        "labels": [],
        "max_length": 32,
        "precision": "fp32",
        "precision_reason": "as asked for",
        "limits": {"max_texts": 16, "max_characters": 5_000, "max_body": 100_000},
    }


def test_health_and_metrics(url):
    assert ask(url, "/health/live").content == {"status": "live"}
    assert ask(url, "/health/ready").content == {"status": "ready"}
    ask(url, "/embed", {"texts": ["a", "b"]})
    text = ask(url, "/metrics").body.decode()
    assert 'electra_requests_total{code="200",route="/embed"}' in text
    assert 'electra_texts_total{ability="embed"}' in text


def test_headers_keep_browsers_careful(url):
    answer = ask(url, "/model")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert "server" not in answer.headers


TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def test_the_page_is_served_without_the_key(locked):
    files = {"/": PAGE / "index.html", **{f"/page/{file.name}": file for file in PAGE.iterdir()}}
    for path, file in files.items():
        page = ask(locked, path)
        assert (page.status, page.body) == (200, file.read_bytes())
        assert page.headers["content-type"].partition(";")[0] == TYPES[file.suffix]
        assert page.headers["cache-control"] == "no-cache"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert ask(locked, path, If_None_Match=page.headers["etag"]).status in (200, 304)


@pytest.mark.parametrize("path", ["/page/../app.py", "/page/%2e%2e/app.py", "/page//etc/passwd", "/page/"])
def test_only_files_of_the_page_are_served(locked, path):
    answer = ask(locked, path)
    assert (answer.status, answer.error["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "path", ["/", "/health/live", "/health/ready", "/page/page.css", "/model", "/openapi.json", "/nowhere"]
)
def test_head_is_answered_as_get_without_the_body(url, path):
    whole, head = ask(url, path), ask(url, path, method="HEAD")
    assert head.body == b""
    assert whole.body
    for answer in (whole, head):
        answer.headers.pop("date")
    assert (head.status, head.headers) == (whole.status, whole.headers)


def test_head_of_what_takes_a_body_is_refused(url):
    answer = ask(url, "/detect", method="HEAD")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/model", "/metrics", "/openapi.json", "/nowhere"])
def test_all_else_needs_the_key(locked, path):
    assert ask(locked, path).status == 401
    assert ask(locked, path, Authorization=f"Bearer {KEY}").status in (200, 404)
    assert ask(locked, path, X_API_Key=KEY).status in (200, 404)


def test_health_needs_no_key(locked):
    assert ask(locked, "/health/live").status == ask(locked, "/health/ready").status == 200


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        ({"path": "/nowhere"}, 404, "not_found"),
        ({"path": "/detect/", "content": {"texts": []}}, 404, "not_found"),
        ({"path": "/classify", "content": {"texts": []}}, 404, "not_found"),
        ({"path": "/docs"}, 404, "not_found"),
        ({"path": "/../../etc/passwd"}, 404, "not_found"),
        ({"path": "/detect"}, 405, "method_not_allowed"),
        ({"path": "/model", "content": {}}, 405, "method_not_allowed"),
        ({"path": "/detect", "content": b"{}", "Content_Type": "text/plain"}, 415, "not_json"),
        ({"path": "/detect", "content": b"{}", "Content_Type": ""}, 415, "not_json"),
        ({"path": "/detect", "content": {"texts": 3}}, 422, "invalid"),
    ],
)
def test_refusals_are_json(url, request_, status, code):
    answer = ask(url, **request_)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.error["message"]
    if status == 405:
        assert answer.headers["allow"]


HOSTILE = {
    "bad JSON": (b'{"texts": [', 422, "body"),
    "invalid UTF-8": (b'{"texts": ["\xff"]}', 422, "body"),
    "deep JSON": (b'{"texts":' + b"[" * 40_000 + b"]" * 40_000 + b"}", 422, "body"),
    "half of a character": (rb'{"texts": ["\ud83d"]}', 422, "texts[0]"),
    "half of a character in a name": (rb'{"texts": [], "\ud83d": 1}', 422, "?"),
    "a number of many digits": (b'{"texts": [], "seed": ' + b"1" * 10_000 + b"}", 422, "body"),
    "too many fields": ({"texts": [], **{f"{number}": 1 for number in range(8_000)}}, 422, "0"),
    "a long name": ({"texts": [], "a" * 50_000: 1}, 422, "a" * 79 + "…"),
    "too many texts": ({"texts": ["a"] * 10_000}, 422, "texts"),
    "too long texts": ({"texts": ["a" * 3_000, "b" * 3_000]}, 422, "texts"),
    "an unknown field": ({"texts": [], "eval": "1"}, 422, "eval"),
    "60 MB": (b" " * (MEGABYTES << 20), 413, None),
    "60 MB in chunks": (lambda: iter([b" " * (1 << 20)] * MEGABYTES), 413, None),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_bodies_are_refused(url, case):
    content, status, field = HOSTILE[case]
    answer = ask(url, "/detect", content() if callable(content) else content)
    assert answer.status == status
    assert answer.error.get("field") == field
    assert ask(url, "/detect", {"texts": ["fine"]}).status == 200


def test_a_wrong_key_is_refused_while_60_mb_are_sent(locked):
    answer = ask(locked, "/detect", b" " * (MEGABYTES << 20), Authorization="Bearer wrong")
    assert answer.status == 401


def test_a_wrong_key_needs_no_body_at_all(locked):
    with connect(locked) as connection:
        connection.sendall(b"POST /detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        assert read_answer(connection).status == 401


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.1, 2.0], ids=["drop by drop", "one long pause"])
def test_a_slow_body_is_given_up(model, pause):
    impatient = dataclasses.replace(LIMITS, body_seconds=2.5, chunk_seconds=1.5)
    with serving(build_app(model, limits=impatient)) as url, connect(url) as connection:
        connection.sendall(b"POST /detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        is_answered = threading.Event()

        def drip():
            # The server may have closed the connection before its answer is read here.
            with contextlib.suppress(OSError):
                while not is_answered.wait(pause):
                    connection.send(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            answer = read_answer(connection)
        finally:
            is_answered.set()
            thread.join()
        assert (answer.status, answer.error["code"]) == (408, "body_too_slow")


class Puppet:
    """Stands in for `Model`, and does what a test wants."""

    def __init__(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go, self.has_begun = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.num_texts = 0
        monkeypatch.setattr(Model, "embed", self.embed)
        self.app = build_app(model, limits=Limits(queue_size=2, deadline=60.0))

    def embed(self, texts, *, pooling=None):
        self.has_begun.set()
        assert self.may_go.wait(PATIENCE)
        if self.error is not None and "bad" in texts:
            raise self.error
        self.num_texts += len(texts)
        return [[0.0]] * len(texts)


@pytest.fixture
def puppet(model, monkeypatch):
    found = Puppet(model, monkeypatch)
    found.may_go.set()
    yield found
    found.may_go.set()


@pytest.mark.parametrize("error", [RuntimeError("private detail"), InputError("private detail")])
def test_a_failure_of_the_model_is_told_without_details(puppet, error, caplog):
    puppet.error = error
    with serving(puppet.app) as url:
        answer = ask(url, "/embed", {"texts": ["bad"]})
        assert ask(url, "/embed", {"texts": ["good"]}).status == 200
    assert (answer.status, answer.error["code"]) == (500, "internal")
    assert "private" not in answer.body.decode()
    assert answer.error["message"].split()[-1] in caplog.text
    assert "private detail" in caplog.text


def test_an_answer_unlike_its_description_is_a_failure(model, monkeypatch, caplog):
    monkeypatch.setattr(Model, "embed", lambda *_, **__: ["no vector"])
    with serving(build_app(model, limits=Limits())) as url:
        answer = ask(url, "/embed", {"texts": ["a"]})
        metrics = ask(url, "/metrics").body.decode()
    assert (answer.status, answer.error["code"]) == (500, "internal")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.error["message"].split()[-1] in caplog.text
    assert 'electra_requests_total{code="500",route="/embed"} 1.0' in metrics


def test_a_model_that_fails_at_once_is_never_ready(model, monkeypatch, caplog):
    def damaged(*_, **__):
        raise InputError("the model computes NaN")

    monkeypatch.setattr(Model, "embed", damaged)
    with serving(build_app(model, limits=Limits())) as url:
        assert ask(url, "/health/live").status == 200
        answer = ask(url, "/health/ready")
    assert answer.status == 503
    assert answer.error["code"] == "unavailable"
    assert "computes NaN" in caplog.text


def start(function, *arguments):
    """Its result, later."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)))
    thread.start()

    def finish():
        thread.join(PATIENCE)
        return results[0]

    return finish


def occupy(puppet, url):
    """Give the model all it computes at once, and let none of it end; how to wait for the answers."""
    puppet.may_go.clear()
    computing = []
    for _ in range(BATCHES_AT_ONCE):
        puppet.has_begun.clear()
        computing.append(start(ask, url, "/embed", {"texts": ["a"]}))
        assert puppet.has_begun.wait(PATIENCE)
    return computing


def test_a_full_queue_answers_at_once_and_loses_nothing(puppet):
    with serving(puppet.app) as url:
        computing = occupy(puppet, url)
        waiting = [start(ask, url, "/embed", {"texts": [text]}) for text in "bc"]
        wait_until(lambda: b"electra_queue_length 2.0" in ask(url, "/metrics").body)
        refused = ask(url, "/embed", {"texts": ["d"]})
        puppet.may_go.set()
        assert {finish().status for finish in (*computing, *waiting)} == {200}
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")


def test_a_client_that_went_away_is_not_computed(puppet):
    body = json.dumps({"texts": ["gone"] * 5}).encode()
    head = (
        "POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}"
    )
    with serving(puppet.app) as url:
        before = puppet.num_texts
        computing = occupy(puppet, url)
        with connect(url) as connection:
            connection.sendall(head.encode() + b"\r\n\r\n" + body)
            wait_until(lambda: b"electra_queue_length 1.0" in ask(url, "/metrics").body)
        wait_until(lambda: b"electra_queue_length 0.0" in ask(url, "/metrics").body)
        puppet.may_go.set()
        assert {finish().status for finish in computing} == {200}
        assert puppet.num_texts == before + len(computing)
        assert b'electra_requests_total{code="499",route="/embed"} 1.0' in ask(url, "/metrics").body


def test_draining_lets_nobody_in(puppet):
    with serving(puppet.app) as url:
        puppet.app.state.service.drain()
        assert ask(url, "/health/ready").status == 503
        assert ask(url, "/health/live").status == 200
        answer = ask(url, "/embed", {"texts": ["a"]})
    assert (answer.status, answer.error["code"]) == (503, "unavailable")


@pytest.mark.slow
def test_no_answer_in_time_is_a_refusal(model, monkeypatch):
    def slow(*_, **__):
        time.sleep(0.5)
        return [[0.0]]

    monkeypatch.setattr(Model, "embed", slow)
    with serving(build_app(model, limits=Limits(deadline=0.1))) as url:
        answer = ask(url, "/embed", {"texts": ["a"]})
    assert answer.status == 503
    assert "0.1 s" in answer.error["message"]


def test_a_free_port_is_taken_and_told():
    with listen("127.0.0.1", 0) as first, listen("localhost", 0) as second:
        assert url_of(first).startswith("http://127.0.0.1:")
        assert url_of(first) != url_of(second)


def test_addresses_of_both_kinds_are_written_as_they_must_be():
    try:
        listened = listen("::1", 0)
    except InputError:
        pytest.skip("this machine has no IPv6")
    with listened:
        assert url_of(listened).startswith("http://[::1]:")


@pytest.mark.parametrize("host", ["no such host", "a" * 100, "192.0.2.1"])
def test_an_address_that_is_not_ours_is_named(host):
    with pytest.raises(InputError, match=f"{host}, port 0"):
        listen(host, 0)


@pytest.mark.slow
def test_more_clients_than_places_are_all_answered_in_bounded_memory(model):
    load_test = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "load.py"))
    hammer, resident = load_test["hammer"], load_test["resident"]
    body = {"texts": ["the old river was in a small city"]}

    def load_for(seconds):
        return asyncio.run(hammer(url, "/detect", body, clients=200, seconds=seconds))

    with serving(build_app(model, limits=Limits(queue_size=32))) as url:
        load_for(2.0)
        before = resident("self")
        answers = load_for(5.0)
        growth = resident("self") - before
    statuses = {status for status, _ in answers}
    # A lost answer has the status 0.
    assert statuses == {200, 503}
    assert growth < 32 << 20
