"""A task -> the scores of what a user would try first, without any encoder: linear models of scikit-learn.

    one or two texts, classes    TF-IDF of words and pairs of words, logistic regression; of two texts also
                                 the words that they have in common, and the cosine
    two texts, a value           the cosine of their TF-IDF vectors; only weights of words are learned
    one text, a value            TF-IDF, ridge regression
    a tag for each word          linear support vectors on the word, its shape, beginning and end, and those
                                 of its neighbours; tags are chosen as for an encoder (`Tagging.choose`)

They take seconds and have no settings to tune. The same code judges them as judges a
fine-tuned model, on the same examples, so that the numbers can stand in one table.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from electra.errors import import_extra
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.family import Prediction, Score, TextExample
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging, TaggingExample, internal_tags
from electra.tasks.task import TRAIN, Task

Fitted = Callable[[Sequence[Any]], list[Prediction]]
"""Examples -> what the baseline says of each."""

_COSINE = "cosine of TF-IDF vectors"
_REGULARISATION = 10.0
"""scikit-learn's C for texts: its default of 1 is strong for some thousand short ones."""


def baseline_name(task: Task) -> str | None:
    """What the baseline of a task is called; None if there is none for its kind."""
    match task.family:
        case Classification() | MultiLabel():
            return "TF-IDF + logistic regression"
        case Similarity():
            return None if task.family.loss == "contrastive" else _COSINE
        case Regression():
            return _COSINE if _has_pairs(task) else "TF-IDF + ridge regression"
        case Tagging():
            return "words and neighbours + linear SVM"
        case _:
            return None


def baseline_scores(task: Task) -> dict[str, dict[str, Score]]:
    """Fit the baseline to `train`: split -> name -> score, of all splits that are scored."""
    assert baseline_name(task), f"no baseline for {task.name}"
    predict = _fit(task)
    return {
        split: task.family.scores(task.examples(split), predict(task.examples(split)))
        for split in task.scored_splits
    }


def _fit(task: Task) -> Fitted:
    family = task.family
    train: Sequence[Any] = task.examples(TRAIN)
    match family:
        case Tagging():
            return _fit_tagger(family, train)
        case Classification() | MultiLabel():
            return _fit_classes(family, train)
        case Regression() if not _has_pairs(task):
            return _fit_values(family, train)
        case _:
            key = "similarity" if isinstance(family, Similarity) else "value"
            return _fit_cosine(train, key=key)


def _has_pairs(task: Task) -> bool:
    first = task.examples(TRAIN)[0]
    return isinstance(first, TextExample) and first.text_pair is not None


class TextFeatures:
    """TF-IDF of a text; of two texts, of each and of the words that they share, and their cosine."""

    def __init__(self, examples: Sequence[TextExample]) -> None:
        text = import_extra("sklearn.feature_extraction.text", extra="tasks")
        # Words of one letter and punctuation count, too: they tell code from prose and questions from claims.
        self._vectors = text.TfidfVectorizer(
            ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]"
        )
        self._vectors.fit([part for example in examples for part in _parts(example)])
        self._is_pair = any(example.text_pair is not None for example in examples)

    def __call__(self, examples: Sequence[TextExample]) -> Any:
        """A sparse matrix with a row for each example."""
        first = self._vectors.transform([example.text for example in examples])
        if not self._is_pair:
            return first
        second = self._vectors.transform([example.text_pair or "" for example in examples])
        sparse = import_extra("scipy.sparse", extra="tasks")
        cosines = np.array([self.cosines(examples)]).T
        return sparse.hstack([first, second, first.minimum(second), cosines]).tocsr()

    def cosines(self, examples: Sequence[TextExample]) -> list[float]:
        """Of both texts of each pair; their vectors have length 1."""
        first = self._vectors.transform([example.text for example in examples])
        second = self._vectors.transform([example.text_pair or "" for example in examples])
        return [float(value) for value in np.asarray(first.multiply(second).sum(axis=1)).ravel()]


def _parts(example: TextExample) -> Iterator[str]:
    yield example.text
    if example.text_pair is not None:
        yield example.text_pair


