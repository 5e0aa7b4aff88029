"""What was exported, and what is known of it -> README.md, the card of a model: facts, and nothing else.

Facts are read from where training left them: the manifest of a run, its metrics and environment, the data
set, scores.json. What is not found there is left out. Of folders only the last name is given: the rest is
the owner's business alone. The lines of Python on a card load and use the model that lies beside it; a test
runs them as they stand.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import torch
import yaml

from electra import files
from electra.errors import InputError
from electra.formats.modern import PREFIX as OWN_CLASSES
from electra.formats.modern import auto_class
from electra.formats.transformers import ExportSource
from electra.formats.word2vec import VECTORS as VECTORS_FILE
from electra.model.encoder import Encoder
from electra.model.names import Role
from electra.model.store import FINAL, HEAD_WEIGHTS, ModelFolder, open_model
from electra.prediction.load import SEQ_LENGTH
from electra.schema import short
from electra.show import clock
from electra.tasks.families.family import Card
from electra.tasks.families.table import FAMILIES, build_family
from electra.tasks.model import RANDOM, find_start
from electra.tasks.results import NOT_FRACTIONS, shown
from electra.tasks.seed_results import SCORES
from electra.text.rows import KIND as DATASET

Facts = dict[str, str]
"""What is known of something, by name."""
Sections = dict[str, Facts]
"""The same by title, none of them empty."""

ABOUT = "about"
"""Key of an export's manifest: the sections of its card."""
MODEL, PRETRAINING, DATA, HELD_OUT = "Model", "Pre-training", "Data", "Held out in pre-training"
FINE_TUNING, SCORED = "Fine-tuning", "Scores"
EXPORT, EXPORT_SCORED = "Export", "Scores of this export"
_ANEW = (MODEL, EXPORT, EXPORT_SCORED)
"""What differs from one export to the next."""


def gather(source: ExportSource) -> Sections:
    """All that is known of a model."""
    sections = {MODEL: model_facts(source)}
    with as_training_leaves_it(source.path):
        if told := told_by(source.folder):
            sections |= {title: facts for title, facts in told.items() if title not in _ANEW}
        elif source.about:
            sections |= fine_tuning(source) | pretraining(run_before(source))
        else:
            sections |= pretraining(source.model)
    if source.part == "encoder":
        # They are those of the head.
        sections.pop(SCORED, None)
    return {title: facts for title, facts in sections.items() if facts}


@contextmanager
def as_training_leaves_it(path: str) -> Iterator[None]:
    """Refuse a folder in whose notes of its training something has another form than training gives it.

    They hold some hundred values that nothing depends on but the words of a card.
    """
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError(
            f"{path}: what is noted there of its training ({files.MANIFEST}, {SCORES}, environment.json, "
            f"metrics.jsonl) is not as electra writes it: {type(error).__name__} {short(str(error))}"
        ) from error


def told_by(folder: Path) -> Sections:
    """The sections of the card of an export, which it has in its manifest."""
    path = folder / files.MANIFEST
    if not path.is_file():
        return {}
    manifest: _Told = files.read_json(path, _Told)
    return manifest.get("about", {})


class _Told(TypedDict, total=False):
    about: Sections


def model_facts(source: ExportSource) -> Facts:
    """What it is."""
    config = source.config
    words = source.model.tokenizer
    with torch.device("meta"):
        size = sum(weight.numel() for weight in Encoder(config).parameters())
    described = words.describe()
    cleaning = ", ".join(f"{key} {described[key]}" for key in ("case", "accents", "cjk"))
    return {
        "Encoder": f"{config.num_hidden_layers} layers of {config.hidden_size}, {config.num_attention_heads} "
        f"heads, embeddings of {config.embedding_size}, {config.position_embedding_type} positions"
        f"{'' if config.backbone == 'electra' else f', backbone {config.backbone}'}",
        "Parameters": f"{size:,} without a head",
        "Reads": f"{source.max_length} tokens at once",
        "Tokenizer": f"{described['algorithm']} of {words.vocab_size:,} tokens; {cleaning}",
        "Tokenizer hash": words.content_hash,
        **({} if source.tokens_read is None else {"Tokens read": f"{source.tokens_read:,} in pre-training"}),
    }


