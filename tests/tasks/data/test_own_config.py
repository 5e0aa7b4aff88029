import dataclasses
from dataclasses import dataclass, field

import pytest

from electra import config
from electra.errors import InputError
from electra.tasks.data.columns import OwnTaskConfig, read_task_file


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb that has the keys as a group."""

    own: OwnTaskConfig = field(default_factory=OwnTaskConfig)


def parse(*arguments):
    return config.parse(Verb, arguments, prog="electra finetune").own


def test_every_key_has_a_docstring_that_becomes_its_help(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    shown = " ".join(capsys.readouterr().out.split())
    for key in dataclasses.fields(OwnTaskConfig):
        assert f"--own.{key.name} " in shown


@pytest.mark.parametrize("character", [",", ";", "|", ":", " "])
def test_separators_can_be_typed_on_the_command_line(character):
    found = parse("--own.delimiter", character, "--own.label_separator", character)
    assert found.dialect.delimiter == found.label_separator == character


def test_choices_are_one_column_or_several():
    assert OwnTaskConfig().choice_columns == ("choices",)
    assert OwnTaskConfig(choices="a, b,c").choice_columns == ("a", "b", "c")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "similarity"}, "text_pair"),
        ({"dev_share": 1.0}, r"dev_share.*1\.0"),
        ({"max_score": 0.0}, r"max_score.*0\.0"),
        ({"delimiter": "ab"}, "delimiter.*'ab'"),
        ({"delimiter": ""}, "delimiter.*''"),
        ({"encoding": "klingon"}, "encoding.*'klingon'"),
        ({"label_separator": ""}, "label_separator"),
        ({"choices": " ,"}, "choices"),
        ({"template": "It was."}, "template is .It was"),
    ],
)
def test_keys_that_make_no_sense_are_refused(keys, message):
    with pytest.raises(InputError, match=message):
        OwnTaskConfig(**keys)


def test_a_task_file_has_the_same_keys_and_its_data_is_relative_to_it(tmp_path):
    (tmp_path / "my.yaml").write_text(
        'kind: regression\ntext: body\nlabel: stars\ndata: sub/a.tsv\ndelimiter: "\\t"\n'
    )
    found, data = read_task_file(tmp_path / "my.yaml")
    assert found == OwnTaskConfig(kind="regression", text="body", label="stars", delimiter="\t")
    assert type(found) is OwnTaskConfig
    assert data == tmp_path / "sub" / "a.tsv"


def test_the_data_of_a_task_file_is_beside_it_by_default_and_may_be_anywhere(tmp_path):
    (tmp_path / "my.yaml").write_text("text: body\n")
    assert read_task_file(tmp_path / "my.yaml")[1] == tmp_path
    (tmp_path / "my.yaml").write_text("data: /elsewhere\n")
    assert str(read_task_file(tmp_path / "my.yaml")[1]) == "/elsewhere"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("labels: x\n", r"my\.yaml.*'labels'.*'label'"),
        ("kind: ranking\n", r"my\.yaml.*kind.*'ranking'.*classification"),
        ("dev_share: 2\n", r"dev_share.*2\.0"),
        ("text: [a\n", r"my\.yaml"),
    ],
)
def test_a_mistake_in_a_task_file_is_named_with_the_file(tmp_path, content, message):
    (tmp_path / "my.yaml").write_text(content)
    with pytest.raises(InputError, match=message):
        read_task_file(tmp_path / "my.yaml")


def test_a_missing_task_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no\.yaml"):
        read_task_file(tmp_path / "no.yaml")
