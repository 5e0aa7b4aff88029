import subprocess
import sys
from collections import Counter
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from electra.demo import corpus
from electra.demo.corpus import (
    DocumentedPackage,
    Passage,
    corpus_fingerprint,
    installed_sources,
    passages,
    source_of_folder,
)
from electra.errors import InputError


def words_about(subject: str) -> str:
    """A paragraph of English, long enough to be a passage, that no other subject has."""
    return (
        f"This is the description of {subject}, written at some length so that it counts as a passage of its "
        f"own: it says what {subject} does, when it should be used, what it must not be used for, and what "
        "the caller may expect from it in the end."
    )


FILES = {
    "alpha/__init__.py": f'"""{words_about("alpha")}"""\n',
    "alpha/shapes.py": f'''
class Circle:
    """{words_about("circles")}"""

    radius: float
    """{words_about("the radius")}"""

    def area(self):
        """{words_about("areas")}

        >>> Circle(1).area()
        3.14
        """

        async def inner():
            "{words_about("nested functions")}"

if True:
    def late():
        """{words_about("late definitions")}"""
''',
    "alpha/attached.py": f'''
add_docstr(alpha.fast, r"""
fast(x) -> y

{words_about("compiled functions")} """ + f"""

{words_about("sums of strings")} """.format(**arguments))
Circle.__doc__ = """
{words_about("assigned strings")}"""
unrelated = """
{words_about("some template")}"""
''',
    "alpha/comments.py": "x = 1\n"
    + "\n".join(f"# {word}" for word in words_about("comments").split())
    + "\ny = 2\n",
    "alpha/copy.py": f'"""{words_about("areas").upper()}"""\n',
    "alpha/near_copy.py": f'"""{words_about("areas")} It ends in another way than the first one does."""\n',
    "alpha/escapes.py": f'PATTERN = "\\d"\ndef match():\n    """{words_about("patterns")}"""\n',
    "alpha/syntax.py": f'"""{words_about("errors")}"""\nthis is no python\n',
    "alpha/null.py": f'"""{words_about("zeros")}"""\n\0',
    "alpha/latin.py": f'# coding: latin-1\n"""{words_about("the word café")}"""\n',
    "alpha/undecodable.py": f'"""{words_about("the word café")}"""\n',
    "alpha/guide.md": f"# A guide\n\n{words_about('guides')}\n",
    "alpha/LICENSE.md": words_about("licences"),
    "alpha/tests/test_shapes.py": f'"""{words_about("tests")}"""\n',
    "alpha/_vendor/beta.py": f'"""{words_about("vendored code")}"""\n',
    "alpha-1.0.dist-info/METADATA": f"Name: alpha\nVersion: 1.0\n\n{words_about('the naïve project')}\n",
    "pydoc_data/topics.py": f"topics = {{'assert': {words_about('statements')!r}, 'short': 'Too short.'}}\n",
}

EXPECTED = {
    "alpha-1.0.dist-info:README": words_about("the naïve project"),
    "alpha": words_about("alpha"),
    "alpha.attached:alpha.fast": f"{words_about('compiled functions')}\n{words_about('sums of strings')}",
    "alpha.attached:Circle.__doc__": words_about("assigned strings"),
    "alpha.comments:2": words_about("comments"),
    "alpha.copy": words_about("areas").upper(),
    "alpha.escapes:match": words_about("patterns"),
    "alpha/guide.md": words_about("guides"),
    "alpha.latin": words_about("the word café"),
    "alpha.shapes:Circle": words_about("circles"),
    "alpha.shapes:Circle#2": words_about("the radius"),
    "alpha.shapes:Circle.area.inner": words_about("nested functions"),
    "alpha.shapes:late": words_about("late definitions"),
    "topics:assert": words_about("statements"),
}


@pytest.fixture
def source(tmp_path: Path) -> DocumentedPackage:
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            content.encode("latin-1" if name.endswith(("latin.py", "undecodable.py")) else "utf-8")
        )
    return source_of_folder(tmp_path, package="alpha", version="1.0")


def by_origin(found: list[Passage]) -> dict[str, str]:
    """Passages by origin, a second one of the same origin under `origin#2`."""
    texts: dict[str, str] = {}
    for passage in found:
        texts[passage.origin + ("#2" if passage.origin in texts else "")] = passage.text
    return texts


def test_every_kind_of_documentation_is_found_once_and_nothing_else(source: DocumentedPackage) -> None:
    found = list(passages(sources=[source]))
    assert by_origin(found) == EXPECTED
    assert {passage.package for passage in found} == {"alpha"}