def pretraining(model: ModelFolder | None) -> Sections:
    """Of a network that is part of a run, or was imported."""
    if model is None or not model.run:
        return {}
    manifest, final = model.run, model.path.parent
    config, step = manifest.get("config", {}), manifest.get("step")
    place = final.parent if final.name == FINAL else None
    environment = {} if place is None else known_json(place / "environment.json")
    records = [] if place is None else records_of(place / "metrics.jsonl", step=step)
    last = records[-1] if records else {}
    train = config.get("train", {})
    facts = {
        "Objective": config.get("objective"),
        "Size": size_of(config.get("model", {})),
        "Imported from": origin(manifest.get("imported_from", {})),
        "Steps": step and f"{step:,}",
        "Rows of a step": train.get("batch_size"),
        "Tokens of a row": manifest.get(SEQ_LENGTH),
        "Tokens seen": last.get("tokens") and f"{last['tokens']:,}",
        "FLOPs": last.get("flops") and f"{last['flops']:.3g}",
        "Time": last.get("seconds") and clock(last["seconds"]),
        "Optimizer": train
        and f"{train['optimizer']}, learning rate {train['learning_rate']:g}, {train['schedule']} schedule",
        "Seed": str(config["seed"]) if "seed" in config else None,
        **machine(environment),
    }
    judged = [record["metrics"] for record in records if record["kind"] == "valid"]
    return {
        PRETRAINING: known(facts),
        DATA: dataset(Path(config.get("data", "")), manifest.get("dataset_sha256")),
        HELD_OUT: {
            name: f"{value:.4g}"
            for metrics in judged[-1:]
            for name, value in metrics.items()
            # Of hidden states, those are told that heads read.
            if isinstance(value, int | float) and "_layer_" not in name
        },
    }


def size_of(model: Mapping[str, Any]) -> str | None:
    """The name of a size, and what was changed of it."""
    changes = [f"{key} {value}" for key, value in model.items() if key != "size" and value is not None]
    return " with ".join(filter(None, (model.get("size"), ", ".join(changes)))) or None


def origin(source: Mapping[str, Any]) -> str | None:
    """Where an imported model came from."""
    if not source:
        return None
    if commits := source.get("revisions"):
        names = (f"{name} at {commit}" for name, commit in zip(source["paths"], commits, strict=True))
        return f"{source['format']}: {', '.join(names)}, of the Hugging Face Hub"
    paths = source.get("paths") or [source.get("path", "")]
    return f"{source['format']}: {', '.join(Path(path).name for path in paths)}"


