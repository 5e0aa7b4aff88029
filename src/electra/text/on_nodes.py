"""The corpus read, and its shards made, on the nodes of a cluster: the same bytes as on one machine.

A node that sees a file as this machine does (same path, size and time of change: on a shared folder) reads,
splits and hashes it; the others are read here. What is read comes here in order, in numbered parts, and what
does not come (another node went on, which sees other files) is read here, too. Duplicates, splits and blocks
are decided here, as without a cluster. A node makes the shard of a block and sends it back; files are written
here.
"""

import copy
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, islice
from pathlib import Path

from electra.cluster import Cluster
from electra.errors import InputError
from electra.show import listed
from electra.store.remote import Remote, is_url
from electra.text.corpus import Corpus
from electra.text.quarantine import ReadProblem, Tally
from electra.text.shards import Block, Hashed, Shard, ShardSettings, ShardWriter, hashed_groups, store_shard
from electra.text.sources import Source

PACKAGES = ("numpy", "tokenizers")
"""All whose versions may change the bytes of a dataset: nodes with another torch may take part."""
_CORES_PER_READER = 16
"""One reader feeds about as many cores that tokenize."""
_RUN_BYTES, _RUN_FILES = 64 << 20, 1000
"""Files that a reader is given at a time, at most: starting one takes as long as reading some megabytes."""
_GROUP_CHARACTERS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Consecutive files of the corpus."""

    sources: list[Source]
    largest_hash: int | None
    """Documents with larger ones are not wanted."""


@dataclass(frozen=True, kw_only=True)
class _Read:
    """A part of what was read of one source; `is_elsewhere` if a node does not see that file."""

    place: int
    """Of the source in its run, from 0."""
    number: int
    """Of the part in its source, from 0: the same part has the same number wherever the source is read."""
    group: Hashed
    tally: Tally
    """Of this source so far."""
    problems: list[ReadProblem]
    is_last: bool = False
    """Whether the source is whole with it."""
    is_elsewhere: bool = False


class Nodes:
    """What `prepare` leaves to a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.shards: Counter[str] = Counter()
        """Shards made, by the name of the node."""

    @property
    def note(self) -> str:
        """What the nodes have done, for a line of progress."""
        return "  " + listed([f"{name} {count}" for name, count in sorted(self.shards.items())], most=4)

    def groups(
        self,
        corpus: Corpus,
        tally: Tally,
        quarantine: Callable[[ReadProblem], None],
        largest_hash: Callable[[], int | None] = lambda: None,
    ) -> Iterator[Hashed]:
        """All documents in order, but for those whose hash is too large when their file is begun."""
        corpus.report_unreadable(quarantine)
        nodes = self._cluster.nodes
        readers = max(len(nodes), int(sum(node.cpus for node in nodes)) // _CORES_PER_READER)
        runs = list(_runs(corpus.sources)) if readers > 1 else [(False, corpus.sources)]
        streams = self._cluster.streams(
            read_run,
            (
                _Run(sources=sources, largest_hash=largest_hash())
                for is_on_disk, sources in runs
                if is_on_disk
            ),
            shared=(replace(corpus, sources=[]), str(Path.cwd())),
            at_once=readers,
        )

        with closing(streams):
            for is_on_disk, sources in runs:
                before = Tally()
                for part in _whole(corpus, sources, next(streams)[1] if is_on_disk else iter(())):
                    tally.add(part.tally, before if part.number else Tally())
                    before = part.tally
                    for problem in part.problems:
                        quarantine(problem)
                    yield part.group

    def write_all(
        self, blocks: Iterable[Block], settings: ShardSettings, on_finished: Callable[[Block], None]
    ) -> None:
        """Have the shards made, and write them as they come."""
        tokenizer = tuple(
            (path.name, path.read_bytes()) for path in sorted(settings.tokenizer.iterdir()) if path.is_file()
        )

        def note(_block: Block, node: str) -> None:
            self.shards[node] += 1

        made = self._cluster.work(
            make_shard, blocks, shared=(settings, tokenizer), ordered=False, on_done=note
        )
        for block, shard in made:
            store_shard(shard, settings)
            on_finished(block)


def _runs(sources: Iterable[Source]) -> Iterator[tuple[bool, list[Source]]]:
    """Sources in parts of bounded size, and whether they are files that a node may see, too."""
    run: list[Source] = []
    size = 0
    for source in sources:
        # What was never looked at is no file of the corpus: standard input and the like are stored by us.
        is_on_disk = source.format != "hf" and source.modified > 0
        if not is_on_disk:
            if run:
                yield True, run
            run, size = [], 0
            yield False, [source]
            continue
        run.append(source)
        size += source.bytes
        if size >= _RUN_BYTES or len(run) >= _RUN_FILES:
            yield True, run
            run, size = [], 0
    if run:
        yield True, run


def _whole(corpus: Corpus, sources: Sequence[Source], came: Iterator[_Read]) -> Iterator[_Read]:
    """Every part of every source, in order: those that came from nodes, and the others read here.

    A reader that is begun again on another node leaves out as many parts as came before. If that node sees
    other files than the first one did, its parts are others, so that some come again and some never do.
    """
    part = next(came, None)
    for place, source in enumerate(sources):
        number, is_whole = 0, False
        while not is_whole:
            while part is not None and (part.place, part.number) < (place, number):
                part = next(came, None)
            if part is None or part.is_elsewhere or (part.place, part.number) != (place, number):
                yield from islice(_parts(corpus, place, source, source.name), number, None)
                break
            yield part
            number, is_whole = number + 1, part.is_last


# --- on a node, and here ---


def read_run(run: _Run, shared: tuple[Corpus, str]) -> Iterator[_Read]:
    """The documents of some files."""
    corpus, folder = shared
    for place, source in enumerate(run.sources):
        found = source
        if not is_url(source.path):
            # Relative to where the command was given.
            found = replace(source, path=str(Path(folder, source.path)))
        if _is_here(found):
            yield from _parts(corpus, place, found, source.name, largest_hash=run.largest_hash)
        else:
            nothing: Hashed = ([], [])
            yield _Read(place=place, number=0, group=nothing, tally=Tally(), problems=[], is_elsewhere=True)


def _parts(
    corpus: Corpus, place: int, source: Source, name: str, *, largest_hash: int | None = None
) -> Iterator[_Read]:
    """All of one source, which problems call by a name; the last part has no documents."""
    problems: list[ReadProblem] = []
    tally = Tally()
    documents = corpus.documents_of(source, tally, problems.append)
    groups = hashed_groups(documents, characters=_GROUP_CHARACTERS)
    for number in count():
        group = next(groups, None)
        yield _Read(
            place=place,
            number=number,
            group=([], []) if group is None else _wanted(group, largest_hash),
            tally=copy.deepcopy(tally),
            problems=[replace(problem, file=name) for problem in problems],
            is_last=group is None,
        )
        if group is None:
            return
        problems.clear()


def _wanted(group: Hashed, largest_hash: int | None) -> Hashed:
    if largest_hash is None:
        return group
    wanted = [pair for pair in zip(*group, strict=True) if pair[1] <= largest_hash]
    return [document for document, _ in wanted], [hashed for _, hashed in wanted]


def _is_here(source: Source) -> bool:
    if is_url(source.path):
        try:
            stored = Remote(source.path).look("")
        except InputError:
            # This node may lack credentials, or the store's library.
            return False
        return (stored.bytes, stored.modified) == (source.bytes, source.modified)
    try:
        found = Path(source.path).stat()
    except OSError:
        return False
    is_same = (found.st_size, found.st_mtime_ns) == (source.bytes, source.modified)
    return is_same and os.access(source.path, os.R_OK)


def make_shard(block: Block, shared: tuple[ShardSettings, tuple[tuple[str, bytes], ...]]) -> Shard:
    """The shard of a block."""
    return _writer(*shared).make(block)


@lru_cache(maxsize=1)
def _writer(settings: ShardSettings, tokenizer: tuple[tuple[str, bytes], ...]) -> ShardWriter:
    # One process per core is enough; more threads would only wait for each other.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as folder:
        for name, content in tokenizer:
            (Path(folder) / name).write_bytes(content)
        return ShardWriter(replace(settings, tokenizer=Path(folder)))
