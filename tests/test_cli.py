import resource
import subprocess
import sys
from pathlib import Path

import pytest

from electra import __version__, run
from electra.cli import VERBS, main


def test_help_lists_every_verb_and_every_verb_has_a_module(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for verb, what in VERBS.items():
        assert [what] == [line.split(maxsplit=1)[1] for line in lines if line.startswith(f"  {verb} ")]
    modules = {path.stem for path in Path(run.__file__).parent.glob("*.py")} - {"__init__"}
    assert {verb.replace("import", "importing") for verb in VERBS} == modules


def test_no_argument_is_help(capsys):
    assert main([]) == 0
    assert "usage: electra" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"electra {__version__}\n"


def test_unknown_verb_names_the_nearest(capsys):
    assert main(["preprae"]) == 2
    assert "'prepare'" in capsys.readouterr().err


def test_help_needs_neither_torch_nor_much_time():
    code = "import sys; from electra.cli import main; main(['--help']); print('torch' in sys.modules)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.stdout.endswith("False\n")
    # Processor time, not wall-clock: it does not depend on what else the machine does.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


@pytest.mark.parametrize("arguments", [["prepare", "--no_such_key", "1"], ["prepare"]])
def test_bad_usage_exits_with_2_and_one_message(arguments, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("electra: ")
    assert "Traceback" not in captured.err
