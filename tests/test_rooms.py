"""The table of which room may import which, read from the imports themselves."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "electra"
BASE = {"cluster", "config", "errors", "files", "processes", "progress", "schema", "seeds", "show", "store"}
MAY_IMPORT = {
    "config": {"errors", "recipes", "show", "store"},
    "cluster": {"errors", "show"},
    "errors": set(),
    "files": {"errors", "schema"},
    "hub": {"errors"},
    "launch": {"errors"},
    "processes": set(),
    "progress": {"show"},
    "protobuf": set(),
    "recipes": {"errors", "show"},
    "schema": {"errors"},
    "seeds": set(),
    "show": set(),
    "store": {"errors", "files", "show"},
    "tensors": {"errors", "files"},
    "demo": BASE,
    "text": {*BASE, "demo", "hub"},
    "model": {"config", "errors", "files", "schema", "show", "tensors", "text.tokenizer"},
    "train": {*BASE, "model", "tensors"},
    "pretraining": {*BASE, "text", "model", "train"},
    "tasks": {*BASE, "text", "model", "train"},
    "prediction": {*BASE, "protobuf", "text", "model", "tasks"},
    "formats": {*BASE, "hub", "protobuf", "text", "model", "train", "pretraining", "tasks", "prediction"},
    "serve": {*BASE, "text", "model", "tasks", "prediction"},
    "report": {"errors", "files", "show", "store"},
    "checkup": {"errors", "files", "model", "report", "tasks"},
    "bench": {
        *BASE,
        *("demo", "text", "model", "pretraining", "train", "tasks", "prediction", "formats", "serve"),
    },
    "run": {
        *BASE,
        *(
            "cli",
            "checkup",
            "launch",
            "recipes",
            "demo",
            "hub",
            "text",
            "model",
            "pretraining",
            "train",
            "tasks",
        ),
        *("prediction", "formats", "serve", "report", "bench"),
    },
    "cli": {"errors", "run", "show"},
    "__main__": {"cli"},
    "api": {
        *BASE,
        "text",
        "model",
        "pretraining",
        "train",
        "tasks",
        "prediction",
        "formats",
        "report",
        "checkup",
    },
    "__init__": {"api"},
}


def imports_of(tree: ast.AST) -> set[str]:
    """Names below `electra` that a module imports, as dotted paths."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            module = node.module or ""
            is_room = module == "electra" or (SRC.parent / module.replace(".", "/")).is_dir()
            found |= {f"{module}.{alias.name}" if is_room else module for alias in node.names}
    return {name.removeprefix("electra.") for name in found if name.startswith("electra.")}


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def is_allowed(name: str, room: str) -> bool:
    if name.split(".")[0] == room:
        return room != "run"
    return any(name == allowed or name.startswith(f"{allowed}.") for allowed in MAY_IMPORT[room])


MODULES = sorted(SRC.rglob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_keep_to_the_table(path):
    room = room_of(path)
    imported = imports_of(ast.parse(path.read_text(encoding="utf-8")))
    # `electra.__version__` belongs to nobody.
    forbidden = {name for name in imported if name != "__version__" and not is_allowed(name, room)}
    assert not forbidden, f"{path.relative_to(SRC)} may not import {forbidden}"


def test_the_check_sees_what_it_must_forbid():
    tree = ast.parse("from electra import text\nimport electra.run.prepare\nfrom electra.text import rows")
    assert imports_of(tree) == {"text", "run.prepare", "text.rows"}
    assert not is_allowed("text.rows", "model")
    assert not is_allowed("run.pretrain", "pretraining")
    assert is_allowed("text.batches", "pretraining")
    assert not is_allowed("run.demo", "run")


def test_preparing_text_does_not_need_torch():
    # Tensor files are torch's, and the table above keeps them out of the text room.
    for path in {*(SRC / "text").glob("*.py"), *SRC.glob("*.py")} - {SRC / "tensors.py"}:
        top_level = ast.Module(ast.parse(path.read_text(encoding="utf-8")).body, [])
        for node in top_level.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert "torch" not in {name.split(".")[0] for name in names}, path
