"""The unit, the example configuration, the container recipe and the objects for Kubernetes do what
they say.

There need be no container engine: the recipe's own steps are run, in a folder instead of an image.
"""

import ctypes
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile

import pytest
import yaml

import checkpoint
import harness
from harness import ROOT, eventually, run

UNIT = ROOT / "deploy/tessera@.service"
RECIPE = ROOT / "deploy/Containerfile"
NOBODY = 65532

pytestmark = pytest.mark.timeout(300 * harness.PATIENCE)  # the first one builds the image


def need(program):
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")


def needs_systemd(version):
    """What is asked of systemd-analyze came with this version."""
    need("systemd-analyze")
    told = call("systemd-analyze", "--version").stdout
    if int(re.match(r"systemd (\d+)", told)[1]) < version:
        pytest.skip(f"systemd is older than {version}")


def verify(unit):
    """What systemd says of a unit: not of others, which it loads too."""
    said = call("systemd-analyze", "verify", "--man=no", unit).stderr
    return [line for line in said.splitlines() if "tessera" in line]


def call(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False,
                          timeout=300 * harness.PATIENCE, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done


# ---- the recipe ---------------------------------------------------------------------------------


def instructions(recipe=RECIPE):
    """[(instruction, rest)] of the Containerfile, and the stage each belongs to."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", recipe.read_text(), flags=re.MULTILINE))
    stage, found = -1, []
    for line in filter(None, map(str.strip, text.splitlines())):
        word, rest = line.split(None, 1)
        stage += word == "FROM"
        found.append((stage, word, rest.strip()))
    return found


def of_stage(stage, word):
    return [rest for number, name, rest in instructions() if (number, name) == (stage, word)]


def packages(stage):
    """What the stage installs."""
    (step,) = [step for step in of_stage(stage, "RUN") if "apt-get install" in step]
    words = shlex.split(step.split("apt-get install", 1)[1].split("&&")[0])
    return {word for word in words if not word.startswith("-")}


def test_recipe_says_what_an_engine_needs():
    assert [rest.split()[0] for _, word, rest in instructions() if word == "FROM"] == \
        ["debian:12-slim"] * 2
    (user,) = of_stage(1, "USER")
    assert all(int(number) > 0 for number in user.split(":"))
    assert of_stage(1, "STOPSIGNAL") == ["SIGTERM"]
    assert json.loads(of_stage(1, "ENTRYPOINT")[0]) == ["/usr/bin/tessera"]
    probe = of_stage(1, "HEALTHCHECK")[0].split("CMD", 1)[1]
    assert json.loads(probe) == ["/usr/bin/tessera", "health"]
    labels = " ".join(of_stage(1, "LABEL"))
    for name in ("title", "description", "version", "licenses"):
        assert f"org.opencontainers.image.{name}=" in labels
    project = re.search(r"project\(tessera VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert of_stage(1, "ARG") == [f"VERSION={project}"]


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.nvidia"])
def test_recipe_is_built_with_its_health_check(name):
    """OCI's format, which is podman's own, would leave it out."""
    text = (ROOT / "deploy" / name).read_text()
    assert "HEALTHCHECK" in text
    for command in re.findall(r"(?m)^# +podman build .*", text):
        assert "--format docker" in command
    assert "podman build" in text


def test_recipe_for_nvidia_differs_in_the_module_only():
    plain, nvidia = (
        [(stage, word, rest) for stage, word, rest in instructions(recipe)
         if word != "FROM" and not (word == "RUN" and "apt-get" in rest)]
        for recipe in (RECIPE, ROOT / "deploy/Containerfile.nvidia"))
    more = [step for step in nvidia if step not in plain]
    assert [word for _, word, _ in more] == ["RUN", "RUN", "ENV"]
    assert "-DTESSERA_CUDA=ON" in more[0][2] and "tessera_cuda" in more[1][2]
    assert more[2][2] == "NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    assert len(plain) == len(nvidia) - 1  # the two builds are other ones, the variables are new


def test_recipe_installs_what_a_build_needs():
    listed = call("bash", "-c", f". {ROOT}/deploy/packages.sh; echo ${{PACKAGES_BUILD[*]}}").stdout
    assert packages(0) == set(listed.split()) - {"curl", "ca-certificates"}


@pytest.fixture(scope="module")
def image():
    """What the recipe's build stage leaves in /image, made by its own COPY and RUN steps."""
    need("cmake")
    with tempfile.TemporaryDirectory() as scratch:  # pytest's own folders are for one user only
        yield build_image(pathlib.Path(scratch))


def build_image(scratch):
    places = {place: scratch / place for place in ("src", "build", "image")}
    places["src"].mkdir()
    for source in of_stage(0, "COPY"):
        source, target = source.split()
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, places["src"] / target)
    for step in of_stage(0, "RUN"):
        if "apt-get" not in step:
            step = re.sub(r"(?<=[\s=])/(build|image)\b", lambda m: str(places[m[1]]), step)
            call("sh", "-c", step, cwd=places["src"],
                 env={**harness.environment(), "CMAKE_BUILD_PARALLEL_LEVEL": "2"})
    return places["image"]


