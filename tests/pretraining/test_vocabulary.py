import dataclasses

import pytest
import torch

from electra.errors import InputError
from electra.pretraining.config import GeneratorConfig
from electra.pretraining.vocabulary import VocabularyMap, carry_over, change_vocabulary, map_vocabulary

pytestmark = pytest.mark.numeric

OLD = ["[PAD]", "[UNK]", "un", "##do", "do", "##ing", "cat"]
NEW = ["[PAD]", "[UNK]", "do", "undoing", "кот", "##ing"]


def encode(token: str) -> list[int]:
    return {"undoing": [2, 3, 5], "кот": [1]}[token]


@pytest.fixture
def mapping() -> VocabularyMap:
    return map_vocabulary(OLD, NEW, encode=encode, unknown_id=1)


def test_tokens_are_kept_composed_or_new(mapping):
    assert mapping.kept == {0: 0, 1: 1, 2: 4, 5: 5}
    assert mapping.composed == {3: [2, 3, 5]}
    assert mapping.unknown == [4]
    assert str(mapping) == ("vocabulary of 7 -> 6 tokens: 4 kept, 1 composed of old pieces, 1 new, 3 dropped")


def test_rows_go_where_their_tokens_go(mapping):
    table_VE = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    new_NE = carry_over(table_VE, mapping)
    assert torch.equal(new_NE[[0, 1, 2, 5]], table_VE[[0, 1, 4, 5]])
    torch.testing.assert_close(new_NE[3], (table_VE[2] + table_VE[3] + table_VE[5]) / 3)
    torch.testing.assert_close(new_NE[4], table_VE.mean(0))
    bias_V = torch.arange(7.0)
    assert carry_over(bias_V, mapping).tolist() == [0, 1, 4, pytest.approx(10 / 3), 3, 5]


@pytest.mark.parametrize("sharing", ["embeddings", "none", "disentangled"])
def test_a_trained_objective_goes_on_with_another_vocabulary(toy, sharing):
    """Kept tokens mean the same to both networks: the new vocabulary is the old one, in reverse, plus one."""
    config = GeneratorConfig(sharing=sharing)
    old = toy.objective(generator=config)
    list(toy.train(old, 3))
    size = toy.tokens.vocab_size
    tokens = [f"token {number}" for number in range(size)]
    new_tokens = [*tokens[:5], *reversed(tokens[5:]), "longer"]
    mapping = map_vocabulary(tokens, new_tokens, encode=lambda token: [6, 8], unknown_id=1)
    larger = dataclasses.replace(
        toy,
        tokens=dataclasses.replace(toy.tokens, vocab_size=size + 1),
        encoder=dataclasses.replace(toy.encoder, vocab_size=size + 1),
    )
    new = larger.objective(generator=config, seed=5)
    new.load_state_dict(change_vocabulary(old.state_dict(), mapping))

    inputs = toy.inputs()
    old_to_new = torch.tensor([new_tokens.index(token) for token in tokens])
    renamed_BL = old_to_new[inputs.input_ids_BL]
    for part in ("generator", "discriminator"):
        expected = getattr(old, part).eval()(inputs.input_ids_BL, **inputs.context)
        found = getattr(new, part).eval()(renamed_BL, **inputs.context)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        table = getattr(new, part).embeddings.word_embeddings.weight
        old_table = getattr(old, part).embeddings.word_embeddings.weight
        torch.testing.assert_close(table[-1], (old_table[6] + old_table[8]) / 2)
    assert torch.equal(new.generator_head.bias[old_to_new], old.generator_head.bias)


def test_shared_tables_stay_shared(toy):
    objective = toy.objective()
    size = toy.tokens.vocab_size
    mapping = VocabularyMap(old_size=size, new_size=size, kept={n: n for n in range(size)}, composed={})
    state = change_vocabulary(objective.state_dict(), mapping)
    names = ("generator.embeddings.word_embeddings.weight", "discriminator.embeddings.word_embeddings.weight")
    assert state[names[0]] is state[names[1]]


def test_a_wrong_vocabulary_is_refused():
    with pytest.raises(InputError, match="no token in common"):
        map_vocabulary(["a"], ["b"], encode=lambda token: [0], unknown_id=0)
    with pytest.raises(InputError, match="holds a token twice"):
        map_vocabulary(["a", "a"], ["a"], encode=lambda token: [0], unknown_id=0)
