"""A new kind of task is one file and one line in the table: everything else is asked of the family.

The kind is ordinal: a text has one star, and one more for each threshold that it passes. This file holds all
of it; the commands, the Python API and the server know it from the table alone.
"""

import csv
import json
import random
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, TypedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import electra
from electra import cli
from electra.model.heads import ClassificationHead
from electra.serve.app import build_app
from electra.serve.limits import Limits
from electra.tasks.families.classification import ValueReader
from electra.tasks.families.family import (
    Ability,
    Card,
    Family,
    Learned,
    Mistake,
    Score,
    TaskRow,
    TextExample,
    check_finite,
    known_labels,
    pair_outputs,
    sequence,
)
from electra.tasks.families.table import FAMILIES
from electra.text.spans import check_texts
from running import ask, serving


class RateRequest(TypedDict):
    """Texts to rate."""

    texts: Annotated[list[str], "Reviews."]


class Rated(TypedDict):
    """The stars of a text."""

    stars: Annotated[int, "From 1."]


class Ordinal(Family[TextExample]):
    """Stars: a threshold between each two."""

    name: ClassVar[str] = "ordinal"
    kind: ClassVar[str] = "stars"
    reader = ValueReader
    positions = "first"
    card = Card(what="An ELECTRA that gives stars.", use='model.ask("rate", texts=["fine"])')
    ability = Ability(
        name="rate", purpose="stars", request=RateRequest, answer=Rated, example={"texts": ["fast"]}
    )

    def __init__(self, highest: int) -> None:
        self.highest = highest

    def labels(self) -> tuple[str, ...]:
        return ()

    def settings(self) -> dict[str, Any]:
        return {"highest": self.highest}

    @classmethod
    def learn_table(cls, config, labels, splits) -> Learned:
        return Learned(cls(int(max(example.label for example in splits["train"]))), "accuracy", splits, [])

    def line_example(self, line, *, id, where) -> TextExample:
        return TextExample(id=id, where=where, text=line)

    def rows(self, examples, tokenizer, *, max_length) -> list[TaskRow]:
        rows = []
        for place, (example, ids) in enumerate(
            zip(examples, tokenizer.encode([example.text for example in examples]).split(), strict=True)
        ):
            input_ids, types = sequence(ids, ids[:0], tokenizer, max_length=max_length)
            passed = None if example.label is None else np.arange(1, self.highest) < example.label
            targets = {} if passed is None else {"passed": passed.astype(np.float32)}
            rows.append(
                TaskRow(input_ids=input_ids, token_type_ids=types, example=place, unit=place, targets=targets)
            )
        return rows

    def head(self, config) -> nn.Module:
        return ClassificationHead(config, self.highest - 1)

    def losses(self, head, hidden_BLD, batch) -> torch.Tensor:
        passed_BT = batch.padded_target("passed", padding=0, dtype=torch.float32)
        logits_BT = head(hidden_BLD).float()
        return functional.binary_cross_entropy_with_logits(logits_BT, passed_BT, reduction="none").mean(-1)

    def outputs(self, head, hidden_BLD, batch) -> list[Any]:
        return list(head(hidden_BLD).float().sigmoid().cpu().numpy())

    def predictions(self, examples, rows, outputs) -> list[dict[str, Any]]:
        check_finite(examples, outputs)
        return [{"stars": 1 + int((output > 0.5).sum())} for output in outputs]

    def scores(self, examples: Sequence[TextExample], predictions) -> dict[str, Score]:
        pairs = zip(known_labels(examples), predictions, strict=True)
        return {"accuracy": Score(float(np.mean([gold == said["stars"] for gold, said in pairs])))}

    def mistakes(self, example, prediction):
        if example.label != prediction["stars"]:
            off = abs(example.label - prediction["stars"])
            yield Mistake(off, {"gold": f"{example.label:g}", "predicted": str(prediction["stars"])})

    def answer(self, fields, predictor) -> list[Rated]:
        texts = check_texts(fields["texts"])
        pairs = [(ids, ids[:0]) for ids in predictor.tokenizer.encode(texts).split()]
        examples = [TextExample(id="", where="texts", text=text) for text in texts]
        return self.predictions(examples, [], pair_outputs(pairs, predictor))

    def onnx_outputs(self, head, hidden_BLD, attention_mask_BL) -> dict[str, torch.Tensor]:
        return {"logits": head(hidden_BLD)}


