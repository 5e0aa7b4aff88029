import pytest

from electra.errors import InputError
from electra.model.encoder import Encoder
from electra.model.sizes import EncoderConfig
from electra.tasks.data.columns import OwnTaskConfig
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification
from electra.tasks.families.family import TextExample
from electra.tasks.families.tagging import Tagging
from electra.tasks.folders import FineTuned
from electra.tasks.model import TaskModel
from electra.tasks.predictions import INPUT, input_columns, input_config, load_input
from electra.tasks.task import Task

FAMILY = Classification(("no", "yes"))


@pytest.fixture
def tuned(tokenizer):
    def make(family, **columns):
        encoder = Encoder(EncoderConfig.preset("tiny", vocab_size=tokenizer.vocab_size))
        model = TaskModel(encoder, {"any": family})
        facts = {INPUT: columns, "main_score": "accuracy"}
        return FineTuned(model=model, task="any", tokenizer=tokenizer, max_length=32, facts=facts)

    return make


def task_of(family, *examples):
    return Task(name="any", family=family, splits={"train": examples}, main_score="accuracy")


def test_a_model_of_pairs_takes_pairs():
    pair = TextExample(id="1", where="here", text="a", text_pair="b", label=0)
    assert input_columns(task_of(FAMILY, pair), None) == {"kind": "classification", "text_pair": "text_pair"}
    single = TextExample(id="1", where="here", text="a", label=0)
    assert input_columns(task_of(FAMILY, single), None) == {"kind": "classification"}
    assert input_columns(task_of(QuestionAnswering(answerability="on")), None) == {"kind": "answering"}


def test_own_columns_are_remembered_but_not_the_files():
    columns = input_columns(task_of(FAMILY), OwnTaskConfig(text="body", train="x.csv"))
    assert columns["text"] == "body"
    assert "train" not in columns


def test_what_is_given_for_a_file_counts_more(tuned):
    model = tuned(FAMILY, text="body", text_pair="more")
    assert input_config(model, OwnTaskConfig()).text == "body"
    config = input_config(model, OwnTaskConfig(text="headline"))
    assert (config.text, config.text_pair) == ("headline", "more")


def test_a_table_needs_no_labels(tuned, tmp_path):
    (tmp_path / "rows.csv").write_text("body\nx\ny\n", encoding="utf-8")
    task = load_input(tuned(FAMILY, text="body"), tmp_path / "rows.csv", OwnTaskConfig())
    assert [example.text for example in task.examples("test")] == ["x", "y"]
    assert task.unlabelled == {"test"}


def test_lines_of_a_text_are_examples(tuned, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\ufeffa b\r\n\r\nc\n", encoding="utf-8")
    task = load_input(tuned(FAMILY), path, OwnTaskConfig())
    assert [(example.id, example.text) for example in task.examples("test")] == [("1", "a b"), ("3", "c")]
    tagged = load_input(tuned(Tagging(("A", "B"), "tokens")), path, OwnTaskConfig())
    assert tagged.examples("test")[0].words == ("a", "b")


@pytest.mark.parametrize(
    ("family", "columns", "content", "message"),
    [
        (FAMILY, {"text_pair": "more"}, "a\n", "text and more"),
        (MultipleChoice(), {}, "a\n", "does not take single texts"),
        (FAMILY, {}, "\n \n", "no text in it"),
    ],
)
def test_a_text_that_cannot_be_judged_is_refused(tuned, tmp_path, family, columns, content, message):
    (tmp_path / "lines.txt").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_input(tuned(family, **columns), tmp_path / "lines.txt", OwnTaskConfig())
