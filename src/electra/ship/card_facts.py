"""A model to export -> what is known of it, for its card: of training, data, and how good it is.

Facts are read from where training left them: the manifest of a run, its metrics and environment, the data
set, scores.json. What is not found there is left out. Of folders only the last name is told: the rest is
nobody's business but the owner's.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from electra import files
from electra.model.encoder import Encoder
from electra.progress import clock
from electra.ship import loading
from electra.ship.exporting import Source
from electra.tasks import encoders, starts
from electra.tasks.outcomes import SCORES
from electra.tasks.results import FINAL
from electra.tasks.summary import NOT_FRACTIONS, shown
from electra.text import tokenizer as tokenizers
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


def gather(source: Source) -> Sections:
    """All that is known of a model."""
    sections = {MODEL: model_facts(source)}
    if told := known_json(source.folder / files.MANIFEST).get(ABOUT):
        sections |= {title: facts for title, facts in told.items() if title not in _ANEW}
    elif source.about:
        sections |= fine_tuning(source) | pretraining(run_before(source))
    else:
        sections |= pretraining(source.folder)
    if source.part == "encoder":
        # They are those of the head.
        sections.pop(SCORED, None)
    return {title: facts for title, facts in sections.items() if facts}


def model_facts(source: Source) -> Facts:
    """What it is."""
    config = source.config
    words = tokenizers.load(source.folder)
    with torch.device("meta"):
        size = sum(weight.numel() for weight in Encoder(config).parameters())
    described = words.describe()
    cleaning = ", ".join(f"{key} {described[key]}" for key in ("case", "accents", "cjk"))
    return {
        "Encoder": f"{config.num_hidden_layers} layers of {config.hidden_size}, {config.num_attention_heads} "
        f"heads, embeddings of {config.embedding_size}, {config.position_embedding_type} positions",
        "Parameters": f"{size:,} without a head",
        "Reads": f"{source.max_length} tokens at once",
        "Tokenizer": f"{described['algorithm']} of {words.vocab_size:,} tokens; {cleaning}",
        "Tokenizer hash": words.content_hash,
    }


def pretraining(folder: Path | None) -> Sections:
    """Of a network that is part of a run, or was imported."""
    manifest = {} if folder is None else loading.run_facts(folder)
    if folder is None or not manifest:
        return {}
    config, step = manifest.get("config", {}), manifest.get("step")
    place = folder.parent.parent if folder.parent.name == FINAL else None
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
        "Tokens of a row": manifest.get(loading.SEQ_LENGTH),
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
            if isinstance(value, int | float)
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
    """Of what a run has read; only the hash, if the folder is gone or is another one by now."""
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


def fine_tuning(source: Source) -> Sections:
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
        "Examples": train and f"{train['examples']:,}",
        "Epochs": train and f"{train['epochs']:g}",
        "Optimizer": train
        and f"learning rate {train['learning_rate']:g}, layer decay {train['layer_decay']:g}, "
        f"{train['batch_size']} examples a step, {train['schedule']} schedule",
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
    return "random weights" if start == encoders.RANDOM else start and Path(start).name


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


def run_before(source: Source) -> Path | None:
    """The network that a fine-tuning began with, if it is still there and still the same."""
    start, seed = source.about.get("start"), source.about.get("seed")
    facts = known_json(source.folder.parent / f"seed-{seed}" / SCORES).get("facts", {})
    sha256 = facts.get("config", {}).get("model_sha256")
    if not start or not sha256 or not Path(start).is_dir():
        return None
    found = starts.find_start(start, like="", dropout=None)
    return encoders.model_folder(start) if found.sha256 == sha256 else None


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
