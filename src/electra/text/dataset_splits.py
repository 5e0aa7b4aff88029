"""A folder of Hugging Face's `datasets`, or a name on the Hub -> its splits, whose rows are those of tables.

    open_splits("FOLDER")                # what Dataset.save_to_disk or DatasetDict.save_to_disk wrote
    open_splits("owner/name:config")     # on the Hub, or a folder of data files

Where the dataset names its classes (ClassLabel), rows have the names in place of their numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from electra import files, hub
from electra.errors import InputError, import_extra
from electra.schema import short
from electra.text.tables import NumberedRow, dataset_name, short_reason

WHOLE = ""
"""Name of the only split of a dataset that is not divided, or of which one split is meant."""
_FORM = "hf:NAME[:CONFIG][@SPLIT]"
_DIVIDED, _STATE = "dataset_dict.json", "state.json"
"""Files of which one lies in every folder that `save_to_disk` has written."""
_HIDDEN = -1
"""Stands for a class that is not told."""
_BATCH_ROWS = 1000
_DAMAGED = "the dataset is damaged, make or copy it again"


class _DataFile(TypedDict):
    filename: str


class _State(TypedDict):
    """What `save_to_disk` writes beside the files of a split."""

    _data_files: list[_DataFile]


class _SplitNames(TypedDict):
    splits: list[str]


@dataclass(frozen=True, kw_only=True)
class Split:
    """One table of a dataset."""

    where: str
    """As messages name it, such as hf:owner/name@train."""
    dataset: Any

    def rows(self) -> Iterator[NumberedRow]:
        """Rows, counted from 1, with the names of classes in place of their numbers."""
        naming = {
            column: name
            for column, feature in self.dataset.features.items()
            if (name := _naming(feature)) is not None
        }
        number = 0
        for batch in self.dataset.with_format("arrow").iter(_BATCH_ROWS):
            for row in self._checked_rows(batch, number + 1):
                number += 1
                for column, name in naming.items():
                    try:
                        row[column] = name(row[column])
                    except (IndexError, TypeError) as error:
                        raise InputError(
                            f"{self.where}:{number}: {column!r} is {row[column]!r}, which is no class of it"
                        ) from error
                yield number, row

    def _checked_rows(self, batch: Any, number: int) -> list[dict[str, Any]]:
        """The rows of a batch whose first one has this number.

        An Arrow file says where in it each text lies, and nobody has compared that with what it holds: what
        is not checked reads other memory, or ends the process.
        """
        try:
            batch.validate(full=True)
            rows: list[dict[str, Any]] = batch.to_pylist()
        # Values of each type have their own ways to be wrong: bounds, UTF-8, dates, time zones.
        except Exception as error:
            if batch.num_rows > 1:
                # The first row that is wrong has to be named.
                return [
                    row
                    for place in range(batch.num_rows)
                    for row in self._checked_rows(batch.slice(place, 1), number + place)
                ]
            raise InputError(f"{self.where}:{number}: {short_reason(error)}: {_DAMAGED}") from error
        return rows

    def classes(self, column: str) -> tuple[str, ...]:
        """The names of the classes of a column, in the dataset's order; empty if it does not name any."""
        feature = self.dataset.features.get(column)
        names = getattr(feature, "names", None) or getattr(_inner(feature), "names", None)
        return tuple(names or ())


def _inner(feature: Any) -> Any:
    """What a list consists of."""
    return feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", None)


def _naming(feature: Any) -> Callable[[Any], Any] | None:
    """How a value of a column gets its name; None if the column has no names."""
    if names := getattr(feature, "names", None):

        def name_of(value: int | None) -> str | None:
            if value is None or value == _HIDDEN:
                return None
            if value < 0:
                raise IndexError(value)
            return str(names[value])

        return name_of
    one = None if _inner(feature) is None else _naming(_inner(feature))
    if one is None:
        return None
    return lambda values: None if values is None else [one(value) for value in values]


