"""A pre-training run -> what is wrong or fine: is it whole, does it learn, is there enough text, is it fast?

Each rule looks at one thing and yields what it finds, also that it is fine; what was not measured yields
nothing. Ranges of single metrics are those of `health.py`. Where a number comes from stands beside it:
docs/log.md by date, or the paper.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median, stdev

from electra.report.datasets import judge_data, prepare_command
from electra.report.findings import Finding, Severity, seal_of, sorted_findings
from electra.report.health import EARLY_STEPS, judge_metrics, last, now
from electra.report.run_files import CONFIG, FINAL, Case
from electra.report.runs import BY_KEY, Record, RunRecord, number
from electra.show import duration, listed, percent, short

NEAR_UNIGRAM = 0.97
"""Share of the unigram entropy above which the loss at masks counts as on the plateau. With an entropy of 7.0
encoders that stayed on it have 6.98 to 7.10, those that left it 6.7 and less, after 1 M tokens."""
CHANCE_AUC, NO_RECALL, NOTHING_REPLACED = 0.53, 0.01, 0.005
"""What a run itself calls collapse at its evaluations (`pretraining/step.py`)."""
MANY_EPOCHS = 40.0
"""BERT's paper has about 40 over its corpus, ELECTRA-small about 5. Masks differ from one to the next, so an
encoder bears more than a language model, for which 4 cost nothing (Muennighoff et al., 2023)."""
RISEN = 1.02
"""Held-out loss over its lowest. Rows and masks of all evaluations are the same, so 2 % is no noise."""
LATE = 0.8
"""Share of the steps: what was best only before it was not just missed."""
LONG_WARMUP = 0.5
"""Share of a run. The paper warms up for a hundredth, recipes for a twentieth to a tenth."""
STRAIGHT_LINE = 0.25
"""Share of the whole fall of the loss in its last fifth: a straight line has 0.2, one that flattens less. The
rest is for noise."""
FEW_RECORDS = 40
"""Below, means over a twentieth of the log are single steps, and noise."""
UNEVEN = 2.0
"""Ratio of fast steps to slow ones. On a quiet machine it is 1.6: 2.69 to 4.18 s, 6 to 10 thousand tokens/s
(2026-11-16, 2026-11-17)."""
FEW_SPEEDS = 5
"""Below, one slow step would be a tenth of them."""
MANY_SKIPPED = 0.01
"""Share of the steps. fp16 skips some while it searches for its scale, other precisions none."""

Findings = Iterator[Finding]


def diagnose_run(run: RunRecord) -> list[Finding]:
    """All that is to be said of a run, the worst first."""
    case = Case(run)
    return sorted_findings(finding for rule in _RULES for finding in rule(case))


def _end(case: Case) -> Findings:
    """Whether it has come to its end, and how it goes on if not."""
    run, step = case.run, last(case.run, "step") or 0.0
    done = f"{step:,.0f} steps, {short(last(run, 'tokens'))} tokens, {duration(last(run, 'seconds'))}"
    if case.files.is_busy:
        yield Finding(
            key="running", severity="note", says=f"it is being trained now: {done}; planned: {_budget(run)}"
        )
        return
    if case.files.has_model:
        yield Finding(key="unfinished", severity="fine", says=f"finished: {done}")
        return
    whole = case.files.whole_checkpoint
    where = (
        f"the same command goes on from {whole.name}"
        if whole
        else "no whole checkpoint is left, so that the same command begins at step 0"
    )
    says = f"not finished: {done}; planned: {_budget(run)}. There is no model yet ({FINAL}/); {where}"
    yield Finding(key="unfinished", severity="wrong", says=says, cure=_resume(case))


def _resume(case: Case) -> str:
    """The command that continues the run; the one it was begun with if its config is lost."""
    begun_with = case.run.environment.get("command")
    if not case.run.config and isinstance(begun_with, list) and begun_with:
        return shlex.join(["electra", *map(str, begun_with[1:])])
    return case.resume


def _budget(run: RunRecord) -> str:
    given = {
        "steps": run.config.get("train.steps"),
        "tokens": run.config.get("train.max_tokens"),
    }
    words = [f"{known:,.0f} {name}" for name, value in given.items() if (known := number(value))]
    words += [str(run.config["train.max_time"])] if run.config.get("train.max_time") else []
    return " or ".join(words) or "an unknown number of steps"


def _files(case: Case) -> Findings:
    """Damage to the model, to checkpoints, to the log and to the config."""
    found = case.files
    if found.model_damage:
        says = f"the model is damaged: {listed(found.model_damage, most=2)}"
        cure = f"rm -r {shlex.quote(str(case.run.folder / FINAL))} && {_resume(case)}"
        if found.whole_checkpoint is None:
            says += (
                ". No checkpoint is left to write it again from: copy it from where it is whole, or train "
                "again"
            )
            cure = case.again()
        else:
            says += f". It is written again from {found.whole_checkpoint.name}"
        yield Finding(key="damaged_model", severity="wrong", says=says, cure=cure)
    elif found.has_model:
        yield Finding(
            key="damaged_model", severity="fine", says="all files of the model are as they were written"
        )
    for path, damage in found.checkpoints:
        if damage:
            is_needed = not found.has_model or bool(found.model_damage)
            is_lost = found.whole_checkpoint is None and is_needed
            way_out = (
                "no older one is whole: restore one from a copy"
                if found.whole_checkpoint is None
                else f"a resume passes over it and goes on from {found.whole_checkpoint.name}"
            )
            says = f"checkpoint {path.name} is damaged: {listed(damage, most=1)}; {way_out}"
            severity: Severity = "wrong" if is_lost else "watch"
            yield Finding(key="damaged_checkpoint", severity=severity, says=says, cure=_resume(case))
    for note in case.run.notes:
        if "not readable" in note or "keys" in note:
            is_config = note.startswith(CONFIG)
            cure = _resume(case) if is_config else ""
            yield Finding(
                key="damaged_file", severity="wrong" if is_config else "watch", says=note, cure=cure
            )
        else:
            yield Finding(key="missing_file", severity="note", says=note)


def _early(case: Case) -> Findings:
    step = last(case.run, "step")
    if step is None:
        yield Finding(key="early", severity="note", says="no step is logged yet")
    elif step < EARLY_STEPS:
        says = (
            f"only {step:,.0f} steps: what it has learned is not judged before step {EARLY_STEPS}, since "
            f"every "
            "run starts at chance"
        )
        yield Finding(key="early", severity="note", says=says)


def _is_early(run: RunRecord) -> bool:
    return (last(run, "step") or 0) < EARLY_STEPS


def _masked_loss_key(run: RunRecord) -> str | None:
    """The loss of naming masked tokens, if that is learned."""
    return next((key for key in ("masked_loss", "mlm_loss") if now(run, key).value is not None), None)


def _plateau(case: Case) -> Findings:
    """Whether more is known of a masked token than how frequent it is."""
    run, key = case.run, _masked_loss_key(case.run)
    if key is None or _is_early(run):
        return
    loss, accuracy = now(run, key).value, now(run, key.replace("loss", "accuracy")).value
    entropy = None if case.data is None else case.data.unigram_entropy
    assert loss is not None
    says = f"the loss at masked tokens is {loss:.2f}" + (
        "" if accuracy is None else f" (accuracy {percent(accuracy)})"
    )
    verdict = next((one for one in judge_metrics(run) if one.range.key.endswith("_accuracy")), None)
    if entropy is None:
        is_ill = verdict is not None and verdict.word == "low"
        says += "; the data was not found, so that the entropy of its tokens is unknown"
    else:
        is_ill = loss > NEAR_UNIGRAM * entropy
        says += f", knowing only how frequent each token is gives {entropy:.2f}"
    if not is_ill:
        yield Finding(key="unigram_plateau", severity="fine", says=says)
        return
    says += ": it has learned which tokens are frequent, and nothing of their context"
    is_modern = run.config.get("model.backbone") == "modern"
    if is_modern:
        says += ". Train longer"
    else:
        says += ". The modern encoder leaves this plateau within minutes"
    cure = case.again(**_longer(run)) if is_modern else case.by_recipe("minutes")
    yield Finding(key="unigram_plateau", severity="wrong", says=says, cure=cure)


def _longer(run: RunRecord) -> dict[str, object]:
    """Twice the budget."""
    found: dict[str, object] = {}
    for key in ("steps", "max_tokens"):
        if known := number(run.config.get(f"train.{key}")):
            found[f"train__{key}"] = int(2 * known)
    if run.config.get("train.max_time"):
        found["train__max_time"] = f"{max(1, round((last(run, 'seconds') or 60) / 30))}m"
    return found or {"train__steps": int(2 * (last(run, "step") or 1000))}


def _slower(run: RunRecord) -> dict[str, object]:
    """Half the learning rate."""
    known = number(run.config.get("train.learning_rate"))
    rates: dict[str, object] = {"train__learning_rate": (known or 5e-4) / 2}
    matrices = number(run.config.get("train.matrix_learning_rate"))
    if run.config.get("train.optimizer") == "muon" and matrices:
        rates["train__matrix_learning_rate"] = matrices / 2
    return rates


def _discriminator(case: Case) -> Findings:
    """Whether it tells replaced tokens from original ones."""
    run, auc = case.run, now(case.run, "discriminator_auc").value
    if auc is None or _is_early(run):
        return
    recall = now(run, "discriminator_recall").value or 0.0
    replaced = now(run, "replaced_fraction").value
    says = (
        f"the discriminator has an AUC of {auc:.3f} and finds {percent(recall)} of the replaced tokens, "
        f"which are "
        f"{percent(replaced)} of all"
    )
    lowest = next(one.range.low for one in judge_metrics(run) if one.range.key == "discriminator_auc")
    assert lowest is not None
    if replaced is not None and replaced < NOTHING_REPLACED:
        says += (
            f"; healthy is above {percent(NOTHING_REPLACED)}. The generator guesses nearly all, nothing is "
            f"left"
        )
        cure = case.again(generator__width=(number(run.config.get("generator.width")) or 0.25) / 2)
        yield Finding(key="nothing_replaced", severity="wrong", says=says, cure=cure)
    elif auc < CHANCE_AUC and recall <= NO_RECALL:
        says += (
            f": it calls everything original. 0.5 is chance, healthy is above {lowest:g}. A lower learning "
            f"rate, "
            "more masking, or the recipe `minutes`, whose encoder names tokens too"
        )
        cure = case.again(**_slower(run))
        yield Finding(key="calls_all_original", severity="wrong", says=says, cure=cure)
    elif auc < lowest:
        says += f"; healthy is an AUC above {lowest:g} (0.5 is chance): train longer"
        yield Finding(key="weak_discriminator", severity="watch", says=says, cure=case.again(**_longer(run)))
    else:
        says += f"; an AUC above {lowest:g} is healthy"
        yield Finding(key="weak_discriminator", severity="fine", says=says)


def _states(case: Case) -> Findings:
    """Whether the last hidden states still differ from token to token."""
    run = case.run
    rank, cosine = now(run, "states_rank").value, now(run, "states_cosine").value
    if rank is None or cosine is None or _is_early(run):
        return
    ranges = {one.range.key: one for one in judge_metrics(run)}
    low, high = ranges["states_rank"].range.low, ranges["states_cosine"].range.high
    says = (
        f"the last hidden states have an effective rank of {rank:.1f} (healthy: above {low:g}) and a mean "
        f"cosine "
        f"of {cosine:.3f} (healthy: below {high:g})"
    )
    ill = [key for key in ("states_rank", "states_cosine") if ranges[key].word != "healthy"]
    if not ill:
        yield Finding(key="collapsed_states", severity="fine", says=says)
        return
    says += ": all tokens look alike to a task. A loss that names tokens keeps them apart"
    cure = case.again(objective="mlm", output_bias="frequencies")
    severity: Severity = "wrong" if len(ill) == 2 else "watch"
    yield Finding(key="collapsed_states", severity=severity, says=says, cure=cure)


def _stability(case: Case) -> Findings:
    """Losses that are no numbers, skipped updates, returns to a checkpoint."""
    run = case.run
    happened = [event.event for event in run.events]
    # What is not finite is written as null, and is not in a record.
    is_lost = bool(run.train) and "loss" not in run.train[-1]
    rollbacks, skipped = happened.count("rolled_back"), happened.count("skipped_update")
    lower = "Half the learning rate is the usual cure"
    steps = last(run, "step") or 0.0
    if is_lost or "diverged" in happened:
        says = f"the loss or the weights are no numbers at step {steps:,.0f}: training has diverged. {lower}"
        yield Finding(key="diverged", severity="wrong", says=says, cure=case.again(**_slower(run)))
    elif rollbacks:
        says = (
            f"it went back to a checkpoint {rollbacks} times because the loss was no number or leapt up, and "
            f"skipped those batches; healthy is never. {lower}"
        )
        is_over = case.files.has_model or case.files.is_busy
        severity: Severity = "watch" if is_over else "wrong"
        yield Finding(key="rolled_back", severity=severity, says=says, cure=case.again(**_slower(run)))
    elif steps and skipped / steps > MANY_SKIPPED:
        says = (
            f"{skipped:,} of {steps:,.0f} updates were skipped since loss or gradient were no numbers; "
            f"healthy is "
            f"below {percent(MANY_SKIPPED)}. {lower}, or --train.precision fp32"
        )
        cure = case.again(train__precision="fp32", **_slower(run))
        yield Finding(key="skipped_updates", severity="watch", says=says, cure=cure)
    elif run.train:
        few = f"; {skipped:,} updates were skipped" if skipped else ""
        yield Finding(key="diverged", severity="fine", says=f"every loss that was logged is a number{few}")


def _gradient(case: Case) -> Findings:
    """Whether steps are cut short by clipping, or next to nothing moves."""
    verdict = next((one for one in judge_metrics(case.run) if one.range.key == "gradient_norm"), None)
    if verdict is None or verdict.word == "early" or verdict.now.value is None:
        return
    low, high = verdict.range.low, verdict.range.high
    says = f"the gradient norm is {short(verdict.now.value)}; healthy is {low:g} to {high:g}"
    if verdict.word == "high":
        says += ", ten times what it is clipped at: every step is cut short"
        yield Finding(key="gradient", severity="watch", says=says, cure=case.again(**_slower(case.run)))
    elif verdict.word == "low":
        known = number(case.run.config.get("train.learning_rate")) or 5e-4
        says += ": next to nothing moves"
        cure = case.again(train__learning_rate=2 * known)
        yield Finding(key="gradient", severity="watch", says=says, cure=cure)
    else:
        yield Finding(key="gradient", severity="fine", says=says)


def _warmup(case: Case) -> Findings:
    """Whether the learning rate comes to its peak in time."""
    run, steps = case.run, last(case.run, "step")
    warmup = number(run.config.get("train.warmup_steps")) or 0.0
    # A run that is not over is judged by its plan.
    planned = steps if case.files.has_model else number(run.config.get("train.steps"))
    share = max(warmup / planned if planned else 0.0, number(run.config.get("train.warmup_fraction")) or 0.0)
    told = [event.message for event in run.events if event.event == "warmup_too_long"]
    if share < LONG_WARMUP and not told:
        return
    highest = max(
        (record["learning_rate"] for record in run.train if "learning_rate" in record), default=None
    )
    says = (
        told[-1]
        if told
        else f"the warm-up takes {percent(min(share, 1.0))} of the run, healthy is 1 to 10 %: the learning "
        f"rate came to {short(highest)} of {short(number(run.config.get('train.learning_rate')))}"
    )
    cure = case.again(train__warmup_steps=0, train__warmup_fraction=0.05)
    yield Finding(key="long_warmup", severity="watch", says=says, cure=cure)


def _slope(case: Case) -> Findings:
    """Whether the loss was rising at the end, or still falling as fast as ever."""
    run = case.run
    key = _masked_loss_key(run) or "loss"
    values = [record[key] for record in run.train if key in record]
    if len(values) < FEW_RECORDS or _is_early(run) or run.config.get("objective") == "two_stage":
        return
    ends = [_Window.of(values, share) for share in (0.0, LATE, 1.0)]
    lowest = min((_Window.of(values, share / 20) for share in range(21)), key=lambda window: window.mean)
    first, before, end = ends
    name = "loss at masked tokens" if key != "loss" else "loss"
    if end.mean - lowest.mean > 3 * (end.error + lowest.error):
        says = f"the {name} rose from {lowest.mean:.2f} to {end.mean:.2f}: the learning rate is too high"
        yield Finding(key="rising_loss", severity="watch", says=says, cure=case.again(**_slower(run)))
        return
    whole, late = first.mean - end.mean, before.mean - end.mean
    is_steep = late > STRAIGHT_LINE * whole and late > 3 * (before.error + end.error)
    if case.files.has_model and whole > 0 and is_steep:
        says = (
            f"the {name} was still falling steeply when the run ended: {late:.2f} of its whole fall of "
            f"{whole:.2f} "
            "came in the last fifth. It was cut off while it learned, or its learning rate is far too low"
        )
        yield Finding(key="still_falling", severity="watch", says=says, cure=case.again(**_longer(run)))
    elif whole > 0:
        says = f"the {name} of training fell from {first.mean:.2f} to {end.mean:.2f}"
        yield Finding(key="still_falling", severity="fine", says=says)


class _Window:
    """The mean of a part of a curve, and how far that may be off by noise."""

    def __init__(self, values: Sequence[float]) -> None:
        self.mean = fmean(values)
        self.error = stdev(values) / len(values) ** 0.5

    @classmethod
    def of(cls, values: Sequence[float], share: float) -> "_Window":
        """A twentieth of the values, at this share of them."""
        size = max(3, len(values) // 20)
        start = round(share * (len(values) - size))
        return cls(values[start : start + size])


def _text(case: Case) -> Findings:
    """Whether there is enough text for so much training."""
    run, data = case.run, case.data
    if data is None:
        named = run.config.get("data")
        says = f"the data ({named}) is not there as seen from here: what depends on it is left out"
        yield Finding(key="data_not_found", severity="note", says=says)
        return
    batch = number(run.config.get("train.batch_size"))
    if batch and data.rows < batch:
        says = (
            f"the data has {data.rows:,} rows to train on, a batch {batch:,.0f}: every step sees all of "
            f"them. Add "
            "text, or make batches smaller"
        )
        cure = case.again(train__batch_size=max(1, data.rows // 10))
        yield Finding(key="rows_below_batch", severity="wrong", says=says, cure=cure)
    tokens = last(run, "tokens")
    if tokens is None or not data.tokens:
        return
    epochs = tokens / data.tokens
    says = f"it has read its {short(data.tokens)} tokens {epochs:.2g} times"
    if epochs < 1:
        says = f"it has read {short(tokens)} of its {short(data.tokens)} tokens, none of them twice"
    if epochs > MANY_EPOCHS:
        says += f"; healthy is up to {MANY_EPOCHS:g} times. Add text, or train for fewer steps"
        fewer = int(MANY_EPOCHS * data.tokens)
        yield Finding(
            key="many_epochs", severity="watch", says=says, cure=case.again(train__max_tokens=fewer)
        )
    else:
        yield Finding(
            key="many_epochs", severity="fine", says=f"{says}; up to {MANY_EPOCHS:g} times is healthy"
        )


def _by_heart(case: Case) -> Findings:
    """Whether the held-out loss rises while that of training falls."""
    run = case.run
    key = _masked_loss_key(run) or "loss"
    held_out = [record for record in run.valid if key in record]
    if len(held_out) < 3 or _is_early(run):
        return
    best, end = min(held_out, key=lambda record: record[key]), held_out[-1]
    has_risen = end[key] > RISEN * best[key] and best["step"] <= LATE * end["step"]
    says = (
        f"the held-out loss is {end[key]:.2f}, its lowest was {best[key]:.2f} after step {best['step']:,.0f}"
    )
    if has_risen and _falls(run.train, key, since=best["step"]):
        says += (
            ", while that of training went on falling: it learns its text by heart. Add text, or stop there"
        )
        cure = case.again(train__steps=int(best["step"]))
        yield Finding(key="learned_by_heart", severity="wrong", says=says, cure=cure)
    else:
        yield Finding(key="learned_by_heart", severity="fine", says=says)


def _falls(records: Sequence[Record], key: str, *, since: float) -> bool:
    values = [record[key] for record in records if key in record and record["step"] >= since]
    half = len(values) // 2
    return half > 0 and fmean(values[half:]) < fmean(values[:half])


def _vocabulary(case: Case) -> Findings:
    """Whether model and data have one vocabulary, and the data fits it."""
    data = case.data
    if data is None:
        return
    yield from (finding for finding in judge_data(data) if finding.is_ill)
    if not case.files.has_model or case.files.model_damage:
        return
    seal = seal_of(case.run.folder / FINAL)
    ours: dict[str, str] = {}
    theirs = data.tokenizer_files
    for name, facts in seal["files"].items():
        ours.setdefault(name.rpartition("/")[2], facts["sha256"])
    common = [name for name in theirs if name in ours]
    changed = [name for name in common if ours[name] != theirs[name]]
    if changed:
        says = (
            f"the vocabulary of the model is not that of {data.folder} ({listed(changed)} differ): ids mean "
            f"other "
            "tokens. Give the run the data that it was trained with, or prepare the text with the model's "
            "tokenizer"
        )
        settings = {
            "corpus": ["CORPUS"],
            "tokenizer": str(case.run.folder / FINAL / str(seal.get("encoder", ""))),
        }
        cure = prepare_command(settings, out="DATA")
        yield Finding(key="vocabulary_mismatch", severity="wrong", says=says, cure=cure)
    elif seal.get("dataset_sha256") not in (None, data.sha256):
        says = (
            f"{data.folder} was made again since the run read it: what is said of the data may not hold for "
            f"it"
        )
        yield Finding(key="data_changed", severity="note", says=says)
    elif common:
        says = f"model and data have the same vocabulary of {data.vocab_size:,} tokens"
        yield Finding(key="vocabulary_mismatch", severity="fine", says=says)


def _speed(case: Case) -> Findings:
    """Whether it was as fast as the machine, and if not, why."""
    run = case.run
    threads, cores = number(run.environment.get("threads")), number(run.environment.get("cores"))
    if threads and cores and threads > cores:
        says = f"{threads:g} threads shared {cores:g} cores: they wait for one another"
        cure = case.again(train__threads=int(cores))
        yield Finding(key="many_threads", severity="watch", says=says, cure=cure)
    # The first step of a sitting compiles and fills caches.
    steps = [record for record in run.train[1:] if "tokens_per_second" in record]
    if len(steps) < FEW_SPEEDS or _is_early(run):
        return
    speeds = sorted(record["tokens_per_second"] for record in steps)
    slow, fast = speeds[len(speeds) // 10], speeds[-1 - len(speeds) // 10]
    says = f"a step reads {median(speeds):,.0f} tokens/s"
    shares = sorted(record["mfu"] for record in steps if "mfu" in record)
    lowest = next((one.range.low for one in judge_metrics(run) if one.range.key == "mfu"), None)
    is_known = bool(shares) and shares[-1 - len(shares) // 10] <= 1
    if shares and not is_known:
        says += " (of what peak is unknown: the machine was busy when it was measured)"
    elif shares:
        says += f", {percent(median(shares))} of the machine's peak"
    is_slow = is_known and lowest is not None and median(shares) < lowest
    if fast > UNEVEN * slow:
        says += (
            f"; fast ones {fast:,.0f}, slow ones {slow:,.0f}, where a quiet machine has less than "
            f"{UNEVEN:g} times "
            "between them: other processes used its cores. See which, and pause them"
        )
        yield Finding(
            key="busy_machine", severity="watch", says=says, cure="ps -eo pid,pcpu,args --sort=-pcpu | head"
        )
    elif is_slow:
        says += (
            f"; healthy is above {percent(lowest)}. Processes that are always beside it, or batches that "
            f"are too "
            "small, are the usual reasons; this measures what the machine can do"
        )
        cure = "electra bench pretrain"
        yield Finding(key="slow", severity="watch", says=says, cure=cure)
    else:
        yield Finding(key="slow", severity="fine" if is_known else "note", says=says)


def _other_ranges(case: Case) -> Findings:
    """Metrics out of their range that no other rule looks at."""
    run = case.run
    width = (number(run.config.get("generator.width")) or 0.25) / 2
    weaker = {"generator__width": width} if run.config.get("generator.kind", "mlm") == "mlm" else _slower(run)
    cures = {
        ("replaced_fraction", "low"): weaker,
        ("replaced_fraction", "high"): _slower(run),
        ("mlm_accuracy", "high"): weaker,
        ("masked_accuracy", "high"): weaker,
        ("discriminator_precision", "low"): _slower(run),
        ("discriminator_loss", "high"): _slower(run),
    }
    has_generator = now(run, "replaced_fraction").value is not None
    for verdict in judge_metrics(run):
        key = verdict.range.key
        cure = cures.get((key, verdict.word))
        # Masked language modelling alone has nobody to leave something to find for.
        if cure is None or (key.endswith("_accuracy") and not has_generator):
            continue
        metric = BY_KEY[key]
        bound = verdict.range.low if verdict.word == "low" else verdict.range.high
        than = "above" if verdict.word == "low" else "below"
        says = (
            f"{metric.title.lower()} is {metric.format(verdict.now.value)}, healthy is {than} "
            f"{metric.format(bound)}: {verdict.range.reason}"
        )
        yield Finding(key=f"{key}_{verdict.word}", severity="watch", says=says, cure=case.again(**cure))


_RULES: tuple[Callable[[Case], Findings], ...] = (
    _end,
    _files,
    _early,
    _stability,
    _plateau,
    _discriminator,
    _states,
    _other_ranges,
    _gradient,
    _warmup,
    _slope,
    _text,
    _by_heart,
    _vocabulary,
    _speed,
)