def test_image_holds_what_is_installed(image):
    files = {str(path.relative_to(image)) for path in image.rglob("*") if path.is_file()}
    assert files == {"usr/bin/tessera", "usr/lib/systemd/system/tessera@.service",
                     "usr/share/tessera/example.yaml"}


def test_image_has_the_libraries_it_needs(image):
    """Of the program's libraries, those that Debian 12's base lacks are named in the recipe."""
    if "VERSION_CODENAME=bookworm" not in pathlib.Path("/etc/os-release").read_text():
        pytest.skip("the names are Debian 12's")
    need("readelf")
    program = image / "usr/bin/tessera"
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", call("readelf", "-d", program).stdout)
    assert len(needed) >= 4
    found = dict(re.findall(r"^\t(\S+) => (\S+) ", call("ldd", program).stdout, re.MULTILINE))
    owners = set()
    for name in needed:
        path = os.path.realpath(found[name])
        known = subprocess.run(["dpkg", "-S", path, path.removeprefix("/usr")], text=True,
                               capture_output=True, check=False).stdout
        owners.add(known.split(":")[0])
    # the C++ runtime comes with SentencePiece
    assert owners - {"libc6", "libgcc-s1", "libstdc++6"} == packages(1)


def test_image_serves_on_a_read_only_root_as_nobody(image, tmp_path, monkeypatch):
    """The program that was built, where it can write nothing and is nobody."""
    need("unshare")
    drop = []
    if os.getuid() == 0:
        need("setpriv")
        drop = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    seal = ["unshare", "-Urm", "sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh"]
    model = image.parent / "model"
    shutil.copytree(checkpoint.DEMO, model)
    call("chmod", "-R", "a+rX", image.parent)  # whatever the umask
    probe = subprocess.run([*drop, *seal, "sh", "-c", f"! touch {model}/x && test -r {model}"],
                           capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("no user namespaces, or no folder that everybody can read")
    monkeypatch.setattr(harness, "BINARY", image / "usr/bin/tessera")
    server = harness.Server(model, "-tp", 2, log=tmp_path / "log", wrapper=[*drop, *seal])
    try:
        server.wait_ready()
        text = server.complete("Once upon a time", max_tokens=8, temperature=0)
        assert text["choices"][0]["text"]
        assert run("health", "--port", server.port).returncode == 0
        if drop:
            assert os.stat(f"/proc/{server.pid}").st_uid == NOBODY
    finally:
        assert server.stop() == 0
    assert run("health", "--port", server.port).returncode == 1


# ---- the unit -----------------------------------------------------------------------------------


def test_unit_is_valid(image):
    need("systemd-analyze")
    (installed,) = image.rglob("tessera@.service")
    copy = image.parent / installed.name
    text = installed.read_text()
    assert "ExecStart=/usr/bin/tessera serve --config /etc/tessera/%i.yaml" in text
    copy.write_text(text.replace("/usr/bin/tessera", str(image / "usr/bin/tessera")))
    assert verify(copy) == []


def test_unit_takes_the_drop_in_for_devices(tmp_path):
    need("systemd-analyze")
    unit = tmp_path / "tessera@.service"
    unit.write_text(UNIT.read_text().replace("/usr/bin/tessera", str(harness.BINARY)))
    (tmp_path / "tessera@.service.d").mkdir()
    drop_in = tmp_path / "tessera@.service.d/nvidia.conf"
    drop_in.write_text((ROOT / "deploy/nvidia.conf").read_text())
    assert verify(unit) == []
    drop_in.write_text(drop_in.read_text() + "DeviceAlow=char-nvidia*\n")  # it is read at all
    assert any("DeviceAlow" in line for line in verify(unit))


def test_unit_exposes_little():
    needs_systemd(250)
    done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=12", UNIT],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)[1]) <= 1.2


def settings():
    pairs = [line.split("=", 1) for line in UNIT.read_text().splitlines()
             if "=" in line and not line.startswith("#")]
    return {name: [value for key, value in pairs if key == name] for name, _ in pairs}


def test_unit_fits_the_program():
    unit = settings()
    assert unit["Type"] == ["notify"] and unit["NotifyAccess"] == ["main"]
    assert unit["RestartPreventExitStatus"] == ["2 3 4"]  # the exit codes of the README
    drain = re.search(r"drain-timeout[^[]*\[(\d+)\]", run("serve", "--help").stdout)[1]
    assert int(unit["TimeoutStopSec"][0]) > int(drain)
    patience = re.search(r"step-timeout[^[]*\[(\d+)\]", run("serve", "--help").stdout)[1]
    assert int(unit["WatchdogSec"][0]) >= 2 * int(patience)


def serve_with(credential, folder, *arguments):
    """(exit code, None) or (None, a server that is ready), of one with this as its api-keys."""
    (folder / "api-keys").write_text(credential)
    (folder / "api-keys").chmod(0o440)
    server = harness.Server(checkpoint.DEMO, *arguments, log=folder / "log",
                            wrapper=["env", f"CREDENTIALS_DIRECTORY={folder}"])
    eventually(lambda: server.process.poll() is not None or "ready: listening" in server.log, 30,
               "an end or a beginning")
    code = server.process.poll()
    return (code, server) if code is not None else (None, server.wait_ready())


@pytest.mark.parametrize("arguments", [[], ["--insecure-no-auth"]])
def test_unit_without_a_key_file(tmp_path, arguments):
    """What it hands over then is no key, which is said; and nothing that excludes an option."""
    (load,), (given,) = settings()["LoadCredential"], settings()["SetCredential"]
    name, path = load.split(":")
    assert name == "api-keys" and path.startswith("/")  # a name is looked up by new versions only
    assert given.split(":")[0] == name  # else the unit fails where the file is not there
    code, server = serve_with(given.split(":", 1)[1], tmp_path, *arguments)
    assert code is None, server.log
    try:
        assert server.get("/v1/models").status == 200
        assert "no key is wanted: CREDENTIALS_DIRECTORY holds no api-keys" in server.log
    finally:
        assert server.stop() == 0


def test_unit_without_a_key_file_for_others(tmp_path):
    (given,) = settings()["SetCredential"]
    code, server = serve_with(given.split(":", 1)[1], tmp_path, "--host", "0.0.0.0")
    assert code == 2 and "give --api-key-file" in server.log


@pytest.mark.parametrize("text", ["", "# no keys\n", "# no key file\n# or is there?\n"])
def test_credential_without_a_key(tmp_path, text):
    """Another one than the unit's own was meant to have one."""
    code, server = serve_with(text, tmp_path)
    assert code == 2 and "has no key" in server.log


def allowed_calls():
    """Names of the system calls that the unit's filter lets through."""
    sets, current = {}, None
    for line in call("systemd-analyze", "syscall-filter").stdout.splitlines():
        if line.startswith("@"):
            sets[current := line.strip()] = []
        elif line.strip() and not line.strip().startswith("#") and current:
            sets[current].append(line.strip())

    def expand(name):
        if not name.startswith("@"):
            return {name}
        return set().union(*(expand(member) for member in sets[name]))
    allowed = set()
    for words in settings()["SystemCallFilter"]:
        names = set().union(*(expand(name) for name in words.lstrip("~").split()))
        allowed = allowed - names if words.startswith("~") else allowed | names
    return allowed


def filter_loader(names):
    """A function that leaves the calling process with these system calls only."""
    seccomp = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    kill, allow = 0x80000000, 0x7FFF0000
    context = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(kill)))
    known = 0
    for name in names:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            known += 1
            seccomp.seccomp_rule_add(context, ctypes.c_uint32(allow), number, 0)
    assert known > 200
    return lambda: seccomp.seccomp_load(context)


