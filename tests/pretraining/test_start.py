import dataclasses

import pytest
import torch

from electra.errors import InputError
from electra.pretraining.config import GeneratorConfig
from electra.pretraining.start import (
    Start,
    VocabularyMap,
    begin_from,
    carry_over,
    change_vocabulary,
    map_vocabulary,
)
from electra.text import tokenizer as tokenizers
from electra.text.tokenizer import SPECIAL_TOKENS, Tokenizer


@pytest.fixture
def make_tokenizer(tmp_path):
    """`make_tokenizer("un", "##do")`: a WordPiece tokenizer with these entries after the special ones."""

    def make(*entries: str) -> Tokenizer:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}" / "vocab.txt"
        path.parent.mkdir()
        path.write_text("".join(f"{entry}\n" for entry in (*SPECIAL_TOKENS, *entries)), encoding="utf-8")
        return tokenizers.load_tokenizer(path)

    return make


@pytest.fixture
def mapping() -> VocabularyMap:
    return VocabularyMap(old_size=7, new_size=6, kept={0: 0, 1: 1, 2: 4, 5: 5}, composed={3: [2, 3, 5]})


def test_tokens_are_kept_composed_or_new(make_tokenizer):
    old = make_tokenizer("un", "##do", "do", "##ing", "cat", "##s", "a")
    new = make_tokenizer("do", "undoing", "кот", "##ing", "##doings", "cats")
    first = len(SPECIAL_TOKENS)
    un, do_inside, do, ing, cat, s = range(first, first + 6)
    found = map_vocabulary(old, new)
    assert found.kept == {**{n: n for n in range(first)}, first: do, first + 3: ing}
    assert found.composed == {
        first + 1: [un, do_inside, ing],
        # A piece of a word is made of such pieces, not of words.
        first + 4: [do_inside, ing, s],
        first + 5: [cat, s],
    }
    assert found.unknown == [first + 2]


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
    new_to_old = [*range(5), *reversed(range(5, size))]
    mapping = VocabularyMap(
        old_size=size, new_size=size + 1, kept=dict(enumerate(new_to_old)), composed={size: [6, 8]}
    )
    larger = dataclasses.replace(
        toy,
        tokens=dataclasses.replace(toy.tokens, vocab_size=size + 1),
        encoder=dataclasses.replace(toy.encoder, vocab_size=size + 1),
    )
    new = larger.objective(generator=config, seed=5)
    new.load_state_dict(change_vocabulary(old.state_dict(), mapping))

    inputs = toy.inputs()
    old_to_new = torch.tensor([new_to_old.index(number) for number in range(size)])
    renamed_BL = old_to_new[inputs.input_ids_BL]
    for part in ("generator", "discriminator"):
        expected = getattr(old, part).eval()(inputs.input_ids_BL, **inputs.context)
        found = getattr(new, part).eval()(renamed_BL, **inputs.context)
        # The same products in the same order, on other rows of a table: nothing is rounded differently.
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


@pytest.fixture
def make_start(toy, make_tokenizer, tmp_path):
    """`make_start(objective)`: what a run of this objective leaves to start from."""
    num_words = toy.tokens.vocab_size - len(SPECIAL_TOKENS)
    words = make_tokenizer(*(f"word{number}" for number in range(num_words)))

    def make(objective) -> Start:
        return Start(path=tmp_path, weights=objective.state_dict(), tokenizer=words, facts={"step": 3})

    return make


def test_networks_that_the_start_does_not_have_stay_random(toy, make_start):
    start = make_start(toy.objective("mlm", seed=1))
    objective = toy.objective(generator=GeneratorConfig(width=1, sharing="none"), seed=2)
    before = {name: tensor.clone() for name, tensor in objective.state_dict().items()}
    done = begin_from(start, objective, start.tokenizer)
    assert done == {"step": 3, "random": ["discriminator", "discriminator_head"]}
    for name, tensor in objective.state_dict().items():
        expected = start.weights[name] if name.startswith("generator") else before[name]
        assert torch.equal(tensor, expected), name


def test_a_start_that_does_not_fit_is_refused_and_changes_nothing(toy, make_start):
    start = make_start(toy.objective(generator=GeneratorConfig(width=1.0)))
    objective = toy.objective(generator=GeneratorConfig(width=0.5))
    before = {name: tensor.clone() for name, tensor in objective.state_dict().items()}
    with pytest.raises(InputError, match=r"--start.*generator\..*\["):
        begin_from(start, objective, start.tokenizer)
    assert all(torch.equal(tensor, before[name]) for name, tensor in objective.state_dict().items())
    with pytest.raises(InputError, match=r"--start.*generator.*discriminator"):
        begin_from(dataclasses.replace(start, weights={}), objective, start.tokenizer)
