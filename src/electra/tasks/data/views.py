"""Text without labels -> passages -> two views of each -> a task: vectors that tell what belongs together.

    corpus, or a data set of `prepare`  -> documents -> passages -> two views of each; some are held out
    --contrastive.pairs                 -> pairs that are known to belong together, beside the views
    --contrastive.similarity            -> pairs with values that people gave, scored and never learned

What is held out is always seen as two spans: twice the same text would be found by any encoder.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from electra import files
from electra.errors import InputError
from electra.model.heads import Pooling
from electra.progress import Progress
from electra.seeds import numpy_generator
from electra.tasks.data.columns import OwnTaskConfig, quoted
from electra.tasks.data.table import DEV, examples_of, read_rows, require_labels, table_notes
from electra.tasks.families.family import Splits, TextExample, value_notes
from electra.tasks.families.similarity import Similarity, ValuedExample
from electra.tasks.task import TRAIN, VALIDATION_SHARE, Task, limit
from electra.text import tokenizer as tokenizers
from electra.text.corpus import BUILTIN, SAMPLE_CHARACTERS, STDIN, open_corpus, vocabulary_sample
from electra.text.quarantine import Problems, Tally, describe_problem, strict_reading
from electra.text.rows import Rows
from electra.text.shards import TRAIN as TRAIN_ROWS
from electra.text.shards import VALID, hash_document
from electra.text.tables import read_table, table_source

EPOCHS = 1.0
"""There is always more text, and a view is made once: each is learned from once."""
SHORTEST_PASSAGE = 64
"""Characters; a shorter one, such as a heading, does not say anything twice."""
SPAN_SHARES = (1 / 8, 1 / 2)
"""How much of a passage a span is: from, to."""
LONGEST_WORD = 24
"""Characters among which a white space is looked for; without one, a text is cut in the middle of a word, as
scripts that have none are."""

KNOWN_COLUMNS = (
    ("sentence1", "sentence2", "score"),
    ("sentence1", "sentence2", "label"),
    ("text", "text_pair", "label"),
)
"""Of sets of similarity: STS-B and KorSTS, JSTS, and our own."""


@dataclass(frozen=True, kw_only=True)
class ContrastiveConfig:
    """Vectors from text without labels: two views of a passage belong together, and no two of others."""

    views: Literal["spans", "dropout"] = "spans"
    """Two views of a passage: two spans of it, which may overlap; or one span twice, seen with different
    dropout."""
    passage: int = 512
    """Characters of a passage. Documents are cut into passages of about this length."""
    temperature: float = 0.05
    """Difference of cosines that counts as much: a lower one looks more at the nearest others."""
    pooling: Pooling = "mean"
    """How a text becomes a vector."""
    pairs: str = ""
    """Table of pairs that belong together, to learn from beside the views. Its columns: --own.text (text),
    --own.text_pair (text_pair) and, if there are texts that do not belong to a pair, --own.negative."""
    similarity: list[str] = field(default_factory=list)
    """Tables of pairs with a similarity, such as STS-B, KorSTS and JSTS: scored, before the training and
    after it, and never learned. Columns: sentence1, sentence2 and score or label, or those of --own."""
    held_out: int = 1000
    """Most passages to find among one another, from documents that are not learned from."""
    characters: int = SAMPLE_CHARACTERS
    """Most characters to take from a larger corpus: documents chosen by a hash of their text."""
    text_field: str = "text"
    """Column or field that contains the text of a CSV, TSV, JSON or parquet row."""
    max_bad_fraction: float = 0.05
    """Fraction of the input bytes that may be unreadable or replaced; beyond it, the text is refused."""

    def __post_init__(self) -> None:
        for key, least in (
            ("passage", 2 * SHORTEST_PASSAGE),
            ("held_out", 2),
            ("characters", SHORTEST_PASSAGE),
        ):
            if getattr(self, key) < least:
                raise InputError(f"contrastive.{key} is {getattr(self, key)}, expected {least} or more")
        if not self.temperature > 0:
            raise InputError(f"contrastive.temperature is {self.temperature}, expected above 0")
        if not 0 <= self.max_bad_fraction <= 1:
            raise InputError(f"contrastive.max_bad_fraction is {self.max_bad_fraction}, expected 0 to 1")


def load_contrastive(
    config: ContrastiveConfig, own: OwnTaskConfig, data: str, *, name: str, seed: int, out: str = ""
) -> Task:
    """The task of a corpus; without one, only the sets of similarity. What is in `out` is no text.

    `seed` selects spans and what is held out, which are the same for all seeds of the training.
    """
    if not data and (config.pairs or not config.similarity):
        raise InputError(
            "give --data PATH, the text to learn from: files, a folder, or a data set of prepare"
        )
    if own.negative is not None and not config.pairs:
        raise InputError("own.negative names a column of --contrastive.pairs, and that is not given")
    sets, notes = read_sets(config, own)
    splits: Splits = {}
    if data:
        is_dataset = (Path(data) / files.MANIFEST).is_file()
        found = read_dataset(config, data, seed=seed) if is_dataset else read_corpus(config, own, data, out)
        train = views(found.train, config, seed=seed)
        dev = views(found.held_out, replace(config, views="spans"), seed=seed)
        if not train or len(dev) < 2:
            raise InputError(
                f"{data}: {len(train)} passages to learn from and {len(dev)} to hold out are too few. "
                f"Expected several documents of {SHORTEST_PASSAGE} characters or more each: give more text"
            )
        splits = {TRAIN: train, DEV: limit(dev, config.held_out, seed=seed)}
        notes = [*found.notes, *notes]
    if config.pairs:
        pairs = read_pairs(config, own)
        splits[TRAIN] += pairs
        num_negatives = sum(getattr(pair, "negative", None) is not None for pair in pairs)
        notes.append(f"{len(pairs):,} pairs from {config.pairs}, {num_negatives:,} with a negative")
    return Task(
        name=name,
        family=Similarity(pooling=config.pooling, loss="contrastive", temperature=config.temperature),
        splits={**splits, **sets},
        main_score="accuracy" if data else "spearman",
        epochs=EPOCHS,
        max_length=Similarity.max_length,
        notes=tuple(notes),
    )


class Documents(NamedTuple):
    """Text to learn from and text to score on, which have no document in common."""

    train: Sequence[str]
    held_out: Sequence[str]
    notes: Sequence[str]


def read_corpus(config: ContrastiveConfig, own: OwnTaskConfig, data: str, out: str) -> Documents:
    """Documents as `prepare` reads them; of many, those with the smallest hashes.

    Held out are the smallest of all, as in `prepare`: an encoder that was pre-trained on the same corpus has
    not read these either.
    """
    if data in (STDIN, BUILTIN):
        raise InputError(
            f"--data {data}: only prepare reads it. Run electra prepare --corpus {data} --out DATA, and give "
            "--data DATA"
        )
    corpus = open_corpus(
        [data], text_field=config.text_field, dialect=own.dialect, without=[out] if out else []
    )
    tally, problems = Tally(), Problems()
    with Progress("text", total=corpus.source_bytes / 1e6, unit="MB") as progress:

        def hashed() -> Iterator[tuple[int, str]]:
            for document in corpus.documents(tally, problems):
                progress.update(tally.source_bytes / 1e6)
                yield hash_document(document), document

        documents = vocabulary_sample(hashed(), limit=config.characters)
    problems.check(tally, max_bad_fraction=config.max_bad_fraction)
    notes = [f"{len(documents):,} different documents of {tally.documents:,} are used"]
    if problems.num_problems:
        first = describe_problem(problems.first[0])
        notes.append(f"{problems.num_problems:,} problems, of which the first is: {first}")
    return divided(documents, config, notes)


def read_dataset(config: ContrastiveConfig, data: str, *, seed: int) -> Documents:
    """The rows of a data set as text, each a document; those held out there are held out here."""
    folder = Path(data)
    rows_of = {split: Rows(folder, split) for split in (TRAIN_ROWS, VALID)}
    tokenizer = tokenizers.load_tokenizer(folder / "tokenizer")

    def texts(split: str, characters: int) -> list[str]:
        rows = rows_of[split]
        special = np.array(list(rows.manifest["tokenizer"]["special_ids"].values()))
        # A row has more characters than tokens, so that these are enough.
        count = min(len(rows), 1 + characters // rows.seq_length)
        found: list[str] = []
        for place in numpy_generator(seed, "rows", split).choice(len(rows), count, replace=False).tolist():
            ids = rows[place].ids
            found.append(tokenizer.decode(ids[~np.isin(ids, special)].tolist()))
            if (characters := characters - len(found[-1])) <= 0:
                break
        return found

    train, valid = texts(TRAIN_ROWS, config.characters), texts(VALID, config.held_out * config.passage)
    notes = [f"{data} is a data set: each of its rows counts as a document"]
    return Documents(train, valid, notes) if len(valid) > 1 else divided(train, config, notes)


def divided(documents: Sequence[str], config: ContrastiveConfig, notes: Sequence[str]) -> Documents:
    """The first documents held out, a tenth of all passages at most."""
    sizes = [sum(1 for _ in passages(document, size=config.passage)) for document in documents]
    wanted = min(config.held_out, VALIDATION_SHARE * sum(sizes))
    before = itertools.accumulate(sizes, initial=0)
    count = sum(1 for _ in itertools.takewhile(lambda size: size < wanted, before))
    count = min(count, len(documents) - 1)
    note = f"{count:,} documents are held out: no training passage comes from them"
    return Documents(documents[count:], documents[:count], [*notes, note])


def passages(document: str, *, size: int) -> Iterator[str]:
    """All of a document in passages of about `size` characters, without what is too short to be one."""
    text = " ".join(document.split())
    count = max(1, round(len(text) / size))
    cuts = [word_start(text, len(text) * number // count) for number in range(count + 1)]
    for start, stop in itertools.pairwise(cuts):
        if len(passage := text[start:stop].strip()) >= SHORTEST_PASSAGE:
            yield passage


def word_start(text: str, place: int) -> int:
    """The first place from `place` on where a word begins; `place` itself if none is near."""
    if place in (0, len(text)) or text[place - 1] == " ":
        return place
    blank = text.find(" ", place, place + LONGEST_WORD)
    if blank >= 0:
        return blank + 1
    return len(text) if place + LONGEST_WORD >= len(text) and " " in text else place


def views(documents: Sequence[str], config: ContrastiveConfig, *, seed: int) -> list[TextExample]:
    """An example for each passage, whose two texts are views of it."""
    examples = []
    for document in documents:
        key = f"{hash_document(document):016x}"
        random = numpy_generator(seed, "views", key)
        for number, passage in enumerate(passages(document, size=config.passage)):
            # Both are drawn whatever the choice, so that choices differ in nothing else.
            first, second = span(passage, random), span(passage, random)
            examples.append(
                TextExample(
                    id=f"{key}.{number}",
                    where=f"document {key}, passage {number}",
                    text=first,
                    text_pair=second if config.views == "spans" else first,
                )
            )
    return examples


def span(passage: str, random: np.random.Generator) -> str:
    """A random stretch of whole words."""
    least, most = (round(share * len(passage)) for share in SPAN_SHARES)
    length = int(random.integers(least, most, endpoint=True))
    start = int(random.integers(0, len(passage) - length, endpoint=True))
    stretch = passage[word_start(passage, start) : word_start(passage, start + length)]
    # Between two long words there may be nothing.
    return stretch.strip() or passage[start : start + length].strip()


def read_pairs(config: ContrastiveConfig, own: OwnTaskConfig) -> list[TextExample]:
    """The pairs of a table, with their negatives; labels do not count."""
    keys = replace(
        own, kind=Similarity.kind, similarity_loss="contrastive", text_pair=own.text_pair or "text_pair"
    )
    pairs = examples_of(read_rows(keys, Path(config.pairs)), classes=None)
    return [replace(pair, id=f"pair {pair.id}") for pair in pairs]


def read_sets(config: ContrastiveConfig, own: OwnTaskConfig) -> tuple[Splits, list[str]]:
    """The sets of similarity by name, and what is to be said of them."""
    sets: Splits = {}
    notes: list[str] = []
    for given in config.similarity:
        path = Path(given)
        # A folder tells more than names such as dev.tsv.
        name = re.sub(r"[^\w.-]", "_", f"{path.absolute().parent.name}-{path.name.partition('.')[0]}")
        if name in sets:
            raise InputError(f"contrastive.similarity: {given} is not the only one called {name}: rename it")
        keys = set_columns(path, own)
        table = read_rows(keys, path)
        require_labels(table)
        sets[name] = [
            ValuedExample(
                id=pair.id, where=pair.where, text=pair.text, text_pair=pair.text_pair, label=pair.label
            )
            for pair in examples_of(table, classes={})
        ]
        values = value_notes([example.label for example in sets[name]])
        notes += [f"{name}: {keys.label}, {value}, not learned from" for value in values]
        notes += table_notes(table)
    return sets, notes


def set_columns(path: Path, own: OwnTaskConfig) -> OwnTaskConfig:
    """What the columns of a set are: those that --own names, if it has them, or else known ones."""
    if not path.is_file():
        raise InputError(f"contrastive.similarity: {path}: no such file; name the files, not their folder")
    _, row = next(read_table(strict_reading(table_source(path)), dialect=own.dialect), (0, {}))
    named = [(own.text, own.text_pair, own.label)] if own.text_pair is not None else []
    for text, text_pair, label in [*named, *KNOWN_COLUMNS]:
        if {text, text_pair, label} <= row.keys():
            return replace(
                own,
                kind=Similarity.kind,
                similarity_loss="sts",
                text=text,
                text_pair=text_pair,
                label=label,
                negative=None,
                id=None,
            )
    raise InputError(
        f"{path}: expected the columns sentence1, sentence2 and score or label, or those that --own.text, "
        f"--own.text_pair and --own.label name; there are {quoted(row)}"
    )