def test_the_order_is_that_of_the_sorted_paths(source: DocumentedPackage) -> None:
    assert list(source.files) == sorted(source.files)
    assert list(by_origin(list(passages(sources=[source])))) == list(EXPECTED)


def test_the_number_of_workers_does_not_show(source: DocumentedPackage) -> None:
    other = DocumentedPackage(package="beta", version="2.0", root=source.root, files=source.files[:3])
    alone = list(passages(sources=[other, source], workers=1))
    assert list(passages(sources=[other, source], workers=2)) == alone
    assert {passage.package for passage in alone} == {"alpha", "beta"}


def test_a_paragraph_is_told_only_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(f'"""{words_about("one thing")}"""\n')
    (tmp_path / "b.py").write_text(f'"""{words_about("another")}\n\n{words_about("one  THING")}"""\n')
    found = passages(sources=[source_of_folder(tmp_path, package="alpha", version="1")])
    assert [passage.text for passage in found] == [words_about("one thing"), words_about("another")]


def test_a_listed_file_may_be_gone(source: DocumentedPackage) -> None:
    (source.root / "alpha/shapes.py").unlink()
    found = by_origin(list(passages(sources=[source])))
    assert "alpha" in found
    assert "alpha.shapes:Circle" not in found


def test_the_fingerprint_depends_on_versions_and_rules(
    source: DocumentedPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = corpus_fingerprint(sources=[source])
    newer = DocumentedPackage(package="alpha", version="1.1", root=source.root, files=source.files)
    assert corpus_fingerprint(sources=[newer]) != before
    assert corpus_fingerprint(sources=[source]) == before
    monkeypatch.setattr(corpus, "RULES_VERSION", corpus.RULES_VERSION + 1)
    assert corpus_fingerprint(sources=[source]) != before


def test_only_the_closure_of_the_base_dependencies_is_read() -> None:
    packages = [source.package for source in installed_sources()]
    assert packages[0] == "python"
    assert packages[1:] == sorted(set(packages[1:]))
    # sympy and mpmath come with torch; pytest and mypy with our extra for development.
    assert {"torch", "numpy", "sympy", "mpmath", "jinja2"} <= set(packages)
    assert not {"electra", "pytest", "mypy", "scikit-learn", "transformers"} & set(packages)


def fake_distribution(folder: Path, name: str, *requirements: str) -> Distribution:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    lines = [f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {line}" for line in requirements)]
    (info / "METADATA").write_text("\n".join(lines) + "\n\n")
    (info / "RECORD").write_text(f"{name}/code.py,,\n{name}/data.bin,,\n{name}/tests/code.py,,\n")
    return Distribution.at(info)


def test_extras_and_markers_of_requirements_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes = [
        fake_distribution(tmp_path, "electra", "A_b[fast]>=1", "absent", "dev; extra == 'dev'"),
        fake_distribution(
            tmp_path, "a.b", "c; extra == 'fast'", "d; extra == 'slow'", "d; python_version < '3'"
        ),
        fake_distribution(tmp_path, "c", "electra"),
        fake_distribution(tmp_path, "d"),
        fake_distribution(tmp_path, "dev"),
    ]
    monkeypatch.setattr(corpus, "distributions", lambda: fakes)
    found = installed_sources()[1:]
    assert [source.package for source in found] == ["a-b", "c"]
    assert found[0].files == ("a.b/code.py",)
    assert found[0].root == tmp_path


def test_without_an_installed_electra_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "distributions", list)
    with pytest.raises(InputError, match="pip install"):
        installed_sources()


def test_the_documented_packages_are_not_imported(source: DocumentedPackage) -> None:
    code = (
        "import sys; from electra.demo.corpus import installed_sources, passages; installed_sources();"
        "print(sorted({'torch', 'numpy', 'sympy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.long(reason="reads every docstring of this installation, twice")
def test_this_installation_holds_ten_megabytes_of_distinct_prose() -> None:
    found = list(passages(workers=2))
    assert found == list(passages(workers=1))

    texts = [passage.text for passage in found]
    assert sum(len(text.encode()) for text in texts) >= 10_000_000
    assert min(map(len, texts)) >= 200
    lines = Counter(" ".join(line.lower().split()) for text in texts for line in text.split("\n"))
    assert max(lines.values()) == 1
    assert not [
        text for text in texts if text.startswith((">>>", ".. ")) or "\n>>> " in text or "\n.. " in text
    ]

    sizes = Counter(passage.package for passage in found)
    assert sum(count >= 300 for count in sizes.values()) >= 6
    assert {"python", "torch", "numpy", "sympy", "networkx"} <= {
        name for name, n in sizes.items() if n >= 300
    }