def machine(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What computed."""
    if not environment:
        return {}
    choices = environment.get("choices", {})
    on_gpu = choices.get("device") == "cuda" and environment["gpus"]
    cores = f"{environment['cores']} core{'' if environment['cores'] == 1 else 's'} of {environment['cpu']}"
    return {
        "Hardware": ", ".join(environment["gpus"]) if on_gpu else cores,
        "Precision": choices.get("precision"),
        "Software": f"electra {environment['electra']}, torch {environment['torch']}",
    }


def dataset(folder: Path, manifest_sha256: str | None) -> Facts:
    """Of the data a run has read; only the hash, if the folder is gone or is another one by now."""
    if manifest_sha256 is None:
        return {}
    facts: dict[str, Any] = {"Data set hash": manifest_sha256}
    path = folder / files.MANIFEST
    if path.is_file() and files.sha256(path) == manifest_sha256:
        content = files.read_manifest(folder, kind=DATASET)
        counts, splits = content["counts"], content["splits"]
        facts |= {
            "Corpus": ", ".join(corpus_name(name) for name in content["config"]["corpus"]),
            "Corpus hash": content["corpus"],
            "Documents": f"{counts['documents']:,}",
            "Duplicates left out": counts["duplicate_documents"] and f"{counts['duplicate_documents']:,}",
            "Text": f"{counts['text_bytes']:,} bytes",
            "Tokens": f"{splits['train']['tokens']:,}",
            "Tokens held out": splits["valid"]["tokens"] and f"{splits['valid']['tokens']:,}",
        }
    return known(facts)


def corpus_name(argument: str) -> str:
    """A corpus as it was named, without the folders around it."""
    return argument if argument.startswith("hf:") else Path(argument).name or argument


def fine_tuning(source: ExportSource) -> Sections:
    """Of a model that was trained for a task: what all seeds gave, if that is beside it, or what it knows."""
    about, folder = source.about, source.folder
    content = known_json(folder.parent / SCORES) if folder.name == FINAL else {}
    # Another model may lie where this one was made.
    if (content.get("task"), content.get("median_seed")) != (about["task"], about.get("seed")):
        content = {}
    train = content.get("train", {})
    facts = {
        "Task": about["task"],
        "Kind": about["family"].replace("_", " "),
        "Started from": start_name(about.get("start")),
        "Imported from": origin(about.get("imported_from", {})),
        "Examples": train and f"{train['examples']:,}",
        "Epochs": train and f"{train['epochs']:g}",
        "Optimizer": train
        and f"learning rate {train['learning_rate']:g}, layer decay {train['layer_decay']:g}, "
        f"{train['batch_size']} examples a step, {train['schedule']} schedule",
        "Pooling": about["settings"].get("head_pooling"),
        "Tokens of a row": str(about["max_length"]),
        "Seed": None if about.get("seed") is None else str(about["seed"]),
        "Time of all seeds": train and clock(train["seconds"]),
        **(machine(known_json(folder.parent / "environment.json")) if content else {}),
        # The last one tells of files that are not exported.
        "Notes": "; ".join(note for note in content.get("notes", ()) if not note.startswith("predictions, ")),
    }
    return {FINE_TUNING: known(facts), SCORED: scores(content) if content else own_score(about)}


def start_name(start: str | None) -> str | None:
    """What a fine-tuning began with."""
    return "random weights" if start == RANDOM else start and Path(start).name


def scores(content: Mapping[str, Any]) -> Facts:
    """Every score with its spread."""
    found = {}
    for split, entry in content["splits"].items():
        examples = f"{entry['examples']:,} examples" + (" only" if entry.get("limit") else "")
        for name, summary in entry["scores"].items():
            if summary["median"] is None or name.endswith(NOT_FRACTIONS):
                continue
            words = [shown(name, summary["median"])]
            if len(summary["values"]) > 1:
                words = [f"median {words[0]} of {len(summary['values'])} seeds"]
                if summary["std"] is not None:
                    words.append(f"mean {shown(name, summary['mean'])} ± {shown(name, summary['std'])}")
            found[f"{name} on {split}, in %"] = ", ".join([*words, examples])
    return found


def own_score(about: Mapping[str, Any]) -> Facts:
    """The one score that a model knows of itself."""
    value, name = about.get("score"), str(about.get("main_score"))
    if value is None:
        return {}
    return {f"{name} on {about.get('split', 'held-out examples')}, in %": f"{shown(name, value)}, one seed"}


def run_before(source: ExportSource) -> ModelFolder | None:
    """The network that a fine-tuning began with, if it is still there and still the same."""
    start, seed = source.about.get("start"), source.about.get("seed")
    facts = known_json(source.folder.parent / f"seed-{seed}" / SCORES).get("facts", {})
    sha256 = facts.get("config", {}).get("model_sha256")
    if not start or not sha256 or not Path(start).is_dir():
        return None
    found = find_start(start, like="", dropout=None)
    return open_model(start) if found.sha256 == sha256 else None


def records_of(path: Path, *, step: int | None) -> list[dict[str, Any]]:
    """What was measured at a step."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return [
        record for record in records if record.get("step") == step and record["kind"] in ("train", "valid")
    ]


