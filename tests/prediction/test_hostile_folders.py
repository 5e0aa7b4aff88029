"""Folders of models that somebody has damaged, or made to do harm: a message for each, and no more."""

import copy
import json
import os
import re
import shutil

import onnx
import pytest
import tokenizers
from safetensors.torch import load_file, save_file

import electra
from electra import cli, files
from electra.errors import InputError
from electra.model import names
from electra.model.store import open_model
from electra.pretraining.start import read_networks
from electra.run import serve
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification, Regression
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging
from foreign_models import build_model, tiny_sizes, write_bundle, write_vocabulary

TEXT = "the old river was in a small city"
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
LONGEST_MESSAGE = 1200
SIZES = (
    *("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings", "type_vocab_size"),
)
FAMILIES = {
    "classification": Classification(("bad", "good")),
    "regression": Regression(low=1.0, high=5.0),
    "similarity": Similarity(),
    "tagging": Tagging(("B-X", "E-X", "I-X", "O", "S-X"), "entities"),
    "answering": QuestionAnswering(head="joint", answerability="on"),
    "multiple_choice": MultipleChoice(),
}


@pytest.fixture(params=["transformers", "own", "modern"])
def network(request, make_run, run, tmp_path):
    """An encoder with its head, alone in its folder, in each of the layouts."""
    modern = {"backbone": "modern", "position_embedding_type": "rotary", "embedding_size": 32}
    made = {
        "transformers": lambda: run,
        "own": lambda: make_run(position_embedding_type="rotary"),
        "modern": lambda: make_run(**modern),
    }[request.param]()
    if request.param == "modern":
        words = ["export", "--model", str(made), "--to", "transformers", "--out", str(tmp_path / "model")]
        assert cli.main(words) == cli.OK
        (tmp_path / "model" / "manifest.json").unlink()
        return tmp_path / "model"
    return shutil.copytree(made / "final" / "discriminator", tmp_path / "model")


@pytest.fixture
def encoder(run, tmp_path):
    """A discriminator in the layout of transformers."""
    return shutil.copytree(run / "final" / "discriminator", tmp_path / "model")


@pytest.fixture
def tuned(tuned_once, tmp_path):
    """`tuned(family)`: a fine-tuned model without its seal, as if it came from anywhere."""

    def make(family="classification"):
        folder = shutil.copytree(tuned_once(FAMILIES[family])[1] / "final", tmp_path / "model")
        (folder / "manifest.json").unlink()
        return folder

    return make


def change(path, **values):
    """Replace values of a JSON file; a dotted name is that of an inner one, and ... takes one away."""
    content = json.loads(path.read_text())
    for name, value in values.items():
        *outer, last = name.split("__")
        place = content
        for key in outer:
            place = place[key]
        place[last] = value
        if value is ...:
            del place[last]
    path.write_text(json.dumps(content))


def reseal(folder, **changes):
    """A manifest that was changed on purpose has a checksum that is right."""
    content = json.loads((folder / "manifest.json").read_text())
    content = {**content, **changes}
    content = {key: value for key, value in content.items() if value is not ...}
    content.pop("manifest_sha256", None)
    checksum = files.hashlib.sha256(files.to_json(content)).hexdigest()
    (folder / "manifest.json").write_bytes(files.to_json({**content, "manifest_sha256": checksum}))


def use(folder, **options):
    """Whatever a model can do, with few words."""
    model = electra.load(folder, precision="fp32", **options)
    fields = {
        "answer": {"questions": ["old"], "contexts": [TEXT]},
        "choose": {"questions": ["old"], "choices": [["river", "city"]]}
        if model.tuned
        else {"texts": [TEXT], "options": ["river", "city"]},
        "similarity": {"texts": [TEXT], "pairs": [TEXT]},
    }
    return [model.ask(ability, **fields.get(ability, {"texts": [TEXT]})) for ability in model.abilities]


def assert_refused(message, folder, **options):
    with pytest.raises(InputError, match=message) as caught:
        use(folder, **options)
    assert len(str(caught.value)) < LONGEST_MESSAGE


