import html
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from markdown_it import MarkdownIt

from electra import files
from electra.errors import InputError
from electra.formats.card import (
    ABOUT,
    CARD,
    TEXT,
    OwnerFacts,
    card_lines,
    for_transformers,
    gather,
    write_card,
)
from electra.formats.transformers import find_source, seal, set_tokenizer, write_transformers
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging
from electra.train import devices

FAMILIES = {
    "classification": Classification(("bad", "good")),
    "more classes than fit": Classification([f"class {number}" for number in range(20)]),
    "multi_label": MultiLabel(("red", "blue")),
    "regression": Regression(low=1.0, high=5.0),
    "multiple_choice": MultipleChoice(),
    "mean of classes": Classification(("bad", "fair", "good"), head_pooling="mean"),
    "mean of values": Regression(low=1.0, high=5.0, head_pooling="mean"),
    "mean of choices": MultipleChoice(head_pooling="mean"),
    "similarity": Similarity(),
    "tagging": Tagging(("ADJ", "DET", "NOUN"), "tokens"),
    "plain answers": QuestionAnswering(head="plain", answerability="off"),
    "joint answers": QuestionAnswering(head="joint", answerability="on"),
}
PARTS = ("discriminator", "generator", "encoder")
GIVEN = OwnerFacts(name="A | model", license="cc-by-sa-4.0", language=("en", "no"))


def export(path, out, *, part=None, given=GIVEN):
    """The card of an export."""
    source = find_source(str(path), part=part)
    with files.appearing_whole(out) as folder:
        loaded = for_transformers(source, folder, write_transformers(source, folder))
        set_tokenizer(folder, source)
        sections = gather(source)
        write_card(folder, source, loaded, given, sections)
        seal(folder, source, {ABOUT: sections})
    return (out / CARD).read_text(encoding="utf-8")


def programs(card):
    return re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)


def table(card, title):
    """The facts below a title."""
    found = re.search(rf"## {title}\n\n\| \| \|\n\|---\|---\|\n(.*?)\n\n", card, flags=re.DOTALL)
    assert found, f"{title} is missing"
    return dict(line.strip("| ").split(" | ") for line in found[1].splitlines())


@pytest.fixture
def run_programs(monkeypatch):
    """Run what a card says, where it lies; what its variables are at the end of each program."""

    # What electra says there is compared with what transformers says, which computes in fp32.
    monkeypatch.setenv(devices.AUTO_PRECISION, "fp32")

    def run(folder, card):
        monkeypatch.chdir(folder)
        found = []
        for program in programs(card):
            found.append({})
            exec(compile(program, "README.md", "exec"), found[-1])
        return found

    return run


@pytest.mark.parametrize("part", PARTS)
def test_the_code_on_the_card_of_a_network_is_true(run, tmp_path, run_programs, part):
    card = export(run, tmp_path / "out", part=part)
    with_transformers, with_electra = run_programs(tmp_path / "out", card)
    ability = {"discriminator": "detect", "generator": "fill"}.get(part, "embed")
    assert ability in with_electra["model"].abilities
    if part == "discriminator":
        assert ((with_transformers["replaced"] > 0) & (with_transformers["replaced"] < 1)).all()
    assert ("[MASK]" in card) == (part == "generator")
    assert ("split_special_tokens=True" in card) == (part == "generator")


@pytest.mark.parametrize("case", FAMILIES)
def test_the_code_on_the_card_of_a_fine_tuned_model_is_true(make_tuned, tmp_path, run_programs, case):
    _, tuned = make_tuned(FAMILIES[case])
    card = export(tuned, tmp_path / "out")
    found = run_programs(tmp_path / "out", card)
    assert len(found) == (1 if case == "joint answers" else 2)
    if case in ("multiple_choice", "mean of choices"):
        (said,) = found[1]["model"].choose(["Who ate the meal?"], [["The chef.", "The meal."]])
        logits_C = found[0]["logits"].flatten()
        assert logits_C.softmax(-1).tolist() == pytest.approx(said["probabilities"], abs=1e-5)
    if case == "mean of values":
        (said,) = found[1]["model"].classify([TEXT])
        assert found[0]["value"].item() == pytest.approx(said["value"], rel=1e-4)
    if case in ("more classes than fit", "mean of classes"):
        (said,) = found[1]["model"].classify([TEXT])
        shares = torch.tensor(list(said["probabilities"].values()))
        torch.testing.assert_close(found[0]["logits"][0].softmax(-1), shares, rtol=1e-4, atol=1e-5)
    no_head = case in ("more classes than fit", "joint answers") or case.startswith("mean")
    assert ("has no head" in card) == no_head
    assert ("Labels: " in card) == bool(FAMILIES[case].labels())


