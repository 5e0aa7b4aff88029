import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import transformers

from electra import files
from electra.bench import serving
from electra.bench.serving import CONTESTANTS, ServeBenchConfig, ask, contest, dev_texts, prose, take_turn
from electra.errors import InputError
from electra.prediction.load import load

TINY = ServeBenchConfig(size="tiny", texts=7, batch_size=3, clients=2, passes=1)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    folder = tmp_path_factory.mktemp("material")
    contest(TINY, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "contestant",
    [pytest.param(name, marks=[pytest.mark.slow] * name.endswith("server")) for name in CONTESTANTS],
)
def test_every_contestant_classifies_all_texts(contestant, material):
    turn = take_turn(TINY, contestant, material)
    assert len(turn.seconds) == 1
    assert turn.seconds[0] > 0
    assert turn.memory > 10**7
    if contestant.startswith("int8"):
        assert turn.precision == "int8"
    elif contestant in ("pipeline", "onnx"):
        assert turn.precision == "fp32"
    else:
        # Torch takes what is fast on this processor.
        assert turn.precision in ("fp32", "bf16")


def test_the_pipeline_says_the_same(material):
    texts = files.read_json(material / "texts.json")
    ours = load(material / "model").classify(texts)
    theirs = transformers.pipeline("text-classification", model=str(material / "model"), device="cpu")(texts)
    assert len(texts) == TINY.texts
    assert [answer["label"] for answer in ours] == [answer["label"] for answer in theirs]
    for our, their in zip(ours, theirs, strict=True):
        assert our["probabilities"][our["label"]] == pytest.approx(their["score"], abs=1e-5)


def test_a_model_that_cannot_classify_is_refused(material, tmp_path):
    encoder = tmp_path / "encoder"
    values = files.read_json(material / "model" / "config.json")
    del values["electra_task"]
    encoder.mkdir()
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (encoder / name).symlink_to(material / "model" / name)
    files.write_json(encoder / "config.json", {**values, "architectures": ["ElectraModel"]})
    with pytest.raises(InputError, match="classify"):
        contest(ServeBenchConfig(model=str(encoder), texts=3), tmp_path)


@pytest.mark.slow
def test_texts_have_the_lengths_of_the_real_ones(shared):
    real = dev_texts(ServeBenchConfig(data=str(shared / "data" / "glue" / "SST-2")))
    assert len(real) == 872
    lengths, ours = ([len(text.split()) for text in texts] for texts in (real, prose(872)))
    assert np.mean(ours) == pytest.approx(np.mean(lengths), rel=0.1)
    assert np.std(ours) == pytest.approx(np.std(lengths), rel=0.15)
    assert max(ours) <= max(lengths)


def test_texts_can_be_made_anywhere():
    # More than the manual has: it begins again.
    texts = prose(20_000)
    assert len(texts) == 20_000
    assert all(2 <= len(text.split()) <= 47 for text in texts)


class Busy(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503)
        self.end_headers()
        self.wfile.write(b"too many")

    def log_message(self, *words):
        pass


def test_an_answer_that_is_none_does_not_count():
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connection = HTTPConnection(*server.server_address)
        with pytest.raises(InputError, match=r"\b503\b.*too many"):
            ask(connection, [b"{}"])
        connection.close()
        server.shutdown()


@pytest.mark.parametrize("key", ["texts", "batch_size", "clients", "repeats", "passes"])
def test_nothing_cannot_be_measured(key):
    with pytest.raises(InputError, match=rf"serve\.{key}.*\b0\b"):
        ServeBenchConfig(**{key: 0})


@pytest.mark.slow
def test_what_transformers_cannot_load_it_does_not_run(material, tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "transformers_obstacle", lambda config: "it turns queries")
    known = contest(ServeBenchConfig(model=str(material / "model"), texts=3), tmp_path)
    assert known.contestants == tuple(name for name in CONTESTANTS if name != "pipeline")
    assert known.left_out == {"pipeline": "it turns queries"}


def test_without_onnxruntime_the_others_run(material, tmp_path, monkeypatch):
    def refuse(module, *, extra):
        raise InputError(f"{module} is missing: install electra[{extra}]")

    monkeypatch.setattr(serving, "import_extra", refuse)
    known = contest(ServeBenchConfig(model=str(material / "model"), texts=3), tmp_path)
    assert known.contestants == ("predict", "batches", "server", "pipeline")
    assert set(known.left_out) == {"onnx", "int8", "int8_server"}
    assert "electra[onnx]" in known.left_out["int8"]
