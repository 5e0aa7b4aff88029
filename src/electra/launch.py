"""A command and how many machines it is to have -> a job script for Slurm, or a RayJob for Kubernetes.

What Slurm or Kubernetes takes back early is begun again by them, and the command resumes: SIGTERM makes a run
save and exit (`train/signals.py`), and the same command continues it.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from electra.errors import InputError

Engine = Literal["torchrun", "ray"]
_TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?")
_MEMORY = re.compile(r"\d+(\.\d+)?([KMGT]i?)?")
_TORCHRUN_VERBS = ("pretrain", "finetune")
RAY_PORT = 6379


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """How many machines a command gets, and how its processes find each other."""

    nodes: int = 1
    """Machines."""
    gpus: int = 0
    """GPUs of each machine; 0: its CPU computes."""
    cpus: int | None = None
    """CPU cores of each machine. Default: what the cluster gives."""
    memory: str = ""
    """Memory of each machine, as 64G for slurm and 64Gi for kubernetes. Default: what the cluster gives."""
    time: str = ""
    """slurm: longest time, as 24:00:00 or 2-12:00:00. Default: the partition's. A run that needs more is put
    into the queue again, and resumes."""
    engine: Engine | None = None
    """What starts the processes: torchrun (pretrain and finetune), or ray, which runs the command with
    `--cluster auto`. Default: torchrun for slurm, ray for kubernetes."""
    name: str = "electra"
    """Name of the job."""
    grace: int = 300
    """Seconds that a run has to save before its time is over, or after it is told to go."""
    partition: str = ""
    """slurm: partition to wait for."""
    account: str = ""
    """slurm: account to charge."""
    options: list[str] = field(default_factory=list)
    """slurm: more options of sbatch without their hyphens, such as qos=long constraint=a100 exclusive."""
    setup: list[str] = field(default_factory=list)
    """slurm: lines of shell to run first, such as 'source .venv/bin/activate'."""
    image: str = "electra:latest"
    """kubernetes: container image, made from deploy/Dockerfile."""
    namespace: str = ""
    """kubernetes: namespace. Default: the current one of kubectl."""
    secret: str = ""
    """kubernetes: Secret whose keys become environment variables, such as AWS_ACCESS_KEY_ID. Keys of stores
    belong there, never into a file."""
    claim: str = ""
    """kubernetes: PersistentVolumeClaim to mount at /work, for data and runs on a shared disk."""
    out: str = ""
    """File to write. Default: print it."""

    def __post_init__(self) -> None:
        for key, least in (("nodes", 1), ("gpus", 0), ("cpus", 1), ("grace", 30)):
            if (value := getattr(self, key)) is not None and value < least:
                raise InputError(f"{key} is {value}, expected {least} or more")
        if self.time and not _TIME.fullmatch(self.time):
            raise InputError(f"time is {self.time}, expected a time such as 24:00:00 or 2-12:00:00")
        if not _NAME.fullmatch(self.name):
            raise InputError(
                f"name is {self.name!r}, expected up to 50 small letters, digits and hyphens, a letter first"
            )
        if self.memory and not _MEMORY.fullmatch(self.memory):
            raise InputError(f"memory is {self.memory}, expected a size such as 64G or 64Gi")
        for key in ("partition", "account", "image", "namespace", "secret", "claim"):
            if re.search(r"[\s'\"$`\\]", getattr(self, key)):
                raise InputError(f"{key} is {getattr(self, key)!r}, expected a name without blanks or quotes")
        for option in self.options:
            if not re.fullmatch(r"[a-z][a-z-]*(=\S+)?", option):
                raise InputError(f"options: {option!r} is no option of sbatch, such as qos=long or exclusive")
        for line in self.setup:
            if "\n" in line:
                raise InputError(f"setup: {line!r} is more than a line; give several")


def check_engine(engine: Engine, verb: str) -> None:
    """Refuse what cannot be started so."""
    if engine == "torchrun" and verb not in _TORCHRUN_VERBS:
        raise InputError(
            f"torchrun is for {' and '.join(_TORCHRUN_VERBS)}: give {verb} --engine ray, which deals its "
            "work to the nodes"
        )


def slurm_script(settings: LaunchConfig, command: Sequence[str]) -> str:
    """A script for sbatch; `command` is what follows `electra`."""
    engine = settings.engine or "torchrun"
    check_engine(engine, command[0])
    wanted = {
        "job-name": settings.name,
        "nodes": settings.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": settings.gpus or None,
        "cpus-per-task": settings.cpus,
        "mem": settings.memory or None,
        "time": settings.time or None,
        "partition": settings.partition or None,
        "account": settings.account or None,
        "output": "%x-%j.log",
        "open-mode": "append",
        # To the shell alone, which passes it on: so it knows that the job is to be put into the queue again.
        "signal": f"B:TERM@{settings.grace}",
    }
    lines = [
        "#!/bin/bash",
        f"# sbatch {settings.out or 'job.sh'}     runs, and resumes after a preemption or its time limit:",
        f"#   electra {shlex.join(command)}",
        *(f"#SBATCH --{key}={value}" for key, value in wanted.items() if value is not None),
        "#SBATCH --requeue",
        *(f"#SBATCH --{option}" for option in settings.options),
        "set -euo pipefail",
        *settings.setup,
        "",
        'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "head=${hosts[0]}",
        # Jobs that share a machine must not share a port.
        "port=$((20000 + SLURM_JOB_ID % 20000))",
        _BEGIN,
        *(_with_torchrun if engine == "torchrun" else _with_ray)(settings, shlex.join(command)),
        _END,
    ]
    return "\n".join(lines)


_BEGIN = """
# Slurm tells this shell when the time is almost over, or another job needs the machines. The command saves
# and exits; then the job goes back into the queue, and the same command resumes.
told=no
step=
tell() {
  told=yes
  again=yes
  [ -z "$step" ] || kill -TERM "$step" 2>/dev/null || true
}
trap tell TERM
"""
_END = """step=$!
[ "$told" = no ] || tell
# A signal ends `wait`, not the step.
again=yes
while [ "$again" = yes ]; do
  again=no
  code=0
  wait "$step" || code=$?
