"""Features, losses, decoding and scores beside those of the authors' code."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from electra.model import names
from electra.model.sizes import EncoderConfig
from electra.tasks.batches import collate
from electra.tasks.data.squad import Answer, AnswerExample, QuestionAnswering, load_squad
from electra.tasks.families.excerpts import answer_tokens, characters
from electra.tasks.families.family import TaskRow
from electra.text.tokenizer import Tokenizer, load_tokenizer
from original_heads import TASK_HEADS

pytestmark = pytest.mark.numeric

HIDDEN_16 = EncoderConfig.preset("tiny", hidden_size=16)
MAX_LENGTH = 96

# Name in the dump, data, head, answerability.
CASES = [
    ("squad", "squad", "joint", "on"),
    ("squadv1", "squadv1", "joint", "off"),
    ("squadv1_nojoint", "squadv1", "plain", "off"),
]


@pytest.fixture(scope="module")
def facts(shared: Path):
    return json.loads((shared / "oracles/google-electra/finetune_oracle.json").read_text())


@pytest.fixture(scope="module")
def dump(shared: Path):
    with np.load(shared / "oracles/google-electra/finetune_oracle.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.fixture(scope="module")
def tokenizer(shared: Path) -> Tokenizer:
    return load_tokenizer(shared / "oracles/vocab/bert-base-uncased.vocab.txt")


class Case:
    """One of the authors' settings: our family, its examples and rows, and a head with their weights."""

    def __init__(self, parameters, facts, dump, tokenizer, folder: Path) -> None:
        self.scope, self.data, head, answerability = parameters
        self.facts = facts[self.scope]
        config = self.facts["config"]
        self.family = QuestionAnswering(
            head=head,
            answerability=answerability,
            max_query_length=config["max_query_length"],
            doc_stride=config["doc_stride"],
            max_answer_length=config["max_answer_length"],
            beam_size=config["beam_size"],
            n_best_size=config["n_best_size"],
            null_threshold=config["qa_na_threshold"],
        )
        path = folder / "train.json"
        path.write_text(json.dumps(facts["datasets"][self.data]))
        name = {"on": "squad_v2", "off": "squad_v1"}[answerability]
        self.examples = load_squad(name, path, family=self.family).splits["train"]
        self.rows = self.family.rows(self.examples, tokenizer, max_length=MAX_LENGTH)
        self.batch = collate(self.rows, pad_id=tokenizer.pad_id, device=torch.device("cpu"))
        self.head = self.family.head(HIDDEN_16)
        for part in self.head.children():
            self.load(part, dump)

    def load(self, part, dump):
        table = list(names.tensors(TASK_HEADS[type(part).__name__]))
        prefix = f"{self.scope}/w/task_specific/{self.data}/"
        part.load_state_dict(
            names.from_tensorflow({row.tensorflow: dump[prefix + row.tensorflow] for row in table}, table)
        )


@pytest.fixture(scope="module", params=CASES, ids=[case[0] for case in CASES])
def case(request, facts, dump, tokenizer, tmp_path_factory):
    return Case(request.param, facts, dump, tokenizer, tmp_path_factory.mktemp("squad"))


def test_training_features(case):
    theirs = case.facts["train_features"]
    assert len(case.rows) == len(theirs)
    for row, feature in zip(case.rows, theirs, strict=True):
        length = sum(feature["input_mask"])
        assert row.input_ids.tolist() == feature["input_ids"][:length]
        assert row.token_type_ids.tolist() == feature["segment_ids"][:length]
        assert row.example == feature[f"{case.data}_eid"] // 1000
        assert row.targets == {
            "start": feature[f"{case.data}_start_positions"],
            "end": feature[f"{case.data}_end_positions"],
            "is_impossible": feature[f"{case.data}_is_impossible"],
        }


def test_windows_lead_back_to_the_text_as_theirs_do(case):
    for row, feature in zip(case.rows, case.facts["dev_features"], strict=True):
        context = case.examples[row.example].context
        words_of_token = {}
        for token, (start, _) in enumerate(row.origin.offsets_T2):
            words_of_token[str(row.origin.first + token)] = len(context[: start + 1].split()) - 1
        assert words_of_token == feature[f"{case.data}_token_to_orig_map"]
        is_best = {str(row.origin.first + at): bool(best) for at, best in enumerate(row.origin.is_best_T)}
        assert is_best == feature[f"{case.data}_token_is_max_context"]


