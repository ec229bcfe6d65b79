"""deploy/ agrees with the project: versions, packages, arguments, and the fields of KubeRay."""

import re
import shlex
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from sweep_process import ROOT

from cptune import spec as specs
from jobs.sweep import main as run_job

DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
SBATCH = DEPLOY / "slurm" / "sweep.sbatch"
KUBERAY = DEPLOY / "kuberay" / "sweep.yaml"
COMPOSE = DEPLOY / "dashboard" / "compose.yaml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Names of ray.io/v1 in KubeRay 1.5: ray-operator/apis/ray/v1/rayjob_types.go, raycluster_types.go
FIELDS = {
    "job": "activeDeadlineSeconds backoffLimit rayClusterSpec submitterPodTemplate metadata "
    "clusterSelector submitterConfig managedBy deletionStrategy entrypoint runtimeEnvYAML jobId "
    "submissionMode entrypointResources entrypointNumCpus entrypointNumGpus "
    "ttlSecondsAfterFinished shutdownAfterJobFinishes suspend",
    "cluster": "suspend managedBy autoscalerOptions headServiceAnnotations enableInTreeAutoscaling "
    "gcsFaultToleranceOptions headGroupSpec rayVersion workerGroupSpecs authOptions",
    "head": "template headService enableIngress resources labels rayStartParams serviceType",
    "workers": "suspend groupName replicas minReplicas maxReplicas idleTimeoutSeconds resources "
    "labels rayStartParams template scaleStrategy numOfHosts",
}


def documents(path: Path) -> dict[str, dict]:
    return {one["kind"]: one for one in yaml.safe_load_all(path.read_text())}


def unknown_fields(job: dict) -> list[str]:
    """Names of a RayJob that KubeRay does not have, and that its server would drop or refuse."""
    cluster = job["spec"]["rayClusterSpec"]
    parts = [("job", job["spec"]), ("cluster", cluster), ("head", cluster["headGroupSpec"])]
    parts += [("workers", group) for group in cluster["workerGroupSpecs"]]
    return [
        f"{what}.{name}"
        for what, part in parts
        for name in part
        if name not in FIELDS[what].split()
    ]


def dangling(pod: dict, there: dict[str, dict]) -> list[str]:
    """Mounts without a volume, and volumes of a claim or a map that the file does not make."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"] for one in pod["containers"] for mount in one["volumeMounts"]}
    found = sorted(mounts ^ set(volumes))
    for name, volume in volumes.items():
        for kind, key, field in (
            ("PersistentVolumeClaim", "persistentVolumeClaim", "claimName"),
            ("ConfigMap", "configMap", "name"),
        ):
            if key in volume and volume[key][field] != there[kind]["metadata"]["name"]:
                found.append(f"{name}: {volume[key][field]}")
    return found


def pods(job: dict) -> list[dict]:
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def images() -> list[str]:
    """Every image that deploy/ names, but for the stages of the Dockerfile."""
    text = DOCKERFILE.read_text()
    stages = set(re.findall(r"AS (\S+)", text))
    values = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
    bases = [
        re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], base)
        for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    ]
    named = re.findall(r"image: (\S+)", KUBERAY.read_text() + COMPOSE.read_text())
    return [*(base for base in bases if base not in stages), *named]


def why_no_image(image: str) -> str:
    name, _, tag = image.partition(":")
    if not re.match(r"\d+\.\d+\.\d+", tag):
        return "no exact version"
    first, slash, _ = name.partition("/")
    return "a host of a registry" if slash and re.search(r"[.:]|localhost", first) else ""


def secrets_in(text: str) -> list[str]:
    """Words that look like a secret, or are given to something that is one."""
    given = r"(?i)(?:password|token|secret)\w*\s*[:=]\s*[\"']?(?![$({\"'\s])(?!token\b)\w+"
    long = r"\b(?:[0-9a-f]{32,}|(?=[A-Za-z+/]*\d)[A-Za-z0-9+/]{40,}={0,2})\b"
    code = "\n".join(line.partition(" #")[0] for line in text.splitlines() if line[:1] != "#")
    return [found[0] for found in re.finditer(f"{given}|{long}", code)]


def ignored(path: str) -> bool:
    """Whether the build's context lacks it: everything does that is not named with a `!`."""
    lines = (DOCKERFILE.with_name("Dockerfile.dockerignore")).read_text().split()
    return f"!{path}" not in lines


