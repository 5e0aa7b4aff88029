import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from electra.model import heads, names
from electra.model.encoder import initialise
from electra.model.heads import (
    ClassificationHead,
    GeneratorHead,
    JointSpanHead,
    RegressionHead,
    SpanHead,
    TaggingHead,
    UnanswerableHead,
    best_tokens,
    gather_positions,
    is_best,
    token_loss,
)
from electra.model.sizes import EncoderConfig
from original_heads import TASK_HEADS

pytestmark = pytest.mark.numeric

HIDDEN_16 = EncoderConfig.preset("tiny", hidden_size=16)
ANSWERABLE_WEIGHT = 0.5


@pytest.fixture(scope="module")
def dump(shared: Path):
    with np.load(shared / "oracles/google-electra/finetune_oracle.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


@pytest.fixture(scope="module")
def facts(shared: Path):
    return json.loads((shared / "oracles/google-electra/finetune_oracle.json").read_text())


def load(head, dump, scope):
    """Give a head the weights that the dump holds under a scope."""
    table = list(names.tensors(TASK_HEADS[type(head).__name__]))
    variables = {
        name.removeprefix(scope): tensor.numpy()
        for name, tensor in dump.items()
        if name.startswith(scope) and name.removeprefix(scope) in {row.tensorflow for row in table}
    }
    head.load_state_dict(names.from_tensorflow(variables, table))
    return head.eval()


def check_gradient(losses_B, hidden, dump, scope, heads=()):
    """The dump holds the gradients of the summed losses; ours differ by 1e-5 of their norm at most."""
    losses_B.sum().backward()
    theirs = dump[f"{scope}/grad/hidden"]
    assert (hidden.grad - theirs).norm() <= 1e-5 * theirs.norm()
    for head in heads:
        for row in names.tensors(TASK_HEADS[type(head).__name__]):
            ending = f"/{row.tensorflow}"
            (found,) = [name for name in dump if name.startswith(f"{scope}/grad") and name.endswith(ending)]
            ours = head.get_parameter(row.ours).grad
            kernel = dump[found].T if found.endswith("kernel") else dump[found]
            # A bias of all starts or ends changes no probability: its gradient is rounding, on both sides.
            scale = theirs if row.ours in ("start.bias", "end.bias") else kernel
            assert (ours - kernel).norm() <= 1e-5 * scale.norm(), row.ours


def close(ours, theirs, **tolerance):
    torch.testing.assert_close(ours, theirs, **({"rtol": 1e-5, "atol": 1e-5} | tolerance))


def test_classification_as_the_authors(dump):
    head = load(ClassificationHead(HIDDEN_16, 3), dump, "mnli/w/task_specific/mnli/")
    hidden = dump["mnli/hidden"].clone().requires_grad_()
    logits = head(hidden)
    close(logits, dump["mnli/out/logits"])
    losses = functional.cross_entropy(logits, dump["mnli/in/mnli_label_ids"].long(), reduction="none")
    close(losses, dump["mnli/losses"])
    check_gradient(losses, hidden, dump, "mnli")


def test_regression_as_the_authors(dump):
    head = load(RegressionHead(HIDDEN_16), dump, "sts/w/task_specific/sts/")
    hidden = dump["sts/hidden"].clone().requires_grad_()
    predictions = head(hidden)
    close(predictions, dump["sts/out/predictions"])
    losses = (predictions - dump["sts/in/sts_targets"]) ** 2
    close(losses, dump["sts/losses"])
    check_gradient(losses, hidden, dump, "sts")


def test_tagging_as_the_authors(dump):
    head = load(TaggingHead(HIDDEN_16, 9), dump, "chunk/w/task_specific/chunk/")
    hidden = dump["chunk/hidden"].clone().requires_grad_()
    logits = head(gather_positions(hidden, dump["chunk/in/chunk_labeled_positions"]))
    close(logits, dump["chunk/out/logits"])
    losses = functional.cross_entropy(
        logits.transpose(1, 2), dump["chunk/in/chunk_labels"].long(), reduction="none"
    )
    losses = (losses * dump["chunk/in/chunk_labels_mask"]).sum(dim=1)
    close(losses, dump["chunk/losses"])
    check_gradient(losses, hidden, dump, "chunk")


def answer_mask(facts, task):
    """Text of the second segment, and [CLS]."""
    features = facts[task]["train_features"]
    mask = torch.tensor([feature["input_mask"] for feature in features])
    mask *= torch.tensor([feature["segment_ids"] for feature in features])
    mask[:, 0] = 1
    return mask


def span_losses(start_logits, end_logits, dump, scope):
    start, end = (dump[f"{scope}/out/{side}_positions"].long() for side in ("start", "end"))
    losses = [
        functional.cross_entropy(logits, target, reduction="none")
        for logits, target in ((start_logits, start), (end_logits, end))
    ]
    return sum(losses) / 2


def test_joint_spans_in_training_as_the_authors(dump, facts):
    scope = "squad/train"
    head, doubt = JointSpanHead(HIDDEN_16), UnanswerableHead(HIDDEN_16)
    for part in (head, doubt):
        load(part, dump, "squad/w/task_specific/squad/")
    hidden = dump[f"{scope}/hidden"].clone().requires_grad_()
    start_logits, end_logits = head(
        hidden, answer_mask(facts, "squad"), dump[f"{scope}/out/start_positions"].long()
    )
    close(start_logits, dump[f"{scope}/out/start_logits"])
    # Sums of 512 products that reach 50 and more: float32 leaves no more digits.
    close(end_logits, dump[f"{scope}/out/end_logits"], atol=5e-5)
    unanswerable = doubt(hidden, start_logits)
    close(unanswerable, dump[f"{scope}/out/answerable_logit"])
    impossible = torch.tensor(
        [feature["squad_is_impossible"] for feature in facts["squad"]["train_features"]]
    )
    losses = span_losses(start_logits, end_logits, dump, scope)
    losses = losses + ANSWERABLE_WEIGHT * functional.binary_cross_entropy_with_logits(
        unanswerable, impossible.float(), reduction="none"
    )
    close(losses, dump[f"{scope}/losses"])
    check_gradient(losses, hidden, dump, scope, [head, doubt])


@pytest.mark.parametrize("task", ["squad", "squadv1"])
def test_beam_of_joint_spans_as_the_authors(task, dump, facts):
    head = load(JointSpanHead(HIDDEN_16), dump, f"{task}/w/task_specific/{task}/")
    beam = head.beam(dump[f"{task}/eval/hidden"], answer_mask(facts, task), beam_size=8)
    out = f"{task}/eval/out"
    close(beam.start_log_prob_BK, dump[f"{out}/start_top_log_probs"], atol=1e-4)
    close(beam.end_log_prob_BKK, dump[f"{out}/end_top_log_probs"], atol=1e-4)
    # Among positions outside the text all logits are rounded to steps of 6e-5, so their order is open.
    inside = dump[f"{out}/start_top_log_probs"] > -500
    assert torch.equal(beam.start_index_BK[inside], dump[f"{out}/start_top_index"].long()[inside])
    inside = inside[..., None] & (dump[f"{out}/end_top_log_probs"] > -500)
    assert torch.equal(beam.end_index_BKK[inside], dump[f"{out}/end_top_index"].long()[inside])
    assert inside.float().mean() > 0.9


def test_plain_spans_as_the_authors(dump, facts):
    scope = "squadv1_nojoint/train"
    head = load(SpanHead(HIDDEN_16), dump, "squadv1_nojoint/w/task_specific/squadv1/")
    hidden = dump[f"{scope}/hidden"].clone().requires_grad_()
    start_logits, end_logits = head(hidden, answer_mask(facts, "squadv1_nojoint"))
    close(start_logits, dump[f"{scope}/out/start_logits"])
    close(end_logits, dump[f"{scope}/out/end_logits"])
    losses = span_losses(start_logits, end_logits, dump, scope)
    close(losses, dump[f"{scope}/losses"])
    check_gradient(losses, hidden, dump, scope, [head])


def test_ends_that_know_their_start_are_those_of_concatenated_states():
    head = JointSpanHead(HIDDEN_16)
    hidden, mask = torch.randn(2, 6, 16), torch.ones(2, 6)
    starts = torch.tensor([[1, 4], [0, 2]])
    pairs = torch.stack(
        [
            torch.stack([torch.cat([hidden[b, s].expand(6, 16), hidden[b]], dim=-1) for s in row])
            for b, row in enumerate(starts.tolist())
        ]
    )
    expected = head.end(functional.gelu(head.end_dense(pairs))).squeeze(-1)
    torch.testing.assert_close(head.end_logits(hidden, mask, starts), expected, rtol=1e-5, atol=1e-5)


def test_a_beam_is_sorted_inside_the_text_and_never_longer_than_the_row():
    head = JointSpanHead(HIDDEN_16)
    mask = torch.tensor([[1, 0, 0, 1, 1, 1]])
    beam = head.beam(torch.randn(1, 6, 16), mask, beam_size=20)
    assert beam.end_index_BKK.shape == (1, 6, 6)
    assert sorted(beam.start_index_BK[0, :4].tolist()) == [0, 3, 4, 5]
    assert (beam.start_log_prob_BK.diff() <= 0).all()
    assert float(beam.start_log_prob_BK[0, :4].detach().exp().sum()) == pytest.approx(1)


@pytest.fixture
def vocabulary(tiny):
    """A head, hidden states at 50 positions, a word table, and targets."""
    torch.manual_seed(8)
    head = GeneratorHead(tiny)
    initialise(head, std=0.2)
    torch.nn.init.normal_(head.bias)
    hidden = torch.randn(50, tiny.hidden_size, requires_grad=True)
    words = torch.randn(tiny.vocab_size, tiny.embedding_size, requires_grad=True)
    return head, hidden, words, torch.randint(0, tiny.vocab_size, (50,))


# 100 tokens in the vocabulary: one position at a time, a ragged last chunk, one chunk.
@pytest.mark.parametrize("logits_per_chunk", [1, 700, 5000])
def test_chunks_give_the_same_losses_and_gradients(logits_per_chunk, vocabulary):
    head, hidden, words, target = vocabulary
    weight = torch.rand(50)
    leaves = [hidden, words, *head.parameters()]
    losses = functional.cross_entropy(head(hidden, words), target, reduction="none")
    expected = torch.autograd.grad((losses * weight).sum(), leaves)
    (chunked,) = head.reduce(hidden, words, token_loss, target, logits_per_chunk=logits_per_chunk)
    torch.testing.assert_close(chunked, losses)
    gradients = torch.autograd.grad((chunked * weight).sum(), leaves)
    for gradient, plain in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, plain, rtol=1e-4, atol=1e-5)


