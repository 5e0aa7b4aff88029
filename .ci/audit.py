"""What is installed -> a bill of materials (CycloneDX), and what is known to be vulnerable in it.

Run by `make audit`, whose tools live in an environment of their own. Where the index answers no questions
about vulnerabilities, that is said, and is no failure.
"""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

TOOLS = Path(sys.prefix) / "audit" / "bin"
OUT = Path("audit")


def write_bill() -> int:
    """audit/bom.json, in CycloneDX -> the number of components."""
    path = OUT / "bom.json"
    options = ["--pyproject", "pyproject.toml", "--output-reproducible", "--output-file", str(path)]
    subprocess.run([TOOLS / "cyclonedx-py", "environment", *options, sys.executable], check=True)
    return len(json.loads(path.read_bytes())["components"])


def find_vulnerabilities() -> list[dict[str, object]]:
    """What pip-audit says of each installed package."""
    installed = sysconfig.get_path("purelib")
    command = [TOOLS / "pip-audit", "--path", installed, "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, object]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        # Neither a report nor a refusal: it could not ask at all.
        print(f"pip-audit could not ask: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
        return []
    return found


def main() -> int:
    """1 if a vulnerability is known, else 0."""
    OUT.mkdir(exist_ok=True)
    print(f"{write_bill()} components in {OUT / 'bom.json'}")
    packages = find_vulnerabilities()
    asked = [package for package in packages if "skip_reason" not in package]
    print(f"{len(asked)} of {len(packages)} packages are known to the index's list of vulnerabilities")
    vulnerable = [package for package in asked if package["vulns"]]
    for package in vulnerable:
        print(f"{package['name']} {package['version']}: {json.dumps(package['vulns'])}")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
