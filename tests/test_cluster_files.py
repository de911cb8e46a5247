"""The manifest of examples/ is one that Kubernetes takes, and its containers train together."""

import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import yaml

from tests.slow_module import SETTINGS, n_iterations, wait_for, write_module
from tests.training_commands import REPOSITORY

MANIFEST = REPOSITORY / "examples" / "train-kubernetes.yaml"
# One machine as the pods of a Job see it: a network of its own, the names of the service, and the volume.
POD_HOST = """
set -e
ip link set lo up
mount --make-rprivate /
mount --bind {hosts} /etc/hosts
mount -t tmpfs none {above}
mkdir -p {mount}
mount --bind {volume} {mount}
for index in 0 1; do
  unshare --uts sh -c "hostname train-$index; JOB_COMPLETION_INDEX=$index exec $1" > {volume}/output-$index 2>&1 &
done
wait
"""


def documents():
    return {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())}


def container():
    (only,) = documents()["Job"]["spec"]["template"]["spec"]["containers"]
    return only


def can_make_namespaces():
    if sys.platform != "linux" or shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "--net", "--mount", "--uts", "true"], check=False).returncode == 0


def test_the_service_names_the_pods_of_the_job():
    service, job = documents()["Service"], documents()["Job"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completionMode"] == "Indexed"


def test_every_pod_meets_at_the_first_one_and_writes_to_the_volume():
    spec = documents()["Job"]["spec"]
    flags = dict(word.lstrip("-").split("=", 1) for word in container()["command"] if "=" in word)
    assert flags["rdzv-endpoint"] == f"train-0.train:{container()['ports'][0]['containerPort']}"
    assert flags["nnodes"] == f"1:{spec['parallelism']}"
    assert spec["completions"] == spec["parallelism"]
    volumes = {volume["name"]: volume for volume in spec["template"]["spec"]["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    assert mounts.keys() == volumes.keys()
    assert flags["checkpoint-dir"].startswith(f"{mounts['checkpoints']}/")
    claim = volumes["checkpoints"]["persistentVolumeClaim"]["claimName"]
    assert claim == documents()["PersistentVolumeClaim"]["metadata"]["name"]


@pytest.mark.system
@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="kubernetes-validate is not installed")
@pytest.mark.parametrize("kind", documents())
def test_kubernetes_takes_each_document(kind):
    import kubernetes_validate

    kubernetes_validate.validate(documents()[kind], kubernetes_validate.latest_version(), strict=True)


@pytest.mark.system
@pytest.mark.timeout(900)
@pytest.mark.skipif(not can_make_namespaces(), reason="namespaces take Linux, root, and unshare and ip")
def test_two_pods_train_together_and_go_on_after_they_were_ended(tmp_path):
    write_module(tmp_path)
    (tmp_path / "hosts").write_text("127.0.0.1 localhost train-0 train-0.train train-1 train-1.train\n")
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container()["volumeMounts"]}
    volume = tmp_path / "volume"
    volume.mkdir()
    folder = volume / "train"
    script = POD_HOST.format(
        hosts=tmp_path / "hosts", above=mounts["checkpoints"].parent, mount=mounts["checkpoints"], volume=volume
    )
    command = shlex.join([*container()["command"], *SETTINGS])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}

    def told():
        return "\n".join(output.read_text() for output in volume.glob("output-*"))

    for least in (2, 4):
        words = ["unshare", "--net", "--mount", "--uts", "bash", "-c", script, "pods", command]
        with subprocess.Popen(words, cwd=tmp_path, env=variables) as pods:
            try:
                wait_for(lambda least=least: n_iterations(folder) >= least, told)
                for pod in psutil.Process(pods.pid).children():
                    pod.terminate()  # as Kubernetes ends one
                pods.wait(120)
            finally:
                for process in psutil.Process(pods.pid).children(recursive=True) if pods.poll() is None else ():
                    process.kill()
                pods.kill()
        assert "Saved" in told()
    assert len(list(volume.glob("output-*"))) == 2