def test_no_chunk_holds_more_logits_than_allowed_and_sampling_is_not_repeated(vocabulary):
    head, hidden, words, target = vocabulary
    sizes, sampled = [], []

    def losses_and_samples(logits_CV, target_C, uniform_C):
        sizes.append(logits_CV.numel())
        (losses_C,) = token_loss(logits_CV, target_C)
        cumulative_CV = logits_CV.detach().softmax(dim=-1).cumsum(dim=-1)
        sampled.append(len(uniform_C))
        return losses_C, torch.searchsorted(cumulative_CV, uniform_C[:, None]).squeeze(1)

    losses, samples = head.reduce(
        hidden, words, losses_and_samples, target, torch.rand(50), logits_per_chunk=2000
    )
    assert samples.shape == losses.shape == (50,)
    losses.sum().backward()
    assert max(sizes) == 2000
    # The logits come a second time for the gradient; what follows the loss does not.
    assert len(sizes) == 6
    assert sampled == [20, 20, 10]


@pytest.mark.parametrize("name", ["start", "end"])
def test_positions_outside_the_text_are_a_thousand_below(name):
    head, hidden = SpanHead(HIDDEN_16), torch.randn(1, 3, 16)
    side = ["start", "end"].index(name)
    free, bound = (head(hidden, torch.tensor(mask))[side] for mask in ([[1, 1, 1]], [[1, 0, 1]]))
    torch.testing.assert_close(free - bound, torch.tensor([[0.0, 1000.0, 0.0]]))


