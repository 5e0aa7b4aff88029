"""The Python installation itself -> passages of real English prose, labelled by package.

Every installation contains megabytes of documentation: the pydoc topics, and the docstrings, long comments
and READMEs of the standard library and of our dependencies. They are read with `ast`; nothing is imported.
Only base dependencies count, so that installing an extra does not change the corpus.
"""

import ast
import email
import gc
import hashlib
import importlib.util
import itertools
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from electra.demo.documentation import MIN_CHARACTERS, prose_of, unmarked
from electra.errors import InputError
from electra.processes import Workers

RULES_VERSION = 1  # Raised whenever a change of the rules changes the passages.

_EXCLUDED_FOLDER = re.compile(
    r"__pycache__|(site|dist)-packages|tests?|testing|benchmarks|_?generated|_?vendor(ed)?|extern|"
    r"ensurepip|idlelib|lib2to3|turtledemo"
)
_EXCLUDED_FILE = re.compile(r"test_|conftest|.*_tests?\.|licen[cs]e|notice|authors", re.IGNORECASE)
_CODE_SUFFIXES = (".py", ".pyi")
_TEXT_SUFFIXES = (".md", ".rst")
_TOPICS = "pydoc_data/topics.py"
_COMMENT_MARK = re.compile(r"^\s*#[:!]? ?")
_MIN_COMMENT_LINES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """One piece of documentation after cleaning: a paragraph per line."""

    package: str
    """Distribution it comes from, "python" for the standard library: the label of a classification task."""
    origin: str
    """Its place, such as "numpy.linalg:solve"."""
    text: str
    marked: tuple[str, ...] = ()
    """Those of its paragraphs in which code is marked, with their marks (see `documentation`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentedPackage:
    """A package whose files are read for documentation."""

    package: str
    version: str
    root: Path
    files: tuple[str, ...]
    """Paths below `root` in the order in which they are read."""


def passages(*, sources: Sequence[DocumentedPackage] | None = None, workers: int = 1) -> Iterator[Passage]:
    """All distinct passages, in an order that does not depend on the machine or the number of workers."""
    assert workers >= 1
    return _distinct(_read_all(installed_sources() if sources is None else sources, workers=workers))


def corpus_fingerprint(*, sources: Sequence[DocumentedPackage] | None = None) -> str:
    """A hash of what the corpus depends on: rules, Python, packages and their versions."""
    used = installed_sources() if sources is None else sources
    versions = [(source.package, source.version) for source in used]
    return hashlib.sha256(repr((RULES_VERSION, versions)).encode()).hexdigest()[:16]


def installed_sources() -> list[DocumentedPackage]:
    """The standard library, then our base dependencies and theirs, by name."""
    library = Path(sysconfig.get_path("stdlib"))
    python = source_of_folder(library, package="python", version=platform.python_version())
    others = sorted(_dependencies().items())
    return [python, *(_source_of_distribution(name, distribution) for name, distribution in others)]


def source_of_folder(root: Path, *, package: str, version: str) -> DocumentedPackage:
    """Everything readable below a folder."""
    files: list[str] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not _EXCLUDED_FOLDER.fullmatch(name)]
        files += [(Path(folder) / name).relative_to(root).as_posix() for name in names]
    return DocumentedPackage(package=package, version=version, root=root, files=_readable(files))


def _source_of_distribution(name: str, distribution: Distribution) -> DocumentedPackage:
    root = Path(str(distribution.locate_file("")))
    files = (str(file) for file in distribution.files or [])
    return DocumentedPackage(package=name, version=distribution.version, root=root, files=_readable(files))


def _readable(files: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(file for file in files if _is_readable(PurePosixPath(file))))


def _is_readable(path: PurePosixPath) -> bool:
    if path.suffix not in (*_CODE_SUFFIXES, *_TEXT_SUFFIXES) and path.name != "METADATA":
        return False
    return not (any(map(_EXCLUDED_FOLDER.fullmatch, path.parts)) or _EXCLUDED_FILE.match(path.name))


def _dependencies() -> dict[str, Distribution]:
    """The installed packages that the base install of `electra` needs, directly or indirectly."""
    # Reversed: of two distributions with the same name, the first on the path is the one that is imported.
    found = reversed([*distributions()])
    installed: dict[str, Distribution] = {canonicalize_name(each.name): each for each in found}
    if "electra" not in installed:
        raise InputError(
            "electra is on the path but not installed, so its dependencies are not known: pip install ."
        )
    todo, done = [("electra", "")], set[tuple[str, str]]()
    while todo:
        name, extra = todo.pop()
        if name not in installed or (name, extra) in done:
            continue
        done.add((name, extra))
        for requirement in map(Requirement, installed[name].requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                needed = canonicalize_name(requirement.name)
                todo += [(needed, wanted) for wanted in ("", *requirement.extras)]
    return {name: installed[name] for name, _ in done if name != "electra"}


def _distinct(found: Iterable[Passage]) -> Iterator[Passage]:
    """Drop paragraphs seen before, and passages that begin like another one: docstrings are often copied."""
    seen: set[str] = set()
    for passage in found:
        beginning = _key(passage.text[:MIN_CHARACTERS])
        lines = {_key(line): line for line in passage.text.split("\n")}
        new = [line for key, line in lines.items() if key not in seen]
        fresh = "\n".join(new)
        if beginning in seen or len(fresh) < MIN_CHARACTERS:
            continue
        seen.update(lines, [beginning])
        yield replace(
            passage, text=fresh, marked=tuple(line for line in passage.marked if unmarked(line) in new)
        )


def _key(text: str) -> str:
    return " ".join(text.lower().split())


def _read_all(sources: Sequence[DocumentedPackage], *, workers: int) -> Iterator[Passage]:
    """Read every file of every source, in order."""
    files = [(source.package, source.root, file) for source in sources for file in source.files]
    if workers == 1:
        yield from itertools.chain.from_iterable(map(_read, files))
        return
    # Syntax trees hold no cycles: looking for them takes a tenth of the time.
    with Workers(workers, gc.disable) as pool:
        yield from itertools.chain.from_iterable(pool.map(_read, files, chunksize=16))


def _read(task: tuple[str, Path, str]) -> list[Passage]:
    """The passages of one file; none if it is gone or Python cannot read it."""
    package, root, file = task
    try:
        pieces = list(_pieces(PurePosixPath(file), (root / file).read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    cleaned = ((place, prose_of(raw)) for place, raw in pieces if len(raw) >= MIN_CHARACTERS)
    return [
        Passage(package=package, origin=origin, text=prose.text, marked=prose.marked)
        for origin, prose in cleaned
        if prose.text
    ]


def _pieces(path: PurePosixPath, content: bytes) -> Iterator[tuple[str, str]]:
    """(origin, raw documentation) of a file, by what kind of file it is."""
    if path.name == "METADATA":
        yield f"{path.parent.name}:README", str(email.message_from_string(content.decode()).get_payload())
    elif path.suffix in _TEXT_SUFFIXES:
        yield str(path), content.decode()
    else:
        module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        if str(path) == _TOPICS or b'"""' in content or b"'''" in content:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in other people's strings
                tree = ast.parse(content)
            yield from _topics(tree) if str(path) == _TOPICS else _docstrings(tree.body, place=module)
        yield from _comments(module, importlib.util.decode_source(content))


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            for name, text in ast.literal_eval(statement.value).items():
                yield f"topics:{name}", text


