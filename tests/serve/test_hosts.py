"""Which names a server answers to: a page of another site must not become one of its own."""

import pytest
from starlette.datastructures import Headers

from electra.errors import InputError
from electra.prediction.load import load
from electra.serve.app import build_app
from electra.serve.errors import ApiError
from electra.serve.hosts import Hosts, is_loopback
from electra.serve.limits import Limits
from running import ask, serving

OWN = ["localhost", "localhost:8000", "LOCALHOST.", "127.0.0.1:1", "127.8.9.10", "[::1]", "[::1]:8000"]
FOREIGN = [
    *(
        "evil.example",
        "localhost.evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "0.0.0.0:8000",
    ),
    *("192.168.1.2", "evil@localhost", "localhost@evil", "localhost evil", "", ":8000", "[evil]", "[::2]"),
    "x" * 5_000,
]


def status_of(hosts, **headers):
    """What a request with such headers is answered."""
    try:
        hosts.check(Headers({name: value for name, value in headers.items() if value is not None}))
    except ApiError as error:
        return error.status_code
    return 200


@pytest.mark.parametrize("headers", [{"host": "x" * 5_000}, {"host": "localhost", "origin": "x" * 5_000}])
def test_a_refusal_is_short_and_says_what_to_do(headers):
    with pytest.raises(ApiError) as caught:
        Hosts().check(Headers(headers))
    assert len(caught.value.error.message) < 300
    assert "--allowed_hosts" in caught.value.error.message


@pytest.mark.parametrize("host", [*OWN, None])
def test_this_machine_may_be_called_by_its_own_names(host):
    assert status_of(Hosts(), host=host) == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_other_names_are_refused(host):
    assert status_of(Hosts(), host=host) == 421
    assert status_of(Hosts(allowed=frozenset(["*"])), host=host) == 200


def test_other_names_may_be_allowed():
    hosts = Hosts(allowed=frozenset(["Model.example"]))
    assert status_of(hosts, host="model.EXAMPLE:8000", origin="https://model.example") == 200
    assert status_of(hosts, host="localhost") == 200
    assert status_of(hosts, host="other.example") == 421


def test_a_server_for_other_machines_answers_to_addresses_but_not_to_names():
    hosts = Hosts(takes_addresses=True)
    assert status_of(hosts, host="192.168.1.2:8000", origin="http://192.168.1.2:8000") == 200
    assert status_of(hosts, host="[2001:db8::1]:8000") == 200
    assert status_of(hosts, host="evil.example") == 421
    assert status_of(hosts, host="192.168.1.2", origin="http://203.0.113.5") == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "https://localhost.evil.example", "chrome-extension://abc"]
)
def test_pages_of_other_sites_are_refused(origin):
    assert status_of(Hosts(), host="localhost:8000", origin=origin) == 403
    assert status_of(Hosts(), origin=origin) == 421


@pytest.mark.parametrize("origin", ["http://localhost:8000", "http://127.0.0.1:3000", "http://[::1]:8000"])
def test_pages_of_this_machine_are_not(origin):
    assert status_of(Hosts(), host="localhost:8000", origin=origin) == 200


@pytest.mark.parametrize("name", ["http://example.org", "example.org:80", "", "two words", "a/b"])
def test_what_is_no_name_cannot_be_allowed(name):
    with pytest.raises(InputError, match="allowed_hosts"):
        Hosts(allowed=frozenset([name]))


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("example.org", False)],
)
def test_loopback_is_known(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize("path", ["/", "/health/live", "/model", "/detect", "/nowhere"])
def test_a_server_without_a_key_is_safe_from_pages_of_other_sites(url, path):
    content = {"texts": ["a"]} if path == "/detect" else None
    wrong = ask(url, path, content, Host="evil.example")
    assert (wrong.status, wrong.error["code"]) == (421, "unknown_host")
    assert "evil.example" in wrong.error["message"]
    foreign = ask(url, path, content, Origin="http://evil.example")
    assert (foreign.status, foreign.error["code"]) == (403, "foreign_origin")
    own = ask(url, path, content, Host="localhost:1234", Origin="http://localhost:1234")
    assert own.status == (404 if path == "/nowhere" else 200)


@pytest.fixture(scope="module")
def url(run):
    with serving(build_app(load(run), limits=Limits())) as address:
        yield address