def test_serves_under_the_filter_of_the_unit(tmp_path, request):
    """Where the unit would answer EPERM, here the server is killed."""
    need("systemd-analyze")
    if harness.is_sanitized():
        pytest.skip("sanitizers make system calls of their own")
    try:
        load = filter_loader(allowed_calls())
    except OSError:
        pytest.skip("libseccomp is not installed")
    server = harness.Server(checkpoint.DEMO, "-tp", 2, log=tmp_path / "log", before=load)
    request.node.servers = [server]
    try:
        server.wait_ready()
        for pid in (server.pid, *server.ranks()):
            assert re.search(r"^Seccomp:\t2$", pathlib.Path(f"/proc/{pid}/status").read_text(),
                             re.MULTILINE)
        assert server.complete("Once", max_tokens=8)["choices"]
        assert len(list(server.stream("Once", max_tokens=8))) > 1
        eventually(lambda: server.metrics().sum("vllm:num_requests_running") == 0, 5, "idle")
    finally:
        assert server.stop() == 0


# ---- the example --------------------------------------------------------------------------------


def test_example_configuration(tmp_path):
    """Every key, also those behind a #, is an option; the rest is only missing its model."""
    text = (ROOT / "deploy/example.yaml").read_text()
    full = re.sub(r"^#(?=[a-z-]+: )", "", text, flags=re.MULTILINE)
    assert full.count(":") > text.count(":") - 2 and full != text
    full = full.replace("/srv/models/NAME", str(checkpoint.DEMO)).replace("8192", "256")
    file = tmp_path / "demo.yaml"
    file.write_text(full)
    done = run("plan", "--config", file)
    assert done.returncode == 0 and "context 256" in done.stdout, done.stdout + done.stderr
    done = run("serve", "--config", ROOT / "deploy/example.yaml")
    assert done.returncode == 3 and "/srv/models/NAME" in done.stderr, done.stderr