def _fit_classes(family: Classification | MultiLabel, train: Sequence[TextExample]) -> Fitted:
    linear = import_extra("sklearn.linear_model", extra="tasks")
    features = TextFeatures(train)
    inputs = features(train)

    def probabilities(labels: Sequence[int]) -> Callable[[Any], Any]:
        """Of each class for each example; 0 of those that no example has."""
        present = sorted(set(labels))
        if len(present) == 1:
            return lambda found: np.eye(num_classes)[np.full(found.shape[0], present[0])]
        model = linear.LogisticRegression(C=_REGULARISATION, max_iter=1000).fit(inputs, labels)

        def predict(found: Any) -> Any:
            result = np.zeros((found.shape[0], num_classes))
            result[:, model.classes_] = model.predict_proba(found)
            return result

        return predict

    if isinstance(family, Classification):
        num_classes = len(family.labels())
        one_of = probabilities([_number(example) for example in train])
        return lambda examples: family.predictions(examples, [], list(one_of(features(examples))))
    num_classes = 2
    each = [
        probabilities([int(number in _numbers(example)) for example in train])
        for number in range(len(family.labels()))
    ]

    def predict_labels(examples: Sequence[TextExample]) -> list[Prediction]:
        found = features(examples)
        return family.predictions(
            examples, [], list(np.stack([predict(found)[:, 1] for predict in each], axis=1))
        )

    return predict_labels


def _number(example: TextExample) -> int:
    assert isinstance(example.label, int), example.where
    return example.label


def _numbers(example: TextExample) -> tuple[int, ...]:
    assert isinstance(example.label, tuple), example.where
    return example.label


def _fit_values(family: Regression, train: Sequence[TextExample]) -> Fitted:
    linear = import_extra("sklearn.linear_model", extra="tasks")
    features = TextFeatures(train)
    model = linear.Ridge().fit(features(train), [family.targets(example)["value"] for example in train])
    return lambda examples: family.predictions(examples, [], list(model.predict(features(examples))))


def _fit_cosine(train: Sequence[TextExample], *, key: str) -> Fitted:
    """It is scored by correlation, so that it needs no scale."""
    features = TextFeatures(train)
    return lambda examples: [{key: cosine} for cosine in features.cosines(examples)]


_LONGEST_AFFIX = 3
_NEIGHBOURS = (-2, -1, 1, 2)
_OUTSIDE_SENTENCE = "\0"


def _fit_tagger(family: Tagging, train: Sequence[TaggingExample]) -> Fitted:
    svm = import_extra("sklearn.svm", extra="tasks")
    extraction = import_extra("sklearn.feature_extraction", extra="tasks")
    vectors = extraction.DictVectorizer()
    inputs = vectors.fit_transform([word for example in train for word in word_features(example.words)])
    # With the tags that the head of an encoder has, which know where a chunk ends.
    tags = [tag for example in train for tag in internal_tags(example.tags or (), family.scheme)]
    # liblinear takes 32-bit indices only.
    inputs.indices, inputs.indptr = inputs.indices.astype(np.int32), inputs.indptr.astype(np.int32)
    known = {tag: number for number, tag in enumerate(family.tags)}
    model = svm.LinearSVC(C=0.2, random_state=0).fit(inputs, [known[tag] for tag in tags])

    def predict(examples: Sequence[TaggingExample]) -> list[Prediction]:
        words = [word for example in examples for word in word_features(example.words)]
        margins = model.decision_function(vectors.transform(words))
        if margins.ndim == 1:
            # Of two tags scikit-learn gives one number: how far a word is on the side of the second.
            margins = np.stack([-margins, margins], axis=1)
        # A tag that no training sentence has is farther off than any other.
        scores = np.full((len(words), len(family.tags)), margins.min() - 1.0)
        scores[:, model.classes_] = margins
        ends = np.cumsum([len(example.words) for example in examples])
        chosen = [family.choose(of_sentence) for of_sentence in np.split(scores, ends[:-1])]
        return [family.prediction(numbers, [1.0] * len(numbers)) for numbers in chosen]

    return predict


def word_features(words: Sequence[str]) -> list[dict[str, float]]:
    """What a linear model knows of each word of a sentence."""
    features = []
    for place, word in enumerate(words):
        found = dict.fromkeys(_own_features(word), 1.0)
        for distance in _NEIGHBOURS:
            is_inside = 0 <= place + distance < len(words)
            neighbour = words[place + distance] if is_inside else _OUTSIDE_SENTENCE
            found[f"{distance}:{neighbour.lower()}"] = 1.0
            if abs(distance) == 1:
                found |= {f"{distance}:{name}": 1.0 for name in _own_features(neighbour)}
        features.append(found)
    return features


@lru_cache(maxsize=1 << 16)
def _own_features(word: str) -> tuple[str, ...]:
    lower = word.lower()
    affixes = [
        name
        for length in range(1, _LONGEST_AFFIX + 1)
        for name in (f"begins {lower[:length]}", f"ends {lower[-length:]}")
    ]
    shape = re.sub(r"[a-z]+", "a", re.sub(r"[A-Z]+", "A", re.sub(r"\d+", "0", word)))
    return (f"is {lower}", f"shape {shape}", *affixes)