done
if [ "$told" = yes ] && [ "$code" -ne 0 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def _with_torchrun(settings: LaunchConfig, command: str) -> list[str]:
    processes = settings.gpus or 1
    return [
        # torchrun kills what still saves after 30 seconds, unless it is new enough to read this.
        f"export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={settings.grace - 20}",
        "srun --kill-on-bad-exit=1 torchrun \\",
        f"  --nnodes={settings.nodes} --nproc-per-node={processes} --max-restarts=0 \\",
        '  --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$head:$port" \\',
        f"  -m electra {command} &",
    ]


def _with_ray(settings: LaunchConfig, command: str) -> list[str]:
    gpus = f"--num-gpus={settings.gpus}"
    cpus = f" --num-cpus={settings.cpus}" if settings.cpus else ""
    others = settings.nodes - 1
    workers = [
        "",
        f'srun --overlap --nodes={others} --ntasks={others} --exclude="$head" \\',
        f'  ray start --address="$RAY_ADDRESS" {gpus}{cpus} --disable-usage-stats --block &',
    ]
    return [
        # Ray's own processes end with the command.
        "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT",
        'here=(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head")',
        'address=$("${here[@]}" hostname --ip-address | cut -d " " -f 1)',
        'export RAY_ADDRESS="$address:$port"',
        # Whoever else is on these machines could reach the port.
        "export RAY_AUTH_MODE=token",
        "RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')",
        "export RAY_AUTH_TOKEN",
        "",
        '"${here[@]}" ray start --head --node-ip-address="$address" --port="$port" \\',
        f"  {gpus}{cpus} --include-dashboard=false --disable-usage-stats --block &",
        *(workers if others else []),
        "",
        "# Until all nodes are there.",
        '"${here[@]}" python - <<END',
        "import time, ray",
        "for _ in range(120):",
        "    try:",
        '        ray.init(address="$RAY_ADDRESS", logging_level="ERROR", ignore_reinit_error=True)',
        f'        if sum(node["Alive"] for node in ray.nodes()) >= {settings.nodes}:',
        "            break",
        "    except (ConnectionError, RuntimeError, ValueError):",
        "        pass",
        "    time.sleep(2)",
        "else:",
        f'    raise SystemExit("fewer than {settings.nodes} Ray nodes after four minutes")',
        "END",
        "",
        f'"${{here[@]}}" electra {command} --cluster auto &',
    ]


def kubernetes_manifest(
    settings: LaunchConfig, command: Sequence[str], *, ray_version: str
) -> dict[str, Any]:
    """A RayJob of KubeRay: a cluster for the command, which is removed when it has ended."""
    if settings.engine == "torchrun":
        raise InputError("engine is torchrun, but KubeRay starts a Ray cluster: leave it out, or give ray")
    limits: dict[str, Any] = {
        **({"cpu": str(settings.cpus)} if settings.cpus else {}),
        **({"memory": settings.memory} if settings.memory else {}),
    }
    metadata = {"name": settings.name, **({"namespace": settings.namespace} if settings.namespace else {})}
    head = _pod(settings, "head", limits={**limits, **_gpus(settings)})
    workers = {
        "groupName": "workers",
        "replicas": settings.nodes - 1,
        "minReplicas": settings.nodes - 1,
        "maxReplicas": settings.nodes - 1,
        "rayStartParams": {},
        "template": _pod(settings, "worker", limits={**limits, **_gpus(settings)}),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata,
        "spec": {
            "entrypoint": f"electra {shlex.join(command)} --cluster auto",
            # The same command again resumes what was lost with a node.
            "backoffLimit": 3,
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "rayVersion": ray_version,
                "headGroupSpec": {
                    "rayStartParams": {"disable-usage-stats": "true"},
                    "template": head,
                },
                "workerGroupSpecs": [workers] if settings.nodes > 1 else [],
            },
        },
    }


def _gpus(settings: LaunchConfig) -> dict[str, Any]:
    return {"nvidia.com/gpu": str(settings.gpus)} if settings.gpus else {}


def _pod(settings: LaunchConfig, role: str, *, limits: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = {"name": f"ray-{role}", "image": settings.image}
    if role == "head":
        ports = {"gcs-server": RAY_PORT, "dashboard": 8265, "client": 10001}
        container["ports"] = [{"containerPort": port, "name": name} for name, port in ports.items()]
    if limits:
        container["resources"] = {"limits": limits, "requests": dict(limits)}
    if settings.secret:
        container["envFrom"] = [{"secretRef": {"name": settings.secret}}]
    pod: dict[str, Any] = {"terminationGracePeriodSeconds": settings.grace, "containers": [container]}
    if settings.claim:
        container["volumeMounts"] = [{"name": "work", "mountPath": "/work"}]
        container["workingDir"] = "/work"
        pod["volumes"] = [{"name": "work", "persistentVolumeClaim": {"claimName": settings.claim}}]
    return {"spec": pod}