def test_gathered_positions():
    hidden = torch.arange(24.0).view(2, 4, 3)
    found = gather_positions(hidden, torch.tensor([[3, 0], [1, 1]]))
    assert torch.equal(found[0], hidden[0, [3, 0]])
    assert torch.equal(found[1], hidden[1, [1, 1]])


def test_only_sentence_heads_drop(tiny):
    hidden = torch.ones(2, 3, tiny.hidden_size)
    for head, drops in (
        (ClassificationHead(tiny, 2), True),
        (RegressionHead(tiny), True),
        (TaggingHead(tiny, 2), False),
    ):
        head.train()
        assert torch.equal(head(hidden), head(hidden)) != drops


def test_loss_and_gradient_are_those_of_torch():
    torch.manual_seed(0)
    logits_CV = (5 * torch.randn(7, 300, dtype=torch.float32)).requires_grad_()
    target_C = torch.randint(300, (7,))
    weight_C = torch.randn(7)
    (ours_C,) = token_loss(logits_CV, target_C)
    theirs_C = functional.cross_entropy(logits_CV, target_C, reduction="none")
    torch.testing.assert_close(ours_C, theirs_C)
    (ours_CV,) = torch.autograd.grad((ours_C * weight_C).sum(), logits_CV, retain_graph=True)
    (again_CV,) = torch.autograd.grad((ours_C * weight_C).sum(), logits_CV)
    (theirs_CV,) = torch.autograd.grad((theirs_C * weight_C).sum(), logits_CV)
    torch.testing.assert_close(ours_CV, theirs_CV, rtol=1e-5, atol=1e-6)
    assert torch.equal(ours_CV, again_CV)


