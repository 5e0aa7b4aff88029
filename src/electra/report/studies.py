"""A fine-tuning folder -> what is wrong or fine: seeds that are missing or failed, scores that tell "
"nothing."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra import files
from electra.errors import InputError
from electra.report.findings import Finding, command, free_name, sorted_findings
from electra.report.run_files import CONFIG, RunFiles
from electra.report.runs import RunRecord, number, read_run
from electra.show import listed

SCORES = "scores.json"
LARGE_SPREAD = 0.03
"""Standard deviation over seeds. Of tasks that were learned the largest in docs/log.md is 0.012 (SST-2,
2026-11-16); 0.04 and 0.06 were seen where nothing was learned (CoLA)."""
FALLEN = 0.01
"""How far a held-out score must fall behind its best to count: about what seeds differ by."""
LATE = 0.8

Content = Mapping[str, Any]
"""What scores.json says."""
Findings = Iterator[Finding]


def is_study(config: Mapping[str, Any]) -> bool:
    """Whether the config of a folder is that of a fine-tuning."""
    return "task" in config and "model" in config


def diagnose_study(folder: Path) -> list[Finding]:
    """All that is to be said of a fine-tuning, the worst first."""
    study = read_run(folder, name=folder.name)
    scores, unreadable = {}, []
    for path in _score_files(folder):
        try:
            scores[path.parent] = read_scores(path.parent)
        except InputError as error:
            says = f"{error}. The same command writes it again"
            cure = f"rm {shlex.quote(str(path))} && {_Again(study).resume()}"
            unreadable.append(Finding(key="damaged_file", severity="wrong", says=says, cure=cure))
    findings = [*unreadable, *_seeds(study, has_scores=bool(scores or unreadable)), *_damage(study, scores)]
    for place, content in scores.items():
        name = place.name if place != folder else ""
        findings += diagnose_scores(content, again=_Again(study), name=name)
    return sorted_findings(findings)


def diagnose_task(folder: Path, content: Content) -> list[Finding]:
    """The same for the page of one task: its folder is that of the study, or one below it."""
    if (folder / CONFIG).is_file():
        return diagnose_study(folder)
    study = read_run(folder.parent, name="") if (folder.parent / CONFIG).is_file() else None
    again = _Again(study or RunRecord(name="", folder=folder, **_NOTHING))
    return sorted_findings(diagnose_scores(content, again=again))


_NOTHING: dict[str, Any] = {
    **{key: {} for key in ("config", "environment")},
    **{key: [] for key in ("train", "valid", "events", "samples", "notes")},
}


def _score_files(folder: Path) -> list[Path]:
    """Of one task in the folder itself, of several in a folder each."""
    places = [folder / SCORES, *sorted(folder.glob(f"*/{SCORES}"))]
    return [path for path in places if path.is_file() and not path.parent.name.startswith("seed-")]


def read_scores(folder: Path) -> Content:
    """The content of scores.json."""
    path = folder / SCORES
    content = files.read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("splits"), dict):
        raise InputError(f"{path} holds no scores: it has no `splits`")
    return content


class _Again:
    """Commands that continue a fine-tuning, or begin another one like it."""

    def __init__(self, study: RunRecord) -> None:
        self.study = study

    def resume(self) -> str:
        return command("finetune", {"config": self.study.folder / CONFIG, **self._out()})

    def __call__(self, **changes: Any) -> str:
        keys = {key.replace("__", "."): value for key, value in changes.items()}
        out = {"out": free_name(self.study.folder)}
        return command("finetune", {"config": self.study.folder / CONFIG, **out, **keys})

    def _out(self) -> dict[str, Any]:
        named = Path(str(self.study.config.get("out") or "")).resolve()
        return {} if named == self.study.folder.resolve() else {"out": self.study.folder}


def _seeds(study: RunRecord, *, has_scores: bool) -> Findings:
    """Which seeds are done, and which have come to grief."""
    again, folder = _Again(study), study.folder
    count, first = (int(number(study.config.get(key)) or 0) for key in ("seeds", "seed"))
    asked = [str(seed) for seed in range(first, first + count)]
    places = {path.name.removeprefix("seed-"): path for path in sorted(folder.glob("seed-*"))}
    done = [seed for seed, path in places.items() if (path / SCORES).is_file()]
    if RunFiles(folder).is_busy:
        says = f"it is being trained now: {len(done)} of {count} seeds are done"
        yield Finding(key="running", severity="note", says=says)
    elif has_scores:
        says = f"finished: {len(done)} {'seed is' if len(done) == 1 else 'seeds are'} done"
        yield Finding(key="unfinished", severity="fine", says=says)
    else:
        missing = [seed for seed in asked if seed not in done] or asked
        says = (
            f"not finished: {len(done)} of {count} seeds are done, missing: {listed(missing)}. There are no "
            f"scores "
            f"({SCORES}) yet; the same command goes on where it stopped"
        )
        if len(done) > 1:
            says += f", and --seeds {len(done)} ends it with those that are done"
        yield Finding(key="unfinished", severity="wrong", says=says, cure=again.resume())
    for seed, path in places.items():
        yield from _one_seed(seed, path, again, learning_rate=study.config.get("train.learning_rate"))


def _one_seed(seed: str, path: Path, again: _Again, *, learning_rate: object) -> Findings:
    try:
        run = read_run(path, name=path.name)
    except InputError:
        return
    rate = {"train__learning_rate": (number(learning_rate) or 1e-4) / 2}
    said = {event.event: event.message for event in run.events}
    if (run.train and "loss" not in run.train[-1]) or "diverged" in said:
        says = f"seed {seed} has diverged: its loss is no number. Half the learning rate is the usual cure"
        yield Finding(key="diverged", severity="wrong", says=says, cure=again(**rate))
    elif "collapse" in said:
        # The run's own words have the cures, too.
        yield Finding(
            key="not_learned", severity="wrong", says=f"seed {seed}: {said['collapse']}", cure=again(**rate)
        )
    elif "rolled_back" in said:
        says = f"seed {seed} went back to a checkpoint: {said['rolled_back']}"
        yield Finding(key="rolled_back", severity="watch", says=says, cure=again(**rate))


def _damage(study: RunRecord, scores: Mapping[Path, Content]) -> Findings:
    for folder in scores:
        found = RunFiles(folder)
        if not found.has_model:
            says = f"{folder} has scores but no model (final/): the same command writes it again"
            yield Finding(key="damaged_model", severity="wrong", says=says, cure=_Again(study).resume())
        elif found.model_damage:
            says = (
                f"the model is damaged: {listed(found.model_damage, most=2)}. The same command writes it "
                f"again"
            )
            yield Finding(key="damaged_model", severity="wrong", says=says, cure=_Again(study).resume())
        else:
            says = "all files of the model are as they were written"
            yield Finding(key="damaged_model", severity="fine", says=says)
    for note in study.notes:
        if "not readable" in note:
            yield Finding(key="damaged_file", severity="watch", says=note)


def diagnose_scores(content: Content, *, again: _Again, name: str = "") -> list[Finding]:
    """What the scores of one task say; `name`: the task's, if there are several."""
    task = f"{name}: " if name else ""
    split = str(content.get("main_split") or next(iter(content["splits"]), ""))
    entry = content["splits"].get(split) or {}
    main = str(content.get("main_score"))
    summary = (entry.get("scores") or {}).get(main) or {}
    values = [number(value) for value in summary.get("values") or []]
    scored = _Scored(
        task=task,
        split=split,
        main=main,
        values=values,
        median=number(summary.get("median")),
        confusion=entry.get("confusion") or {},
    )
    return [
        *_chance(scored, again),
        *_spread(scored, content, again),
        *_random_weights(scored, content, again),
        *_by_heart(scored, content, again),
    ]


