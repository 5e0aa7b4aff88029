"""A model, tasks and settings -> what several fine-tunings have in common, and where each keeps what it has.

    OUT/seed-0/             metrics, checkpoints while it is trained, and of a finished one:
    OUT/seed-0/model/TASK   the model
    OUT/seed-0/scores.json  what it gave; written last

How a seed is trained is not known here: that is told by a function, from the command.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.tasks import catalogue, ensemble, results
from electra.tasks.batches import TaskTurns, TrainBatches
from electra.tasks.catalogue import TaskSource
from electra.tasks.family import Score
from electra.tasks.inputs import INPUT, MAIN_SCORE, input_columns
from electra.tasks.layout import FineTuned, load_model, save_model
from electra.tasks.material import Material
from electra.tasks.model import TaskModel
from electra.tasks.outcomes import SCORES, Judgements, Outcome, judge, read_outcome, write_outcome
from electra.tasks.problem import HeldOut
from electra.tasks.starts import Start
from electra.tasks.task import TRAIN, Task

_SHOWN = ("learning_rate", "layer_decay", "warmup_fraction", "batch_size", "weight_decay", "schedule")


@dataclass(frozen=True, kw_only=True)
class Study:
    """Several fine-tunings of one model, which differ in their seeds."""

    out: Path
    source: TaskSource
    start: Start
    material: Material
    dataset_sha256: str
    seeds: Sequence[int]
    config: Mapping[str, Any]
    """All settings, as JSON can hold them."""
    choices: Mapping[str, Any]
    """What the machine decided: device and precision."""
    precisely: Callable[[], AbstractContextManager[Any]]
    """The precision in which models are run."""

    @property
    def tasks(self) -> Sequence[Task]:
        """In the order in which they were named."""
        return self.material.tasks

    def folder(self, seed: int) -> Path:
        """Where a seed keeps what it has."""
        return self.out / f"seed-{seed}"

    def task_folder(self, task: Task) -> Path:
        """Where the results of a task are: with one task, in the folder of all."""
        return self.out if len(self.tasks) == 1 else self.out / task.name

    def facts(self, seed: int) -> dict[str, Any]:
        """What one fine-tuning is made of."""
        return {
            "config": {**self.config, "seed": seed, "model_sha256": self.start.sha256},
            "dataset_sha256": self.dataset_sha256,
            "tokenizer_sha256": self.start.tokenizer.content_hash,
            "choices": dict(self.choices),
        }

    def model(self, seed: int) -> TaskModel:
        """The model of a seed before it is trained."""
        return self.start.model({task.name: task.family for task in self.tasks}, seed=seed)

    def turns(self, seed: int) -> TaskTurns:
        """The batches of a seed."""
        size = self.config["train"]["batch_size"]
        batches = {
            name: TrainBatches(rows[TRAIN], task=name, seed=seed, batch_size=size)
            for name, rows in self.material.rows.items()
        }
        return TaskTurns(batches, seed=seed)

    def held_out(self) -> list[HeldOut]:
        """What tells how it goes while a model is trained: the first split of each task."""
        return [
            HeldOut(
                task=task.name,
                split=split,
                examples=task.examples(split),
                rows=self.material.rows[task.name][split],
                main_score=task.main_score,
            )
            for task in self.tasks
            for split in task.scored_splits[:1]
        ]

    def judge(self, model: TaskModel) -> Judgements:
        """What a model says of every split that is scored, of every task."""
        pad_id, rows = self.start.tokenizer.pad_id, self.material.rows
        with self.precisely():
            return {
                task.name: {
                    split: judge(model, task.name, task, split, rows[task.name][split], pad_id=pad_id)
                    for split in task.scored_splits
                }
                for task in self.tasks
            }

    def is_finished(self, seed: int) -> bool:
        """Whether a seed has given all that it gives."""
        return (self.folder(seed) / SCORES).is_file()

    def finish(self, seed: int, model: TaskModel, outcome: Outcome) -> None:
        """Write what a seed gave."""
        for task in self.tasks:
            save_model(self._tuned(model, task, outcome), self._model_folder(seed, task))
        write_outcome(self.folder(seed), outcome, self.tasks)

    def read(self, seed: int) -> Outcome:
        """What a finished seed gave."""
        return read_outcome(self.folder(seed))

    def conclude(self, outcomes: Sequence[Outcome], notes: Sequence[str]) -> list[dict[str, Any]]:
        """Write scores, predictions and the model that stands for all seeds; scores.json of each task."""
        chosen = results.median_outcome(self.tasks, outcomes)
        contents = []
        for task in self.tasks:
            is_together = self.config["ensemble"] == "on"
            content = results.scores_content(
                task,
                outcomes,
                chosen=chosen,
                model=self.start.description(),
                train=self._train_facts(task, outcomes),
                together=self._together(task) if is_together else {},
                notes=notes,
                baseline=results.read_baseline(self.config["baseline"], task, alone=len(self.tasks) == 1),
                is_partial=self.config["limit_eval"] is not None,
            )
            folder = self.task_folder(task)
            results.copy_final(self._model_folder(chosen.seed, task), folder)
            results.write_scores(folder, task, content, chosen=chosen)
            contents.append(content)
        return contents

    def _model_folder(self, seed: int, task: Task) -> Path:
        return self.folder(seed) / "model" / task.name

    def _tuned(self, model: TaskModel, task: Task, outcome: Outcome) -> FineTuned:
        """The model for one of its tasks, and facts for whoever finds it."""
        named = catalogue.task_names(self.source)[self.tasks.index(task)]
        return FineTuned(
            model=model,
            task=task.name,
            tokenizer=self.start.tokenizer,
            max_length=self.material.max_lengths[task.name],
            facts={
                MAIN_SCORE: task.main_score,
                "score": results.main_value(task, outcome),
                "split": task.scored_splits[0],
                "seed": outcome.seed,
                "start": self.start.path,
                INPUT: input_columns(task, catalogue.own_columns(named, self.source)),
            },
        )

    def _together(self, task: Task) -> dict[str, Mapping[str, Score]]:
        """How good all seeds' models are as one, by split."""
        models = [
            load_model(self._model_folder(seed, task)).model.to(self.choices["device"]) for seed in self.seeds
        ]
        pad_id, rows = self.start.tokenizer.pad_id, self.material.rows[task.name]
        with self.precisely():
            return {
                split: ensemble.together(models, task, split, rows[split], pad_id=pad_id)
                for split in task.scored_splits
            }

    def _train_facts(self, task: Task, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        return {
            "examples": len(task.examples(TRAIN)),
            **{key: outcomes[0].train[key] for key in ("epochs", "steps")},
            "seconds": sum(outcome.train["seconds"] for outcome in outcomes),
            **{key: self.config["train"][key] for key in _SHOWN},
            "max_length": self.material.max_lengths[task.name],
            **self.choices,
        }
