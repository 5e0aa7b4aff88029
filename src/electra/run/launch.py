"""`electra launch slurm|kubernetes ... -- COMMAND`: a command -> a job script or a manifest for a cluster.

electra launch slurm --nodes 4 --gpus 8 --time 24:00:00 --out job.sh -- pretrain --config base ...
"""

import importlib
import importlib.metadata
import shlex
from collections.abc import Sequence
from pathlib import Path

import yaml

from electra import config, files
from electra.errors import InputError
from electra.launch import LaunchConfig, kubernetes_manifest, slurm_script
from electra.show import did_you_mean, listed
from electra.store import remote

TARGETS = ("slurm", "kubernetes")
COMMANDS = {
    "pretrain": ("electra.pretraining.config", "PretrainRunConfig"),
    "finetune": ("electra.tasks.config", "FinetuneConfig"),
    "prepare": ("electra.text.dataset", "PrepareConfig"),
    "predict": ("electra.tasks.evaluation", "PredictConfig"),
}
"""Commands that can have several machines, each with the config that its keys are checked by."""
USAGE = "electra launch slurm|kubernetes [--nodes N] [--gpus N] ... -- pretrain --data DATA --out RUN"
_RAY = "2.60.0"
"""Version of Ray in manifests where it is not installed; it must be that of the image."""


def main(arguments: Sequence[str]) -> None:
    """Write the file for a cluster."""
    words, command = split(arguments)
    if words[:1] == [] or words[0].startswith("-"):
        # `--help` and `--print_config` need no cluster.
        config.parse(LaunchConfig, words, prog="electra launch")
        raise InputError(f"say for which cluster: {USAGE}")
    target = words.pop(0)
    if target not in TARGETS:
        raise InputError(f"unknown cluster {target!r}{did_you_mean(target, TARGETS)}: {USAGE}")
    settings = config.parse(LaunchConfig, words, prog=f"electra launch {target}")
    check_keys(settings, target)
    check_command(command, on_ray=target == "kubernetes" or settings.engine == "ray")
    if target == "slurm":
        text = slurm_script(settings, command)
    else:
        manifest = kubernetes_manifest(settings, command, ray_version=ray_version())
        text = yaml.safe_dump(manifest, sort_keys=False)
    if not settings.out:
        print(text, end="")
        return
    out = Path(settings.out)
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}")
    files.write_file(out, lambda file: file.write(text.encode()))
    submit = "sbatch" if target == "slurm" else "kubectl create -f"
    print(f"{out}\n  electra {shlex.join(command)}\n\nTo submit it: {submit} {shlex.quote(str(out))}")


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before `--`, and the command after it."""
    words = list(arguments)
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def check_keys(settings: LaunchConfig, target: str) -> None:
    """Refuse options that the other kind of cluster has."""
    foreign = {
        "slurm": ("image", "namespace", "secret", "claim"),
        "kubernetes": ("time", "partition", "account", "options", "setup"),
    }[target]
    default = LaunchConfig()
    for key in foreign:
        if getattr(settings, key) != getattr(default, key):
            raise InputError(f"{key} is not for {target}: leave it out (see 'electra launch --help')")


def check_command(command: Sequence[str], *, on_ray: bool) -> None:
    """Refuse a command that the cluster could only fail with, after hours in its queue."""
    if not command:
        raise InputError(f"the command is missing, after --: {USAGE}")
    verb, *words = [*command[1:]] if command[0] == "electra" else [*command]
    if command[0] == "electra" or verb not in COMMANDS:
        hint = "leave out the word electra" if command[0] == "electra" else f"expected {listed(COMMANDS)}"
        raise InputError(f"the command begins with {command[0]!r}: {hint}")
    module, name = COMMANDS[verb]
    if any(word.partition("=")[0] == "--cluster" for word in words):
        raise InputError("--cluster: leave it out, --engine ray adds it")
    given = config.read(getattr(importlib.import_module(module), name), words, prog=f"electra {verb}")
    for key in ("out", "data" if verb in ("pretrain", "finetune") else "out"):
        if not given.values.get(key):
            raise InputError(f"the command lacks --{key} (see 'electra {verb} --help')")
    if on_ray and verb == "pretrain" and remote.is_url(given.values["out"]):
        raise InputError(
            f"--out {given.values['out']}: on a Ray cluster all nodes write into the run folder: give one on "
            "a disk that they share (kubernetes: --claim NAME and --out /work/run); --data may be in a store"
        )
    for value in given.values.values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and remote.is_url(text):
                # Refuses what must not stand in a file: credentials.
                remote.Remote(text)


def ray_version() -> str:
    """The version of Ray that a manifest names."""
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return _RAY