class _Scored:
    """The main score of a task on its first split."""

    def __init__(
        self,
        *,
        task: str,
        split: str,
        main: str,
        values: Sequence[float | None],
        median: float | None,
        confusion: Content,
    ) -> None:
        self.task, self.split, self.main = task, split, main
        self.values, self.median = values, median
        self.labels = [str(label) for label in confusion.get("labels") or []]
        rows = confusion.get("counts") or []
        self.counts = [[int(number(cell) or 0) for cell in row] for row in rows]
        if any(len(row) != len(self.labels) for row in self.counts) or len(self.counts) != len(self.labels):
            self.counts = []

    @property
    def says(self) -> str:
        shown = "undefined" if self.median is None else f"{100 * self.median:.1f}"
        return f"{self.task}{self.main} on {self.split} is {shown}"


def _chance(scored: _Scored, again: _Again) -> Findings:
    """Whether the model beats who always gives the same answer."""
    cure = again(train__epochs=10)
    if scored.median is None and scored.values:
        says = f"{scored.says} for half of the seeds or more: the task was not learned"
        yield Finding(key="not_above_chance", severity="wrong", says=says, cure=cure)
        return
    if scored.median is None:
        return
    total = sum(map(sum, scored.counts))
    said = [label for place, label in enumerate(scored.labels) if any(row[place] for row in scored.counts)]
    if total and len(said) == 1 and len(scored.labels) > 1:
        says = f"{scored.says}: all {total:,} predictions are {said[0]!r}. The task was not learned"
        yield Finding(key="not_above_chance", severity="wrong", says=says, cure=cure)
        return
    if scored.main == "accuracy" and total:
        share = max(map(sum, scored.counts)) / total
        most = scored.labels[max(range(len(scored.counts)), key=lambda place: sum(scored.counts[place]))]
        # Two standard errors of a share of so many examples: less is no difference.
        bound = share + 2 * math.sqrt(share * (1 - share) / total)
        says = f"{scored.says}, always saying {most!r} gives {100 * share:.1f}"
        if scored.median <= bound:
            says += f": not above it by more than chance (that takes {100 * bound:.1f})"
            yield Finding(key="not_above_chance", severity="wrong", says=says, cure=cure)
            return
        yield Finding(key="not_above_chance", severity="fine", says=says)
    elif scored.median <= 0:
        says = f"{scored.says}: 0 is what a guess has"
        yield Finding(key="not_above_chance", severity="wrong", says=says, cure=cure)
    else:
        yield Finding(key="not_above_chance", severity="fine", says=scored.says)


