import pytest
import torch

from electra.errors import InputError
from electra.model.encoder import Encoder, initialise
from electra.model.sizes import EncoderConfig
from electra.seeds import torch_generator
from electra.tasks.families.classification import Classification
from electra.tasks.folders import FineTuned, find_start, save_model
from electra.tasks.model import TaskModel

FAMILY = Classification(("no", "yes"))


@pytest.fixture
def tuned(tokenizer, tmp_path):
    encoder = Encoder(EncoderConfig.preset("tiny", vocab_size=tokenizer.vocab_size))
    initialise(encoder, std=0.02, generator=torch_generator(5, "encoder"))
    model = TaskModel(encoder, {"first": FAMILY}, seed=9)
    save_model(FineTuned(model=model, task="first", tokenizer=tokenizer, max_length=32), tmp_path / "tuned")
    return tmp_path / "tuned"


def same(model, other):
    state = other.encoder.state_dict()
    return all(torch.equal(tensor, state[name]) for name, tensor in model.encoder.state_dict().items())


def test_every_seed_begins_with_the_same_encoder_and_its_own_head(tuned):
    start = find_start(str(tuned), like="", dropout=None)
    other = Classification(("a", "b", "c"))
    first, second = (start.model({"other": other}, seed=seed) for seed in (0, 1))
    assert same(first, second)
    weights = [model.head("other").output.weight for model in (first, second)]
    assert not torch.equal(*weights)


def test_a_head_that_was_trained_for_the_same_labels_is_kept(tuned):
    start = find_start(str(tuned), like="", dropout=None)
    assert start.tuned is not None
    model = start.model({"second": FAMILY}, seed=0)
    assert torch.equal(model.head("second").output.weight, start.tuned.model.head("first").output.weight)
    assert "fine-tuned for first before" in start.description()


def test_random_weights_have_a_shape_and_depend_on_the_seed(tuned):
    start = find_start("none", like=str(tuned), dropout=0.3)
    first, again, second = (start.model({"any": FAMILY}, seed=seed) for seed in (0, 0, 1))
    assert same(first, again)
    assert not same(first, second)
    assert first.encoder.config.hidden_size == 128
    assert first.encoder.config.hidden_dropout_prob == 0.3
    assert start.description() == f"random, in the shape of {tuned}"


def test_the_hash_is_of_the_weights(tuned):
    hashed = find_start(str(tuned), like="", dropout=None).sha256
    assert hashed == find_start(str(tuned), like="", dropout=0.5).sha256
    assert hashed != find_start("none", like=str(tuned), dropout=None).sha256


@pytest.mark.parametrize(("path", "like", "message"), [("none", "", "--like RUN"), ("x", "y", "leave one")])
def test_what_makes_no_sense_is_refused(path, like, message):
    with pytest.raises(InputError, match=message):
        find_start(path, like=like, dropout=None)