STARS = {"river": 1, "music": 2, "fast": 3}


def write_table(path, count):
    rng = random.Random(0)
    rows = []
    for _ in range(count):
        word = rng.choice(list(STARS))
        words = [word, *rng.choices(("the", "old", "was", "and", "city"), k=3)]
        rng.shuffle(words)
        rows.append((" ".join(words), STARS[word]))
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


def run(command, **keys):
    words = [f"--{key.replace('__', '.')}={value}" for key, value in keys.items()]
    assert cli.main([command, *words]) == cli.OK


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(FAMILIES, Ordinal.name, Ordinal)


@pytest.mark.slow
def test_a_registered_family_goes_from_the_table_to_the_server(registered, make_run, tmp_path, capsys):
    write_table(tmp_path / "train.csv", 96)
    write_table(tmp_path / "dev.csv", 24)
    tuned, columns = tmp_path / "tuned", {"task": "csv", "own__kind": "stars"}
    training = {"train__epochs": 6, "train__learning_rate": 0.005, "train__layer_decay": 1.0}
    run(
        "finetune", model="none", like=make_run(), data=tmp_path, out=tuned, seeds=2, ensemble="on",
        dropout=0.0, train__batch_size=8, **columns, **training,
    )  # fmt: skip
    content = json.loads((tuned / "scores.json").read_text())
    assert (content["kind"], content["main_score"]) == ("ordinal", "accuracy")
    dev = content["splits"]["dev"]
    assert dev["scores"]["accuracy"]["median"] > 0.6
    assert dev["ensemble"]["accuracy"] is not None

    run("evaluate", model=tuned, data=tmp_path / "dev.csv", out=tmp_path / "again", **columns)
    again = json.loads((tmp_path / "again" / "scores.json").read_text())["splits"]["dev"]
    assert again["scores"]["accuracy"]["values"] in ([value] for value in dev["scores"]["accuracy"]["values"])
    assert len(again["errors"]) == round(24 * (1 - again["scores"]["accuracy"]["values"][0]))

    (tmp_path / "new.txt").write_text("the old music\nfast\n", encoding="utf-8")
    run("predict", model=tuned, input=tmp_path / "new.txt", out=tmp_path / "said.csv")
    with (tmp_path / "said.csv").open(encoding="utf-8", newline="") as file:
        said = list(csv.DictReader(file))
    assert [row["text"] for row in said] == ["the old music", "fast"]

    model = electra.load(tuned)
    assert model.abilities == ("embed", "rate")
    answers = model.ask("rate", texts=["the old music", "fast"])
    assert [str(answer["stars"]) for answer in answers] == [row["stars"] for row in said]
    with serving(build_app(model, limits=Limits())) as url:
        assert ask(url, "/rate", {"texts": ["the old music", "fast"]}).content == {"results": answers}
        assert ask(url, "/rate", {"texts": "fast"}).error["field"] == "texts"
        description = ask(url, "/openapi.json").content
    answer = description["components"]["schemas"]["Rated"]
    assert answer["properties"]["stars"]["description"] == "From 1."

    run("export", model=tuned, to="transformers", out=tmp_path / "shipped")
    assert (tmp_path / "shipped" / "head.safetensors").is_file()
    assert re.search("transformers has no.* stars", (tmp_path / "shipped" / "README.md").read_text())
    assert electra.load(tmp_path / "shipped").ask("rate", texts=["fast"]) == answers[1:]


@pytest.mark.slow
def test_a_kind_that_is_not_in_the_table_is_refused(make_run, tmp_path, capsys):
    write_table(tmp_path / "train.csv", 4)
    words = ["--model", str(make_run()), "--task=csv", f"--data={tmp_path}", "--own.kind=stars"]
    assert cli.main(["finetune", *words, f"--out={tmp_path / 'out'}"]) != cli.OK
    assert "'stars'" in capsys.readouterr().err