def open_splits(text: str) -> dict[str, Split]:
    """The splits of a dataset by their names; a single one is called ''."""
    name, config, wanted = dataset_name(text)
    if not name:
        raise InputError(f"hf: needs the name of a dataset or a folder: {_FORM}")
    datasets = import_extra("datasets", extra="hf")
    path = Path(name)
    if not path.exists():
        _require_on_hub(name)
    with _opening(text):
        if any((path / file).is_file() for file in (_DIVIDED, _STATE)):
            if config is not None:
                raise InputError(f"hf:{text}: a folder of save_to_disk has no configs: leave out :{config}")
            _refuse_files_elsewhere(path)
            found = datasets.load_from_disk(name)
        else:
            if path.is_dir():
                _refuse_data_elsewhere(path, datasets.load_dataset_builder(name, config).config.data_files)
            found = datasets.load_dataset(name, config)
    splits = dict(found) if isinstance(found, dict) else {WHOLE: found}
    if wanted is not None and (wanted not in splits or WHOLE in splits):
        known = ", ".join(splits) if WHOLE not in splits else "it is not divided"
        raise InputError(f"hf:{text}: no split {wanted!r}, only {known}")
    if wanted is not None:
        return {WHOLE: Split(where=f"hf:{text}", dataset=splits[wanted])}
    return {
        split: Split(where=f"hf:{text}@{split}" if split else f"hf:{text}", dataset=dataset)
        for split, dataset in splits.items()
    }


def _refuse_files_elsewhere(folder: Path) -> None:
    """Refuse a folder of `save_to_disk` that names what is not in it. What is missing, the library says."""
    of_splits, splits = folder / _DIVIDED, []
    if of_splits.is_file():
        named: _SplitNames = files.read_json(of_splits, _SplitNames)
        splits = named["splits"]
        for split in splits:
            if Path(split).name != split:
                raise InputError(f"{of_splits} names {short(split)}, expected a folder beside it")
            _refuse_elsewhere(folder, split, where=of_splits)
    for part in (folder, *(folder / split for split in splits)):
        if (part / _STATE).is_file():
            state: _State = files.read_json(part / _STATE, _State)
            for file in state["_data_files"]:
                _refuse_elsewhere(part, file["filename"], where=part / _STATE)


def _refuse_data_elsewhere(folder: Path, found: Mapping[str, Sequence[str]] | None) -> None:
    """Refuse a folder of data files whose README.md names what is not in it."""
    card = folder / "README.md"
    for name in (name for names in (found or {}).values() for name in names):
        _refuse_elsewhere(folder, name, where=card if card.is_file() else folder)


def _refuse_elsewhere(folder: Path, name: str, *, where: Path) -> None:
    # To the library, :: and :// lead to other places. Where a link leads is not the name's to say.
    is_path = not any(mark in name for mark in ("::", "://", "\0")) and ".." not in Path(name).parts
    place, tops = folder / name, (folder.absolute(), folder.resolve())
    is_below = is_path and any(place.absolute().is_relative_to(top) for top in tops)
    # A pipe would be waited for.
    if not is_below or place.is_fifo():
        raise InputError(f"{where} names {short(name)}, expected a file in {folder}")


def _require_on_hub(name: str) -> None:
    """Ask for a dataset once; offline, the library looks into its cache."""
    if not hub.is_name(name):
        raise InputError(f"{name}: no such folder, and no possible name on the Hub: expected {_FORM}")
    way_out = (
        "name a folder instead: datasets.load_dataset(...).save_to_disk(DIR), where the Hub can be reached, "
        "and --task hf:DIR"
    )
    with hub.explained(f"there is no folder {name} here, and on the Hub dataset", name, way_out):
        hub.ask_for_dataset(name)


@contextmanager
def _opening(text: str) -> Iterator[None]:
    """Whatever the library raises is a mistake in what it was told, or in the files."""
    try:
        yield
    except InputError:
        raise
    except PermissionError as error:
        raise InputError(
            f"hf:{text} cannot be opened: {error.filename or 'its cache'} may not be written or read: set "
            "HF_HOME to a folder that can"
        ) from error
    # What it raises has no narrower parent.
    except Exception as error:
        raise InputError(
            f"hf:{text} cannot be opened: {short_reason(error)} (expected {_FORM}, a folder of "
            "datasets.save_to_disk, or the name of a dataset on the Hub, which must be reachable)"
        ) from error
