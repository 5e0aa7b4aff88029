"""A function from settings to a score -> a search for the settings with the best one, every trial shown.

The sampler is seeded and sees the trials in their order, so the same search finds the same; one that was
interrupted is continued by telling it the trials that are known. Trials come in rounds: what a round tries
depends on the rounds before it alone, so that those of a round may run at the same time, and the search is
the same wherever they run. A trial that does worse than most on its way may be stopped there: the rule is
that of optuna's MedianPruner, among the trials of earlier rounds.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

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
    at_once: int = 1
    """Trials of a round: they are chosen without knowing of each other, and run at the same time if there is
    a --cluster."""
    looks: int = 0
    """How often to look at a trial on its way, evenly spread, to stop it if its best score so far is below
    the median of the finished trials there; 0 stops none. The first four are never stopped."""

    def __post_init__(self) -> None:
        if self.trials < 0:
            raise InputError(f"sweep.trials is {self.trials}, expected 0 (no search) or more")
        if self.at_once < 1:
            raise InputError(f"sweep.at_once is {self.at_once}, expected 1 or more")
        if self.looks < 0:
            raise InputError(f"sweep.looks is {self.looks}, expected 0 (stop no trial) or more")
        if not self.span > 1:
            raise InputError(f"sweep.span is {self.span}, expected above 1")
        if not all(epochs > 0 for epochs in self.epochs):
            raise InputError(f"sweep.epochs is {self.epochs}, expected numbers above 0")


FEWEST_FINISHED = 4
"""Trials that have to be finished before one is compared with them."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What is to be tried."""

    number: int
    learning_rate: float
    epochs: float
    bars: Sequence[float | None]
    """For each look, the score below which the trial is stopped; None where there are too few to compare."""


class Outcome(NamedTuple):
    """What a trial gave."""

    score: float | None
    """None if it is undefined."""
    seen: list[float | None]
    """The score at each look; shorter if the trial was stopped."""
    is_stopped: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was tried, and what it gave."""

    number: int
    learning_rate: float
    epochs: float
    score: float | None
    """None if it is undefined; of a stopped one that of the last look."""
    seen: list[float | None] = field(default_factory=list)
    """The score at each look."""
    is_stopped: bool = False


def bars(trials: Sequence[Trial], *, looks: int) -> list[float | None]:
    """For each look the median of the finished trials."""
    finished = [trial for trial in trials if not trial.is_stopped and trial.score is not None]
    found: list[float | None] = []
    for look in range(looks):
        there = [trial.seen[look] for trial in finished if look < len(trial.seen)]
        known = [value for value in there if value is not None]
        found.append(statistics.median(known) if len(known) >= FEWEST_FINISHED else None)
    return found


@dataclass(kw_only=True)
class Looks:
    """Notes the scores of a trial on its way, and ends it at a look where it is below the bar."""

    every: int
    """Steps from one look to the next."""
    score: str
    bars: Sequence[float | None]
    seen: list[float | None] = field(default_factory=list)

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Hear of an evaluation; `TrialStoppedError` if it should be the last one."""
        if step % self.every or step // self.every > len(self.bars):
            return
        value = metrics.get(self.score, math.nan)
        # A trial that is continued has noted the looks before already.
        del self.seen[step // self.every - 1 :]
        self.seen.append(value if math.isfinite(value) else None)
        bar = self.bars[len(self.seen) - 1]
        best = max((value for value in self.seen if value is not None), default=-math.inf)
        if bar is not None and best < bar:
            raise TrialStoppedError


class TrialStoppedError(Exception):
    """Ends the training of a trial."""


def search(
    config: SweepConfig,
    run: Callable[[Sequence[Proposal]], Iterable[Outcome]],
    *,
    learning_rate: float,
    epochs: float,
    seed: int,
    known: Sequence[Trial] = (),
) -> Iterator[Trial]:
    """Trials round after round; `run` gives what came of those of a round that are not known, in order."""
    optuna = import_extra("optuna", extra="sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    choices = config.epochs or [epochs / 2, epochs, epochs * 2]
    states = optuna.trial.TrialState
    done: list[Trial] = []
    while len(done) < config.trials:
        limits = bars(done, looks=config.looks)
        round_: list[tuple[Any, Proposal]] = []
        for number in range(len(done), min(len(done) + config.at_once, config.trials)):
            asked = study.ask()
            rate = asked.suggest_float(
                "learning_rate", learning_rate / config.span, learning_rate * config.span, log=True
            )
            chosen = asked.suggest_categorical("epochs", choices)
            round_.append((asked, Proposal(number=number, learning_rate=rate, epochs=chosen, bars=limits)))
        outcomes = iter(run([proposal for _, proposal in round_ if not _is_known(proposal, known)]))
        for asked, proposal in round_:
            if _is_known(proposal, known):
                trial = known[proposal.number]
            else:
                outcome = next(outcomes)
                trial = Trial(
                    number=proposal.number,
                    learning_rate=proposal.learning_rate,
                    epochs=proposal.epochs,
                    score=outcome.score,
                    seen=outcome.seen,
                    is_stopped=outcome.is_stopped,
                )
            if trial.score is None:
                study.tell(asked, state=states.FAIL)
            elif trial.is_stopped:
                asked.report(trial.score, len(trial.seen))
                study.tell(asked, state=states.PRUNED)
            else:
                study.tell(asked, trial.score)
            done.append(trial)
            yield trial


def _is_known(proposal: Proposal, known: Sequence[Trial]) -> bool:
    if proposal.number >= len(known):
        return False
    trial = known[proposal.number]
    return (trial.learning_rate, trial.epochs) == (proposal.learning_rate, proposal.epochs)


def best(trials: Sequence[Trial]) -> Trial:
    """The trial with the highest score; of equal ones the first."""
    scored = [(trial.score, trial) for trial in trials if trial.score is not None and not trial.is_stopped]
    if not scored:
        raise InputError("no trial of the sweep has a score: see why with one run, without --sweep.trials")
    return max(scored, key=lambda pair: pair[0])[1]


def choose_trial(
    config: SweepConfig,
    run: Callable[[Sequence[Proposal]], Iterable[Outcome]],
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
            f"{task.main_score} {value} on {split}{', stopped there' if trial.is_stopped else ''}",
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
