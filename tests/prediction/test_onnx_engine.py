import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file

from electra import files
from electra.errors import InputError
from electra.model.store import ModelFolder
from electra.prediction import onnx_engine
from electra.prediction.load import load
from electra.prediction.onnx_engine import OnnxEncoder, open_session
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.classification import Classification, Regression
from electra.tasks.families.family import TextExample
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging
from electra.tasks.inference import predict_examples

pytestmark = pytest.mark.numeric

TEXTS = ["The old river was in a small city.", "", "café 日本語 🙂 don't", "music"]
SLOW = pytest.mark.slow
CLASSES = Classification(("bad", "fair", "good"))


@pytest.fixture(scope="module")
def both(run, export_once, tmp_path_factory):
    """Both networks of a run, side by side."""
    folder = tmp_path_factory.mktemp("both")
    for part in ("discriminator", "generator"):
        shutil.copytree(export_once(run, part=part)[0], folder / part)
    return folder


@pytest.mark.slow
def test_pre_trained_networks_say_the_same(run, both, make_text, assert_alike):
    ours, theirs = load(run), load(both / "discriminator", engine="onnx")
    assert theirs.abilities == ours.abilities == ("embed", "detect", "fill", "corrupt", "score", "choose")
    texts = [*TEXTS, make_text(50), *(make_text(5 + number, seed=number) for number in range(6))]
    masked = [f"{text} [MASK] of {text}" for text in texts]
    assert_alike(theirs.detect(texts), ours.detect(texts))
    assert_alike(theirs.fill(masked, top=3), ours.fill(masked, top=3))
    assert_alike(theirs.corrupt(texts), ours.corrupt(texts))
    assert_alike(theirs.score(texts, tokens="show"), ours.score(texts, tokens="show"))
    for pooling in ("mean", "cls", "max"):
        assert_alike(theirs.embed(texts, pooling=pooling), ours.embed(texts, pooling=pooling))


@SLOW
def test_a_detection_head_that_looks_at_cls(make_run, export_once, make_text, assert_alike):
    run = make_run(discriminator_head="with_cls")
    texts = [*TEXTS, make_text(50)]
    assert_alike(load(export_once(run)[0], engine="onnx").detect(texts), load(run).detect(texts))


@SLOW
def test_other_positions_and_the_length_of_training(make_run, export_once, make_text, assert_alike):
    run = make_run(position_embedding_type="alibi", facts={"seq_length": 16})
    theirs = load(export_once(run)[0], engine="onnx")
    ours = load(run)
    assert theirs.abilities == ("embed", "detect", "score", "choose")
    assert theirs.reader.max_length == ours.reader.max_length == 16
    assert_alike(theirs.detect([*TEXTS, make_text(60)]), ours.detect([*TEXTS, make_text(60)]))


@SLOW
def test_a_generator_alone_and_an_encoder_alone(run, export_once, assert_alike):
    assert load(export_once(run, part="generator")[0], engine="onnx").abilities == (
        "embed",
        "fill",
        "score",
        "choose",
    )
    encoder = load(export_once(run, part="encoder")[0], engine="onnx")
    assert encoder.abilities == ("embed",)
    assert_alike(encoder.embed(TEXTS), load(run).embed(TEXTS))


METHODS = {
    "classification": (CLASSES, lambda model, texts: model.classify(texts, texts[::-1])),
    "regression": (Regression(low=1.0, high=5.0), lambda model, texts: model.classify(texts)),
    "mean": (
        Classification(("bad", "fair", "good"), head_pooling="mean"),
        lambda model, texts: model.classify(texts, texts[::-1]),
    ),
    "similarity": (Similarity(pooling="max"), lambda model, texts: model.similarity(texts, texts[::-1])),
    "tagging": (
        Tagging(("B-X", "I-X", "E-X", "S-X", "O"), "entities"),
        lambda model, texts: model.tag(texts),
    ),
    "plain": (QuestionAnswering(head="plain", answerability="off"), lambda model, texts: ask(model, texts)),
    "joint": (QuestionAnswering(head="joint", answerability="on"), lambda model, texts: ask(model, texts)),
}


def ask(model, texts):
    return model.answer(["the old river"] * len(texts), texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["classification", *(pytest.param(name, marks=SLOW) for name in METHODS if name[0] != "c")]
)
def test_fine_tuned_models_say_the_same(tuned_once, export_once, make_text, name, assert_alike):
    family, method = METHODS[name]
    _, folder = tuned_once(family)
    ours, theirs = load(folder), load(export_once(folder)[0], engine="onnx")
    texts = [*TEXTS, make_text(70)]
    assert theirs.abilities == ours.abilities
    assert theirs.labels == ours.labels
    assert theirs.reader.max_length == theirs.tuned.max_length == 24
    assert_alike(method(theirs, texts), method(ours, texts))
    assert_alike(theirs.embed(texts), ours.embed(texts))


@SLOW
def test_evaluation_takes_it_for_any_other_model(tuned_once, export_once, assert_alike):
    # A head without weights: where it computes must be known all the same.
    tuned, folder = tuned_once(Similarity(pooling="max"))
    theirs = load(export_once(folder)[0], engine="onnx").tuned
    examples = [TextExample(id="0", where="here", text="the old river", text_pair="music")]
    options = {"max_length": tuned.max_length}
    found = predict_examples(theirs.model, theirs.task, examples, theirs.tokenizer, **options)
    assert_alike(found, predict_examples(tuned.model, tuned.task, examples, tuned.tokenizer, **options))


