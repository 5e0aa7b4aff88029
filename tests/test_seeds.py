import torch

from electra import seeds


def test_a_stream_depends_on_every_part_of_its_purpose():
    keys = [(0,), (1,), (0, "mask"), (0, "mask", 1), (0, "mask", 11), (0, "mask1", 1), (0, "mask", "1")]
    assert len({seeds.derive(*key) for key in keys}) == len(keys)


def test_streams_are_the_same_on_every_machine():
    # Stored values: a change of these changes every run of every user.
    assert seeds.derive(7, "mask", 3) == 3886866641665173488
    assert seeds.python_random(0, "x").random() == seeds.python_random(0, "x").random()
    assert seeds.numpy_generator(0, "x").integers(1 << 30) == seeds.numpy_generator(0, "x").integers(1 << 30)
    draw = [torch.rand(1, generator=seeds.torch_generator(5, "x")).item() for _ in range(2)]
    assert draw[0] == draw[1]
    assert draw[0] != torch.rand(1, generator=seeds.torch_generator(5, "y")).item()