# ---- Kubernetes ---------------------------------------------------------------------------------


def kubernetes(gpu=False):
    """(deployment, pod, container, service); gpu: with the volumes that are comments."""
    text = (ROOT / "deploy/kubernetes.yaml").read_text()
    if gpu:
        text, count = re.subn(r"^( *)# (?=- \{name)", r"\1", text, flags=re.MULTILINE)
        assert count == 4
    deployment, service = yaml.safe_load_all(text)
    assert (deployment["kind"], service["kind"]) == ("Deployment", "Service")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    return deployment, pod, container, service


def test_kubernetes_fits_the_recipe():
    _, pod, container, _ = kubernetes()
    assert f"VERSION={container['image'].removeprefix('tessera:')}" in of_stage(1, "ARG")
    user = pod["spec"]["securityContext"]
    assert [f"{user['runAsUser']}:{user['runAsGroup']}"] == of_stage(1, "USER")
    assert user["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    assert container["args"][:2] == json.loads(of_stage(1, "CMD")[0])
    (port,) = container["ports"]
    assert [str(port["containerPort"])] == of_stage(1, "EXPOSE")


def test_kubernetes_fits_itself():
    for gpu in (False, True):
        deployment, pod, container, service = kubernetes(gpu)
        labels = pod["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert service["spec"]["selector"].items() <= labels.items()
        (port,) = container["ports"]
        assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
        assert service["spec"]["ports"][0]["targetPort"] == port["name"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}
        assert mounted == {"model", "keys"} | ({"shm", "tmp"} if gpu else set())
    options = dict(arg.removeprefix("--").split("=") for arg in container["args"] if "=" in arg)
    wanted = int(options["tensor-parallel-size"]) * int(options["threads-per-rank"]) + 1
    requests, limits = (container["resources"][kind] for kind in ("requests", "limits"))
    assert requests == limits and limits["cpu"] == str(wanted)
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > pause + int(options["drain-timeout"])


def test_kubernetes_starts_a_server(tmp_path, request):
    """Its arguments, with the keys as a secret's volume has them: links, and group-readable."""
    _, pod, container, _ = kubernetes()
    (secret,) = [v["secret"] for v in pod["spec"]["volumes"] if v["name"] == "keys"]
    (mount,) = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "keys"]
    (variable,) = container["env"]
    assert variable["value"] == mount
    folder = tmp_path / "keys/..2026"
    folder.mkdir(parents=True)
    (folder / "api-keys").write_text("sk-of-a-secret-0123456789\n")
    (folder / "api-keys").chmod(secret["defaultMode"])
    (tmp_path / "keys/..data").symlink_to("..2026")
    (tmp_path / "keys/api-keys").symlink_to("..data/api-keys")
    small = {"--threads-per-rank=2": "--threads-per-rank=1",
             "--kv-cache-memory=2G": "--kv-cache-memory=24M"}
    arguments = [small.get(arg, arg) for arg in container["args"][2:]]
    assert not set(small) & set(arguments) and len(set(container["args"]) & set(small)) == 2
    server = harness.Server(checkpoint.DEMO, *arguments, log=tmp_path / "log",
                            wrapper=["env", f"{variable['name']}={tmp_path}/keys"])
    request.node.servers = [server]
    try:
        server.wait_ready()
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert server.get(container[probe]["httpGet"]["path"]).status == 200
        assert server.get(pod["metadata"]["annotations"]["prometheus.io/path"]).status == 200
        assert server.get("/v1/models").status == 401
        reply = server.request("GET", "/v1/models", None,
                               {"Authorization": "Bearer sk-of-a-secret-0123456789"})
        assert reply.json()["data"][0]["id"] == "NAME"
    finally:
        assert server.stop() == 0
