import json
import logging

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from electra import files
from electra.errors import InputError
from electra.model import names
from electra.model.encoder import Encoder, initialise
from electra.model.sizes import EncoderConfig
from electra.tasks.batches import collate
from electra.tasks.families.family import TextExample
from electra.tasks.families.similarity import Similarity, add_sentence_transformer
from electra.text import tokenizer as tokenizers

pytestmark = pytest.mark.numeric

TEXTS = [
    "hello world",
    "Ein Männchen, das Häuser baut, fährt heim",
    "a text that is far longer than the number of tokens that were learned from, " * 4,
    "x",
]
MAX_LENGTH = 24


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.train(TEXTS, tokenizers.TokenizerConfig(vocab_size=256))


@pytest.fixture
def encoder(tokenizer):
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=16,
        hidden_size=32,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=64,
        max_position_embeddings=40,
    )
    encoder = Encoder(config).eval()
    initialise(encoder, std=0.5, generator=torch.Generator().manual_seed(3))
    return encoder


@pytest.fixture
def folder(encoder, tokenizer, tmp_path):
    """The encoder as transformers has it."""
    tokenizer.save(tmp_path)
    values = {**names.to_transformers_config(encoder.config), "architectures": ["ElectraModel"]}
    files.write_json(tmp_path / "config.json", values)
    tensors = names.encoder_to_transformers(encoder.state_dict())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


@pytest.fixture
def load(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # transformers keeps its warnings to itself.
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    package = pytest.importorskip("sentence_transformers", reason="sentence-transformers is in the extra dev")
    return package.SentenceTransformer


def our_vectors(encoder, tokenizer, family):
    examples = [TextExample(id=text, where="here", text=text, text_pair=text) for text in TEXTS]
    rows = family.rows(examples, tokenizer, max_length=MAX_LENGTH)[::2]
    batch = collate(rows, pad_id=tokenizer.pad_id, device=torch.device("cpu"))
    with torch.inference_mode():
        hidden_BLD = encoder(batch.input_ids_BL, attention_mask_BL=batch.attention_mask_BL)
        return np.stack(family.outputs(family.head(encoder.config), hidden_BLD, batch))


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_sentence_transformers_gives_our_vectors(pooling, folder, encoder, tokenizer, load, caplog, tmp_path):
    add_sentence_transformer(folder, pooling=pooling, max_length=MAX_LENGTH)
    with caplog.at_level(logging.WARNING):
        theirs = load(str(folder), device="cpu")
        vectors = theirs.encode(TEXTS)
    assert not caplog.records
    assert theirs.max_seq_length == MAX_LENGTH
    assert theirs.similarity_fn_name == "cosine"
    expected = our_vectors(encoder, tokenizer, Similarity(pooling=pooling))
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    assert np.ptp(expected @ expected.T) > 0.1, "the texts must differ for this to say something"

    # What the installed version itself writes means the same.
    theirs.save(str(tmp_path / "again"), create_model_card=False)
    again = load(str(tmp_path / "again"), device="cpu")
    assert str(again) == str(theirs)
    assert again.max_seq_length == MAX_LENGTH


def test_the_files_without_the_package(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    add_sentence_transformer(folder, pooling="cls", max_length=30)
    assert all((folder / name).read_bytes() == content for name, content in before.items())
    modules = json.loads((folder / "modules.json").read_text())
    assert [(module["path"], module["type"].rpartition(".")[2]) for module in modules] == [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        ("2_Normalize", "Normalize"),
    ]
    pooling = json.loads((folder / "1_Pooling/config.json").read_text())
    assert pooling.pop("word_embedding_dimension") == 32
    assert [key for key, chosen in pooling.items() if chosen] == ["pooling_mode_cls_token"]
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 30


def test_texts_are_cut_where_the_positions_end(folder):
    add_sentence_transformer(folder, pooling="mean", max_length=512)
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 40


def test_an_encoder_that_transformers_does_not_have_is_refused(tmp_path):
    config = {"model_type": "electra-own", "not_transformers_because": "it has rotary positions"}
    files.write_json(tmp_path / "config.json", config)
    with pytest.raises(InputError, match=r"'electra-own'.*rotary"):
        add_sentence_transformer(tmp_path, pooling="mean", max_length=16)