@pytest.mark.parametrize("query_key_norm", ["none", "rms"])
@pytest.mark.parametrize("case", ["mean of classes", "mean of values", "mean of choices"])
def test_the_code_on_the_card_of_a_modern_model_judges_by_the_mean(
    make_tuned, tmp_path, run_programs, monkeypatch, case, query_key_norm
):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    asked = []
    monkeypatch.setattr("builtins.input", asked.append)
    modern = {"backbone": "modern", "position_embedding_type": "rotary", "embedding_size": 32}
    _, tuned = make_tuned(FAMILIES[case], **modern, query_key_norm=query_key_norm)
    card = export(tuned, tmp_path / "out")
    assert "trust_remote_code=True" in card
    assert "has no head" not in card
    with_transformers, with_electra = run_programs(tmp_path / "out", card)
    # A person was not asked whether the code in the folder may run.
    assert not asked
    if case == "mean of choices":
        (said,) = with_electra["model"].choose(["Who ate the meal?"], [["The chef.", "The meal."]])
        found = with_transformers["logits"].flatten().softmax(-1).tolist()
        assert found == pytest.approx(said["probabilities"], abs=1e-5)
    else:
        assert "classify" in with_electra["model"].abilities


def test_the_hub_reads_what_the_owner_said(run, tmp_path):
    card = export(run, tmp_path / "out", part="generator")
    _, front, rest = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "license": "cc-by-sa-4.0",
        # Unquoted, this one would be read as False.
        "language": ["en", "no"],
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["electra"],
    }
    assert rest.startswith("\n# A \\| model\n")


def test_what_is_not_known_is_left_out(run, tmp_path):
    card = export(run, tmp_path / "out", given=OwnerFacts(name="model"))
    front = yaml.safe_load(card.split("---\n")[1])
    assert front == {"library_name": "transformers", "tags": ["electra"]}
    # The run of this fixture tells its objective, and no more.
    assert table(card, "Pre-training") == {"Objective": "electra"}
    assert set(re.findall(r"^## (.*)$", card, flags=re.MULTILINE)) == {
        "With transformers",
        "With electra",
        "Model",
        "Pre-training",
    }
    for word in ("None", "nan", "needed", "unknown", str(tmp_path), str(run)):
        assert word not in card


def test_what_is_known_of_the_model_itself(run, tmp_path, tokenizer):
    facts = table(export(run, tmp_path / "out"), "Model")
    assert facts["Encoder"].startswith("2 layers of 32, 2 heads, embeddings of 16")
    assert facts["Reads"] == "32 tokens at once"
    assert facts["Tokenizer hash"] == tokenizer.content_hash


def test_facts_survive_a_second_export(make_run, tmp_path):
    path = make_run(facts={"seq_length": 16, "step": 1200})
    first = export(path, tmp_path / "first")
    second = export(tmp_path / "first", tmp_path / "second")
    assert table(first, "Pre-training") == {
        "Objective": "electra",
        "Steps": "1,200",
        "Tokens of a row": "16",
    }
    for title in ("Model", "Pre-training"):
        assert table(second, title) == table(first, title)
    assert table(second, "Model")["Reads"] == "16 tokens at once"


def test_a_cell_stays_in_its_table(run):
    source = find_source(str(run))
    loaded = for_transformers(source, Path("nowhere"), "ElectraForPreTraining")
    lines = list(card_lines(source, loaded, GIVEN, {"Data": {"Corpus": "a | b\nc"}}))
    assert "| Corpus | a \\| b c |" in lines


HOSTILE = [
    "<script>alert(1)</script>",
    "[click](javascript:alert)",
    "![x](http://host/pixel.png)",
    "a | b | c",
    "__init__ *bold* `code` ~~gone~~ $x$",
    "---\nlicense: mine\n---",
    "two\n\n# lines",
    "&lt;b&gt; \\| \\",
    "left\u202eright",
]


def shown(card):
    """A card as a page shows it: its HTML, and its text."""
    _, _, rest = card.split("---\n", 2)
    page = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(rest)
    return page, html.unescape(re.sub(r"<[^>]*>", "", page))


def test_names_and_labels_are_shown_as_they_are_and_do_nothing(make_tuned, tmp_path):
    _, folder = make_tuned(Classification(HOSTILE))
    given = OwnerFacts(name="".join(HOSTILE), license="mit\n---\n# x", language=("en\n---\n<b>",))
    card = export(folder / "final", tmp_path / "out", given=given)
    page, text = shown(card)
    for label in HOSTILE:
        assert " ".join(label.replace("\u202e", " ").split()) in text
    assert "<h1>two" not in page
    for element in ("script", "img", "a ", "em>", "strong>", "del>", "s>"):
        assert f"<{element}" not in page
    assert yaml.safe_load(card.split("---\n", 2)[1])["license"] == "mit --- # x"


def test_facts_that_a_folder_tells_stay_in_their_table(run, tmp_path):
    copied = shutil.copytree(run, tmp_path / "run")
    export(copied, tmp_path / "once")
    manifest = files.read_manifest(tmp_path / "once", kind="exported model")
    del manifest["files"]
    manifest[ABOUT] = {HOSTILE[0]: {HOSTILE[3]: HOSTILE[1], "mlm_loss": "0.93"}}
    files.write_manifest(tmp_path / "once", manifest)
    page, _ = shown(export(tmp_path / "once", tmp_path / "again"))
    assert "<script" not in page
    assert f"<td>{HOSTILE[3]}</td>\n<td>{HOSTILE[1]}</td>" in page
    assert "<td>mlm_loss</td>\n<td>0.93</td>" in page
    manifest[ABOUT] = {"Data": {"Corpus": 3}}
    files.write_manifest(tmp_path / "once", manifest)
    with pytest.raises(InputError, match=r"manifest\.json: about\.Data\.Corpus is 3, expected a text"):
        export(tmp_path / "once", tmp_path / "more")
