"""A function from settings to a score -> a search for the settings with the best one, every trial shown.

The sampler is seeded and sees the trials in their order, so the same search finds the same; one that was
interrupted is continued by telling it the trials that are known.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from electra import files
from electra.errors import InputError, import_extra
from electra.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A search over learning rate and epochs, by the score of the first held-out split."""

    trials: int = 0
    """Settings to try with one seed each, before the best is run with all seeds; 0 for no search."""
    span: float = 4.0
    """Search learning rates from the given one divided by this to the given one times this."""
    epochs: list[float] = field(default_factory=list)
    """Numbers of epochs to try. Default: half, once and twice the given number."""

    def __post_init__(self) -> None:
        if self.trials < 0:
            raise InputError(f"sweep.trials is {self.trials}, expected 0 (no search) or more")
        if not self.span > 1:
            raise InputError(f"sweep.span is {self.span}, expected above 1")
        if not all(epochs > 0 for epochs in self.epochs):
            raise InputError(f"sweep.epochs is {self.epochs}, expected numbers above 0")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was tried, and what it gave."""

    number: int
    learning_rate: float
    epochs: float
    score: float | None
    """None if it is undefined."""


def search(
    config: SweepConfig,
    run: Callable[[int, float, float], float | None],
    *,
    learning_rate: float,
    epochs: float,
    seed: int,
    known: Sequence[Trial] = (),
) -> Iterator[Trial]:
    """Trials one after the other; `run(number, learning_rate, epochs)` gives the score of those not known."""
    optuna = import_extra("optuna", extra="sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    choices = config.epochs or [epochs / 2, epochs, epochs * 2]
    for number in range(config.trials):
        asked = study.ask()
        rate = asked.suggest_float(
            "learning_rate", learning_rate / config.span, learning_rate * config.span, log=True
        )
        chosen = asked.suggest_categorical("epochs", choices)
        if number < len(known) and (known[number].learning_rate, known[number].epochs) == (rate, chosen):
            trial = known[number]
        else:
            score = run(number, rate, chosen)
            trial = Trial(number=number, learning_rate=rate, epochs=chosen, score=score)
        if trial.score is None:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(asked, trial.score)
        yield trial


def best(trials: Sequence[Trial]) -> Trial:
    """The trial with the highest score; of equal ones the first."""
    scored = [(trial.score, trial) for trial in trials if trial.score is not None]
    if not scored:
        raise InputError("no trial of the sweep has a score: see why with one run, without --sweep.trials")
    return max(scored, key=lambda pair: pair[0])[1]


def choose_trial(
    config: SweepConfig,
    run: Callable[[int, float, float], float | None],
    path: Path,
    task: Task,
    *,
    learning_rate: float,
    epochs: float,
    seed: int,
) -> tuple[Trial, str]:
    """The best trial, and what must be said of scores with it; every trial is written to `path` and shown."""
    split = task.scored_splits[0]
    trials = search(
        config, run, learning_rate=learning_rate, epochs=epochs, seed=seed, known=read_trials(path)
    )
    done: list[Trial] = []
    for trial in trials:
        done.append(trial)
        files.write_json(path, as_json(done, split=split, main_score=task.main_score))
        value = "undefined" if trial.score is None else f"{100 * trial.score:.2f}"
        print(
            f"  trial {trial.number}: learning rate {trial.learning_rate:.3g}, epochs {trial.epochs:g}: "
            f"{task.main_score} {value} on {split}",
            flush=True,
        )
    return best(done), note(done, split=split)


def as_json(trials: Sequence[Trial], *, split: str, main_score: str) -> dict[str, Any]:
    """What sweep.json says."""
    known = [asdict(trial) for trial in trials]
    return {"trials": known, "score": main_score, "split": split, "note": note(trials, split=split)}


def read_trials(path: Path) -> list[Trial]:
    """The trials that are known already."""
    return [Trial(**trial) for trial in files.read_json(path)["trials"]] if path.is_file() else []


def note(trials: Sequence[Trial], *, split: str) -> str:
    """What must be said wherever scores of the chosen settings are shown."""
    plural = "s" if len(trials) > 1 else ""
    return (
        f"learning rate and epochs were chosen by {len(trials)} trial{plural} on {split}: "
        f"scores on {split} are not those of unseen examples"
    )
