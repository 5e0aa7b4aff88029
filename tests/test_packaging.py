"""The wheel has everything the package reads, nothing else, and works without the checkout."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "electra"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with a wheel and an sdist, built from a copy of the checkout."""
    copy, out = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    # Not isolated, so that it needs no package index; from a copy, so that nothing is left in the checkout.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


@pytest.fixture(scope="module")
def unpacked(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def package_files():
    found = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"electra/{path.relative_to(PACKAGE).as_posix()}" for path in found}


@pytest.mark.slow
def test_the_wheel_is_the_package_and_nothing_else(unpacked):
    files = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    assert {name for name in files if ".dist-info/" not in name} == package_files()
    # Every kind of file that is read at run time, in case the checkout lacks it as well.
    assert files >= {
        "electra/py.typed",
        "electra/recipes/small.yaml",
        "electra/serve/page/index.html",
        "electra/train/hardware.json",
    }


def test_the_sdist_has_the_package(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {f"src/{name}" for name in package_files()} | {"pyproject.toml", "README.md", "LICENSE"}


@pytest.mark.slow
def test_the_path_of_the_readme_without_the_checkout(unpacked, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    command = [sys.executable, str(ROOT / "tests" / "smoke.py"), str(tmp_path / "empty")]
    result = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert str(unpacked / "electra" / "__init__.py") in result.stdout
