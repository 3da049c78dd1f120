"""The manifests: rendered by kubectl, valid for Kubernetes, closed down; and keys of one's own.

There is no cluster here. What the init containers do to keys is run, on folders like a kubelet's.
"""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from yamllint import linter
from yamllint.config import YamlLintConfig

from tests.deploy.dockerfile import ROOT, last

SOURCE = ROOT / "deploy" / "kubernetes"
KUBERNETES = "1.32"  # has all that is used here
LINT = YamlLintConfig(
    "extends: default\nrules: {document-start: disable, line-length: {max: 100},"
    " comments: {min-spaces-from-content: 1}, braces: {max-spaces-inside: 1}}"
)
RENDERED = {
    "site": ("site", ()),
    "site, its ledger": ("site", ("init",)),
    "site, GPU": ("site", ("gpu",)),
    "coordinator": ("coordinator", ()),
    "coordinator, GPU": ("coordinator", ("gpu",)),
}
Documents = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifests, with what a coordinator and a site put beside them."""
    from typer.testing import CliRunner

    from fedpriv.cli import app
    from fedpriv.config.load import HOSPITALS
    from fedpriv_server.provision_command import provision

    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    folder = tmp_path_factory.mktemp("kubernetes") / "kubernetes"
    shutil.copytree(SOURCE, folder)
    coordinator = folder / "coordinator"
    text = HOSPITALS.read_text().partition("[[sites]]")[0].replace("min_sites = 4", "min_sites = 1")
    text = text.replace("[job]\n", '[job]\nengine = "network"\n')
    text = text.replace('"held-out.jsonl.gz"', f'"{HOSPITALS.parent}/held-out.jsonl.gz"')
    (coordinator / "federation.toml").write_text(
        f'{text}\n[server]\naddress = "fed.example.org:8443"\nhealth = "0.0.0.0:8081"\n'
        '[[sites]]\nname = "surgery"\n'
    )
    if "provision" not in {command.name for command in app.registered_commands}:
        app.command("provision")(provision)
    made = CliRunner().invoke(app, ["provision", str(coordinator / "federation.toml")])
    assert made.exit_code == 0, made.output
    shutil.copytree(coordinator / "pki" / "enrolments" / "surgery", folder / "site" / "enrolment")
    file = folder / "site" / "enrolment" / "site.toml"
    file.write_text(
        file.read_text()
        .replace('state_dir = "state"', 'state_dir = "/var/lib/fedpriv/state"')
        .replace("[server]", 'health = "0.0.0.0:8081"\n[server]', 1)
        .replace("#! path =", "path =")
        .replace('"notes.jsonl"', '"/data/notes.jsonl"')
        .replace("#! size =", "size =")
        .replace("#! epsilon =", "epsilon =")
        .replace("#! per_job =", "per_job =")
        .replace('#! model_digest = "sha256:..."', f'model_digest = "sha256:{"0" * 64}"')
    )
    return folder


def render(folder: Path, overlay: str, components: tuple[str, ...] = ()) -> Documents:
    """What `kubectl kustomize` makes of an overlay with some components; by kind and name."""
    file = folder / overlay / "kustomization.yaml"
    before = file.read_text()
    wanted = "".join(f"\n  - ../{component}" for component in components)
    assert before.count("components: []") == 1
    try:
        if components:
            file.write_text(before.replace("components: []", f"components:{wanted}"))
        made = subprocess.run(
            ["kubectl", "kustomize", str(file.parent)], capture_output=True, text=True
        )
    finally:
        file.write_text(before)
    assert (made.returncode, made.stderr) == (0, "")
    documents = list(yaml.safe_load_all(made.stdout))
    found = {f"{one['kind']}/{one['metadata']['name']}": one for one in documents}
    assert len(found) == len(documents)
    return found


@pytest.fixture(scope="module", params=RENDERED)
def rendered(request: pytest.FixtureRequest, folder: Path) -> Iterator[Documents]:
    return render(folder, *RENDERED[request.param])


def pods(documents: Documents) -> dict[str, dict[str, Any]]:
    return {
        name: document["spec"]["template"]
        for name, document in documents.items()
        if name.startswith(("StatefulSet/", "Job/"))
    }


@pytest.mark.parametrize(
    "file",
    [ROOT / "deploy" / "compose" / "compose.yaml", *sorted(SOURCE.rglob("*.yaml"))],
    ids=lambda file: f"{file.parent.name}-{file.stem}",
)
def test_a_file_is_well_formed(file: Path) -> None:
    assert not [str(problem) for problem in linter.run(file.read_text(), LINT)]


def test_kubernetes_takes_it(rendered: Documents) -> None:
    for document in rendered.values():
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        of_the_server = "fedpriv-server" in document["metadata"]["name"]
        space = "fedpriv-coordinator" if of_the_server else "fedpriv"
        assert document["metadata"]["namespace"] == space


def test_a_pod_can_do_little(rendered: Documents) -> None:
    """All that the cluster's `restricted` level asks for, a read-only root, and no token."""
    uid, _, gid = last("client", "USER").partition(":")
    assert pods(rendered)
    for template in pods(rendered).values():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert (security["runAsUser"], security["runAsGroup"]) == (int(uid), int(gid))
        assert security["fsGroup"] == int(gid)
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in spec["initContainers"] + spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]
            assert not any("subPath" in mount for mount in container["volumeMounts"])
        for volume in spec["volumes"]:
            assert not {"hostPath", "nfs"} & set(volume)