def test_what_is_looked_at_needs_no_gradient_and_is_right():
    logits_CV = torch.tensor([[0.0, 2.0, 1.0], [3.0, -1.0, 0.0]], requires_grad=True)
    # Under autocast, which would compute the entropy in bf16.
    with torch.autocast("cpu", torch.bfloat16):
        loss_C, *found = token_loss(
            logits_CV,
            torch.tensor([2, 0]),
            torch.tensor([5, 6]),
            look=lambda judged, *columns: (
                judged.best_C,
                judged.log_normaliser_C,
                judged.entropy(),
                *columns,
            ),
        )
    best_C, log_normaliser_C, entropy_C, target_C, number_C = found
    torch.testing.assert_close(log_normaliser_C, logits_CV.logsumexp(-1))
    torch.testing.assert_close(entropy_C, torch.distributions.Categorical(logits=logits_CV).entropy())
    assert [best_C.tolist(), target_C.tolist(), number_C.tolist()] == [[1, 0], [2, 0], [5, 6]]
    assert loss_C.requires_grad
    assert not any(part.requires_grad for part in found)


@pytest.mark.parametrize("rows_per_block", [1, 3, 7, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_rows_change_nothing(monkeypatch, rows_per_block, dtype):
    torch.manual_seed(0)
    logits_CV = torch.randn(7, 600).to(dtype).requires_grad_()
    target_C, weight_C = torch.randint(600, (7,)), torch.rand(7)

    def computed():
        loss_C, is_best_C = token_loss(logits_CV, target_C, look=is_best)
        return loss_C, is_best_C, *torch.autograd.grad((loss_C * weight_C).sum(), logits_CV)

    whole = computed()
    monkeypatch.setattr(heads, "_LOGITS_PER_BLOCK", 600 * rows_per_block)
    for found, expected in zip(computed(), whole, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("vocab_size", [100, 600])
def test_no_positions_give_no_losses(vocab_size):
    logits_CV = torch.empty(0, vocab_size, requires_grad=True)
    loss_C, is_best_C = token_loss(logits_CV, torch.empty(0, dtype=torch.long), look=is_best)
    assert len(loss_C) == len(is_best_C) == 0
    loss_C.sum().backward()
    assert logits_CV.grad is not None


@pytest.mark.parametrize("scale", [1e3, 1e30])
def test_a_probability_that_vanishes_gives_a_finite_loss(scale):
    logits_CV = torch.tensor([[scale, 0.0]], requires_grad=True)
    (loss_C,) = token_loss(logits_CV, torch.tensor([1]))
    assert loss_C.item() == pytest.approx(scale)
    loss_C.sum().backward()
    assert logits_CV.grad is not None
    assert logits_CV.grad.tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize("vocab_size", [5, 300, 512, 700, 1000])
def test_the_best_token_is_the_first_of_the_largest_logits(vocab_size):
    random = torch.Generator().manual_seed(7)
    # Of few values, so that there are many ties, and with one that is no number.
    for highest in (2, 100, 10**6):
        logits_CV = torch.randint(0, highest, (200, vocab_size), generator=random).float()
        assert torch.equal(best_tokens(logits_CV), logits_CV.argmax(-1))
    logits_CV[3, vocab_size // 2] = math.nan
    assert torch.equal(best_tokens(logits_CV), logits_CV.argmax(-1))


def test_half_precision_is_computed_in_float32():
    logits_CV = torch.randn(3, 50, dtype=torch.bfloat16, requires_grad=True)
    (loss_C,) = token_loss(logits_CV, torch.tensor([1, 2, 3]))
    assert loss_C.dtype == torch.float32
    loss_C.sum().backward()
    assert logits_CV.grad is not None
    assert logits_CV.grad.dtype == torch.bfloat16


def test_a_logit_that_is_no_number_is_not_hidden():
    logits_CV = torch.tensor([[torch.nan, 0.0]])
    (loss_C,) = token_loss(logits_CV, torch.tensor([1]))
    assert loss_C.isnan().all()


@pytest.mark.numeric
def test_the_mean_is_of_text_and_special_tokens_alone(tiny):
    hidden_BLD = torch.randn(2, 5, tiny.hidden_size, generator=torch.Generator().manual_seed(0))
    mask_BL = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    # What stands at padding means nothing.
    hidden_BLD[1, 3:] = math.nan
    expected_BD = torch.stack([hidden_BLD[0].mean(0), hidden_BLD[1, :3].mean(0)])
    for head in (ClassificationHead(tiny, 3, "mean"), RegressionHead(tiny, "mean")):
        head.eval()
        expected = head.output(expected_BD)
        found = head(hidden_BLD, mask_BL)
        # Five numbers are added in another order: some roundings of 2**-24.
        torch.testing.assert_close(found.view_as(expected), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(head(hidden_BLD[:1]).view(1, -1), expected[:1], rtol=1e-5, atol=1e-6)


def test_two_layers_are_a_dense_layer_with_a_gelu_before_the_one(tiny):
    hidden_BLD = torch.randn(3, 5, tiny.hidden_size, generator=torch.Generator().manual_seed(0))
    for head in (ClassificationHead(tiny, 3, "cls", "two"), RegressionHead(tiny, "cls", "two")):
        head.eval()
        inner_BD = functional.gelu(hidden_BLD[:, 0] @ head.dense.weight.T + head.dense.bias)
        expected = (inner_BD @ head.output.weight.T + head.output.bias).squeeze(-1)
        # Sums of a hidden state's numbers, in another order.
        torch.testing.assert_close(head(hidden_BLD), expected, rtol=1e-5, atol=1e-6)
        assert list(head.state_dict()) == ["dense.weight", "dense.bias", "output.weight", "output.bias"]
