"""`tessera doctor`: what it says of the machine agrees with what the kernel says, and each fault
that can be made here is found, named and ends with exit code 1."""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess

import pytest

import checkpoint
from harness import BINARY, EMULATED, PATIENCE, environment, is_sanitized, run

pytestmark = pytest.mark.sanitized

MODEL = checkpoint.GOLDEN / "tied_gqa2_f32"


def examine(*arguments, program=BINARY, limits=(), group=None):
    """Exit code and findings by check; checks that occur several times, in a list. group: the
    control group that it runs in."""
    def set_limits():
        if group:
            (group / "cgroup.procs").write_text(str(os.getpid()))
        for what, value in limits:
            resource.setrlimit(what, (value, value))
    done = subprocess.run([str(program), "doctor", "--json", *map(str, arguments)], text=True,
                          capture_output=True, env=environment(), timeout=60 * PATIENCE,
                          check=False, preexec_fn=set_limits)
    assert "Sanitizer" not in done.stderr
    answer = json.loads(done.stdout)
    found = {}
    for finding in answer["findings"]:
        assert finding["level"] in ("ok", "warn", "fail")
        assert (finding["advice"] is None) == (finding["level"] == "ok")
        found.setdefault(finding["check"], []).append(finding)
    fails = sum(finding["level"] == "fail" for finding in answer["findings"])
    assert answer["ok"] == (fails == 0) == (done.returncode == 0)
    assert done.returncode in (0, 1)
    assert (f"{fails} check" in done.stderr) == (fails > 0)
    return done.returncode, found


def siblings(cpu):
    """What shares its core, as the kernel names it; itself where it does not say."""
    path = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else str(cpu)


def test_the_machine_as_it_is():
    code, found = examine(MODEL, "-tp", "2")
    assert code == 0
    own = os.sched_getaffinity(0)
    cores = len({siblings(cpu) for cpu in own})
    assert found["cores"][0]["text"].startswith(
        f"{len(own)} of {os.cpu_count()} processors for this process, {cores} core")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert str(hard) in found["open files"][0]["text"] or hard == resource.RLIM_INFINITY
    assert "2 ranks" in found["model"][0]["text"]
    for check in ("cpu", "memory", "memory files", "processes", "cuda module", "mpi module"):
        assert len(found[check]) == 1


def test_text_has_a_line_each():
    done = run("doctor")
    assert done.returncode == 0 and not done.stderr
    lines = done.stdout.splitlines()
    for line in lines:
        assert line[:6].strip() in ("ok", "warn", "fail", ""), line
        if not line[:6].strip():
            assert line.strip().startswith("-> ")
    assert sum(line.startswith("warn") for line in lines) == sum("-> " in line for line in lines)


def test_few_files():
    code, found = examine(limits=[(resource.RLIMIT_NOFILE, 400)])
    assert code == 0
    assert found["open files"][0]["level"] == "warn"
    assert "at most 400;" in found["open files"][0]["text"]
    _, found = examine("--max-connections", "64", limits=[(resource.RLIMIT_NOFILE, 400)])
    assert found["open files"][0]["level"] == "ok"


def test_more_threads_than_cores():
    _, found = examine("-tp", "2", "--threads-per-rank", "1000")
    assert found["cores"][0]["level"] == "warn"
    assert "2 ranks of 1000 threads" in found["cores"][0]["text"]


@pytest.mark.parametrize("arguments, wanted", [
    (("MODEL", "--kv-cache-memory", "900T"), "does not fit"),
    (("MODEL", "--max-model-len", "1000000"), "--max-model-len"),
    (("/nonexistent\udcff",), "nonexistent"),
    (("MODEL", "--enforce-eager"), "--enforce-eager is for GPUs"),
])
def test_model_that_would_not_be_served(arguments, wanted):
    code, found = examine(*[MODEL if word == "MODEL" else word for word in arguments])
    assert code == 1
    assert found["model"][0]["level"] == "fail"
    assert wanted in found["model"][0]["text"]


def test_usage():
    assert run("doctor", "--jason").returncode == 2
    assert run("doctor", "-tp", "0").returncode == 2


def test_missing_modules(tmp_path):
    """They fail only where they are asked for."""
    program = shutil.copy(BINARY, tmp_path)
    code, found = examine(program=program)
    assert code == 0 and found["cuda module"][0]["level"] == "ok"
    code, found = examine("--device", "cuda", program=program)
    assert code == 1 and "no libtessera_cuda.so" in found["cuda module"][0]["text"]
    code, found = examine("--comm", "mpi", program=program)
    assert code == 1 and "no libtessera_mpi.so" in found["mpi module"][0]["text"]