def test_losses(case, dump):
    hidden = torch.from_numpy(dump[f"{case.scope}/train/hidden"]).requires_grad_()
    losses = case.family.losses(case.head, hidden, case.batch)
    torch.testing.assert_close(
        losses, torch.from_numpy(dump[f"{case.scope}/train/losses"]), rtol=1e-5, atol=1e-5
    )
    losses.sum().backward()
    theirs = torch.from_numpy(dump[f"{case.scope}/train/grad/hidden"])
    assert (hidden.grad - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.fixture(scope="module")
def predictions(case, dump):
    hidden = torch.from_numpy(dump[f"{case.scope}/eval/hidden"])
    outputs = case.family.outputs(case.head, hidden, case.batch)
    return case.family.predictions(case.examples, case.rows, outputs)


def test_predictions(case, predictions):
    texts = {
        example.id: prediction["text"] for example, prediction in zip(case.examples, predictions, strict=True)
    }
    assert texts == case.facts["predictions"]


def test_null_odds_and_scores(case, predictions):
    if case.scope == "squad":
        odds = [case.facts["null_odds"][example.id] for example in case.examples]
        assert [prediction["null_odds"] for prediction in predictions] == pytest.approx(odds, abs=1e-4)
    else:
        assert not any("null_odds" in prediction for prediction in predictions)
    scores = case.family.scores(case.examples, predictions)
    theirs = {name: value for name, value in case.facts["scorer_results"].items() if "total" not in name}
    units = {name: 1 if name.endswith("_thresh") else 100 for name in theirs}
    assert {name: units[name] * score.value for name, score in scores.items()} == pytest.approx(theirs)


def test_text_of_tokens_as_they_align_it(facts, tokenizer):
    num_found = 0
    for row in facts["get_final_text"]:
        (located,) = tokenizer.encode_with_offsets([row["orig"]])
        ids, wanted = located.ids.tolist(), tokenizer.encode([row["pred"]]).ids.tolist()
        places = [at for at in range(len(ids)) if ids[at : at + len(wanted)] == wanted]
        if not places:
            # They fall back to all words. A span of ours consists of tokens of the text, so there always are.
            assert row["pred"] == "xyz"
            assert row["out"] == row["orig"]
            continue
        num_found += 1
        first, last = places[0], places[0] + len(wanted) - 1
        start, end = characters(row["orig"], located.offsets_T2[first, 0], located.offsets_T2[last, 1])
        assert row["orig"][start:end] == row["out"]
        assert answer_tokens(located.offsets_T2, Answer(row["out"], start)) == (first, last)
    assert num_found == 8


@pytest.mark.parametrize("version", ["v1", "v2_default", "v2_thresh05"])
def test_official_scores(version, shared: Path):
    folder = shared / "oracles/squad-eval"
    number = version[1]
    theirs = json.loads((folder / "mini_expected.json").read_text())[version]
    texts = json.loads((folder / f"mini_pred_v{number}.json").read_text())
    odds = json.loads((folder / "mini_na_v2.json").read_text())
    threshold = 0.5 if version == "v2_thresh05" else 1.0
    family = QuestionAnswering(answerability="on" if number == "2" else "off", null_threshold=threshold)
    path = folder / f"mini_squad_v{number}.json"
    examples = load_squad(f"squad_v{number}", dev=[path], family=family).splits["dev"]
    predictions = [{"text": texts[example.id], "null_odds": odds[example.id]} for example in examples]
    scores = family.scores(examples, predictions)
    assert next(iter(scores)) == {"1": "f1", "2": "best_f1"}[number]
    units = {name: 1 if name.endswith("_thresh") else 100 for name in theirs}
    ours = {name: units[name] * score.value for name, score in scores.items()}
    assert ours == pytest.approx({name: value for name, value in theirs.items() if "total" not in name})


COUNTS = [
    ("squad_v1", "dev-v1.1.json", 10570, 0),
    ("squad_v2", "dev-v2.0.json", 11873, 5945),
    ("squad_v1", "squadshifts/new_wiki_v1.0.json", 7938, 0),
    ("squad_v1", "squadshifts/reddit_v1.0.json", 9803, 0),
    ("squad_v1", "squadshifts/amazon_reviews_v1.0.json", 9885, 0),
    ("squad_v1", "partial/train-v1.1-first11articles.json", 3807, 0),
    ("squad_v2", "partial/train-v2.0-first10articles.json", 4719, 348),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file", "num_questions", "num_impossible"), COUNTS)
def test_real_files(name, file, num_questions, num_impossible, shared: Path):
    task = load_squad(name, train=[shared / "data/squad" / file])
    examples: list[AnswerExample] = task.splits["train"]
    assert len(examples) == num_questions
    assert sum(example.is_impossible for example in examples) == num_impossible
    assert len(task.notes) == 1  # every answer stands where the file says
    perfect = [
        {"text": example.answers[0].text if example.answers else "", "null_odds": 0.0} for example in examples
    ]
    # Not F1: by the official rules an answer like "A" has no words, and 1.1 gives 0 for it.
    exact = {"squad_v1": "exact_match", "squad_v2": "best_exact"}[name]
    assert task.family.scores(examples, perfect)[exact].value == 1


def test_real_texts_in_short_windows(shared: Path, tokenizer):
    """Every answer can be learned and, pointed at, is given back as people gave it but for parts of words."""
    path = shared / "data/squad/partial/train-v1.1-first11articles.json"
    task = load_squad("squad_v1", train=[path])
    examples = task.splits["train"][:400]
    rows: list[TaskRow] = task.family.rows(examples, tokenizer, max_length=128)
    assert len(rows) > 1.5 * len(examples)
    assert max(len(row.input_ids) for row in rows) == 128
    same = {}
    for row in rows:
        if row.targets["start"]:
            example, window = examples[row.example], row.origin
            first, last = (row.targets[end] - window.first for end in ("start", "end"))
            start, end = characters(example.context, window.offsets_T2[first, 0], window.offsets_T2[last, 1])
            same[row.example] = example.context[start:end] == example.answers[0].text
    assert len(same) == len(examples)
    assert sum(same.values()) >= 0.99 * len(examples)
