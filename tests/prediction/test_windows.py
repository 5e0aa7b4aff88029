import numpy as np
import pytest
import torch

from electra.errors import InputError
from electra.prediction.windows import AbandonedError, Reader, computing_while
from electra.text.windows import windows

CPU = torch.device("cpu")


def sequences(*lengths):
    return [np.arange(5, 5 + length, dtype=np.uint32) for length in lengths]


def echo(seen):
    """An encoder whose hidden states are the ids."""

    def encode(input_ids_BL, *, token_type_ids_BL, attention_mask_BL):
        assert not token_type_ids_BL.any()
        seen.append((input_ids_BL, attention_mask_BL))
        return input_ids_BL[..., None].float()

    return encode


def test_windows_between_special_tokens_in_batches_of_like_length(tokenizer):
    seen = []
    reader = Reader(encoder=echo(seen), tokenizer=tokenizer, max_length=12, device=CPU, max_tokens=24)
    given = sequences(3, 25, 0, 10, 4)
    found = [np.zeros(len(ids), np.int64) for ids in given]
    for rows, hidden_BLD, mask_BL in reader.read(given):
        assert hidden_BLD.shape[:2].numel() <= 24
        for row, hidden_LD, mask_L in zip(rows, hidden_BLD, mask_BL, strict=True):
            ids = hidden_LD[mask_L == 1, 0].long()
            assert ids[0] == tokenizer.cls_id
            assert ids[-1] == tokenizer.sep_id
            assert ids[1:-1].tolist() == given[row.number][row.window.start : row.window.stop].tolist()
            found[row.number][row.window.judged : row.window.judged_stop] = hidden_LD[row.judged, 0].numpy()
    assert all(np.array_equal(*pair) for pair in zip(found, given, strict=True))
    num_rows = sum(len(ids) for ids, _ in seen)
    assert num_rows == sum(len(windows(len(ids), room=10)) for ids in given) == 6
    # The longest first, and no row beside one of very different length.
    assert [ids.shape[1] for ids, _ in seen] == [12, 12, 6]


def test_only_what_is_wanted_is_read(tokenizer):
    seen = []
    reader = Reader(encoder=echo(seen), tokenizer=tokenizer, max_length=12, device=CPU)
    batches = list(reader.read(sequences(3, 25), is_wanted=lambda row: row.window.start > 0))
    assert [row.number for batch in batches for row in batch.rows] == [1, 1]


def test_damaged_weights_give_no_answer(tokenizer):
    reader = Reader(
        encoder=lambda ids, **_: torch.full((*ids.shape, 4), torch.nan),
        tokenizer=tokenizer,
        max_length=12,
        device=CPU,
    )
    with pytest.raises(InputError, match="computes NaN"):
        list(reader.read(sequences(3)))


def test_reading_stops_when_nobody_waits_for_it(tokenizer):
    seen = []
    reader = Reader(encoder=echo(seen), tokenizer=tokenizer, max_length=12, device=CPU, max_tokens=12)
    with computing_while(lambda: len(seen) < 3), pytest.raises(AbandonedError):
        list(reader.read(sequences(*[10] * 50)))
    # Cores may be ahead of who waits.
    assert len(seen) < 10
    assert len(list(reader.read(sequences(*[10] * 5)))) == 5
