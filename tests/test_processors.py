import re
import runpy
from pathlib import Path

import pytest

script = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "processors.py"))


@pytest.mark.parametrize(
    ("flags", "cores", "expected"),
    [
        ("sse4_2 avx2 avx512f avx512_bf16", 2, ["no AVX", "AVX2", "AVX512 without bf16", "two threads"]),
        ("sse4_2 avx2 avx512f", 2, ["no AVX", "AVX2", "two threads"]),
        ("sse4_2 avx2", 2, ["no AVX", "two threads"]),
        ("sse4_2 avx2 avx512f", 1, ["no AVX", "AVX2"]),
        ("", 1, ["no AVX"]),
    ],
)
def test_what_a_machine_can_pass_for(flags, cores, expected):
    reasons = {
        setting.name: script["why_not"](setting, set(flags.split()), cores) for setting in script["SETTINGS"]
    }
    assert [name for name, reason in reasons.items() if reason is None] == expected


def test_the_reason_is_told():
    reasons = [script["why_not"](setting, {"avx2"}, 1) for setting in script["SETTINGS"]]
    assert reasons[0] is None
    assert [re.findall(r"avx512f|make test|\d", reason) for reason in reasons[1:]] == [
        ["avx512f", "make test"],
        ["avx512f"],
        ["2", "1"],
    ]
