"""Sentences of words -> rows -> a tag for each word: chunks, named entities, parts of speech.

A word is judged by its first token. As in the original, a model of chunks knows BIOES tags, each word is
judged by itself, and a row's loss is the sum over its words. Unlike there, the tags that come in and go out
are IOB2; the scores are conlleval's; all tokens are of segment 0, as transformers has it, and not of 1; and
a sentence that is too long becomes several rows that overlap, where the original drops the words at its end
from training and from the score.

Tags mark chunks in one of three schemes (`chunks.py`), each of which is read. A model that was fine-tuned
with transformers keeps the tags it knows (`marking`), in whatever scheme they are.

Where each word gets its most probable tag, the tags of many sentences break their scheme: a chunk begins and
never ends. Unless asked otherwise, we choose the most probable tags that keep to it (`decoding`).

B rows, L positions, P words of a row, T tags, D numbers in a hidden state.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypedDict, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from electra.errors import InputError
from electra.model.heads import TaggingHead, gather_positions
from electra.model.sizes import EncoderConfig
from electra.schema import short
from electra.tasks.data.columns import Cells, Classes, OwnTaskConfig, RowReader
from electra.tasks.families.chunks import (
    OUTSIDE,
    SCHEME_NAMES,
    Scheme,
    best_tags,
    chunk_scores,
    chunks,
    convert,
    count_chunks,
    detect_scheme,
    marking_of,
    marks_chunks,
    split_tag,
    tag_accuracy,
    violations,
)
from electra.tasks.families.family import (
    Ability,
    Card,
    Example,
    Family,
    ForeignModel,
    Learned,
    Mistake,
    Prediction,
    Predictor,
    Recognised,
    Score,
    Splits,
    TaskBatch,
    TaskRow,
    TransformersHead,
    label_names,
)
from electra.tasks.task import TRAIN, content_key
from electra.text.spans import Word, as_list, check_texts, join_words, locate, words_of
from electra.text.tokenizer import Tokenizer
from electra.text.windows import Window, word_windows

TagKind = Literal["entities", "tokens"]
"""Whether tags mark chunks of words, scored as a whole, or each stands for itself."""
Decoding = Literal["words", "scheme"]
"""The most probable tag of each word, or the most probable ones of a sentence that keep to their scheme."""
_SMALLEST = 1e-30
"""In place of a probability of 0, whose logarithm is infinite."""

TAGGER = "ElectraForTokenClassification"
STAND_INS = {"S": ("B", "I"), "E": ("I",), "B": ("I",), "I": ("B",)}
"""Prefix -> those whose tag is nearest to it in a scheme that does not have it."""
STAND_IN_LOGIT = -5.0
"""Added to the logits of a tag that begins as another one, so that at first the other one is predicted."""

UNLEARNED = -100
"""The target of a word that no loss is computed for: its tag is not among those of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggingExample(Example):
    """A sentence."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    """One for each word, in IOB2 if they mark chunks; None if they are unknown."""
    lines: tuple[int, ...] = ()
    """The line of each word in its file, where a word has a line of its own."""

    def where_is(self, word: int) -> str:
        """File and line of a word, and the word."""
        if self.lines:
            return f"{self.where.rpartition(':')[0]}:{self.lines[word]} ({self.words[word]!r})"
        return f"{self.where}, word {word + 1} ({self.words[word]!r})"


class JudgedWords(NamedTuple):
    """Where a row's judged words stand: the first of them in the sentence, and the first token of each."""

    first: int
    positions: NDArray[np.int64]


class TagReader(RowReader):
    """Words, and a tag for each. What the tags mean is found out from all of them together."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The words."""
        return (self.config.tokens,)

    @property
    def label_column(self) -> str:
        """The tags."""
        return self.config.tags

    def example(self, cells: Cells, id: str, *, classes: Classes | None) -> TaggingExample:
        """The sentence."""
        words = cells.words(self.config.tokens)
        tags = None if classes is None else cells.words(self.config.tags)
        if tags is not None and len(tags) != len(words):
            raise InputError(
                f"{cells.where}: {len(words)} words in {self.config.tokens!r} but {len(tags)} tags in "
                f"{self.config.tags!r}, expected one for each word"
            )
        return TaggingExample(id=id, where=cells.where, words=words, tags=tags)

    def content(self, example: TaggingExample) -> str:
        """The sentence."""
        return content_key(" ".join(example.words))


