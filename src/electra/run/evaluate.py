"""`electra evaluate`: a fine-tuned model and labelled examples -> scores."""

from collections.abc import Sequence

from electra import config, show
from electra.store.cache import with_urls
from electra.tasks import results
from electra.tasks.evaluation import EvaluateConfig, EvaluationJob
from electra.tasks.study import describe_task


def main(arguments: Sequence[str]) -> None:
    """Score a model."""
    given = config.read(EvaluateConfig, arguments, prog="electra evaluate")
    with given.opened(reads=("model", "data"), writes=("out",)) as given:
        settings = given.config()
        evaluation = EvaluationJob.prepare(settings)
        facts = [("model", settings.model), ("precision", str(evaluation.place.precision))]
        print(with_urls(show.table([*facts, *describe_task(evaluation.task)])), flush=True)
        content = evaluation.run()
        print(f"\n{results.score_table(content['splits'], main_score=content['main_score'])}")
        if settings.out:
            print(f"\n  {with_urls(settings.out)}")