def _spread(scored: _Scored, content: Content, again: _Again) -> Findings:
    """Whether seeds agree."""
    known = [value for value in scored.values if value is not None]
    seeds = [str(seed) for seed in content.get("seeds") or []]
    if len(known) < len(scored.values) and known:
        failed = [seed for seed, value in zip(seeds, scored.values, strict=False) if value is None]
        says = f"{scored.task}{scored.main} is undefined for seed {listed(failed)}: it learned nothing"
        yield Finding(
            key="failed_seeds", severity="watch", says=says, cure=again(seeds=len(scored.values) + 2)
        )
    if len(known) < 2:
        return
    mean = sum(known) / len(known)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1))
    says = (
        f"{scored.task}{scored.main} differs by ±{100 * deviation:.1f} between {len(known)} seeds "
        f"({', '.join(f'{100 * value:.1f}' for value in known)}); healthy is below {100 * LARGE_SPREAD:g}"
    )
    if deviation > LARGE_SPREAD:
        says += (
            ". More seeds tell what the score is; a longer warm-up or a lower learning rate makes them agree"
        )
        yield Finding(
            key="seeds_differ", severity="watch", says=says, cure=again(seeds=max(5, 2 * len(known)))
        )
    else:
        yield Finding(key="seeds_differ", severity="fine", says=says)


def _random_weights(scored: _Scored, content: Content, again: _Again) -> Findings:
    """Whether pre-training has paid, where the scores of random weights are known."""
    given: Content = content.get("baseline") or {}
    of_split = (given.get("splits") or given).get(scored.split) or {}
    other = number(((of_split.get("scores") or {}).get(scored.main) or {}).get("median"))
    if other is None or scored.median is None:
        return
    says = f"{scored.says}, from random weights {100 * other:.1f}"
    if scored.median <= other:
        says += (
            ": pre-training has not paid here. For an encoder that has read little, mean pooling and no "
            "layer "
            "decay help"
        )
        cure = again(pooling="mean", train__layer_decay=1)
        yield Finding(key="not_above_random_weights", severity="watch", says=says, cure=cure)
    else:
        yield Finding(key="not_above_random_weights", severity="fine", says=says)


def _by_heart(scored: _Scored, content: Content, again: _Again) -> Findings:
    """Whether the held-out score falls while the training loss does."""
    by_seed: dict[object, list[tuple[float, float, float]]] = {}
    for point in content.get("history") or []:
        epoch, loss = number(point.get("epoch")), number(point.get("train_loss"))
        score = number((point.get("dev") or {}).get(scored.main))
        if epoch is not None and loss is not None and score is not None:
            by_seed.setdefault(point.get("seed"), []).append((epoch, score, loss))
    curves = [curve for curve in by_seed.values() if len(curve) >= 3]
    if not curves:
        return
    fallen = []
    for curve in curves:
        (best_epoch, best, best_loss), (epoch, end, loss) = max(curve, key=lambda point: point[1]), curve[-1]
        if best - end > FALLEN and best_epoch <= LATE * epoch and loss < best_loss:
            fallen.append((best_epoch, best, end))
    if 2 * len(fallen) > len(curves):
        epoch, best, end = sorted(fallen)[len(fallen) // 2]
        says = (
            f"{scored.task}{scored.main} on {scored.split} fell from {100 * best:.1f} after {epoch:g} "
            f"epochs to "
            f"{100 * end:.1f}, while the training loss went on falling: it learns its examples by heart"
        )
        cure = again(train__epochs=max(1, round(epoch)))
        yield Finding(key="learned_by_heart", severity="watch", says=says, cure=cure)
    else:
        says = f"{scored.task}the held-out score did not fall while the training loss did"
        yield Finding(key="learned_by_heart", severity="fine", says=says)
