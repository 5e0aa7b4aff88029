import json

import numpy as np
import pytest
import torch

from electra.errors import InputError
from electra.model.encoder import Encoder, initialise
from electra.model.heads import JointSpanHead, SpanHead
from electra.model.sizes import EncoderConfig
from electra.seeds import python_random, torch_generator
from electra.tasks.batches import collate
from electra.tasks.data.squad import Answer, AnswerExample, QuestionAnswering
from electra.text import tokenizer as tokenizers
from electra.text.tokenizer import TokenizerConfig

pytestmark = pytest.mark.numeric

WORDS = ["house", "river", "stone", "green", "cloud", "paper"]
NUMBERS = ["1895 km", "1943 m"]


def questions(count, *, with_impossible):
    """Which number is in the text? It consists of two words among others, or there is none."""
    random = python_random(5, "questions")
    examples = []
    for number in range(count):
        words = random.choices(WORDS, k=random.randint(4, 14))
        is_impossible = with_impossible and random.random() < 0.4
        answers = ()
        if not is_impossible:
            text, place = random.choice(NUMBERS), random.randint(0, len(words))
            start = len(" ".join(words[:place])) + (place > 0)
            answers = (Answer(text, start),)
            words.insert(place, text)
        examples.append(
            AnswerExample(
                id=str(number),
                where=f"line {number}",
                question="which number ?",
                context=" ".join(words),
                answers=answers,
                is_impossible=is_impossible,
            )
        )
    return examples


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.train(
        [" ".join([*WORDS, *NUMBERS, "which number ?"])] * 20, TokenizerConfig(vocab_size=256)
    )


def tiny_network(family, tokenizer):
    config = EncoderConfig.preset(
        "tiny",
        vocab_size=tokenizer.vocab_size,
        max_position_embeddings=32,
        num_hidden_layers=1,
        hidden_size=64,
        intermediate_size=64,
    )
    encoder, head = Encoder(config), family.head(config)
    for part in (encoder, head):
        initialise(part, std=0.05, generator=torch_generator(0, "tiny"))
    return encoder, head


@pytest.mark.slow
@pytest.mark.parametrize(("head", "answerability"), [("joint", "on"), ("plain", "off")])
def test_a_tiny_model_learns_to_answer(head, answerability, tokenizer):
    family = QuestionAnswering(head=head, answerability=answerability, doc_stride=6, null_threshold=0.0)
    examples = questions(32, with_impossible=answerability == "on")
    # Some texts need two windows.
    rows = family.rows(examples, tokenizer, max_length=18)
    assert len(rows) > len(examples)
    encoder, answer_head = tiny_network(family, tokenizer)
    batch = collate(rows, pad_id=tokenizer.pad_id, device=torch.device("cpu"))
    optimizer = torch.optim.Adam([*encoder.parameters(), *answer_head.parameters()], lr=3e-3)

    def hidden():
        return encoder(
            batch.input_ids_BL,
            token_type_ids_BL=batch.token_type_ids_BL,
            attention_mask_BL=batch.attention_mask_BL,
        )

    def scores():
        outputs = family.outputs(answer_head.eval(), hidden().detach(), batch)
        predictions = family.predictions(examples, rows, outputs)
        json.dumps(predictions, allow_nan=False)
        return family.scores(examples, predictions)

    name = "f1" if answerability == "off" else "best_f1"
    before = scores()[name].value
    for _ in range(40):
        losses = family.losses(answer_head, hidden(), batch)
        assert losses.shape == (len(rows),)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    after = scores()
    assert before < 0.75
    assert after[name].value > 0.9
    if answerability == "on":
        assert after["NoAns_exact"].value > 0.8
        assert after["HasAns_exact"].value > 0.8


def test_one_window_with_an_answer_is_enough(tokenizer):
    family = QuestionAnswering(answerability="on", doc_stride=4)
    example = AnswerExample(id="q", where="", question="?", context=" ".join(WORDS * 4))
    rows = family.rows([example], tokenizer, max_length=14)
    _, head = tiny_network(family, tokenizer)
    batch = collate(rows, pad_id=tokenizer.pad_id, device=torch.device("cpu"))
    hidden = torch.randn(*batch.input_ids_BL.shape, head.span.start.in_features)
    outputs = family.outputs(head, hidden, batch)
    assert len({output.null_logit for output in outputs}) == len(rows) > 2
    (said,) = family.predictions([example], rows, outputs)
    assert said["null_odds"] == min(output.null_logit for output in outputs)


@pytest.mark.parametrize("head", ["joint", "plain"])
def test_half_precision_gives_nearly_the_same(head, tokenizer):
    family = QuestionAnswering(head=head, answerability="on")
    rows = family.rows(questions(8, with_impossible=True), tokenizer, max_length=32)
    _, answer_head = tiny_network(family, tokenizer)
    batch = collate(rows, pad_id=tokenizer.pad_id, device=torch.device("cpu"))
    generator = torch_generator(0, "hidden")
    hidden = torch.randn(*batch.input_ids_BL.shape, 64, generator=generator).bfloat16()
    losses = family.losses(answer_head, hidden.float(), batch)
    with torch.autocast("cpu", torch.bfloat16):
        half = family.losses(answer_head, hidden, batch)
        outputs = family.outputs(answer_head, hidden, batch)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, losses, rtol=0.02, atol=0.02)
    assert all(output.start_logit_N.dtype == np.float32 for output in outputs)


def test_the_kind_of_head_and_settings():
    config = EncoderConfig.preset("tiny")
    joint = QuestionAnswering(answerability="on").head(config)
    assert isinstance(joint.span, JointSpanHead)
    assert joint.unanswerable is not None
    family = QuestionAnswering(head="plain", answerability="off", doc_stride=64, n_best_size=3)
    plain = family.head(config)
    assert isinstance(plain.span, SpanHead)
    assert plain.unanswerable is None
    again = QuestionAnswering(**family.settings())
    assert again.settings() == family.settings()
    assert again.settings()["doc_stride"] == 64
    assert family.labels() == ()


def test_bad_settings():
    with pytest.raises(InputError, match=r"head.*'both'.*joint, plain"):
        QuestionAnswering(head="both", answerability="on")
    with pytest.raises(InputError, match=r"answerability.*True.*on, off"):
        QuestionAnswering(answerability=True)