def known_json(path: Path) -> dict[str, Any]:
    """What a file says, nothing if there is none."""
    content = files.read_json(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def known(facts: Mapping[str, Any]) -> Facts:
    """Those of some facts that there are."""
    return {name: str(value) for name, value in facts.items() if value}


TEXT, OTHER, GAP = "The chef ate the meal.", "A cook had dinner.", "The [MASK] ate the meal."

CARDS: dict[Role, Card] = {
    "discriminator": Card(
        what="A discriminator of ELECTRA: it tells how probably each token of a text was replaced.",
        use=f'model.detect(["{TEXT}"])  # how probably each token was replaced',
        class_lines=(
            f'inputs = tokenizer("{TEXT}", return_tensors="pt")',
            "replaced = model(**inputs).logits.sigmoid()  # how probably each token was replaced",
        ),
    ),
    "generator": Card(
        what="A generator of ELECTRA: it proposes tokens for the gaps of a text.",
        hub_task="fill-mask",
        use=f'model.fill(["{GAP}"])  # what could stand in the gap',
        pipeline=f'pipeline("fill-mask", model=folder)("{GAP}")',
        tokenizer_arguments=f'"{GAP}"',
    ),
    "encoder": Card(
        what="An encoder of ELECTRA: it turns texts into vectors, and is a start for fine-tuning.",
        hub_task="feature-extraction",
        use=f'model.embed(["{TEXT}", "{OTHER}"])  # a vector for each text',
        class_lines=(
            f'inputs = tokenizer("{TEXT}", return_tensors="pt")',
            "hidden = model(**inputs).last_hidden_state  # (texts, tokens, numbers)",
        ),
    ),
}
"""What is said of a network of pre-training; of a fine-tuned model its family says it."""

VECTORS = ["from sentence_transformers import SentenceTransformer", ""]
TRUSTED = ", trust_remote_code=True"
FOLDER = ['folder = "."  # where this card lies', ""]


def card_of(source: ExportSource) -> Card:
    """What is said of a model, by its part or by the family of its task."""
    return CARDS[source.part] if source.part else FAMILIES[source.about["family"]].card


def with_transformers(source: ExportSource, architecture: str) -> list[str]:
    """How others use what was exported for them; empty if there is no way."""
    card = card_of(source)
    # Classes that lie in the folder are run on request only.
    trusted = TRUSTED if architecture.startswith(OWN_CLASSES) else ""
    if card.gives_vectors:
        return [
            *VECTORS,
            *FOLDER,
            f"model = SentenceTransformer(folder{trusted})",
            f'vectors = model.encode(["{TEXT}", "{OTHER}"])',
            "cosines = model.similarity(vectors, vectors)",
        ]
    if source.part is None and architecture.endswith("Model"):
        more = ["from safetensors.torch import load_file"]
        lines = build_family(source.about, where=source.path).head_lines
        return class_lines(architecture, lines, more=more) if lines else []
    if card.pipeline:
        line = card.pipeline.replace("model=folder", f"model=folder{trusted}")
        return ["from transformers import pipeline", "", *FOLDER, line]
    lines = class_lines(architecture, card.class_lines)
    if source.part == "encoder":
        encode = (
            f'SentenceTransformer(folder{trusted}).encode(["{TEXT}", "{OTHER}"])  # a vector for each text'
        )
        lines += ["", *VECTORS, encode]
    return lines


def class_lines(architecture: str, lines: Sequence[str], *, more: Sequence[str] = ()) -> list[str]:
    """Load tokenizer and model by their classes, and use them."""
    name, trusted = architecture, ""
    if architecture.startswith(OWN_CLASSES):
        name, trusted = auto_class(architecture), TRUSTED
    return [
        "import torch",
        *more,
        f"from transformers import AutoTokenizer, {name}",
        "",
        *FOLDER,
        # The tokenizer has no code, but asks for the model's config, and transformers then asks a person.
        f"tokenizer = AutoTokenizer.from_pretrained(folder{trusted})",
        f"model = {name}.from_pretrained(folder{trusted})",
        "with torch.no_grad():",
        *(f"    {line}" for line in lines),
    ]


def with_onnxruntime(source: ExportSource, outputs: Sequence[str], graph_name: str) -> list[str]:
    """How any program uses a graph."""
    comma = "," if len(outputs) == 1 else ""
    return [
        "import onnxruntime",
        # The automatic one asks for the model's class, which transformers may not have.
        "from transformers import PreTrainedTokenizerFast",
        "",
        *FOLDER,
        "tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)",
        f'session = onnxruntime.InferenceSession(f"{{folder}}/{graph_name}")',
        f'inputs = tokenizer({card_of(source).tokenizer_arguments}, return_tensors="np")',
        f"{', '.join(outputs)}{comma} = session.run({list(outputs)}, dict(inputs))",
    ]


def with_electra(source: ExportSource, *, engine: str) -> list[str]:
    """How we use it; empty if there is no method for it."""
    use = card_of(source).use
    option = "" if engine == "torch" else f', engine="{engine}"'
    return ["import electra", "", *FOLDER, f"model = electra.load(folder{option})", use] if use else []


CARD = "README.md"

NO_HEAD = (
    "transformers has no head that computes the same as this one: {obstacle}. `{loader}` loads the "
    f"encoder; the head is in `{HEAD_WEIGHTS}`, by the names that `electra` gives it."
)
NAMES_ARE_TEXT = (
    'The names of special tokens are plain text to the tokenizer, as they were in training: "[SEP]" in a '
    "text separates nothing. `tokenizer(text, split_special_tokens=False)` reads them as tokens."
)
NAMES_ARE_TOKENS = (
    'The tokenizer reads the names of special tokens as tokens, so that "[MASK]" shows a gap. With '
    "`tokenizer(text, split_special_tokens=True)` they are plain text, as they were in training."
)


@dataclass(frozen=True, kw_only=True)
class OwnerFacts:
    """What only the owner of a model can say."""

    name: str
    license: str = ""
    language: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """How an export is loaded."""

    library: str
    """By which it is known to the Hugging Face hub."""
    ways: Mapping[str, Sequence[str]]
    """Name of a library -> lines of Python; without lines it is left out."""
    obstacle: str = ""
    """Why transformers loads the encoder only, of a model that has a head."""
    encoder_class: str = "ElectraModel"
    """What it loads it with."""
    what: str = ""
    """What the folder holds, if it is no model but a part of one."""


def for_transformers(source: ExportSource, folder: Path, architecture: str) -> Loaded:
    """An export for transformers."""
    vectors = card_of(source).gives_vectors
    return Loaded(
        library="sentence-transformers" if vectors else "transformers",
        ways={
            "sentence-transformers" if vectors else "transformers": with_transformers(source, architecture),
            "electra": with_electra(source, engine="torch"),
        },
        obstacle=(obstacle_of(source) or "") if (folder / HEAD_WEIGHTS).is_file() else "",
        encoder_class=auto_class(architecture) if architecture.startswith(OWN_CLASSES) else architecture,
    )


def obstacle_of(source: ExportSource) -> str | None:
    """Why transformers has no class for the head of a fine-tuned model."""
    return build_family(source.about, where=source.path).transformers_obstacle(source.config)


def for_onnx(source: ExportSource, outputs: Sequence[str], graph_name: str) -> Loaded:
    """An export for onnxruntime."""
    return Loaded(
        library="onnx",
        ways={
            "onnxruntime": with_onnxruntime(source, outputs, graph_name),
            "electra": with_electra(source, engine="onnx"),
        },
    )


def for_word2vec(words: Sequence[str], size: int) -> Loaded:
    """Word vectors for gensim."""
    return Loaded(
        library="gensim",
        ways={
            "gensim": [
                "from gensim.models import KeyedVectors",
                "",
                *FOLDER,
                f'vectors = KeyedVectors.load_word2vec_format(f"{{folder}}/{VECTORS_FILE}")',
                f"nearest = vectors.most_similar({words[-1]!r})",
            ]
        },
        what=f"Word vectors: {size} numbers for each of {len(words):,} tokens, in word2vec's text format. "
        "They are the input embeddings of a text encoder.",
    )


def write_card(
    folder: Path, source: ExportSource, loaded: Loaded, given: OwnerFacts, sections: Sections
) -> None:
    """Write README.md."""
    text = "\n".join(card_lines(source, loaded, given, sections)) + "\n"
    files.write_file(folder / CARD, lambda file: file.write(text.encode()))


def card_lines(source: ExportSource, loaded: Loaded, given: OwnerFacts, sections: Sections) -> Iterator[str]:
    """The card, line by line."""
    yield from ("---", front_matter(source, loaded, given).rstrip(), "---", "")
    yield from (f"# {plain(given.name)}", "", loaded.what or card_of(source).what, "")
    if (
        not loaded.what
        and source.part is None
        and (labels := build_family(source.about, where=source.path).labels())
    ):
        yield from (f"Labels: {', '.join(map(plain, labels))}", "")
    if loaded.obstacle:
        yield from (NO_HEAD.format(obstacle=loaded.obstacle, loader=loaded.encoder_class), "")
    for library, lines in loaded.ways.items():
        if lines:
            yield from (f"## With {library}", "", "```python", *lines, "```", "")
    if not loaded.what:
        yield from (NAMES_ARE_TOKENS if source.part == "generator" else NAMES_ARE_TEXT, "")
    for title, facts in sections.items():
        yield from (f"## {plain(title)}", "", "| | |", "|---|---|")
        yield from (f"| {plain(name)} | {plain(value)} |" for name, value in facts.items())
        yield ""
    yield "Made with electra."


def front_matter(source: ExportSource, loaded: Loaded, given: OwnerFacts) -> str:
    """What the hub reads; keys without a value are left out."""
    values: dict[str, Any] = {
        "license": one_line(given.license),
        "language": list(map(one_line, given.language)),
        "library_name": loaded.library,
        "pipeline_tag": None if loaded.what else card_of(source).hub_task or None,
        "tags": ["electra"],
    }
    present = {key: value for key, value in values.items() if value}
    text: str = yaml.safe_dump(present, sort_keys=False, allow_unicode=True)
    return text


def one_line(text: str) -> str:
    """Text without ends of lines, and without what changes how a line is shown."""
    return " ".join(_CONTROL.sub(" ", text).split())


def plain(text: str) -> str:
    """Text that is shown as it is in Markdown, on one line or in a cell of a table, whoever wrote it."""
    # The signs of HTML, then those of Markdown that mean something within a line.
    line = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKS.sub(r"\\\g<0>", line)


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Also those that turn the direction of writing, and with it what a line seems to say."""
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
"""An underscore between letters, as in mlm_loss, means nothing."""
