import runpy
from pathlib import Path

import pytest

script = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "processors.py"))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("sse4_2 avx2 avx512f avx512_bf16", ["no AVX, two threads", "AVX2"]),
        ("sse4_2 avx2", ["no AVX, two threads"]),
        ("", ["no AVX, two threads"]),
    ],
)
def test_what_a_machine_can_pass_for(flags, expected):
    reasons = {setting.name: script["why_not"](setting, set(flags.split())) for setting in script["SETTINGS"]}
    assert [name for name, reason in reasons.items() if reason is None] == expected
    # What is left out has its reason told.
    assert all(reason is None or "avx512f" in reason for reason in reasons.values())
