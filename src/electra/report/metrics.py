"""The name of a metric -> its title, what it says, and how it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from electra.report.runs import Run
from electra.report.words import percent, short

Form = Literal["number", "percent", "count"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How one metric is presented."""

    key: str
    title: str
    says: str = ""
    form: Form = "number"
    scale: Literal["linear", "log"] = "linear"
    line: Literal["smoothed", "exact"] = "smoothed"
    """What is set and not measured has no noise to smooth away."""

    def format(self, value: float | None) -> str:
        """A value in the metric's own form."""
        return percent(value) if self.form == "percent" else short(value)


KNOWN = (
    Metric(key="loss", title="Loss", says="what training minimises: the weighted sum of the losses below"),
    Metric(key="mlm_loss", title="Generator loss", says="cross-entropy at masked tokens, in nats"),
    Metric(key="discriminator_loss", title="Discriminator loss", says="binary cross-entropy over all tokens"),
    Metric(
        key="discriminator_auc",
        title="Discriminator AUC",
        says="probability that a replaced token looks more suspicious than an original one; chance is 0.5",
    ),
    Metric(
        key="fixed_auc",
        title="AUC on a fixed set",
        says="the same for held-out tokens replaced by frequency, alike in all runs of the same data",
        line="exact",
    ),
    Metric(
        key="discriminator_recall",
        title="Discriminator recall",
        says="of the replaced tokens, how many are called replaced",
        form="percent",
    ),
    Metric(
        key="discriminator_precision",
        title="Discriminator precision",
        says="of the tokens called replaced, how many are",
        form="percent",
    ),
    Metric(
        key="mlm_accuracy",
        title="Generator accuracy",
        says="how often its most probable token is the original",
        form="percent",
    ),
    Metric(
        key="sampled_accuracy",
        title="Sampled accuracy",
        says="how often the token it draws is the original: nothing is replaced there",
        form="percent",
    ),
    Metric(
        key="replaced_fraction",
        title="Replaced fraction",
        says="share of all tokens that differ from the original",
        form="percent",
    ),
    Metric(key="generator_entropy", title="Generator entropy", says="of its distribution, in nats"),
    Metric(key="recovery_loss", title="Recovery loss", says="cross-entropy of naming the original tokens"),
    Metric(key="recovery_accuracy", title="Recovery accuracy", form="percent"),
    Metric(
        key="cloze_loss", title="Cloze loss", says="of telling tokens from the generator's by their energy"
    ),
    Metric(key="reward", title="Reward", says="what the generator gains by misleading the discriminator"),
    Metric(key="baseline", title="Expected reward"),
    Metric(
        key="discriminator_accuracy",
        title="Discriminator accuracy",
        says="high from the start, since most tokens are original: look at AUC and recall",
        form="percent",
    ),
    Metric(key="gradient_norm", title="Gradient norm", says="before clipping, logarithmic", scale="log"),
    Metric(key="learning_rate", title="Learning rate", line="exact"),
    Metric(key="tokens_per_second", title="Throughput", says="tokens per second", form="count"),
    Metric(
        key="mfu",
        title="Use of the machine",
        says="share of the measured matrix-product peak",
        form="percent",
    ),
)
BY_KEY = {metric.key: metric for metric in KNOWN}
_AXIS_KEYS = {"step", "tokens", "seconds", "flops"}


def metrics_of(runs: Sequence[Run]) -> list[Metric]:
    """Every metric that some run has measured: those we know in our order, then the others by name."""
    keys = {key for run in runs for record in (*run.train, *run.valid) for key in record} - _AXIS_KEYS
    known = [metric for metric in KNOWN if metric.key in keys]
    others = sorted(keys - {metric.key for metric in known})
    return known + [Metric(key=key, title=key.replace("_", " ").capitalize()) for key in others]
