"""Event files, read by TensorBoard itself."""

import struct

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from electra.train import log
from electra.train.log import TensorBoardFiles


@pytest.fixture
def sitting(tmp_path):
    """Begin a sitting of a run after a step."""
    opened = []

    def begin(step=0) -> TensorBoardFiles:
        opened.append(TensorBoardFiles(tmp_path / "tensorboard"))
        opened[-1].go_back(step)
        return opened[-1]

    yield begin
    for files in opened:
        files.close()


def curve(folder, tag="train/loss"):
    reader = EventAccumulator(str(folder / "tensorboard"), purge_orphaned_data=True)
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def write(files, steps, sign=1.0, tag="train/loss"):
    for step in steps:
        files.write({tag: sign * step}, step=step)


def test_tensorboard_reads_every_number_at_its_step(sitting, tmp_path):
    files = sitting()
    files.write({"train/loss": 1.5, "train/größe": -(2.0**-149)}, step=1)
    files.write({"train/loss": 0.25, "train/flops": 1e300}, step=2**40)
    files.close()
    assert curve(tmp_path) == [(1, 1.5), (2**40, 0.25)]
    assert curve(tmp_path, "train/größe") == [(1, -(2.0**-149))]
    assert curve(tmp_path, "train/flops") == [(2**40, pytest.approx(3.4028e38, rel=1e-4))]


def test_a_record_is_readable_as_soon_as_it_is_written(sitting, tmp_path):
    write(sitting(), [1, 2])
    assert curve(tmp_path) == [(1, 1), (2, 2)]


def test_a_run_that_is_continued_has_no_trace_of_steps_taken_again(sitting, tmp_path):
    write(sitting(), range(1, 11))
    # Many sittings, so that an order of names as texts would show.
    for number in range(12):
        write(sitting(7), [8, 9], sign=-number)
    expected = [(step, float(step)) for step in range(1, 8)]
    assert curve(tmp_path) == [*expected, (8, -88), (9, -99)]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 13


def test_tags_that_are_not_written_again_lose_what_does_not_count_too(sitting, tmp_path):
    write(sitting(), range(1, 11), tag="valid/loss")
    write(sitting(4), [5])
    assert [step for step, _ in curve(tmp_path, "valid/loss")] == [1, 2, 3, 4]


def test_going_back_within_a_sitting_is_the_same(sitting, tmp_path):
    files = sitting()
    write(files, range(1, 9))
    files.go_back(4)
    write(files, [5, 6], sign=-1)
    assert curve(tmp_path) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, -5), (6, -6)]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_a_file_torn_by_a_crash_does_not_hide_what_comes_after(sitting, tmp_path):
    write(sitting(), range(1, 6))
    (path,) = (tmp_path / "tensorboard").iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    write(sitting(3), [4, 5], sign=-1)
    assert curve(tmp_path) == [(1, 1), (2, 2), (3, 3), (4, -4), (5, -5)]


def test_a_sitting_that_measures_nothing_leaves_no_file(sitting, tmp_path):
    sitting(5).close()
    assert not (tmp_path / "tensorboard").exists()


@pytest.mark.parametrize(
    ("data", "crc"),
    # The first from RFC 3720 B.4, the second the check value of CRC-32C.
    [(bytes(32), 0x8A9136AA), (b"123456789", 0xE3069283)],
)
def test_checksums_are_those_of_the_standard(data, crc):
    (masked,) = struct.unpack("<I", log._checksum(data))
    rotated = masked - 0xA282EAD8 & 0xFFFFFFFF
    assert rotated == (crc >> 15 | crc << 17) & 0xFFFFFFFF