def test_what_a_pod_names_is_there(rendered: Documents) -> None:
    """Volumes of its mounts, and the maps, secrets and claims of its volumes."""
    space = next(iter(rendered.values()))["metadata"]["namespace"]
    own = {"fedpriv": "fedpriv-data", "fedpriv-coordinator": "fedpriv-evaluation"}[space]
    claims = {own} | {
        document["metadata"]["name"]
        for document in kept("site") + kept("coordinator")
        if document["metadata"].get("namespace") == space
    }
    for template in pods(rendered).values():
        spec = template["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for container in spec["initContainers"] + spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
        for volume in volumes.values():
            for source in [volume, *volume.get("projected", {}).get("sources", [])]:
                if "configMap" in source:
                    assert f"ConfigMap/{source['configMap']['name']}" in rendered
                if "secret" in source:
                    secret = source["secret"]
                    assert f"Secret/{secret.get('secretName') or secret['name']}" in rendered
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims


def kept(overlay: str) -> list[dict[str, Any]]:
    """What is applied once, and outlives what is rendered."""
    return list(yaml.safe_load_all((SOURCE / overlay / "keep.yaml").read_text()))


def test_deleting_what_was_applied_leaves_ledgers_and_runs(rendered: Documents) -> None:
    assert not [name for name in rendered if name.startswith(("Namespace/", "Persistent"))]
    for overlay in ("site", "coordinator"):
        for document in kept(overlay):
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
            if document["kind"] == "PersistentVolumeClaim":
                assert document["spec"]["accessModes"] == ["ReadWriteOncePod"]
            else:
                label = "pod-security.kubernetes.io/enforce"
                assert document["metadata"]["labels"] == {label: "restricted"}


def test_no_key_is_in_a_config_map(rendered: Documents) -> None:
    for name, document in rendered.items():
        if name.startswith("ConfigMap/"):
            assert "PRIVATE KEY" not in str(document["data"])
        if name.startswith("Secret/"):
            assert [key.rpartition(".")[2] for key in document["data"]] == ["key"]


def test_there_is_one_client_and_it_can_only_dial(folder: Path) -> None:
    site = render(folder, "site")
    client = site["StatefulSet/fedpriv-client"]
    assert client["spec"]["replicas"] == 1
    labels = client["spec"]["template"]["metadata"]["labels"].items()
    assert client["spec"]["selector"]["matchLabels"].items() <= labels
    (container,) = client["spec"]["template"]["spec"]["containers"]
    assert "grpc" in container["readinessProbe"]
    assert "grpc" not in container["livenessProbe"]  # or it ends whenever the server is away
    assert "ports" not in site["Service/fedpriv-client"]["spec"]
    policy = site["NetworkPolicy/fedpriv-client"]["spec"]
    (selects,) = policy["podSelector"]["matchExpressions"]
    assert dict(labels)[selects["key"]] in selects["values"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["ingress"] == []
    allowed = {(port["port"], "to" in rule) for rule in policy["egress"] for port in rule["ports"]}
    assert allowed == {(53, True), (8443, False)}


def test_the_ledger_is_made_while_no_client_runs(folder: Path) -> None:
    first, then = render(folder, "site", ("init",)), render(folder, "site")
    assert first["StatefulSet/fedpriv-client"]["spec"]["replicas"] == 0
    job = first["Job/fedpriv-client-init"]["spec"]
    assert job["backoffLimit"] == 0
    make = job["template"]["spec"]
    work = then["StatefulSet/fedpriv-client"]["spec"]["template"]["spec"]
    assert make["containers"][0]["args"] == ["init", "--config", "site.toml"]
    for key in ("initContainers", "volumes", "securityContext"):
        assert make[key] == work[key]
    assert make["containers"][0]["volumeMounts"] == work["containers"][0]["volumeMounts"]


def test_a_server_is_started_again_where_that_helps(folder: Path) -> None:
    coordinator = render(folder, "coordinator")
    job = coordinator["Job/fedpriv-server"]["spec"]
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # a policy for failures asks for it
    codes, moved = job["podFailurePolicy"]["rules"]
    (container,) = job["template"]["spec"]["containers"]
    assert (codes["action"], codes["onExitCodes"]["operator"]) == ("FailJob", "In")
    assert codes["onExitCodes"]["containerName"] == container["name"]
    assert codes["onExitCodes"]["values"] == [2, 3, 4, 5, 6]
    assert moved["action"] == "Ignore"
    assert moved["onPodConditions"][0]["type"] == "DisruptionTarget"
    labels = job["template"]["metadata"]["labels"].items()
    policy = coordinator["NetworkPolicy/fedpriv-server"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels
    assert coordinator["Service/fedpriv-server"]["spec"]["selector"].items() <= labels
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == [8443]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["egress"] == []


def test_a_gpu_is_asked_for(folder: Path) -> None:
    for overlay, name in (
        ("site", "StatefulSet/fedpriv-client"),
        ("coordinator", "Job/fedpriv-server"),
    ):
        spec = render(folder, overlay, ("gpu",))[name]["spec"]["template"]["spec"]
        assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def volume(folder: Path, files: dict[str, bytes], version: str = "1") -> None:
    """Files as a kubelet lays them: links to a folder that is replaced at once; group may read."""
    made = folder / f"..{version}"
    made.mkdir(parents=True)
    for name, content in files.items():
        (made / name).write_bytes(content)
        (made / name).chmod(0o440)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    (folder / "..new").symlink_to(made.name)
    (folder / "..new").replace(folder / "..data")


def prepare(spec: dict[str, Any], places: dict[str, Path]) -> None:
    """Run an init container's command with the container's folders elsewhere."""
    (container,) = spec["initContainers"]
    script = "\n".join(container["args"])
    for path, place in places.items():
        assert path in {mount["mountPath"] for mount in container["volumeMounts"]}
        script = re.sub(rf"(?<!\S){re.escape(path)}(?=[/\s])", str(place), script)
    made = subprocess.run([*container["command"], script], capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (0, "")


def test_a_site_starts_with_a_key_that_is_its_own(folder: Path, tmp_path: Path) -> None:
    """Again too, after fsGroup has opened the volume to the group."""
    from fedpriv.config.load import load_site
    from fedpriv_client.init import init_site
    from fedpriv_client.serve import identity
    from fedpriv_client.settings import ledgers

    site = render(folder, "site")
    spec = site["StatefulSet/fedpriv-client"]["spec"]["template"]["spec"]
    given, enrolment, state = tmp_path / "given", tmp_path / "enrolment", tmp_path / "state"
    witness = tmp_path / "witness"
    places = {
        "/given": given,
        "/fedpriv": enrolment,
        "/var/lib/fedpriv": state,
        "/witness": witness,
    }
    for empty in (enrolment, state, witness):
        empty.mkdir()
    files = [*(folder / "site" / "enrolment").glob("*")]
    volume(given, {file.name: file.read_bytes() for file in files})
    with pytest.raises(Exception, match="may be read or changed by other users"):
        identity(load_site(given / "site.toml"))
    prepare(spec, places)
    file = load_site(enrolment / "site.toml")
    identity(file)
    assert file.site.health == "0.0.0.0:8081"
    mine = file.model_copy(
        update={"site": file.site.model_copy(update={"state_dir": state / "state"})}
    )
    init_site(mine, enrolment / "site.toml")
    assert len(ledgers(mine)) == 1
    (witness / "site" / "site.witness").write_text("")
    private = [*state.rglob("*"), *witness.rglob("*")]
    for path in private:
        path.chmod(stat.S_IMODE(path.stat().st_mode) | (0o2070 if path.is_dir() else 0o060))
    prepare(spec, places)
    for path in private:
        assert not path.stat().st_mode & 0o077


def test_a_server_starts_with_its_key_and_sees_a_new_list_of_sites(
    folder: Path, tmp_path: Path
) -> None:
    from fedpriv.config.load import load_job
    from fedpriv.pki.keys import load_key
    from fedpriv_server.listen import ServerTls
    from fedpriv_server.site_keys import SiteKeys

    coordinator = render(folder, "coordinator")
    spec = coordinator["Job/fedpriv-server"]["spec"]["template"]["spec"]
    config, secret, settings = tmp_path / "config", tmp_path / "secret", tmp_path / "settings"
    places = {"/config": config, "/secret": secret, "/fedpriv": settings}
    settings.mkdir()
    files = coordinator["ConfigMap/fedpriv-server"]["data"]
    volume(config, {name: text.encode() for name, text in files.items()})
    volume(secret, {"server.key": (folder / "coordinator" / "pki" / "server.key").read_bytes()})
    for _ in range(2):  # an init container may run again
        prepare(spec, places)
    section = load_job(settings / "federation.toml").server
    assert section is not None
    assert load_key(ServerTls.of(section).key)
    site_keys = SiteKeys.read(section.pki / "sites.json")
    assert not site_keys.reload_if_changed()
    made = SiteKeys(tmp_path / "sites.json")
    made.write()
    volume(config, {"sites.json": made.path.read_bytes()}, "2")
    assert site_keys.reload_if_changed()
    assert site_keys.sites == {}