@pytest.fixture
def assert_commands_refuse(tmp_path, capsys, monkeypatch):
    """Each command, as a person types it, ends with 2 and a message that names the file."""
    monkeypatch.setattr(serve.Server, "run", lambda *_, **__: pytest.fail("it serves a hostile model"))
    table = tmp_path / "table.csv"
    table.write_text(f"text,label\n{TEXT},bad\n{TEXT} now,good\n" * 4)
    out = str(tmp_path / "out")
    own = ["--task", "csv", "--data", str(table)]
    commands = {
        "predict": ["--input", str(table), "--out", out + ".csv"],
        "evaluate": own,
        "finetune": [*own, "--out", out, "--train.epochs", "1"],
        "export": ["--to", "transformers", "--out", out],
        "serve": ["--port", "0"],
        "import": ["--out", out, "--from", "transformers"],
    }

    def check(folder, message, verbs=tuple(commands), *more):
        for verb in verbs:
            named = [str(folder)] if verb == "import" else ["--model", str(folder)]
            assert cli.main([verb, *commands[verb], *named, *more]) == cli.BAD_INPUT, verb
            printed = capsys.readouterr()
            assert re.search(message, printed.err), printed.err
            assert "Traceback" not in printed.err + printed.out
            assert len(printed.err) < LONGEST_MESSAGE
        assert not os.path.lexists(out)

    return check


@pytest.mark.parametrize("size", [10**9, 10**12, 10**30])
@pytest.mark.parametrize("key", SIZES)
def test_sizes_that_ask_for_all_memory_are_compared_with_the_weights_first(encoder, key, size):
    change(encoder / "config.json", **{key: size})
    assert_refused(rf"config\.json.*{key}.*{size}", encoder)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"])
def test_so_are_those_of_all_layouts(network, key):
    change(network / "config.json", **{key: 10**9})
    # Of layers that ModernBERT's weights lack, the first is named.
    assert_refused(rf"config\.json.*{key}|lacks weight 'model\.layers\.2\.", network)


@pytest.mark.parametrize("key", ["vocab_size", "num_hidden_layers"])
def test_no_command_builds_what_a_config_alone_asks_for(tuned, assert_commands_refuse, key):
    folder = tuned()
    change(folder / "config.json", **{key: 10**9})
    assert_commands_refuse(folder, rf"config\.json.*{key} is 1000000000")


def test_nor_what_has_random_weights_or_starts_a_run(encoder, tmp_path, capsys):
    change(encoder / "config.json", num_hidden_layers=10**9)
    (tmp_path / "table.csv").write_text(f"text,label\n{TEXT},bad\n{TEXT} now,good\n")
    own = ["--task", "csv", "--data", str(tmp_path / "table.csv"), "--out", str(tmp_path / "out")]
    assert cli.main(["finetune", "--model", "none", "--like", str(encoder), *own]) == cli.BAD_INPUT
    assert "num_hidden_layers" in capsys.readouterr().err
    with pytest.raises(InputError, match="num_hidden_layers"):
        read_networks(encoder)


def test_labels_are_no_way_to_a_large_head(tuned):
    folder = tuned()
    change(folder / "config.json", electra_task__settings__labels=[f"{number}" for number in range(10**5)])
    assert_refused("do not belong together", folder)


def test_shapes_without_numbers_are_none(tmp_path, assert_commands_refuse, capsys):
    sizes = tiny_sizes()
    state = build_model(*sizes).state_dict()
    arrays = names.to_tensorflow(state)
    query = "electra/encoder/layer_0/attention/self/query/kernel"
    arrays[query] = arrays[query][:0].repeat(10**6, axis=1)
    write_bundle(tmp_path / "tf" / "model.ckpt", arrays)
    write_vocabulary(tmp_path / "tf" / "vocab.txt", sizes[0].vocab_size)
    words = ["import", "--from", "tensorflow", str(tmp_path / "tf"), "--out", str(tmp_path / "out")]
    assert cli.main(words) == cli.BAD_INPUT
    assert "do not belong together" in capsys.readouterr().err


