"""Our head of a task <-> the weights of the transformers class that computes the same, where there is one.

Sequence classification of transformers has a layer more than the original: gelu(dense(x)) and then another
dense. It holds ours exactly all the same, since gelu(x) - gelu(-x) = x: the first layer gives each logit and
its negative, the second adds them up. That takes two numbers of the hidden state for each label.

C classes, D numbers in a hidden state.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from electra.model.heads import SpanHead
from electra.tasks.classification import Classification, MultiLabel, MultipleChoice, Regression
from electra.tasks.family import Family
from electra.tasks.squad_family import AnswerHead, QuestionAnswering
from electra.tasks.tagging import Tagging


class ForeignHead(NamedTuple):
    """A head as transformers has it."""

    architecture: str
    config: dict[str, Any]
    """Keys of config.json that belong to it."""
    tensors: dict[str, Tensor]


def to_transformers(family: Family[Any], head: nn.Module) -> ForeignHead | None:
    """The same head in transformers, or None if it has none that computes the same."""
    state = head.state_dict()
    match family:
        case Classification() | MultiLabel() if 2 * len(family.labels()) <= state["output.weight"].shape[1]:
            several = isinstance(family, MultiLabel)
            problem = "multi_label_classification" if several else "single_label_classification"
            return _sequence_classification(state, {"problem_type": problem, **_label_names(family)})
        case Regression():
            config = {"problem_type": "regression", "id2label": {"0": "value"}, "label2id": {"value": 0}}
            return _sequence_classification(state, config, scale=family.high - family.low, shift=family.low)
        case Tagging():
            tensors = {f"classifier.{kind}": state[f"output.{kind}"] for kind in ("weight", "bias")}
            return ForeignHead("ElectraForTokenClassification", _label_names(family), tensors)
        case MultipleChoice():
            tensors = {f"classifier.{kind}": state[f"output.{kind}"] for kind in ("weight", "bias")}
            # The state of [CLS] as it is.
            plain = {"summary_type": "first", "summary_use_proj": False, "summary_activation": "linear"}
            return ForeignHead("ElectraForMultipleChoice", plain, tensors)
        case QuestionAnswering() if _is_plain(head):
            tensors = {
                f"qa_outputs.{kind}": torch.cat([state[f"span.start.{kind}"], state[f"span.end.{kind}"]])
                for kind in ("weight", "bias")
            }
            return ForeignHead("ElectraForQuestionAnswering", {}, tensors)
    return None


def from_transformers(family: Family[Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of our head, out of the weights that `to_transformers` made of it."""
    match family:
        case Classification() | MultiLabel() | Regression():
            num_classes = len(tensors["classifier.out_proj.bias"])
            return {
                f"output.{kind}": tensors[f"classifier.dense.{kind}"][:num_classes]
                for kind in ("weight", "bias")
            }
        case Tagging() | MultipleChoice():
            return {f"output.{kind}": tensors[f"classifier.{kind}"] for kind in ("weight", "bias")}
        case QuestionAnswering():
            return {
                f"span.{place}.{kind}": tensors[f"qa_outputs.{kind}"][row : row + 1]
                for row, place in enumerate(("start", "end"))
                for kind in ("weight", "bias")
            }
    raise AssertionError(f"{type(family).__name__} has no head in transformers")


def _is_plain(head: nn.Module) -> bool:
    return isinstance(head, AnswerHead) and isinstance(head.span, SpanHead) and head.unanswerable is None


def _label_names(family: Family[Any]) -> dict[str, Any]:
    labels = family.labels()
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def _sequence_classification(
    state: Mapping[str, Tensor], config: dict[str, Any], *, scale: float = 1.0, shift: float = 0.0
) -> ForeignHead:
    """Our one layer as two, see above; then each logit is multiplied by `scale` and moved by `shift`."""
    weight_CD, bias_C = state["output.weight"], state["output.bias"]
    num_classes, hidden_size = weight_CD.shape
    dense_DD = weight_CD.new_zeros(hidden_size, hidden_size)
    dense_DD[: 2 * num_classes] = torch.cat([weight_CD, -weight_CD])
    bias_D = bias_C.new_zeros(hidden_size)
    bias_D[: 2 * num_classes] = torch.cat([bias_C, -bias_C])
    output_CD = weight_CD.new_zeros(num_classes, hidden_size)
    each = scale * torch.eye(num_classes)
    output_CD[:, : 2 * num_classes] = torch.cat([each, -each], dim=1)
    tensors = {
        "classifier.dense.weight": dense_DD,
        "classifier.dense.bias": bias_D,
        "classifier.out_proj.weight": output_CD,
        "classifier.out_proj.bias": torch.full_like(bias_C, shift),
    }
    return ForeignHead("ElectraForSequenceClassification", config, tensors)