class TagRequest(TypedDict):
    """Texts whose words get tags."""

    texts: Annotated[list[str | list[str]], "Texts, or lists of words."]


class TaggedWord(TypedDict):
    """A word with its tag."""

    text: str
    start: Annotated[int, "Its first character."]
    end: Annotated[int, "One past its last character."]
    tag: str
    confidence: float


class TaggedChunk(TypedDict):
    """Words that belong together."""

    text: str
    start: Annotated[int, "Its first character."]
    end: Annotated[int, "One past its last character."]
    type: str


class Tagged(TypedDict):
    """A text, word by word; words that were given are joined by blanks."""

    text: str
    words: list[TaggedWord]
    chunks: list[TaggedChunk]


TAG = Ability(
    name="tag",
    purpose="tagging",
    request=TagRequest,
    answer=Tagged,
    example={"texts": ["the river is in Zürich", ["already", "cut", "into", "words"]]},
)


@dataclass(frozen=True)
class Tagging(Family[TaggingExample]):
    """A tag for each word."""

    name: ClassVar[str] = "tagging"
    kind: ClassVar[str] = "tagging"
    reader = TagReader
    ability: ClassVar[Ability | None] = TAG
    card: ClassVar[Card] = Card(
        what="An ELECTRA that gives each word of a text a tag.",
        hub_task="token-classification",
        use='model.tag(["The chef ate the meal."])',
        pipeline='pipeline("token-classification", model=folder)("The chef ate the meal.")',
    )

    tags: tuple[str, ...]
    """In the order of the head's logits; BIOES if the scheme is entities. `learn` finds them in examples."""
    scheme: TagKind
    marking: Scheme = "bioes"
    """The scheme of tags that mark chunks, as the head knows them."""
    decoding: Decoding = "words"
    """What `learn` chooses for chunks is `scheme`; folders that say nothing are of models that were scored
    word by word."""

    def __post_init__(self) -> None:
        assert self.scheme in get_args(TagKind), self.scheme
        assert self.marking in get_args(Scheme), self.marking
        assert self.decoding in get_args(Decoding), self.decoding
        if not len(set(self.tags)) == len(self.tags) > 0:
            raise InputError(f"the tags are {short(self.tags)}: expected one or more, each of them once")
        if self.scheme == "entities" and not all(map(marks_chunks, self.tags)):
            raise InputError(f"the tags are {short(self.tags)}: expected tags of entities, such as B-PER")
        if self.scheme == "entities" and self.marking == "bioes":
            # Every chunk of two words or more has an end: without it, these are tags of another scheme.
            unended = [
                tag for tag in self.tags if tag[0] in "BI" and f"E-{split_tag(tag)[1]}" not in self.tags
            ]
            if unended:
                raise InputError(f"the tags {short(unended)} are not BIOES: each has an E- of its name, too")

    @classmethod
    def learn(cls, examples: Sequence[TaggingExample], *, scheme: TagKind) -> Self:
        """The family with all tags of labelled examples, sorted as in the original."""
        seen = [internal_tags(example.tags or (), scheme) for example in examples]
        decoding: Decoding = "scheme" if scheme == "entities" else "words"
        return cls(tuple(sorted({tag for tags in seen for tag in tags})), scheme, decoding=decoding)

    def labels(self) -> tuple[str, ...]:
        """The tags of the head."""
        return self.tags

    def settings(self) -> dict[str, Any]:
        """All fields."""
        return dataclasses.asdict(self)

    def can_judge(self, other: Family[Any]) -> bool:
        """Whatever tags occur there: those that this model does not know count as wrong."""
        return self.name == other.name

    @classmethod
    def learn_table(cls, config: OwnTaskConfig, labels: Sequence[str], splits: Splits) -> Learned:
        """With the tags of the training sentences, read in whatever scheme they are."""
        family, read, notes = understand_tags(splits)
        return Learned(family, "f1" if family.scheme == "entities" else "accuracy", read, notes)

    @classmethod
    def recognised(cls, foreign: ForeignModel) -> Recognised | None:
        """A model of tags, in the scheme that their names show."""
        if foreign.architecture != TAGGER:
            return None
        tags = foreign.labels(len(foreign.tensor("classifier.weight")))
        if not all(map(marks_chunks, tags)) or set(tags) == {OUTSIDE}:
            return Recognised(cls(tags, "tokens"), "accuracy")
        return Recognised(cls(tags, "entities", marking_of(tags)), "f1")

    def kept_head(self, state: Mapping[str, Tensor], before: Family[Any]) -> Mapping[str, Tensor] | None:
        """The rows of the same tags; where chunks are marked in another scheme, of the nearest ones."""
        if not isinstance(before, Tagging) or self.scheme != before.scheme:
            return None
        if self.scheme == "tokens" and set(self.tags) != set(before.tags):
            return None
        sources = [stand_in(tag, before.tags) for tag in self.tags]
        if None in sources:
            return None
        rows = [before.tags.index(source) for source in sources if source is not None]
        is_other = [
            source != tag and source in self.tags for tag, source in zip(self.tags, sources, strict=True)
        ]
        kept = {name: tensor[rows] for name, tensor in state.items()}
        return {**kept, "output.bias": kept["output.bias"] + STAND_IN_LOGIT * torch.tensor(is_other)}

    def adapted(self, examples: Sequence[TaggingExample]) -> list[TaggingExample]:
        """Tags that mark chunks in IOB2, whatever scheme they are in."""
        if self.scheme != "entities":
            return list(examples)
        for example in examples:
            for word, tag in enumerate(example.tags or ()):
                if not marks_chunks(tag):
                    raise InputError(
                        f"{example.where_is(word)}: the tag is {tag!r}, but the model knows O and such as "
                        "B-NP"
                    )
        return [_in_iob2(example) for example in examples]

    def line_example(self, line: str, *, id: str, where: str) -> TaggingExample:
        """The words between blanks."""
        return TaggingExample(id=id, where=where, words=tuple(line.split()), tags=None)

    def rows(
        self, examples: Sequence[TaggingExample], tokenizer: Tokenizer, *, max_length: int
    ) -> list[TaskRow]:
        """A row for each sentence, or several if it is too long."""
        assert max_length > 2, max_length
        rows: list[TaskRow] = []
        room = max_length - 2
        for number, (example, words) in enumerate(
            zip(examples, self._encode(examples, tokenizer), strict=True)
        ):
            targets = None if example.tags is None else self._targets(example.tags)
            # Of a word that alone is longer than a row, its beginning: only its first token is judged.
            fitting = [word[:room] for word in words]
            for window in word_windows([len(word) for word in fitting], room=room):
                rows.append(make_row(fitting, window, targets, tokenizer, example=number, unit=len(rows)))
        return rows

    def head(self, config: EncoderConfig) -> TaggingHead:
        """A linear layer."""
        return TaggingHead(config, len(self.tags))

    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """Cross-entropy, summed over the words of each row."""
        logits_BPT = self._logits(head, hidden_BLD, batch)
        target_BP = batch.padded_target("tags", padding=UNLEARNED)
        losses_BP = functional.cross_entropy(
            logits_BPT.float().transpose(1, 2), target_BP, ignore_index=UNLEARNED, reduction="none"
        )
        return losses_BP.sum(dim=1)

    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[NDArray[np.float32]]:
        """For each row the probabilities (P, T) of the tags of its words."""
        probabilities_BPT = (
            self._logits(head, hidden_BLD, batch).float().softmax(dim=-1).detach().cpu().numpy()
        )
        lengths = [len(row.origin.positions) for row in batch.rows]
        return [
            probabilities[:length] for probabilities, length in zip(probabilities_BPT, lengths, strict=True)
        ]

    def predictions(
        self,
        examples: Sequence[TaggingExample],
        rows: Sequence[TaskRow],
        outputs: Sequence[NDArray[np.float32]],
    ) -> list[Prediction]:
        """The tag of each word, in IOB2 if tags mark chunks, and how probable it is."""
        by_sentence = [np.zeros((len(example.words), len(self.tags)), np.float32) for example in examples]
        for row, probabilities_PT in zip(rows, outputs, strict=True):
            judged = slice(row.origin.first, row.origin.first + len(probabilities_PT))
            by_sentence[row.example][judged] = probabilities_PT
        return [self._prediction(probabilities_PT) for probabilities_PT in by_sentence]

    def scores(
        self, examples: Sequence[TaggingExample], predictions: Sequence[Prediction]
    ) -> dict[str, Score]:
        """F1, precision and recall of chunks, if tags mark such; accuracy of tags."""
        assert all(example.tags is not None for example in examples)
        predicted = [prediction["tags"] for prediction in predictions]
        if self.scheme == "tokens":
            return {"accuracy": tag_accuracy([example.tags or () for example in examples], predicted)}
        true = [convert(example.tags or (), scheme="iob2") for example in examples]
        of_chunks = chunk_scores(count_chunks(true, predicted))
        return {**of_chunks, "accuracy": tag_accuracy(true, predicted)}

    def mistakes(self, example: TaggingExample, prediction: Prediction) -> Iterator[Mistake]:
        """One for each wrong word; the surer the worse."""
        triples = zip(example.tags or (), prediction["tags"], prediction["confidences"], strict=True)
        for place, (gold, predicted, confidence) in enumerate(triples):
            if gold != predicted:
                words = [
                    f"[{word}]" if number == place else word for number, word in enumerate(example.words)
                ]
                said = {
                    "where": example.where_is(place),
                    "text": " ".join(words),
                    "gold": gold,
                    "predicted": predicted,
                    "confidence": confidence,
                }
                yield Mistake(confidence, said)

    def table_row(self, example: TaggingExample, prediction: Prediction) -> dict[str, str]:
        """Words and tags with blanks between them."""
        return {"tokens": " ".join(example.words), "tags": " ".join(prediction["tags"])}

    def answer(self, fields: Mapping[str, Any], predictor: Predictor) -> list[Tagged]:
        """Each word with its tag, and the chunks that tags mark.

        A text is cut into words as the tokenizer does it; a list of words is taken as it is.
        """
        sentences = cut_into_words(fields["texts"], predictor)
        # There are no rows for a sentence without words.
        examples = [
            TaggingExample(
                id=str(number), where=f"texts[{number}]", words=tuple(word.text for word in words), tags=None
            )
            for number, (_, words) in enumerate(sentences)
            if words
        ]
        predictions = iter(predictor.predict(self, examples))
        return [
            self._tagged(text, words, next(predictions)) if words else Tagged(text=text, words=[], chunks=[])
            for text, words in sentences
        ]

    def _tagged(self, text: str, words: Sequence[Word], prediction: Prediction) -> Tagged:
        tags = prediction["tags"]
        marked = chunks(tags) if self.scheme == "entities" else []
        places = [(words[chunk.first].start, words[chunk.last].end, chunk.type) for chunk in marked]
        return Tagged(
            text=text,
            words=[
                TaggedWord(text=word.text, start=word.start, end=word.end, tag=tag, confidence=confidence)
                for word, tag, confidence in zip(words, tags, prediction["confidences"], strict=True)
            ],
            chunks=[
                TaggedChunk(text=text[start:end], start=start, end=end, type=kind)
                for start, end, kind in places
            ],
        )

    def transformers_obstacle(self, config: EncoderConfig) -> str | None:
        """None: it has the same layer."""
        return None

    def to_transformers(self, head: nn.Module) -> TransformersHead:
        """The same layer."""
        state = head.state_dict()
        tensors = {f"classifier.{kind}": state[f"output.{kind}"] for kind in ("weight", "bias")}
        return TransformersHead(TAGGER, label_names(self.tags), tensors)

    def from_transformers(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same layer."""
        return {f"output.{kind}": tensors[f"classifier.{kind}"] for kind in ("weight", "bias")}

    def onnx_outputs(
        self, head: nn.Module, hidden_BLD: Tensor, attention_mask_BL: Tensor
    ) -> dict[str, Tensor]:
        """The logits of every token."""
        return {"logits": head(hidden_BLD)}

    def _encode(
        self, examples: Sequence[TaggingExample], tokenizer: Tokenizer
    ) -> Iterator[list[NDArray[np.uint32]]]:
        """The tokens of each word of each sentence; what the tokenizer leaves nothing of is [UNK]."""
        encoded = tokenizer.encode([word for example in examples for word in example.words])
        unknown = np.array([tokenizer.unk_id], np.uint32)
        tokens = (word if len(word) else unknown for word in encoded.split())
        for example in examples:
            yield list(itertools.islice(tokens, len(example.words)))

    def _targets(self, tags: Sequence[str]) -> NDArray[np.int64]:
        known = {tag: number for number, tag in enumerate(self.tags)}
        written = internal_tags(tags, self.scheme, self.marking)
        return np.array([known.get(tag, UNLEARNED) for tag in written], np.int64)

    def _logits(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        positions = [torch.from_numpy(row.origin.positions) for row in batch.rows]
        position_BP = nn.utils.rnn.pad_sequence(positions, batch_first=True).to(hidden_BLD.device)
        logits_BPT: Tensor = head(gather_positions(hidden_BLD, position_BP))
        return logits_BPT

    def choose(self, score_PT: NDArray[np.float64]) -> list[int]:
        """The numbers of a sentence's tags; scores are log-probabilities, or what else may be added up."""
        if self.decoding == "words" or self.scheme == "tokens" or not len(score_PT):
            return [int(tag) for tag in score_PT.argmax(axis=1)]
        return best_tags(score_PT, self.tags, self.marking)

    def prediction(self, numbers: Sequence[int], confidences: Sequence[float]) -> Prediction:
        """What is said of a sentence whose words have these tags."""
        tags = [self.tags[number] for number in numbers]
        shown = convert(tags, scheme="iob2") if self.scheme == "entities" else tags
        return {"tags": shown, "confidences": [round(float(one), 4) for one in confidences]}

    def _prediction(self, probabilities_PT: NDArray[np.float32]) -> Prediction:
        numbers = self.choose(np.log(np.maximum(probabilities_PT.astype(np.float64), _SMALLEST)))
        return self.prediction(numbers, probabilities_PT[np.arange(len(numbers)), numbers].tolist())


def internal_tags(tags: Sequence[str], scheme: TagKind, marking: Scheme = "bioes") -> Sequence[str]:
    """The tags of a sentence as the head knows them."""
    return convert(tags, scheme=marking) if scheme == "entities" else tags


def stand_in(tag: str, known: Sequence[str]) -> str | None:
    """The tag itself, or the nearest one that a model knows; None if there is none."""
    prefix, chunk_type = split_tag(tag)
    candidates = [tag, *(f"{other}-{chunk_type}" for other in STAND_INS.get(prefix, ()) if chunk_type)]
    return next((candidate for candidate in candidates if candidate in known), None)


def make_row(
    words: Sequence[NDArray[np.uint32]],
    window: Window,
    targets: NDArray[np.int64] | None,
    tokenizer: Tokenizer,
    *,
    example: int,
    unit: int,
) -> TaskRow:
    """One window of a sentence, between [CLS] and [SEP]."""
    inside = words[window.start : window.stop]
    ids = np.concatenate([[tokenizer.cls_id], *inside, [tokenizer.sep_id]]).astype(np.uint32)
    starts = 1 + np.cumsum([0, *map(len, inside)])
    judged = slice(window.judged, window.judged_stop)
    return TaskRow(
        input_ids=ids,
        token_type_ids=np.zeros(len(ids), np.uint8),
        example=example,
        unit=unit,
        targets={} if targets is None else {"tags": targets[judged]},
        origin=JudgedWords(
            window.judged, starts[window.judged - window.start : window.judged_stop - window.start]
        ),
    )


def cut_into_words(
    texts: Iterable[str | Iterable[str]], predictor: Predictor
) -> list[tuple[str, list[Word]]]:
    """Each text with its words; lists of words are joined by blanks."""
    if isinstance(texts, str):
        check_texts(texts)
    # What yields texts, or words, may do so once.
    given = [
        check_texts([one], name=f"texts[{number}]")[0]
        if isinstance(one, str)
        else check_texts(one, name=f"texts[{number}]")
        for number, one in enumerate(as_list(texts))
    ]
    located = iter(locate([one for one in given if isinstance(one, str)], predictor.tokenizer))
    return [
        (one, words_of(one, next(located), predictor.continues_word))
        if isinstance(one, str)
        else join_words(one)
        for one in given
    ]


_SHOWN = 12

Sentences = Mapping[str, Sequence[TaggingExample]]
"""By split."""


class TaggedData(NamedTuple):
    """What the tags turned out to be."""

    family: Tagging
    splits: dict[str, list[TaggingExample]]
    """The same sentences; tags that mark chunks are in IOB2 now, whatever scheme they came in."""
    notes: list[str]


def understand_tags(splits: Sentences, *, scheme: TagKind | None = None) -> TaggedData:
    """Find out what the tags mean and whether they can be learned; `scheme` if it is known."""
    learned = splits.get(TRAIN) or [example for examples in splits.values() for example in examples]
    counts = Counter(tag for example in learned for tag in example.tags or ())
    if not counts:
        raise InputError(
            f"{learned[0].where}: no tags, expected one for each word" if learned else "no sentences"
        )
    scheme = scheme or _guess(counts)
    notes = [_found(counts, scheme)]
    read = {name: list(examples) for name, examples in splits.items()}
    if scheme == "entities":
        _check_tags(splits)
        style = detect_scheme([example.tags for example in learned if example.tags])
        notes += [f"chunks are marked in {SCHEME_NAMES[style]}", *_broken(splits, style)]
        read = {name: [_in_iob2(example) for example in examples] for name, examples in read.items()}
    family = Tagging.learn(learned, scheme=scheme)
    if len(family.tags) == 1:
        raise InputError(
            f"{learned[0].where}: all words of {len(learned)} sentences have the tag {family.tags[0]!r}, "
            "expected at least two tags: is it the right column?"
        )
    notes += [note for name, examples in read.items() for note in _unseen(name, examples, family)]
    return TaggedData(family, read, notes)


def _guess(counts: Counter[str]) -> TagKind:
    """Chunks if most words have a tag that can mark one, so that a misspelt tag does not decide."""
    marking = sum(count for tag, count in counts.items() if marks_chunks(tag))
    any_chunk = any(marks_chunks(tag) and tag != OUTSIDE for tag in counts)
    return "entities" if any_chunk and 2 * marking > counts.total() else "tokens"


def _check_tags(splits: Sentences) -> None:
    for example in (example for examples in splits.values() for example in examples):
        for index, tag in enumerate(example.tags or ()):
            if not marks_chunks(tag):
                raise InputError(
                    f"{example.where_is(index)}: the tag is {tag!r}, expected O, or one like B-NP that "
                    "begins with B-, I-, E- or S-; if tags do not mark chunks, set the scheme to tokens"
                )


def _in_iob2(example: TaggingExample) -> TaggingExample:
    tags = None if example.tags is None else tuple(convert(example.tags, scheme="iob2"))
    return replace(example, tags=tags)


def _found(counts: Counter[str], scheme: TagKind) -> str:
    """The labels that were found, the frequent ones with their numbers."""
    if scheme == "tokens":
        return f"{len(counts)} tags, each scored by itself: {_listed(counts)}"
    # A chunk of several words counts more than once: this is about the words that are learned from.
    types = Counter[str]()
    for tag, count in counts.items():
        types[split_tag(tag)[1] or OUTSIDE] += count
    return f"words by type of chunk: {_listed(types)}"


def _listed(counts: Counter[str]) -> str:
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(_SHOWN))
    return shown + (f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else "")