JUNK = ["many", None, -4, 1, 2.5, 10**400, True, [["x"]], {}, ...]
"""In place of a value; the last takes it away."""


def leaves(content, path=()):
    """The place of every value in plain data."""
    for key in content if isinstance(content, dict) else range(len(content)):
        yield (*path, key)
        if isinstance(content[key], dict | list):
            yield from leaves(content[key], (*path, key))


def assert_nothing_but_one_error(folder, name, *, below="", seal=lambda: None, **options):
    """With any value of a JSON file, or below a key, replaced by junk, a model answers or is refused."""
    whole = json.loads((folder / name).read_text())
    refused = []
    for path in leaves(whole[below], (below,)) if below else leaves(whole):
        for junk in JUNK:
            content = copy.deepcopy(whole)
            place = content
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = junk
            if junk is ...:
                del place[path[-1]]
            (folder / name).write_text(json.dumps(content))
            seal()
            try:
                use(folder, **options)
            except InputError as error:
                refused.append(str(error))
            except BaseException as error:
                raise AssertionError(f"{path}: {junk!r} gives {error!r}") from error
    assert len(refused) > len(JUNK)
    assert max(map(len, refused)) < LONGEST_MESSAGE


@pytest.mark.slow
def test_any_value_of_a_config(network):
    assert_nothing_but_one_error(network, "config.json")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_any_value_of_a_fine_tuned_models_config(tuned, family):
    assert_nothing_but_one_error(tuned(family), "config.json", below="electra_task")


@pytest.mark.slow
def test_any_value_of_the_config_of_a_graph(tuned_once, export_once, tmp_path):
    made, _ = export_once(tuned_once(FAMILIES["classification"])[1])
    folder = shutil.copytree(made, tmp_path / "model")
    (folder / "manifest.json").unlink(missing_ok=True)
    assert_nothing_but_one_error(folder, "config.json", below="electra_onnx", engine="onnx")


@pytest.mark.slow
def test_any_value_of_a_manifest_that_was_sealed_again(make_run, tmp_path):
    run = shutil.copytree(make_run(facts={"seq_length": 16, "tokens_read": 5, "step": 3}), tmp_path / "run")
    known = json.loads((run / "final" / "manifest.json").read_text())["files"]
    few = {name: known[name] for name in ("discriminator/config.json", "generator/config.json")}
    reseal(run / "final", files=few)
    assert_nothing_but_one_error(run, "final/manifest.json", seal=lambda: reseal(run / "final"))


@pytest.mark.parametrize(
    "content",
    [
        DEEP,
        b"",
        b"\xff\xfe",
        b"[]",
        b"3",
        b"null",
        b'"x"',
        b'{"a": NaN}',
        b'{"kind": "\\ud800"}',
        b"[" * 99_999,
    ],
    ids=["deep", "empty", "bytes", "list", "number", "null", "text", "NaN", "half a character", "deep list"],
)
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "tokenizer.json", "manifest.json", "weights"]
)
def test_files_that_are_no_object_of_json(encoder, name, content):
    files.write_manifest(encoder, {"kind": "exported model"})
    if name == "weights":
        (encoder / "model.safetensors").unlink()
        name = "model.safetensors.index.json"
    (encoder / name).write_bytes(content)
    if name != "manifest.json":
        (encoder / "manifest.json").unlink()
    if (name, content) == ("tokenizer_config.json", b'{"a": NaN}'):
        assert use(encoder)
    else:
        assert_refused(re.escape(name), encoder)


@pytest.mark.parametrize("length", [-5, 1, 7, 0, "abc", [], 2.5, True])
def test_a_tokenizer_that_reads_nothing(encoder, assert_commands_refuse, length):
    change(encoder / "tokenizer_config.json", model_max_length=length)
    assert_refused(
        r"tokenizer_config\.json: model_max_length is .*expected a whole number from 8 on", encoder
    )
    assert_commands_refuse(encoder, r"tokenizer_config\.json: model_max_length", ["export", "serve"])