def copied() -> Iterator[str]:
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE.read_text(), re.MULTILINE):
        yield from line.split()[:-1]


def test_kuberay_knows_each_field():
    assert unknown_fields(documents(KUBERAY)["RayJob"]) == []


def test_a_field_that_kuberay_lacks_is_found():
    job = documents(KUBERAY)["RayJob"]
    job["spec"]["shutdownAfterJobFinish"] = True
    job["spec"]["rayClusterSpec"]["headGroupSpec"]["replicas"] = 1
    assert unknown_fields(job) == ["job.shutdownAfterJobFinish", "head.replicas"]


def test_every_mount_has_its_volume_and_every_volume_its_source():
    there = documents(KUBERAY)
    assert [dangling(pod, there) for pod in pods(there["RayJob"])] == [[], []]
    head = pods(there["RayJob"])[0]
    head["volumes"][0]["persistentVolumeClaim"]["claimName"] = "other"
    head["containers"][0]["volumeMounts"][2]["name"] = "shn"
    assert dangling(head, there) == ["shm", "shn", "runs: other"]


def test_the_workers_are_as_many_gpus_as_the_spec_asks_one_pod_a_node():
    there = documents(KUBERAY)
    cluster = there["RayJob"]["spec"]["rayClusterSpec"]
    [group] = cluster["workerGroupSpecs"]
    [worker] = group["template"]["spec"]["containers"]
    gpus = worker["resources"]["limits"]["nvidia.com/gpu"]
    spec = specs.parse(there["ConfigMap"]["data"]["sweep.toml"], source="map", default_name="map")
    assert spec.cluster.world_size == group["replicas"] * gpus
    assert spec.cluster.gpus_per_node == gpus
    assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]
    anti = group["template"]["spec"]["affinity"]["podAntiAffinity"]
    [rule] = anti["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"] == group["template"]["metadata"]["labels"]


