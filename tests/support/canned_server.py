"""Canned answers of `electra serve`, so that a browser's tests are fast and know what they will see.

Words stand for what a model would think of them.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from electra.serve.app import PAGE, SECURITY_HEADERS

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

SUSPICIONS = {"ate": 0.934, "wine": 0.61, "ing": 0.8}
"""Token -> how probably it was replaced; others little."""
REWRITTEN = {"cooked": "ate", "meal": "moon"}
"""What the generator always writes instead; the discriminator sees one of them, and suspects `wine`."""
PHRASES = ["The old city", "was", "full of music", "and", "wine"]
"""A text that a generator of whole phrases has cut up; it rewrites the third, and the fourth as it was."""
WRITTEN = {"full of music": ("without 🙂 any snow", 0.7), "and": ("and", 0.1), "wine": (None, 0.61)}
"""What it writes; None: it does not."""
VECTORS = {"cat": [1.0, 0.0], "kitten": [0.8, 0.6], "shares": [0.0, 1.0]}


@dataclass
class Stub:
    """What the server is to answer, and what it was asked."""

    abilities: list[str] = field(default_factory=lambda: ["embed", "detect", "fill", "corrupt"])
    task: str | None = None
    labels: list[str] = field(default_factory=list)
    classified: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    failures: list[tuple[int, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    """Code, body and headers of the next answers, before any good one."""
    held: dict[str, threading.Event] = field(default_factory=dict)
    """Text -> what its answer waits for."""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    has_failed: bool = False
    address: str = ""

    def model(self) -> dict[str, Any]:
        limits = {"max_texts": 64, "max_characters": 10_000}
        facts = {"name": "tiny", "labels": self.labels, "max_length": 128, "limits": limits}
        return {**facts, "abilities": self.abilities, "task": self.task}


def tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """Words, signs, and the syllable "ing" by itself, each with its characters."""
    for match in re.finditer(r"\w+?(?=ing\b)|ing\b|\w+|[^\w\s]", text):
        yield match.group(), *match.span()


def suspicion(token: str) -> float:
    return SUSPICIONS.get(token, 0.02)


def detect(stub: Stub, body: dict[str, Any]) -> list[Any]:
    return [
        {
            "text": text,
            "tokens": [
                {"text": token, "start": start, "end": end, "replaced": suspicion(token)}
                for token, start, end in tokens(text)
            ],
        }
        for text in body["texts"]
    ]


def fill(stub: Stub, body: dict[str, Any]) -> list[Any]:
    shares = {"cooked": 0.5, "made": 0.25, "##ry": 0.125, "[UNK]": 0.1}
    candidates = [{"token": token, "probability": share} for token, share in shares.items()]
    return [
        {
            "text": text,
            "masks": [
                {"start": match.start(), "end": match.end(), "candidates": candidates[number:]}
                for number, match in enumerate(re.finditer(r"\[MASK\]", text))
            ],
        }
        for text in body["texts"]
    ]


def corrupt(stub: Stub, body: dict[str, Any]) -> list[Any]:
    return [in_phrases(text) if text == " ".join(PHRASES) else rewritten(text) for text in body["texts"]]


def in_phrases(text: str) -> dict[str, Any]:
    """Tokens of phrases that stay, one entry for each that was masked."""
    found, start, judged = "", 0, []
    for number, phrase in enumerate(PHRASES):
        written, doubt = WRITTEN.get(phrase, (None, 0.02))
        for old in phrase.split() if written is None else [phrase]:
            new = written or old
            found += " " if found else ""
            judged.append(
                {
                    "text": old,
                    "start": start,
                    "end": start + len(old),
                    "original": old,
                    "corrupted": new,
                    "corrupted_start": len(found),
                    "corrupted_end": len(found) + len(new),
                    "masked": written is not None,
                    "replaced": new != old,
                    "suspicion": doubt,
                    "phrase": number,
                }
            )
            found, start = found + new, start + len(old) + 1
    return {"text": text, "corrupted": found, "tokens": judged}


def rewritten(text: str) -> dict[str, Any]:
    found, done, judged = "", 0, []
    for token, start, end in tokens(text):
        new = REWRITTEN.get(token, token)
        found += text[done:start]
        judged.append(
            {
                "text": token,
                "start": start,
                "end": end,
                "original": token,
                "corrupted": new,
                "corrupted_start": len(found),
                "corrupted_end": len(found) + len(new),
                "masked": new != token,
                "replaced": new != token,
                "suspicion": suspicion(new),
                "phrase": None,
            }
        )
        found, done = found + new, end
    return {"text": text, "corrupted": found + text[done:], "tokens": judged}


def embed(stub: Stub, body: dict[str, Any]) -> list[Any]:
    return [VECTORS[text] for text in body["texts"]]


def classify(stub: Stub, body: dict[str, Any]) -> list[Any]:
    return [stub.classified for _ in body["texts"]]


def tag(stub: Stub, body: dict[str, Any]) -> list[Any]:
    """A word with a capital is a name, if there are labels for such."""
    has_chunks = any("-" in label for label in stub.labels)
    results = []
    for text in body["texts"]:
        found = [{"text": token, "start": start, "end": end} for token, start, end in tokens(text)]
        names = [word for word in found if word["text"].istitle()]
        words = [{**word, "tag": "B-PER" if word in names else "O", "confidence": 0.9} for word in found]
        chunks = [{**word, "type": "PER"} for word in names] if has_chunks else []
        results.append({"text": text, "words": words, "chunks": chunks})
    return results


def answer(stub: Stub, body: dict[str, Any]) -> list[Any]:
    """The first number of the context."""
    results = []
    for context in body["contexts"]:
        if match := re.search(r"\d+", context):
            start, end = match.span()
            found = {"text": match.group(), "start": start, "end": end, "score": 0.75, "no_answer": 0.125}
        else:
            found = {"text": "", "start": None, "end": None, "score": 0.25, "no_answer": 0.875}
        results.append(found)
    return results


def choose(stub: Stub, body: dict[str, Any]) -> list[Any]:
    """The last choice, of those of each question or of the same options for all texts."""
    return [
        {
            "choice": len(choices) - 1,
            "text": choices[-1],
            "probabilities": [*[0.25 / (len(choices) - 1)] * (len(choices) - 1), 0.75],
        }
        for choices in body.get("choices") or [body["options"] for _ in body["texts"]]
    ]


ROUTES = {route.__name__: route for route in (detect, fill, corrupt, embed, classify, tag, answer, choose)}


class Handler(BaseHTTPRequestHandler):
    """The page's files, and the routes of the API."""

    stub: Stub

    def do_GET(self) -> None:
        name = self.path.removeprefix("/page").strip("/") or "index.html"
        if name == "model":
            self.reply(self.stub.model)
            return
        source = PAGE / name
        if not source.is_file():
            self.send(404, b"", "text/plain")
            return
        # Kept by the browser: half of a test's time would go to its files.
        kept = {"Cache-Control": "max-age=600"}
        self.send(200, source.read_bytes(), TYPES[name.rpartition(".")[2]], kept)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ability = self.path.strip("/")
        self.stub.asked.append((ability, body))
        for text in body.get("texts", []):
            if text in self.stub.held:
                self.stub.held[text].wait(120)
        self.reply(lambda: {"results": ROUTES[ability](self.stub, body)})

    def reply(self, answer: Any) -> None:
        if self.stub.key is not None and self.headers["Authorization"] != f"Bearer {self.stub.key}":
            self.fail(401, {"error": {"code": "unauthorised", "message": "the key is missing or wrong"}}, {})
        elif self.stub.failures:
            self.fail(*self.stub.failures.pop(0))
        else:
            self.send(200, json.dumps(answer()).encode(), "application/json")

    def fail(self, code: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        self.stub.has_failed = True
        self.send(code, json.dumps(body).encode(), "application/json", headers)

    def send(self, code: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        # The browser may have gone away: it aborts questions that a newer one has made useless.
        try:
            self.send_response(code)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Security-Policy", SECURITY_HEADERS["Content-Security-Policy"])
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """A server on a free port while the block runs."""
    handler = type("StubHandler", (Handler,), {"stub": stub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    stub.address = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        yield stub
    finally:
        for event in stub.held.values():
            event.set()
        server.shutdown()
        thread.join()
        server.server_close()
