import pytest
import torch

from electra.model.names import layer_depth
from electra.tasks.batches import collate
from electra.tasks.families.classification import Classification, Regression
from electra.tasks.model import TaskModel

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
TASKS = {"mood": Classification(("bad", "good")), "train.csv": Regression(), "keys": Classification("abc")}


@pytest.fixture
def batch(tokenizer, make_opinions):
    rows = TASKS["mood"].rows(make_opinions(5), tokenizer, max_length=16)
    return collate(rows, pad_id=tokenizer.pad_id, device=CPU)


def test_every_task_has_a_head_whatever_its_name(tiny_encoder):
    model = TaskModel(tiny_encoder, TASKS)
    assert [model.head(task).output.out_features for task in TASKS] == [2, 1, 3]
    depths = {name: layer_depth(name, num_layers=2) for name, _ in model.named_parameters()}
    assert {depth for name, depth in depths.items() if name.startswith("heads.")} == {3}
    assert {depth for name, depth in depths.items() if name.startswith("encoder.")} == {0, 1, 2}


def test_heads_start_from_the_seed_and_leave_the_encoder_alone(tiny_encoder):
    before = {name: tensor.clone() for name, tensor in tiny_encoder.state_dict().items()}
    first, same, other = (TaskModel(tiny_encoder, TASKS, seed=seed) for seed in (0, 0, 1))
    weights = [model.head("mood").output.weight for model in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], first.head("keys").output.weight[:2])
    assert all(torch.equal(tensor, before[name]) for name, tensor in tiny_encoder.state_dict().items())


def test_training_gives_losses_and_prediction_outputs_too(tiny_encoder, batch):
    model = TaskModel(tiny_encoder, TASKS)
    trained = model.train()(batch, "mood")
    judged = model.eval()(batch, "mood")
    assert trained.losses_U.shape == judged.losses_U.shape == (5,)
    assert (len(trained.outputs), len(judged.outputs)) == (0, 5)
    probability = torch.tensor(
        [float(output[row.targets["label"]]) for output, row in zip(judged.outputs, batch.rows, strict=True)]
    )
    torch.testing.assert_close(-probability.log(), judged.losses_U.detach(), rtol=1e-5, atol=1e-6)


def test_without_targets_there_are_only_outputs(tiny_encoder, tokenizer, make_opinions):
    rows = TASKS["mood"].rows(make_opinions(3), tokenizer, max_length=16)
    unknown = [
        type(row)(input_ids=row.input_ids, token_type_ids=row.token_type_ids, example=0, unit=row.unit)
        for row in rows
    ]
    judged = TaskModel(tiny_encoder, TASKS).eval()(collate(unknown, pad_id=0, device=CPU), "mood")
    assert judged.losses_U is None
    assert len(judged.outputs) == 3


def test_only_the_task_at_work_learns(tiny_encoder, batch):
    model = TaskModel(tiny_encoder, TASKS)
    model(batch, "mood").losses_U.sum().backward()
    assert model.head("mood").output.weight.grad is not None
    assert model.head("keys").output.weight.grad is None
    assert all(weight.grad is not None for weight in model.encoder.parameters())
