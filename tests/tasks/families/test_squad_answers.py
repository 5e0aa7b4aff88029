import numpy as np
import pytest
import torch

from electra.errors import InputError
from electra.model.heads import SPAN_HIDDEN_SIZE, JointSpanHead, SpanBeam, SpanHead
from electra.model.sizes import EncoderConfig
from electra.tasks.families import excerpts
from electra.tasks.families.excerpts import (
    AnswerLimits,
    Candidates,
    Excerpt,
    Span,
    as_prediction,
    best_answers,
    plain_beam,
    possible,
)

CONTEXT = "one two three two"
OFFSETS = np.array([[0, 3], [4, 7], [8, 13], [14, 17]])
TINY = EncoderConfig.preset("tiny", hidden_size=16)


def window(first=2, offsets=OFFSETS, is_best=None):
    return Excerpt(
        first=first,
        offsets_T2=offsets,
        is_best_T=np.ones(len(offsets), bool) if is_best is None else np.array(is_best),
    )


def beam_of(*pairs):
    """One row whose starts each have one end; earlier ones are more probable."""
    size = len(pairs)
    starts, ends = (torch.tensor([list(side)]) for side in zip(*pairs, strict=True))
    logits = -torch.arange(size)[None].float()
    return SpanBeam(logits, starts, logits[..., None], ends[..., None])


def spans_of(beam, window, max_answer_length=30):
    (found,) = possible(beam, [window], max_answer_length=max_answer_length)
    return list(zip(found.start_N.tolist(), found.end_N.tolist(), strict=True))


def test_spans_outside_of_the_text_are_no_answers():
    # Positions: [CLS] 0, [SEP] 1, text 2 to 5, [SEP] 6, padding 7.
    beam = beam_of((0, 0), (1, 2), (2, 3), (4, 6), (5, 7), (3, 2), (5, 5))
    assert spans_of(beam, window()) == [(0, 1), (3, 3)]


def test_long_spans_are_no_answers():
    beam = beam_of((2, 5), (2, 4), (3, 5))
    assert spans_of(beam, window(), max_answer_length=3) == [(0, 2), (1, 3)]


def test_a_span_counts_in_the_window_that_sees_most_of_its_start():
    beam = beam_of((2, 3), (3, 4), (4, 5))
    assert spans_of(beam, window(is_best=[False, True, True, False])) == [(1, 2), (2, 3)]


def test_a_window_without_text_has_no_answers():
    assert spans_of(beam_of((0, 0), (2, 2)), window(offsets=np.zeros((0, 2), int))) == []


def candidates(*spans):
    start, end, start_logit, end_logit = zip(*spans, strict=True)
    return Candidates(
        np.array(start), np.array(end), np.array(start_logit, np.float32), np.array(end_logit, np.float32)
    )


def test_answers_of_all_windows_by_their_sum_each_text_once():
    found = [
        candidates((1, 1, 1.0, 1.0), (0, 1, 5.0, -4.5)),
        candidates((3, 3, 2.0, 2.0), (2, 2, 0.0, 3.0)),
    ]
    best = best_answers(CONTEXT, [window(), window()], found, n_best_size=20)
    assert [(span.text, span.start, span.end) for span in best] == [
        ("two", 14, 17),
        ("three", 8, 13),
        ("one two", 0, 7),
    ]
    assert best[2].start_logit == 5.0
    assert best[2].end_logit == -4.5
    assert len(best_answers(CONTEXT, [window(), window()], found, n_best_size=2)) == 2


def test_of_equal_answers_the_first_counts():
    found = [candidates((3, 3, 1.0, 0.0), (0, 0, 0.5, 0.5))]
    assert [span.text for span in best_answers(CONTEXT, [window()], found, n_best_size=1)] == ["two"]


def test_prediction():
    best = [Span("two", 4, 7, 1.0, 1.0), Span("one", 0, 3, 0.0, 1.0)]
    said = as_prediction(best, None, null_threshold=0.0)
    assert (said["answer"], said["text"], said["start"], said["end"]) == ("two", "two", 4, 7)
    assert "null_odds" not in said
    probabilities = [entry.pop("probability") for entry in said["n_best"]]
    assert probabilities == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])
    assert said["n_best"][1] == {"text": "one", "start_logit": 0.0, "end_logit": 1.0}


def test_the_best_answer_is_kept_where_there_seems_to_be_none():
    best = [Span("two", 4, 7, 1.0, 1.0)]
    said = as_prediction(best, 0.5, null_threshold=0.0)
    assert (said["answer"], said["text"], said["null_odds"]) == ("", "two", 0.5)
    assert as_prediction(best, 0.5, null_threshold=0.5)["answer"] == "two"


def test_no_candidates_no_answer():
    said = as_prediction(best_answers(CONTEXT, [], [], n_best_size=3), None, null_threshold=0.0)
    assert said == {"answer": "", "text": "", "start": None, "end": None, "n_best": []}


def test_plain_spans_are_all_pairs_of_best_starts_and_ends():
    torch.manual_seed(3)
    head, hidden, mask = SpanHead(TINY), torch.randn(2, 6, 16), torch.ones(2, 6)
    beam = plain_beam(head, hidden, mask, size=3)
    start, end = head(hidden, mask)
    assert torch.equal(beam.start_index_BK, start.argsort(descending=True)[:, :3])
    assert torch.equal(beam.end_log_prob_BKK[:, 1], end.sort(descending=True).values[:, :3])
    assert plain_beam(head, hidden, mask, size=20).end_index_BKK.shape == (2, 6, 6)


def test_chunks_of_rows_bound_the_joint_head_and_change_nothing(monkeypatch):
    torch.manual_seed(4)
    head, hidden, mask = JointSpanHead(TINY), torch.randn(5, 8, 16), torch.ones(5, 8)
    limits = AnswerLimits(beam_size=4)
    (whole,) = excerpts.candidate_spans(head, hidden, mask, limits)
    monkeypatch.setattr(excerpts, "NUMBERS_PER_CHUNK", 2 * 4 * 8 * SPAN_HIDDEN_SIZE)
    chunks = list(excerpts.candidate_spans(head, hidden, mask, limits))
    assert [len(chunk.start_index_BK) for chunk in chunks] == [2, 2, 1]
    for name in SpanBeam._fields:
        together = torch.cat([getattr(chunk, name) for chunk in chunks])
        torch.testing.assert_close(together, getattr(whole, name))


def test_limits_are_positive():
    with pytest.raises(InputError, match=r"beam_size.*\b0\b.*\b1\b"):
        AnswerLimits(beam_size=0)
