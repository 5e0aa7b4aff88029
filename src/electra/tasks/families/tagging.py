"""Tags of words -> the chunks that they mark -> tags in another scheme.

scheme   B-X                            I-X                            E-X, S-X
iob1     starts a chunk right after     is in a chunk, its first       never
         another one of type X          word too
iob2     starts a chunk                 goes on in it                  never
bioes    starts a chunk of two words    stands between its ends        ends such a chunk; is one of a
         or more                                                       single word

True and predicted tags -> precision, recall and F1 of chunks, as conlleval counts them.

A chunk is right if its first word, its last word and its type are. Tags of any scheme are read, those of a
model that keeps to none too: see `tag_schemes.chunks`.

Sentences of words -> rows -> a tag for each word: chunks, named entities, parts of speech.

A word is judged by its first token. As in the original, a model of chunks knows BIOES tags, each word is
judged by itself, and a row's loss is the sum over its words. Unlike there, the tags that come in and go out
are IOB2; the scores are conlleval's; all tokens are of segment 0, as transformers has it, and not of 1; and
a sentence that is too long becomes several rows that overlap, where the original drops the words at its end
from training and from the score.

B rows, L positions, P words of a row, T tags, D numbers in a hidden state.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from electra.model.heads import TaggingHead, gather_positions
from electra.model.sizes import EncoderConfig
from electra.tasks.families.family import Example, Family, Prediction, Score, TaskBatch, TaskRow
from electra.text.tokenizer import Tokenizer

Scheme = Literal["iob2", "iob1", "bioes"]
Reading = Literal["conlleval", "google"]

OUTSIDE = "O"
PREFIXES = ("B", "I", "E", "S")


class Chunk(NamedTuple):
    """Words that belong together."""

    first: int
    last: int
    type: str


@lru_cache(maxsize=4096)
def split_tag(tag: str) -> tuple[str, str]:
    """Prefix and type: "B-NP" -> "B", "NP". A type may hold hyphens itself."""
    prefix, _, chunk_type = tag.partition("-")
    return prefix, chunk_type


def marks_chunks(tag: str) -> bool:
    """Whether a tag is of any of the schemes."""
    prefix, chunk_type = split_tag(tag)
    return tag == OUTSIDE or (prefix in PREFIXES and chunk_type != "")


def chunks(tags: Sequence[str], *, reading: Reading = "conlleval") -> list[Chunk]:
    """The chunks of a sentence; every tag of a scheme is understood, also where it breaks the scheme.

    `google` reads as the authors' code does, which lets a chunk run on into another type; the two agree
    where the tags keep to IOB2 or BIOES.
    """
    is_end = _IS_END[reading]
    found: list[Chunk] = []
    first = 0
    for index, (tag, next_tag) in enumerate(pairwise([*tags, OUTSIDE])):
        if tag == OUTSIDE:
            first = index + 1
        elif next_tag == OUTSIDE or is_end(tag, next_tag):
            found.append(Chunk(first, index, split_tag(tag)[1]))
            first = index + 1
    return found


@lru_cache(maxsize=4096)
def _is_end(tag: str, next_tag: str) -> bool:
    """Whether a chunk ends between two tags: conlleval's rules, with S and with E before B beside them."""
    (prefix, chunk_type), (next_prefix, next_type) = split_tag(tag), split_tag(next_tag)
    return prefix in ("E", "S") or next_prefix in ("B", "S") or chunk_type != next_type


def _is_end_to_google(_tag: str, next_tag: str) -> bool:
    return split_tag(next_tag)[0] in ("B", "S")


_IS_END: dict[Reading, Callable[[str, str], bool]] = {"conlleval": _is_end, "google": _is_end_to_google}


def write_tags(marked: Iterable[Chunk], *, length: int, scheme: Scheme) -> list[str]:
    """The tags of a sentence of `length` words with these chunks, which are in order and do not overlap."""
    tags = [OUTSIDE] * length
    last, last_type = -2, ""
    for chunk in marked:
        tags[chunk.first : chunk.last + 1] = [f"I-{chunk.type}"] * (chunk.last - chunk.first + 1)
        touches_its_like = (last, last_type) == (chunk.first - 1, chunk.type)
        if scheme != "iob1" or touches_its_like:
            tags[chunk.first] = f"B-{chunk.type}"
        if scheme == "bioes":
            tags[chunk.last] = f"{'S' if chunk.first == chunk.last else 'E'}-{chunk.type}"
        last, last_type = chunk.last, chunk.type
    return tags