def test_the_head_offers_ray_nothing_and_all_know_the_token():
    cluster = documents(KUBERAY)["RayJob"]["spec"]["rayClusterSpec"]
    head = cluster["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert "nvidia.com/gpu" not in head["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert cluster["authOptions"] == {"mode": "token"}


def job_words(tmp_path: Path) -> list[str]:
    """What follows `python -m jobs.sweep`, with the pod's paths below a folder of ours."""
    there = documents(KUBERAY)
    program, *words = shlex.split(there["RayJob"]["spec"]["entrypoint"])
    assert [program, *words[:2]] == ["python", "-m", "jobs.sweep"]
    mounts = pods(there["RayJob"])[0]["containers"][0]["volumeMounts"]
    for mount in mounts:
        (tmp_path / mount["mountPath"][1:]).mkdir(parents=True, exist_ok=True)
        words = [re.sub(rf"^{mount['mountPath']}\b", f"{tmp_path}\\g<0>", word) for word in words]
    (tmp_path / "etc/cptune/sweep.toml").write_text(there["ConfigMap"]["data"]["sweep.toml"])
    return words[2:]


def test_the_entrypoint_is_accepted_up_to_a_cluster_that_is_not_there(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    words = job_words(tmp_path)

    assert run_job(words) == 1
    assert "cannot reach Ray at 127.0.0.1:1" in capsys.readouterr().err
    assert run_job([*words, "--resumes"]) == 2


def test_the_runs_of_a_pod_lie_outside_its_working_directory():
    [folder] = re.findall(r"^WORKDIR (\S+)$", DOCKERFILE.read_text().split("AS run\n")[1], re.M)
    words = shlex.split(documents(KUBERAY)["RayJob"]["spec"]["entrypoint"])
    assert not Path(words[words.index("--runs") + 1]).is_relative_to(folder)


def test_versions_are_those_of_the_project():
    pins = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    assert documents(KUBERAY)["RayJob"]["spec"]["rayClusterSpec"]["rayVersion"] == pins["ray"]
    own = {image for image in images() if image.startswith("cptune:")}
    version = PROJECT["project"]["version"]
    assert own == {f"cptune:{version}", f"cptune:{version}-cpu"}
    values = dict(re.findall(r"^ARG (\w+)=(\S+)", DOCKERFILE.read_text(), re.M))
    [flash] = map(Requirement, PROJECT["project"]["optional-dependencies"]["flash"])
    assert flash.specifier.contains(values["FLASH_ATTN"])
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(values["PYTHON_VERSION"])
    for text in (DOCKERFILE.read_text(), (DEPLOY / "README.md").read_text()):
        assert set(re.findall(r"-t cptune:(\d\S+?)(?:-cpu)?\s", text)) == {version}


def test_images_are_pinned_and_on_no_host():
    assert {image: why for image in images() if (why := why_no_image(image))} == {}
    for image in ("python:3.11-slim", "a.example.com/b:1.2.3", "localhost:5000/b:1.2.3", "x"):
        assert why_no_image(image), image


def test_the_image_is_built_from_what_the_package_needs():
    project = PROJECT["project"]
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {*packages, project["readme"], *project["license-files"], "pyproject.toml"}
    assert set(copied()) == needed | {"constraints.txt"}
    assert [path for path in copied() if ignored(path) or not (ROOT / path).exists()] == []
    assert ignored("runs")
    assert ignored(".venv")


def test_the_image_runs_as_the_user_of_the_pods():
    [user] = re.findall(r"^USER (\d+)$", DOCKERFILE.read_text(), re.M)
    assert f"--uid {user}" in DOCKERFILE.read_text()
    for pod in pods(documents(KUBERAY)["RayJob"]):
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": int(user),
            "fsGroup": int(user),
        }


def test_nothing_of_deploy_holds_a_secret_or_ends_the_ray_of_others():
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    assert {str(path): found for path in files if (found := secrets_in(path.read_text()))} == {}
    code = [path for path in files if path.suffix != ".md"]
    assert [str(path) for path in code if re.search(r"\bray stop\b", path.read_text())] == []


@pytest.mark.parametrize(
    "text", ["PASSWORD=hunter2", "  token: 'abc1'", "x " + "0a" * 20, "POSTGRES_PASSWORD: p"]
)
def test_a_secret_is_found(text):
    assert secrets_in(text)


@pytest.mark.parametrize(
    "text",
    ["  mode: token", "environment: [PGPASSWORD]", "TOKEN=$(od -An)", "export RAY_AUTH_TOKEN"],
)
def test_what_only_speaks_of_one_is_none(text):
    assert secrets_in(text) == []


def test_the_dashboard_reads_alone_and_is_heard_on_this_host_alone(tmp_path):
    [service] = yaml.safe_load(COMPOSE.read_text())["services"].values()
    program, study, *_ = service["command"]
    assert program == "optuna-dashboard"
    [default] = re.findall(r"^\$\{CPTUNE_STUDY:-(.*)\}$", study)
    url = default.replace("${CPTUNE_RUN:-quickstart}", "a").replace("/runs", str(tmp_path))
    kept = tmp_path / "a" / "study.db"
    assert url == f"sqlite:///file:{kept}?mode=ro&uri=true"
    kept.parent.mkdir()
    sqlite3.connect(kept).execute("create table t (x)").connection.close()
    opened = sqlite3.connect(url.removeprefix("sqlite:///").partition("&")[0], uri=True)
    assert opened.execute("select * from t").fetchall() == []
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        opened.execute("insert into t values (1)")
    opened.close()
    assert service["ports"] == ["127.0.0.1:8080:8080"]
    assert all(volume.endswith(":ro") for volume in service["volumes"])


def test_the_page_names_every_file_and_no_other():
    page = (DEPLOY / "README.md").read_text()
    named = set(re.findall(r"^\| `(\S+)` \|", page, re.M))
    there = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()}
    assert named == there - {"README.md", "docker/Dockerfile.dockerignore"}


@pytest.mark.parametrize(
    ("program", "words", "path", "broken"),
    [
        ("bash", ["-n"], SBATCH, "if true; then"),
        ("shellcheck", ["--shell=bash"], SBATCH, "set -- $(ls)\necho $1"),
        ("hadolint", [], DOCKERFILE, "FROM python\nRUN cd /x && sudo ls"),
    ],
    ids=["bash", "shellcheck", "hadolint"],
)
def test_a_linter_finds_nothing_in_it_and_something_in_a_broken_one(
    tmp_path, program, words, path, broken
):
    beside = Path(sys.executable).parent / program  # of this environment, else of the system
    command = [beside if beside.exists() else program, *words]
    said = subprocess.run([*command, path], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
    (tmp_path / "broken").write_text(broken)
    assert subprocess.run([*command, tmp_path / "broken"], capture_output=True).returncode
