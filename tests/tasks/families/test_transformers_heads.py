import pytest
import torch
from torch.nn import functional

from electra.model.sizes import EncoderConfig
from electra.seeds import torch_generator
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification, Regression
from electra.tasks.families.similarity import Similarity
from electra.tasks.model import TaskModel

pytestmark = pytest.mark.numeric


def head_of(family, encoder):
    return TaskModel(encoder, {"task": family}).head("task").eval()


def test_one_layer_is_two_with_gelu_between(tiny_encoder):
    head = head_of(Classification(("a", "b", "c")), tiny_encoder)
    head.output.bias.data = torch.tensor([0.5, -1.0, 2.0])
    foreign = Classification(("a", "b", "c")).to_transformers(head)
    tensors = {name.removeprefix("classifier."): tensor for name, tensor in foreign.tensors.items()}
    # Also where gelu is nearly 0 or nearly x.
    hidden_BD = torch.randn(64, 128, generator=torch_generator(0)) * torch.logspace(-3, 2, 64)[:, None]
    inner = functional.gelu(functional.linear(hidden_BD, tensors["dense.weight"], tensors["dense.bias"]))
    logits = functional.linear(inner, tensors["out_proj.weight"], tensors["out_proj.bias"])
    torch.testing.assert_close(logits, head(hidden_BD[:, None]), rtol=1e-5, atol=1e-6)


def test_values_come_out_in_the_range_of_the_data(tiny_encoder):
    family = Regression(low=1.0, high=5.0)
    head = head_of(family, tiny_encoder)
    tensors = family.to_transformers(head).tensors
    assert tensors["classifier.out_proj.bias"].tolist() == [1.0]
    assert tensors["classifier.out_proj.weight"][0, :3].tolist() == [4.0, -4.0, 0.0]


@pytest.mark.parametrize(
    "family",
    [
        Classification("abc"),
        Regression(low=2.0, high=3.5),
        QuestionAnswering(head="plain", answerability="off"),
        MultipleChoice(),
    ],
    ids=lambda family: family.name,
)
def test_weights_come_back_bit_for_bit(tiny_encoder, family):
    assert family.transformers_obstacle(tiny_encoder.config) is None
    head = head_of(family, tiny_encoder)
    state = family.from_transformers(family.to_transformers(head).tensors)
    assert state.keys() == head.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in head.state_dict().items())


@pytest.mark.parametrize(
    "family",
    [
        QuestionAnswering(head="joint", answerability="off"),
        QuestionAnswering(head="plain", answerability="on"),
        Similarity(),
        Classification([str(number) for number in range(65)]),
    ],
    ids=["joint", "answerability", "similarity", "many classes"],
)
def test_what_transformers_cannot_compute_it_does_not_get(tiny_encoder, family):
    assert family.transformers_obstacle(tiny_encoder.config)


def test_half_as_many_classes_as_numbers_still_fit(tiny_encoder):
    family = Classification([str(number) for number in range(64)])
    head = head_of(family, tiny_encoder)
    assert isinstance(tiny_encoder.config, EncoderConfig)
    state = family.from_transformers(family.to_transformers(head).tensors)
    assert torch.equal(state["output.weight"], head.output.weight)