def test_a_tokenizer_without_a_limit_is_one(encoder):
    # What transformers writes where nothing is known.
    change(encoder / "tokenizer_config.json", model_max_length=10**30)
    assert electra.load(encoder).reader.max_length == 32


@pytest.mark.parametrize("length", [-3, 0, 7, "24", None, 2.5])
def test_a_length_that_no_task_has(tuned, assert_commands_refuse, length):
    folder = tuned()
    change(folder / "config.json", electra_task__max_length=length)
    assert_refused(r"config\.json: electra_task\.max_length is .*expected a whole number from 8 on", folder)
    assert_commands_refuse(folder, r"electra_task\.max_length", ["predict", "evaluate", "export", "serve"])


@pytest.mark.parametrize("family", ["classification", "tagging", "answering"])
def test_a_task_without_settings(tuned, assert_commands_refuse, family):
    folder = tuned(family)
    change(folder / "config.json", electra_task__settings={})
    assert_refused(r"config\.json, electra_task lacks settings\.\w+, expected", folder)
    assert_commands_refuse(folder, r"lacks settings\.", ["predict", "evaluate", "export", "serve"])


def shard(folder, name="part.safetensors", *, listed=None):
    """The weights in a shard with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / name)
    index = {"weight_map": dict.fromkeys(tensors, listed or name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("content", [{}, {"weight_map": []}, {"weight_map": {"a": 3}}, {"weight_map": {}}])
def test_an_index_of_no_weights(encoder, assert_commands_refuse, content):
    shard(encoder)
    (encoder / "model.safetensors.index.json").write_text(json.dumps(content))
    assert_refused(r"model\.safetensors\.index\.json.*weight_map", encoder)
    assert_commands_refuse(encoder, "weight_map", ["export", "serve", "import"])


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "ABSOLUTE", "a/../../secret.safetensors", "..", "."]
)
def test_shards_are_files_beside_their_index(encoder, tmp_path, name):
    secret = tmp_path / "secret.safetensors"
    shutil.copy(encoder / "model.safetensors", secret)
    shard(encoder, listed=str(secret) if name == "ABSOLUTE" else name)
    assert_refused(r"index\.json names .*expected a file beside it", encoder)


def test_a_link_is_no_way_out_of_a_folder_but_in_the_cache_of_the_hub(encoder, tmp_path):
    shard(encoder)
    outside = (encoder / "part.safetensors").rename(tmp_path / "secret.safetensors")
    (encoder / "part.safetensors").symlink_to(outside)
    assert_refused(r"index\.json names 'part\.safetensors', expected a file beside it", encoder)
    (encoder / "part.safetensors").unlink()
    (tmp_path / "hub" / "blobs").mkdir(parents=True)
    (tmp_path / "hub" / "snapshots").mkdir()
    outside.rename(tmp_path / "hub" / "blobs" / "0a1b")
    snapshot = encoder.rename(tmp_path / "hub" / "snapshots" / "main")
    (snapshot / "part.safetensors").symlink_to("../../blobs/0a1b")
    assert use(snapshot)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": ...}, "lacks encoder"),
        ({"files": ...}, "lacks files"),
        ({"encoder": "../../elsewhere"}, "encoder is '../../elsewhere', expected one of discriminator"),
        ({"files": {"a": {"bytes": 3}}}, r"lacks files\.a\.sha256"),
        ({"config": []}, r"config is \[\], expected a JSON object"),
        ({"seq_length": -3}, "seq_length is -3"),
        ({"tokens_read": "all"}, "tokens_read is 'all'"),
    ],
)
def test_a_manifest_that_was_sealed_again(run, tmp_path, assert_commands_refuse, changes, message):
    folder = shutil.copytree(run, tmp_path / "run")
    reseal(folder / "final", **changes)
    assert_refused(rf"manifest\.json:? {message}", folder)
    assert_commands_refuse(folder, message, ["export", "serve"])


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"objective": "electra", "train": {"optimizer": 3}}},
        {"config": {"objective": "electra", "model": "small"}},
        {"config": {"objective": "electra", "data": 5}, "dataset_sha256": "x"},
        {"imported_from": ["x"]},
    ],
)
def test_notes_that_make_no_card(run, tmp_path, assert_commands_refuse, changes):
    folder = shutil.copytree(run, tmp_path / "run")
    reseal(folder / "final", **changes)
    assert_commands_refuse(folder, "what is noted there of its training", ["export"])


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size"])
def test_the_config_of_a_graph_is_compared_with_it(run, export_once, tmp_path, key):
    # A generator has a head for as many tokens.
    made, _ = export_once(run, part="generator" if key == "vocab_size" else "discriminator")
    folder = shutil.copytree(made, tmp_path / "model")
    change(folder / "config.json", **{key: 10**9})
    assert_refused(r"\b1000000000\b", folder, engine="onnx")


@pytest.mark.parametrize("location", ["../secret.bin", "ABSOLUTE", "beside.bin"])
def test_a_graph_reads_no_other_files(run, export_once, tmp_path, location, assert_commands_refuse):
    made, _ = export_once(run)
    folder = shutil.copytree(made, tmp_path / "model")
    for place in (tmp_path / "secret.bin", folder / "beside.bin"):
        place.write_bytes(bytes(10**6))
    graph = onnx.load(folder / "model.onnx")
    tensor = max(graph.graph.initializer, key=lambda one: len(one.raw_data))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    where = str(tmp_path / "secret.bin") if location == "ABSOLUTE" else location
    tensor.external_data.add(key="location", value=where)
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    assert_refused(r"model\.onnx keeps weights in other files", folder, engine="onnx")
    assert_commands_refuse(folder, "keeps weights in other files", ["serve"], "--engine", "onnx")


BOMB = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 60}


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 10**6},
        {"type": "Replace", "pattern": {"Regex": ""}, "content": "b" * 100},
        {"type": "Prepend", "prepend": "b" * 100},
        {"type": "Sequence", "normalizers": [BOMB, BOMB, BOMB, BOMB]},
        {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [BOMB]}, BOMB]},
    ],
)
def test_a_tokenizer_makes_no_megabyte_of_a_letter(encoder, assert_commands_refuse, normalizer):
    change(encoder / "tokenizer.json", normalizer=normalizer)
    assert tokenizers.Tokenizer.from_file(str(encoder / "tokenizer.json"))
    assert_refused(r"tokenizer\.json: its normalizer may put .* characters in the place of one", encoder)
    assert_commands_refuse(encoder, r"tokenizer\.json: its normalizer", ["export", "serve", "import"])


def test_a_tokenizer_without_words_is_refused(encoder):
    change(encoder / "tokenizer.json", model__vocab={})
    assert_refused(r"tokenizer\.json.*\[UNK\]", encoder)


def test_a_tokenizer_that_its_library_gives_up_on_is_refused(encoder):
    # Of a merge that is shorter than the prefix, `tokenizers` takes more characters away than it has.
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "ab"]
    model = {"type": "BPE", "vocab": {name: number for number, name in enumerate(names)}, "merges": ["a b"]}
    change(encoder / "tokenizer.json", model={**model, "continuing_subword_prefix": "many"})
    assert_refused(r"tokenizer\.json is not a tokenizer that `tokenizers` can read", encoder)


def test_ordinary_replacements_are_read(encoder):
    quotes = {"type": "Replace", "pattern": {"String": "``"}, "content": '"'}
    blanks = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    parts = [quotes, blanks, {"type": "NFKD"}, {"type": "Prepend", "prepend": "▁"}]
    change(encoder / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": parts})
    assert use(encoder)


def test_hidden_states_of_an_encoder_are_as_before(encoder, run):
    # What is checked changes nothing.
    assert use(encoder) == use(encoder)
    assert open_model(encoder).encoder().config == open_model(run).encoder().config