@SLOW
def test_int8_answers_nearly_the_same(tuned_once, export_once):
    _, folder = tuned_once(CLASSES)
    theirs = load(export_once(folder, precision="int8")[0], engine="onnx")
    for found, expected in zip(theirs.classify(TEXTS), load(folder).classify(TEXTS), strict=True):
        for label, share in found["probabilities"].items():
            assert share == pytest.approx(expected["probabilities"][label], abs=0.2)


def test_what_is_not_given_is_text_of_the_first_segment(run, both):
    encoder = OnnxEncoder.read(ModelFolder(both / "discriminator"))
    ids_BL = torch.arange(20).view(2, 10)
    ones, zeros = torch.ones_like(ids_BL), torch.zeros_like(ids_BL)
    whole = encoder(ids_BL, token_type_ids_BL=zeros, attention_mask_BL=ones)
    assert torch.equal(encoder(ids_BL), whole)
    assert torch.allclose(load(run).reader.encoder(ids_BL), whole, atol=1e-5)


def test_rows_of_like_length_are_computed_together(monkeypatch):
    monkeypatch.setattr(onnx_engine, "TOKENS_AT_ONCE", 12)
    lengths = [7, 2, 0, 5, 6, 13]
    mask_BL = (torch.arange(15) < torch.tensor(lengths)[:, None]).long()
    # What stands after a gap counts.
    mask_BL[1, 0] = 0
    found = list(onnx_engine.rows_of_like_length(mask_BL))
    assert found == [([2, 1], 2), ([3, 4], 6), ([0], 7), ([5], 13)]


def test_the_order_of_rows_stays(run, both, tokenizer):
    random = torch.Generator().manual_seed(0)
    ids_BL = torch.randint(tokenizer.vocab_size, (40, 32), generator=random)
    mask_BL = (torch.arange(32) < torch.randint(1, 33, (40, 1), generator=random)).long()
    found_BLD = OnnxEncoder.read(ModelFolder(both / "discriminator"))(ids_BL, attention_mask_BL=mask_BL)
    with torch.no_grad():
        expected_BLD = load(run).reader.encoder(ids_BL, attention_mask_BL=mask_BL)
    text_BL = mask_BL == 1
    difference = (found_BLD - expected_BLD)[text_BL].abs().max()
    assert difference < 2e-5, "the sum of both roundings"


def test_a_generator_computes_no_logits_of_all_positions(both):
    outputs = [output.name for output in open_session(both / "generator" / "model.onnx").get_outputs()]
    assert outputs == ["last_hidden_state", "logits"]
    cut = OnnxEncoder.read(ModelFolder(both / "generator"))._session
    assert [output.name for output in cut.get_outputs()] == ["last_hidden_state"]


def test_a_batch_has_one_core_and_leaves_the_others_to_other_batches(both):
    options = open_session(both / "discriminator" / "model.onnx").get_session_options()
    assert options.intra_op_num_threads == 1


def test_threads_may_share_a_model(both, make_text):
    model = load(both / "discriminator", engine="onnx")
    texts = [make_text(4 + number, seed=number) for number in range(12)]
    expected = [model.detect([text])[0] for text in texts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: model.detect([text])[0], texts))
    assert found == expected


def test_a_folder_for_the_other_engine_is_refused(run, both):
    with pytest.raises(InputError, match=r"electra export --model .* --to onnx"):
        load(run, engine="onnx")
    with pytest.raises(InputError, match='engine="onnx"'):
        load(both / "discriminator")
    assert load(both / "discriminator", engine="onnx", device="auto").reader.device.type == "cpu"


def test_networks_of_two_engines_do_not_play_together(run, both, tmp_path):
    shutil.copytree(both / "discriminator", tmp_path / "discriminator")
    shutil.copytree(run / "final" / "generator", tmp_path / "generator")
    assert load(tmp_path / "discriminator", engine="onnx").abilities == ("embed", "detect", "score", "choose")
    assert load(tmp_path / "generator").abilities == ("embed", "fill", "score", "choose")


@pytest.mark.parametrize("part", ["discriminator", "generator"])
@pytest.mark.parametrize("content", [b"", b"not a graph", None])
def test_a_damaged_graph_is_refused(both, tmp_path, part, content):
    folder = shutil.copytree(both / part, tmp_path / "model")
    path = folder / "model.onnx"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if content is None else content)
    with pytest.raises(InputError, match=r"model\.onnx.*onnxruntime"):
        load(folder, engine="onnx")
    path.unlink()
    with pytest.raises(InputError, match=r"model\.onnx"):
        load(folder, engine="onnx")


def test_a_head_of_other_sizes_is_refused(both, tmp_path):
    folder = shutil.copytree(both / "discriminator", tmp_path / "model")
    shutil.copy(both / "generator" / "head.safetensors", folder)
    with pytest.raises(InputError, match=r"head\.safetensors.*\bweight"):
        load(folder, engine="onnx")
    folder = shutil.copytree(both / "generator", tmp_path / "other")
    tensors = load_file(folder / "head.safetensors")
    save_file({name: tensors[name] for name in tensors if "word" not in name}, folder / "head.safetensors")
    with pytest.raises(InputError, match=r"head\.safetensors.*word_embeddings\.weight.*\d+"):
        load(folder, engine="onnx")


def test_what_was_changed_since_the_export_is_refused(both, tmp_path):
    folder = shutil.copytree(both / "discriminator", tmp_path / "model")
    files.write_manifest(folder, {"kind": "exported model"})
    (folder / "README.md").write_text("A card does not hurt.")
    assert load(folder, engine="onnx").abilities == ("embed", "detect", "score", "choose")
    head = folder / "head.safetensors"
    head.write_bytes(head.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=r"head\.safetensors.*damaged"):
        load(folder, engine="onnx")
