import json
import math

from electra.train.log import Display, JsonLines


def test_what_is_no_number_becomes_null(tmp_path):
    lines = JsonLines(tmp_path / "m.jsonl")
    lines.write({"step": 1, "loss": math.nan, "metrics": {"auc": math.inf, "f1": 0.5}})
    assert (
        tmp_path / "m.jsonl"
    ).read_text() == '{"step": 1, "loss": null, "metrics": {"auc": null, "f1": 0.5}}\n'
    lines.close()


def test_lines_after_a_step_and_an_unfinished_one_are_cut(tmp_path):
    path = tmp_path / "m.jsonl"
    lines = JsonLines(path)
    for step in range(5):
        lines.write({"step": step})
    lines.sync()
    with path.open("a") as file:
        file.write('{"step": 2, "torn')
    lines.cut(lambda record: record["step"] <= 2)
    lines.write({"step": 9})
    lines.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1, 2, 9]


def test_cutting_a_file_that_is_not_there_does_nothing(tmp_path):
    JsonLines(tmp_path / "m.jsonl").cut(lambda record: True)
    assert not list(tmp_path.iterdir())


def test_a_display_that_is_no_terminal_shows_few_lines_and_says_all(capsys):
    with Display() as display:
        for step in range(50):
            display.show(f"step {step}")
        display.say("saved")
    assert capsys.readouterr().err == "step 0\nsaved\n"


def test_a_silent_display_says_nothing(capsys):
    with Display(silent=True) as display:
        display.show("step")
        display.say("saved")
    assert capsys.readouterr().err == ""
