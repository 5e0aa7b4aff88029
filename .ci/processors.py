"""This machine -> its numerical tests, run as on other processors: `make test-processors`.

Torch, oneDNN and MKL can be told to leave instructions out; sums then come out in another order.
"""

import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# A test that compares numbers and does not say its precision is found out.
ALWAYS = {"ELECTRA_AUTO_PRECISION": "bf16"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A processor that this one can pass for."""

    name: str
    environment: dict[str, str]
    more_than: str | None = None
    """A flag of /proc/cpuinfo without which the setting is what `make test` runs anyway."""


def limited(aten: str, onednn: str, mkl: str) -> dict[str, str]:
    return {
        "ATEN_CPU_CAPABILITY": aten,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "MKL_ENABLE_INSTRUCTIONS": mkl,
    }


# Two threads add sums up in yet another order. They are part of a setting, not one of their own: the tests
# take ten minutes each time, and what fails with both is soon tried with either.
SETTINGS = (
    Setting(
        name="no AVX, two threads",
        environment={**limited("default", "SSE41", "SSE4_2"), "ELECTRA_TEST_THREADS": "2"},
    ),
    Setting(name="AVX2", environment=limited("avx2", "AVX2", "AVX2"), more_than="avx512f"),
)


def processor_flags() -> set[str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def why_not(setting: Setting, flags: set[str]) -> str | None:
    """The reason to leave a setting out, if there is one."""
    if setting.more_than and setting.more_than not in flags:
        return f"this processor has no {setting.more_than}, so that `make test` has run this already"
    return None


def run(setting: Setting, arguments: list[str]) -> int:
    """The exit code of pytest."""
    environment = {**ALWAYS, **setting.environment}
    stated = " ".join(f"{name}={value}" for name, value in environment.items())
    print(f"== {setting.name}: {stated}", flush=True)
    begun = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-n", "2", "-m", "numeric and not long", *arguments]
    code = subprocess.run(command, env={**os.environ, **environment}, check=False).returncode
    print(
        f"== {setting.name}: {'failed' if code else 'passed'} in {time.monotonic() - begun:.0f} s", flush=True
    )
    return code


def main(arguments: list[str]) -> int:
    """Run what this machine can; the arguments go to pytest."""
    flags = processor_flags()
    print(f"== the numerical tests on {platform.machine()}, as other processors", flush=True)
    chosen = []
    for setting in SETTINGS:
        reason = why_not(setting, flags)
        if reason is None:
            chosen.append(setting)
        else:
            print(f"== {setting.name}: left out, {reason}", flush=True)
    failed = [setting.name for setting in chosen if run(setting, arguments)]
    if failed:
        print(f"== failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