def _broken(splits: Sentences, style: Scheme) -> list[str]:
    """Where tags break their scheme, if any do."""
    notes = []
    for name, examples in splits.items():
        found = [
            (example, index) for example in examples for index in violations(example.tags or (), scheme=style)
        ]
        if found:
            example, index = found[0]
            before, tag = ("the start of the sentence", *(example.tags or ()))[index : index + 2]
            notes.append(
                f"{name}: {len(found):,} {_words(found)} a tag that breaks {SCHEME_NAMES[style]}, read as "
                f"conlleval reads it; the first is at {example.where_is(index)}: {tag} after {before}"
            )
    return notes


def _unseen(name: str, examples: Sequence[TaggingExample], family: Tagging) -> list[str]:
    """Tags that cannot be predicted since they were not there to be learned."""
    found: dict[str, list[str]] = {}
    for example in examples:
        for index, tag in enumerate(internal_tags(example.tags or (), family.scheme, family.marking)):
            if tag not in family.tags:
                found.setdefault(tag, []).append(example.where_is(index))
    places = [f"{tag} ({len(where):,}, the first at {where[0]})" for tag, where in found.items()]
    total = [where for of_tag in found.values() for where in of_tag]
    if not found:
        return []
    shown = ", ".join(places[:_SHOWN]) + (" and more" if len(places) > _SHOWN else "")
    words = f"{len(total):,} {_words(total)} a tag that {TRAIN} lacks"
    return [f"{name}: {words}, so that it cannot be predicted and counts as wrong: {shown}"]


def _words(found: Sequence[object]) -> str:
    return "word has" if len(found) == 1 else "words have"