@pytest.mark.skipif(not EMULATED.exists(), reason="no emulated device in this build")
def test_devices(tmp_path):
    """The emulated device stands for a real one: eight of 4 GiB."""
    program = shutil.copy(BINARY, tmp_path)
    shutil.copy(EMULATED, tmp_path)
    code, found = examine(MODEL, "--device", "cuda", "-tp", "2", "--kv-cache-memory", "1M",
                          program=program)
    assert code == 0
    assert len(found["gpu"]) == 8
    assert "emulated device, 4.0 GiB free of 4.0 GiB" in found["gpu"][0]["text"]
    assert found["driver"][0]["text"].startswith("for CUDA 13.0;")
    assert found["nccl"][0]["text"] == "2.30.7"
    assert found["peer access"][0]["text"].startswith("1 of 1 pairs")
    code, found = examine("--device", "cuda", "-tp", "9", program=program)
    assert code == 1 and "8 are here" in found["gpus"][0]["text"]
    code, found = examine("--device", "cuda", "-tp", "9", "--ranks-per-device", "2",
                          program=program)
    assert code == 0


@pytest.mark.skipif(not EMULATED.exists(), reason="no emulated device in this build")
def test_module_of_another_build(tmp_path):
    program = shutil.copy(BINARY, tmp_path)
    module = EMULATED.read_bytes()
    begin = module.index(b"0.1.0-")
    other = module[:begin] + b"9.9.9-" + module[begin + 6:]
    (tmp_path / "libtessera_cuda.so").write_bytes(other)
    code, found = examine("--device", "cuda", program=program)
    assert code == 1
    assert "is of build 9.9.9-" in found["cuda module"][0]["text"]


# ---- a container's limits ------------------------------------------------------------------------


def make_group(places, below=""):
    """A new control group (and one below it) in the first of these places that lets it have these
    limits; the group whose processes are limited."""
    for root, said in places:
        group = pathlib.Path(root) / f"tessera-test-{os.getpid()}"
        try:
            (group / below).mkdir(parents=True)
            for name, text in said.items():
                (group / name).write_text(text)
            return group
        except OSError:
            remove_group(group, below)
    pytest.skip("no control group with such a limit can be made here")


def remove_group(group, below=""):
    for folder in (group / below, group):
        if folder.is_dir():
            folder.rmdir()


@pytest.fixture
def half_group():
    """A control group whose processes have the time of half a processor together."""
    group = make_group((("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": "100000",
                                                "cpu.cfs_quota_us": "50000"}),
                        ("/sys/fs/cgroup", {"cpu.max": "50000 100000"})))
    yield group
    remove_group(group)


@pytest.fixture
def narrow_group():
    """A group in one whose processes have 200 MiB together."""
    group = make_group((("/sys/fs/cgroup/memory", {"memory.limit_in_bytes": "200M"}),
                        ("/sys/fs/cgroup", {"memory.max": "200M"})), "inner")
    yield group / "inner"
    remove_group(group, "inner")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a limit of one core is none")
def test_limit_of_time(half_group):
    """Threads are as many as can run, not as many as there are cores to see."""
    _, found = examine(MODEL, "-tp", 1)
    assert "limit" not in found["cores"][0]["text"]
    code, found = examine(MODEL, "-tp", 1, group=half_group)
    (cores,) = found["cores"]
    assert "(time for 1 by a limit of this container)" in cores["text"], cores
    assert "1 rank of 1 thread" in cores["text"] and cores["level"] == "ok" and code == 0
    _, found = examine(MODEL, "-tp", 2, group=half_group)
    assert found["cores"][0]["level"] == "warn"


@pytest.mark.skipif(is_sanitized(), reason="sanitizers take memory of their own")
def test_limit_of_memory(narrow_group):
    """Of a group above counts, too; the machine's own memory does not then."""
    _, found = examine(MODEL)
    assert found["memory"][0]["level"] == "ok"
    code, found = examine(MODEL, group=narrow_group)
    (memory,) = found["memory"]
    assert re.match(r"1\d\d(\.\d)? MiB free of ", memory["text"]), memory
    assert memory["level"] == "warn" and code == 0
    code, found = examine(MODEL, "--kv-cache-memory", "300M", group=narrow_group)
    assert code == 1 and "does not fit" in found["model"][0]["text"]


def test_memory_that_cannot_be_read():
    """Is told as that, and not as none."""
    seal = ["unshare", "-m", "sh", "-c", 'mount --bind /dev/null /proc/meminfo && exec "$@"', "sh"]
    if not shutil.which("unshare") or \
            subprocess.run([*seal, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no file can be hidden here")
    done = subprocess.run([*seal, str(BINARY), "plan", str(MODEL)], capture_output=True, text=True,
                          env=environment(), timeout=60 * PATIENCE, check=False)
    assert done.returncode == 4
    assert "how much memory is free cannot be read: /proc/meminfo" in done.stderr
    done = subprocess.run([*seal, str(BINARY), "doctor", str(MODEL)], capture_output=True,
                          text=True, env=environment(), timeout=60 * PATIENCE, check=False)
    assert done.returncode == 1
    assert "fail" in next(line for line in done.stdout.splitlines() if "cannot be read" in line)
