"""Run folders that look like real ones: noisy curves of the right shape, held-out points, events, samples."""

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from electra import files

VOID = {"meta", "input"}

CONFIG = """\
objective: electra
seed: {seed}
seq_length: 128
model:
  size: small
masking:
  mask_prob: 0.15
train:
  steps: {steps}
  batch_size: 32
  learning_rate: {learning_rate}
optimizer:
  clip_norm: 1.0
"""
TEXTS = """\
[CLS] the chef cooked the meal for all of the guests at the old ##est table [SEP] [PAD]
[CLS] it was built in 1892 by the railway company to carry coal from the northern valley [SEP]"""
SWAPS = {
    "cooked": "ate",
    "guests": "people",
    "table": "house",
    "1892": "1923",
    "coal": "water",
    "valley": "line",
}


def metrics_at(step, rng, *, noise, skill):
    progress = skill * (1 - np.exp(-step / 1800))
    wobble = rng.normal(0, noise, 8)
    mlm_loss = 10.4 * np.exp(-step / 150) + 6.9 - 3.3 * progress + wobble[0]
    accuracy = float(np.clip(0.05 + 0.43 * progress + 0.03 * wobble[1], 0, 1))
    replaced = 0.15 * (1 - 0.8 * accuracy) + 0.004 * wobble[2]
    auc = 0.5 + 0.42 * skill * max(0.0, 1 - np.exp(-(step - 500) / 2500)) + 0.01 * wobble[3]
    recall = float(np.clip(1.45 * (auc - 0.52) + 0.02 * wobble[4], 0, 1))
    said = recall > 0.01
    return {
        "mlm_loss": mlm_loss,
        "mlm_accuracy": accuracy,
        "sampled_accuracy": 0.8 * accuracy,
        "replaced_fraction": replaced,
        "generator_entropy": mlm_loss * 0.9,
        "discriminator_loss": 0.36 - 0.3 * (auc - 0.5) + 0.02 * wobble[5],
        "discriminator_accuracy": 0.88 + 0.1 * (auc - 0.5),
        "discriminator_precision": float(np.clip(0.55 + 0.6 * (auc - 0.5) + 0.05 * wobble[6], 0, 1))
        if said
        else None,
        "discriminator_recall": recall,
        "discriminator_auc": auc,
    }


def record(kind, step, rng, *, noise, learning_rate, steps, speed, skill):
    metrics = metrics_at(step, rng, noise=noise, skill=skill)
    position = {"kind": kind, "step": step, "tokens": step * 4096, "flops": step * 4096 * 7e7}
    position["seconds"] = step * 4096 / speed
    if kind == "train":
        position["learning_rate"] = learning_rate * min(1, step / 500) * (1 - step / steps)
        position["gradient_norm"] = float(np.exp(rng.normal(0.4, 0.4)) * (4 if step < 200 else 1))
        position["tokens_per_second"] = speed * (1 + rng.normal(0, 0.03))
        position["mfu"] = 0.52 * (1 + rng.normal(0, 0.02))
        position["loss"] = metrics["mlm_loss"] + 50 * metrics["discriminator_loss"]
    return {**position, "metrics": metrics}


def only(line, keys):
    kept = {key: value for key, value in line.items() if key in keys}
    return {**kept, "metrics": {key: value for key, value in line["metrics"].items() if key in keys}}


def sample_row(tokens, rng, *, skill):
    corrupted = [SWAPS.get(token, token) for token in tokens]
    replaced = [int(new != old) for new, old in zip(corrupted, tokens, strict=True)]
    suspicion = [float(np.clip(rng.normal(0.1 + 0.75 * skill * r, 0.16), 0, 1)) for r in replaced]
    masked = ["[MASK]" if r else token for r, token in zip(replaced, tokens, strict=True)]
    row = {"original": tokens, "masked": masked, "corrupted": corrupted}
    return {**row, "replaced": replaced, "suspicion": suspicion}


EVENTS = [
    ("saved", 0.25, ""),
    ("skipped_update", 0.31, "the loss is not finite: update skipped on all processes"),
    ("rolled_back", 0.52, "3 updates skipped in a row: back to step 1000"),
    ("signal", 0.7, "SIGTERM: saved and stopped"),
    ("resumed", 0.7, "from checkpoints/step-00002800"),
]


def write_run(
    folder: Path,
    *,
    steps=4000,
    seed=0,
    learning_rate=5e-4,
    speed=3100.0,
    noise=0.25,
    skill=1.0,
    events=EVENTS,
    keep=None,
) -> Path:
    """A finished run of `steps` steps, logged every tenth; of what is measured only the keys in `keep`."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    shape = {"learning_rate": learning_rate, "steps": steps, "speed": speed, "skill": skill}
    lines = [record("train", step, rng, noise=noise, **shape) for step in range(10, steps + 1, 10)]
    lines += [record("valid", step, rng, noise=0.03, **shape) for step in range(500, steps + 1, 500)]
    if keep is not None:
        lines = [only(line, {"kind", "metrics", *keep}) for line in lines]
    for name, share, message in events:
        step = int(share * steps)
        lines.append({"kind": "event", "step": step, "seconds": step * 4096 / speed, "event": name})
        lines[-1]["message"] = message
    lines.sort(key=lambda line: line["step"])
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    (folder / "config.yaml").write_text(
        CONFIG.format(seed=seed, steps=steps, learning_rate=learning_rate), encoding="utf-8"
    )
    environment = {"torch": "2.13.0", "cpu": {"model": "a CPU", "cores": 2}, "gemm_peak": 4.2e11}
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    (folder / "final").mkdir()
    files.write_manifest(folder / "final", {"kind": "model"})
    samples = [
        {
            "step": step,
            "rows": [
                sample_row(tokens, rng, skill=step / steps) for tokens in map(str.split, TEXTS.splitlines())
            ],
        }
        for step in range(1000, steps + 1, 1000)
    ]
    text = "".join(json.dumps(line) + "\n" for line in samples)
    (folder / "samples.jsonl").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def make_run(tmp_path):
    """`make_run("name", ...)`: a run folder below the test's own."""
    return lambda name="run", **options: write_run(tmp_path / name, **options)


class Balanced(HTMLParser):
    """Fails on tags that do not close in order; collects what is read and what is linked."""

    def __init__(self, html):
        super().__init__()
        self.open, self.words, self.ids, self.links = [], [], [], []
        self.feed(html)
        assert not self.open, f"unclosed {self.open}"

    def handle_starttag(self, tag, attributes):
        self.ids += [value for name, value in attributes if name == "id"]
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def read_html():
    """Parse a page, which must close what it opens."""
    return Balanced
