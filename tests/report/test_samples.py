from electra.report.runs import SampleRow
from electra.report.samples import shown_row


def test_a_mask_in_a_judged_row_is_neither_original_nor_replaced():
    """single_pass masks and corrupts in one row; what its head says at a mask means nothing."""
    row = SampleRow(
        original=["a", "b", "c", "d"],
        masked=["a", "[MASK]", "c", "d"],
        corrupted=["a", "[MASK]", "x", "d"],
        replaced=[False, False, True, False],
        suspicion=[0.0, 0.9, 0.8, 0.7],
    )
    shown = shown_row(row)
    assert [token.class_ for token in shown.corrupted] == ["", "mask", "token caught", "token alarm"]
    assert shown.corrupted[1].title == "b"
    assert shown.score == "1 of 1 replaced tokens noticed, 1 false alarms"