def _docstrings(body: Iterable[ast.stmt], *, place: str) -> Iterator[tuple[str, str]]:
    """Every string that is a statement, and every string passed to something with "doc" in its name."""
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            if isinstance(statement.value.value, str):
                yield place, statement.value.value
        elif isinstance(statement, ast.Expr | ast.Assign):
            if statement.end_lineno != statement.lineno:
                yield from _attached(statement, place=place)
        elif isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            separator = "." if ":" in place else ":"
            yield from _docstrings(statement.body, place=f"{place}{separator}{statement.name}")
        else:
            for block in ("body", "orelse", "finalbody"):
                yield from _docstrings(getattr(statement, block, ()), place=place)


def _attached(statement: ast.Expr | ast.Assign, *, place: str) -> Iterator[tuple[str, str]]:
    """The text in `add_docstr(torch.abs, ...)`, in `f.__doc__ = ...`, in any call of `_torch_docs`."""
    value = statement.value
    names = [ast.unparse(target) for target in statement.targets] if isinstance(statement, ast.Assign) else []
    if isinstance(value, ast.Call):
        names += [ast.unparse(node) for node in (value.func, *value.args[:1])]
    if any("doc" in name for name in [place.rpartition(".")[2], *names]):
        # Names given as strings contain no space. The parts of a sum or of an f-string belong together.
        text = "".join(part for part in _strings(value) if " " in part)
        yield f"{place}:{names[-1] if names else ''}", text


def _strings(node: ast.AST) -> Iterator[str]:
    """String constants in the order of the source."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from _strings(child)


def _comments(module: str, source: str) -> Iterator[tuple[str, str]]:
    """Runs of comment lines, named by the number of the first: many explain a design at length."""
    numbered = enumerate(source.splitlines(), start=1)
    for is_comment, run in itertools.groupby(numbered, lambda line: line[1].lstrip().startswith("#")):
        lines = list(run) if is_comment else []
        if len(lines) >= _MIN_COMMENT_LINES:
            yield f"{module}:{lines[0][0]}", "\n".join(_COMMENT_MARK.sub("", line) for _, line in lines)