def convert(tags: Sequence[str], *, scheme: Scheme) -> list[str]:
    """The same chunks in another scheme."""
    return write_tags(chunks(tags), length=len(tags), scheme=scheme)


def violations(tags: Sequence[str], *, scheme: Scheme) -> list[int]:
    """The words whose tag is not the one that the scheme gives to the chunks that are marked."""
    proper = convert(tags, scheme=scheme)
    return [index for index, (tag, expected) in enumerate(zip(tags, proper, strict=True)) if tag != expected]


def detect(sentences: Sequence[Sequence[str]]) -> Scheme:
    """The scheme with the fewest violations; IOB2 if nothing tells them apart."""
    counts: dict[Scheme, int] = {}
    for scheme in get_args(Scheme):
        counts[scheme] = sum(len(violations(tags, scheme=scheme)) for tags in sentences)
        if counts[scheme] == 0:
            break
    return min(counts, key=counts.__getitem__)


class ChunkCounts(NamedTuple):
    """How many chunks there are, over all sentences."""

    true: int
    predicted: int
    right: int
    """Both true and predicted."""


def count_chunks(true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> ChunkCounts:
    """Compare the tags of sentences; no chunk reaches into the next sentence."""
    num_true = num_predicted = num_right = 0
    for true_tags, predicted_tags in zip(true, predicted, strict=True):
        assert len(true_tags) == len(predicted_tags)
        true_chunks, predicted_chunks = set(chunks(true_tags)), set(chunks(predicted_tags))
        num_true += len(true_chunks)
        num_predicted += len(predicted_chunks)
        num_right += len(true_chunks & predicted_chunks)
    return ChunkCounts(num_true, num_predicted, num_right)


def chunk_scores(counts: ChunkCounts) -> dict[str, Score]:
    """F1, precision, recall; undefined where there is nothing to divide by, for which conlleval prints 0."""
    nothing = "there is no chunk, neither true nor predicted"
    return {
        "f1": _ratio(2 * counts.right, counts.true + counts.predicted, nothing),
        "precision": _ratio(counts.right, counts.predicted, "no chunk is predicted"),
        "recall": _ratio(counts.right, counts.true, "there is no true chunk"),
    }


def tag_accuracy(true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> Score:
    """The share of words with the right tag."""
    right = [
        true_tag == predicted_tag
        for true_tags, predicted_tags in zip(true, predicted, strict=True)
        for true_tag, predicted_tag in zip(true_tags, predicted_tags, strict=True)
    ]
    return _ratio(sum(right), len(right), "there is no word")


def _ratio(part: int, whole: int, undefined: str) -> Score:
    return Score(part / whole) if whole else Score(math.nan, undefined)


TagKind = Literal["entities", "tokens"]
"""Whether tags mark chunks of words, scored as a whole, or each stands for itself."""

UNLEARNED = -100
"""The target of a word that no loss is computed for: its tag is not among those of the model."""

CONTEXT_SHARE = 1 / 4
"""Of a row, how much it shares with the next one of the same sentence."""


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


class Window(NamedTuple):
    """The part of a sentence that a row holds: words `first` to `end`, judging `judged` to `judged_end`."""

    first: int
    judged: int
    judged_end: int
    end: int


class JudgedWords(NamedTuple):
    """Where a row's judged words stand: the first of them in the sentence, and the first token of each."""

    first: int
    positions: NDArray[np.int64]


@dataclass(frozen=True)
class Tagging(Family[TaggingExample]):
    """A tag for each word."""

    name: ClassVar[str] = "tagging"

    tags: tuple[str, ...]
    """In the order of the head's logits; BIOES if the scheme is entities. `learn` finds them in examples."""
    scheme: TagKind

    def __post_init__(self) -> None:
        assert self.scheme in get_args(TagKind), self.scheme
        assert len(set(self.tags)) == len(self.tags) > 0, self.tags
        if self.scheme == "entities":
            assert all(map(marks_chunks, self.tags)), self.tags
            # Every chunk of two words or more has an end: without it, these are tags of another scheme.
            unended = [
                tag for tag in self.tags if tag[0] in "BI" and f"E-{split_tag(tag)[1]}" not in self.tags
            ]
            assert not unended, f"{unended} are not BIOES: use Tagging.learn"

    @classmethod
    def learn(cls, examples: Sequence[TaggingExample], *, scheme: TagKind) -> Self:
        """The family with all tags of labelled examples, sorted as in the original."""
        seen = [internal_tags(example.tags or (), scheme) for example in examples]
        return cls(tuple(sorted({tag for tags in seen for tag in tags})), scheme)

    def labels(self) -> tuple[str, ...]:
        """The tags of the head."""
        return self.tags

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
            for window in windows([len(word) for word in fitting], room=room):
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
        """The most probable tag of each word, in IOB2 if tags mark chunks, and how probable it is."""
        best: list[list[tuple[str, float]]] = [[("", 0.0)] * len(example.words) for example in examples]
        for row, probabilities_PT in zip(rows, outputs, strict=True):
            choices = zip(probabilities_PT.argmax(axis=1), probabilities_PT.max(axis=1), strict=True)
            for word, (tag, confidence) in enumerate(choices, row.origin.first):
                best[row.example][word] = self.tags[tag], round(float(confidence), 4)
        return [self._prediction(words) for words in best]

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
        return np.array([known.get(tag, UNLEARNED) for tag in internal_tags(tags, self.scheme)], np.int64)

    def _logits(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        positions = [torch.from_numpy(row.origin.positions) for row in batch.rows]
        position_BP = nn.utils.rnn.pad_sequence(positions, batch_first=True).to(hidden_BLD.device)
        logits_BPT: Tensor = head(gather_positions(hidden_BLD, position_BP))
        return logits_BPT

    def _prediction(self, words: Sequence[tuple[str, float]]) -> Prediction:
        tags = [tag for tag, _ in words]
        shown = convert(tags, scheme="iob2") if self.scheme == "entities" else tags
        return {"tags": shown, "confidences": [confidence for _, confidence in words]}


def internal_tags(tags: Sequence[str], scheme: TagKind) -> Sequence[str]:
    """The tags of a sentence as the head knows them."""
    return convert(tags, scheme="bioes") if scheme == "entities" else tags


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
    inside = words[window.first : window.end]
    ids = np.concatenate([[tokenizer.cls_id], *inside, [tokenizer.sep_id]]).astype(np.uint32)
    starts = 1 + np.cumsum([0, *map(len, inside)])
    judged = slice(window.judged, window.judged_end)
    return TaskRow(
        input_ids=ids,
        token_type_ids=np.zeros(len(ids), np.uint8),
        example=example,
        unit=unit,
        targets={} if targets is None else {"tags": targets[judged]},
        origin=JudgedWords(
            window.judged, starts[window.judged - window.first : window.judged_end - window.first]
        ),
    )


def windows(lengths: Sequence[int], *, room: int) -> list[Window]:
    """Cut a sentence between words so that each window fits; every word is judged once.

    Two windows share words. The first half of those is judged in the first window, the other half in the
    second, so that a word has neighbours on both sides wherever the sentence gives it some.
    """
    assert max(lengths) <= room
    ends = np.cumsum(lengths)
    starts = ends - lengths
    found: list[Window] = []
    first = judged = 0
    while judged < len(lengths):
        end = int(np.searchsorted(ends, starts[first] + room, side="right"))
        next_first = judged_end = end
        if end < len(lengths):
            # As many words as the shared part holds, and such that the next word fits in behind them.
            shared_from = max(ends[end - 1] - int(CONTEXT_SHARE * room), ends[end] - room)
            next_first = max(first + 1, int(np.searchsorted(starts, shared_from)))
            judged_end = (next_first + end + 1) // 2
        found.append(Window(first, judged, judged_end, end))
        first, judged = next_first, judged_end
    return found
