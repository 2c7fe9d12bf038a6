"""What goes wrong before serving ends at once, with the right exit code and one clear line."""

import contextlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import time

import pytest

import checkpoint
from harness import (BINARY, PATIENCE, Server, environment, eventually, free_port, is_sanitized,
                     ranks_of, run)

pytestmark = pytest.mark.sanitized

NAME = "tied_gqa2_f32"
TENSOR = "model.layers.1.mlp.down_proj.weight"


def fails(code, *arguments):
    """The one line on stderr of a command that must fail with this code, and soon."""
    done = run(*arguments, timeout=10)
    assert done.returncode == code, done.stderr
    assert "Sanitizer" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("tessera: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


# ---- usage: exit code 2 -------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, wanted", [
    (("serve", "MODEL", "--tensor-paralel-size", "2"), "--tensor-parallel-size"),
    (("serve", "MODEL", "--max-modellen", "64"), "--max-model-len"),
    (("serve", "MODEL", "--dtype", "float33"), "float32"),
    (("serve", "MODEL", "-tp", "0"), "tensor-parallel-size"),
    (("serve", "MODEL", "-tp", "two"), "tensor-parallel-size"),
    (("serve", "MODEL", "--port", "70000"), "65535"),
    (("serve", "MODEL", "--port"), "port"),
    (("serv", "MODEL"), "did you mean serve?"),
    (("run", "MODEL"), 'unknown command "run" (tessera help lists all)'),
    (("frobnicate",), 'unknown command "frobnicate" (tessera help lists all)'),
    (("serve", "MODEL", "--host", "nosuchhost"),
     '"nosuchhost" is no numeric address to listen on; of names only localhost is known'),
    (("serve", "MODEL", "--api-key", "secret"), "--api-key-file"),
    (("serve",), "MODEL"),
    (("plan", ""), "which model directory"),
    (("serve", "MODEL", "--cors-origins", "https://a.example/"), "is no origin"),
    (("serve", "MODEL", "--allowed-hosts", "a.example:80"), "is no name of a host"),
    (("serve", "MODEL", "--http-max-bodies-bytes", "1M"), "--http-max-body-bytes 4194304"),
    (("complete", "http://127.0.0.1:65600", "x"), "65535"),
    (("health", "http://127.0.0.1:65600"), "HOST:PORT"),
])
def test_usage(arguments, wanted):
    model = str(checkpoint.GOLDEN / NAME)
    arguments = [model if word == "MODEL" else word for word in arguments]
    assert wanted.lower() in fails(2, *arguments).lower()


def variables_warned(variables):
    """The lines about variables on stderr of a command that succeeds."""
    done = run("plan", checkpoint.GOLDEN / NAME, variables=variables)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "TESSERA_" in line]


@pytest.mark.parametrize("variable, meant", [
    ("TESSERA_MAX_NUM_SEQ", "TESSERA_MAX_NUM_SEQS"),
    ("TESSERA_TP", "TESSERA_TENSOR_PARALLEL_SIZE"),
    ("TESSERA_", None),
    ("TESSERA_" + 100 * "X", None),
])
def test_unknown_variable(variable, meant):
    lines = variables_warned({variable: "4"})
    assert len(lines) == 1
    assert variable[:80] in lines[0]
    assert lines[0].endswith(f"ignored; did you mean {meant}?" if meant else "ignored")


def test_known_variables():
    """Those of other commands are in the same environment."""
    assert not variables_warned({"TESSERA_GOODPUT": "ttft:1", "TESSERA_PORT": "1"})


def test_variables_of_other_commands():
    """A server is configured by its environment, so whoever set them meant something."""
    done = run("serve", "/nowhere", variables={"TESSERA_GOODPUT": "ttft:1", "TESSERA_PORT": "1"})
    lines = [line for line in done.stderr.splitlines() if "TESSERA_" in line]
    assert len(lines) == 1
    assert "TESSERA_GOODPUT in the environment is no option of serve" in lines[0]
    assert lines[0].endswith("but of other commands: ignored")


def test_keys_of_other_commands(tmp_path):
    """A server's file says what a server is to do: what has no effect is told, with its line."""
    file = tmp_path / "server.yaml"
    file.write_text("port: 0\nmax-tokens: 5\nmax-num-seqs: 3\ntemperature: 0.9\n")
    def warnings_of(command):
        done = run(command, "/nowhere", "--config", file)
        assert done.returncode == 3
        return [line for line in done.stderr.splitlines() if " warning " in line]
    first, second = warnings_of("serve")
    assert f"{file}:2: max-tokens is no option of serve, but of other commands: ignored" in first
    assert f"{file}:4: temperature is no option of serve" in second
    assert "it is a field of requests" in second
    assert not warnings_of("plan")  # a file may be for both


@pytest.mark.parametrize("name", ["webui", "enable-prefix-caching", "enable-auto-tool-choice"])
def test_flags_that_are_turned_off_elsewhere(tmp_path, name):
    """What only the command line can say is told in the words of the file and the environment."""
    file, variable = tmp_path / "a.yaml", f"TESSERA_{name.upper().replace('-', '_')}"
    for value, meant in (("true", "false"), ("false", "true")):
        file.write_text(f"no-{name}: {value}\n")
        assert f'unknown key "no-{name}"; did you mean {name}: {meant}?' in fails(
            2, "serve", checkpoint.DEMO, "--config", file)
        (line,) = variables_warned({variable.replace("_", "_NO_", 1): value})
        assert line.endswith(f"is no option: ignored; did you mean {variable}={meant}?")


def test_service_of_kubernetes():
    """The variables that a pod gets when a service of its namespace is called tessera."""
    links = {"TESSERA_SERVICE_HOST": "10.0.0.1", "TESSERA_SERVICE_PORT": "8000",
             "TESSERA_SERVICE_PORT_HTTP": "8000", "TESSERA_PORT": "tcp://10.0.0.1:8000",
             "TESSERA_PORT_8000_TCP": "tcp://10.0.0.1:8000", "TESSERA_PORT_8000_TCP_PROTO": "tcp",
             "TESSERA_PORT_8000_TCP_PORT": "8000", "TESSERA_PORT_8000_TCP_ADDR": "10.0.0.1",
             "TESSERA_B_SERVICE_HOST": "10.0.0.2", "TESSERA_B_PORT": "tcp://10.0.0.2:80"}
    lines = variables_warned(links)
    assert len(lines) == 1
    assert "TESSERA_PORT=tcp://10.0.0.1:8000" in lines[0]
    assert "enableServiceLinks: false" in lines[0]


def test_names_that_are_no_text(tmp_path):
    """They would go into JSON and labels as they are."""
    model = checkpoint.GOLDEN / NAME
    odd = os.fsencode(tmp_path) + b"/caf\xe9"
    try:
        shutil.copytree(model, os.fsdecode(odd))
    except (OSError, shutil.Error):
        pytest.skip("file names are text here")
    for arguments in (("serve", model, "--served-model-name", b"good,caf\xe9"), ("serve", odd),
                      ("serve", model, "--served-model-name", "a\nb")):
        done = subprocess.run([BINARY, *arguments, "--port", "0"], capture_output=True,
                              env=environment(), timeout=60 * PATIENCE, check=False)
        assert done.returncode == 2
        assert b"which is not plain UTF-8: give --served-model-name" in done.stderr


def test_no_command():
    done = run()
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_help_and_version():
    for words in (("help",), ("--help",), ("serve", "--help"), ("version",)):
        done = run(*words)
        assert done.returncode == 0
        assert not done.stderr
    text = run("serve", "--help").stdout
    for option in ("--tensor-parallel-size", "-tp", "--dtype", "--load-format", "--host", "--port",
                   "--threads-per-rank", "--max-model-len", "--max-num-seqs",
                   "--max-num-batched-tokens", "--max-num-queued-reqs", "--kv-cache-memory",
                   "--served-model-name"):
        assert option in text, option


def test_port_in_use():
    """Found out before any weights are loaded. Not wrong use: what started it may try again."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = fails(1, "serve", str(checkpoint.GOLDEN / NAME), "-tp", "2", "--port", port)
    assert port in line and "Address already in use" in line


def test_address_that_is_not_there():
    """Not yet, as while the machine starts."""
    line = fails(1, "serve", str(checkpoint.GOLDEN / NAME), "--host", "192.0.2.1", "--port", "0",
                 "--insecure-no-auth")
    assert "192.0.2.1" in line and "Cannot assign requested address" in line


def test_out_of_processes(tmp_path):
    """However far it comes, and in whichever process: exit code 4, and which limits to look at."""
    user = 54321  # who has no other process; root has no such limit
    model = checkpoint.GOLDEN / NAME

    def become(allowed):
        resource.setrlimit(resource.RLIMIT_NPROC, (allowed, allowed))
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    if os.getuid() != 0 or is_sanitized() or subprocess.run(
            ["sh", "-c", f"test -r {model}/config.json && test -x {BINARY}"], check=False,
            preexec_fn=lambda: become(100)).returncode != 0:
        pytest.skip("nobody here who could have too few processes")
    for allowed in range(1, 400):
        server = Server(model, "-tp", 2, "--threads-per-rank", 2, "--kv-cache-memory", "8M",
                        log=tmp_path / "log", before=lambda: become(allowed))
        eventually(lambda: server.process.poll() is not None or "ready: " in server.log, 30,
                   "a start")
        if server.process.poll() is None:
            assert server.stop() == 0
            break
        assert server.process.poll() == 4, server.log
        assert "(ulimit -u, TasksMax= of a unit, a container's limit of pids)" in server.log
    assert allowed > 5


# ---- model: exit code 3 -------------------------------------------------------------------------


def refused(model):
    return fails(3, "serve", str(model), "-tp", "2", "--port", "0", "--kv-cache-memory", "8M")


@pytest.fixture
def model(tmp_path):
    return checkpoint.copy_model(NAME, tmp_path / "model")


@pytest.mark.parametrize("keep", ["nothing", "4 bytes", "half the header", "header", "all but 1"])
def test_truncated(model, keep):
    path = model / "model.safetensors"
    data = path.read_bytes()
    _, start = checkpoint.read_header(path)
    sizes = {"nothing": 0, "4 bytes": 4, "half the header": start // 2, "header": start,
             "all but 1": len(data) - 1}
    path.write_bytes(data[:sizes[keep]])
    assert "model.safetensors" in refused(model)


def test_trailing_bytes(model):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"\0")
    assert "model.safetensors" in refused(model)


def test_missing_tensor(model):
    checkpoint.drop_tensor(model / "model.safetensors", TENSOR)
    assert TENSOR in refused(model)


def test_wrong_shape(model):
    checkpoint.edit_header(model / "model.safetensors",
                           lambda header: header[TENSOR]["shape"].reverse())
    line = refused(model)
    assert TENSOR in line
    assert "64" in line and "176" in line


def test_wrong_dtype(model):
    def edit(header):
        header[TENSOR]["dtype"] = "I32"
    checkpoint.edit_header(model / "model.safetensors", edit)
    line = refused(model)
    assert TENSOR in line and "I32" in line


def test_head_of_a_tied_model(serve, model):
    """Files may repeat the embedding as lm_head.weight; of one that differs transformers makes an
    untied model, so that nobody knows what is meant."""
    path = model / "model.safetensors"
    prompt, tokens = checkpoint.golden_runs(NAME)[0]
    checkpoint.copy_tensor(path, "model.embed_tokens.weight", "lm_head.weight")
    server = serve(model, "-tp", 2)
    assert server.token_ids(prompt, len(tokens)) == tokens
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    line = refused(model)
    assert "lm_head.weight" in line and "tie_word_embeddings" in line


def test_overlapping_tensors(model):
    def edit(header):
        names = sorted(name for name in header if name != "__metadata__")
        header[names[1]] = dict(header[names[0]])
    checkpoint.edit_header(model / "model.safetensors", edit)
    assert "model.safetensors" in refused(model)


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "num_hidden_layers",
                                 "vocab_size", "intermediate_size", "model_type"])
def test_missing_config_key(model, key):
    checkpoint.edit_config(model, lambda config: config.pop(key))
    line = refused(model)
    assert "config.json" in line and key in line


@pytest.mark.parametrize("key, value", [
    ("model_type", "mamba9"), ("hidden_size", -64), ("hidden_size", "64"), ("vocab_size", 0),
    ("num_key_value_heads", 3), ("hidden_act", "relu9"), ("attention_bias", True),
    ("num_hidden_layers", 10**9), ("rms_norm_eps", -1.0),
    ("rope_parameters", {"rope_type": "longrope9", "rope_theta": 1e4})])
def test_bad_config_value(model, key, value):
    checkpoint.edit_config(model, lambda config: config.update({key: value}))
    line = refused(model)
    assert "config.json" in line
    assert key in line or key.split("_")[0] in line


def test_config_that_is_not_json(model):
    (model / "config.json").write_text('{"model_type": "llama",')
    assert "config.json" in refused(model)


def test_config_with_a_duplicate_key(model):
    text = (model / "config.json").read_text()
    (model / "config.json").write_text('{"vocab_size": 5,' + text.lstrip()[1:])
    assert "vocab_size" in refused(model)


def test_no_such_directory(tmp_path):
    assert "nowhere" in refused(tmp_path / "nowhere")


def test_no_weights(model):
    (model / "model.safetensors").unlink()
    assert "safetensors" in refused(model)


def test_index_names_a_missing_file(tmp_path):
    model = checkpoint.copy_model("untied_mqa_f16", tmp_path / "model")
    (model / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in refused(model)


def test_index_that_names_a_tensor_elsewhere(tmp_path):
    model = checkpoint.copy_model("untied_mqa_f16", tmp_path / "model")
    path = model / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    name = sorted(index["weight_map"])[0]
    files = sorted(set(index["weight_map"].values()))
    index["weight_map"][name] = files[index["weight_map"][name] == files[0]]
    path.write_text(json.dumps(index))
    assert name in refused(model)


# ---- memory: exit code 4 ------------------------------------------------------------------------


def test_kv_cache_too_small():
    line = fails(4, "serve", str(checkpoint.GOLDEN / NAME), "--port", "0", "--max-model-len", "512",
                 "--kv-cache-memory", "4K")
    assert "kv" in line.lower()


def test_kv_cache_too_large():
    fails(4, "serve", str(checkpoint.GOLDEN / NAME), "--port", "0", "--kv-cache-memory", "900T")


def test_long_paths(serve):
    """The ranks are told of both files, however long their paths are."""
    def padded(path, length):
        return "/" + "./" * ((length - len(str(path))) // 2) + str(path)[1:]
    plan = checkpoint.ROOT / "engine/parallel/plans/1d.json"
    serve(padded(checkpoint.DEMO, 3800), "--plan", padded(plan, 4090))


def test_context_of_one():
    line = fails(4, "serve", checkpoint.GOLDEN / NAME, "--port", "0", "--max-model-len", "1")
    assert "at least" in line and "--kv-cache-memory" not in line


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.model",
                                  "tokenizer_config.json", "model.safetensors"])
def test_a_fifo_does_not_block(tmp_path, name):
    model = tmp_path / "model"
    shutil.copytree(checkpoint.DEMO, model)
    (model / name).unlink()
    os.mkfifo(model / name)
    assert name in fails(3, "serve", model, "--port", "0")


# ---- standard streams ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("plan", checkpoint.DEMO), ("inspect", checkpoint.DEMO),
                                     ("version",), ("help",), ("serve", "--help")])
def test_output_that_is_not_written(command):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([BINARY, *command], stdout=full, text=True,
                              stderr=subprocess.PIPE, env=environment(), timeout=60 * PATIENCE,
                              check=False)
    assert done.returncode == 1
    assert done.stderr == "tessera: stdout: No space left on device\n"


def test_output_that_is_not_written_of_what_does_not_fit():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([BINARY, "plan", checkpoint.DEMO, "--kv-cache-memory", "900T"],
                              stdout=full, text=True, stderr=subprocess.PIPE, env=environment(),
                              timeout=60 * PATIENCE, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "tessera: stdout: No space left on device"


@pytest.mark.parametrize("command", [("plan", checkpoint.DEMO), ("version",),
                                     ("complete", checkpoint.DEMO, "Once", "--max-tokens", "2")])
def test_output_that_is_closed(command):
    done = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', BINARY, *command], text=True,
                          stderr=subprocess.PIPE, env=environment(), timeout=60 * PATIENCE,
                          check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "tessera: stdout: Bad file descriptor"


def limited(which, value, *arguments):
    """The exit code and the line of a command under a hard limit of the system."""
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True,
                          env=environment(), timeout=60 * PATIENCE, check=False,
                          preexec_fn=lambda: resource.setrlimit(which, (value, value)))
    return done.returncode, done.stderr.splitlines()[-1]


def test_few_files():
    code, line = limited(resource.RLIMIT_NOFILE, 40, "serve", checkpoint.DEMO, "--port", "0")
    assert code == 4 and "Too many open files" in line


def test_small_files(tmp_path):
    """As on a full disk: a line instead of SIGXFSZ, and nothing that is half written."""
    code, line = limited(resource.RLIMIT_FSIZE, 100000, "serve", checkpoint.DEMO, "--port", "0")
    assert code == 4 and "File too large" in line
    for command in (("shard", checkpoint.DEMO, "-tp", "2"),
                    ("synth", "--config", checkpoint.DEMO / "config.json")):
        code, line = limited(resource.RLIMIT_FSIZE, 100000, *command, "-o", tmp_path / "out")
        assert code == 1 and line.startswith("tessera: ") and "File too large" in line
        assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module", name="large")
def fixture_large(tmp_path_factory):
    """A model that takes a while to write: 260 MB."""
    directory = tmp_path_factory.mktemp("large")
    config = json.loads((checkpoint.DEMO / "config.json").read_text())
    config.update(hidden_size=1024, intermediate_size=4096, vocab_size=32000, num_hidden_layers=6)
    (directory / "config.json").write_text(json.dumps(config))
    done = run("synth", "--config", directory / "config.json", "-o", directory / "model")
    assert done.returncode == 0, done.stderr
    yield directory / "model"
    shutil.rmtree(directory)


@contextlib.contextmanager
def writing(command, large, output):
    """The command stands still while a file grows, and goes on behind."""
    source = [large, "-tp", 2] if command == "shard" else ["--config", large / "config.json"]
    words = [BINARY, command, *map(str, source), "-o", str(output)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=environment()) as process:
        eventually(lambda: list(output.glob("*.safetensors.partial")), 30, "a file that grows")
        process.send_signal(signal.SIGSTOP)
        yield process
        process.send_signal(signal.SIGCONT)
        process.wait(30 * PATIENCE)
        process.log = process.stderr.read()


@pytest.mark.parametrize("command", ["synth", "shard"])
def test_progress_of_writing(large, tmp_path, command):
    with writing(command, large, tmp_path / "output") as process:
        time.sleep(1.1)
    assert process.returncode == 0
    assert re.search(r"output\S*: \d+ % written", process.log)


@pytest.mark.parametrize("command", ["synth", "shard"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_writing(large, tmp_path, command, number):
    """It ends the command as usual, but what is half written goes first."""
    with writing(command, large, tmp_path / "output") as process:
        process.send_signal(number)
    assert process.returncode == -number
    assert f"stopped; what was written to {tmp_path / 'output'} is removed" in process.log
    assert not list(tmp_path.iterdir())


def test_a_reader_that_leaves():
    with subprocess.Popen([BINARY, "inspect", checkpoint.DEMO, "-tp", "64"], env=environment(),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(timeout=60 * PATIENCE) == -signal.SIGPIPE
        assert process.stderr.read() == b""


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_streams(serve, closed):
    """No other file takes their numbers: the log would be written into it."""
    def close():
        for fd in closed:
            os.close(fd)
    port = free_port()
    server = serve(checkpoint.DEMO, "-tp", 2, "--port", port, wait=False, before=close)
    server.port = port
    eventually(lambda: answers(server), 30, "/readyz")
    assert server.complete("Once", max_tokens=4)["usage"]["completion_tokens"] == 4
    for pid in (server.pid, *ranks_of(server.pid)):
        for fd in closed:
            assert os.readlink(f"/proc/{pid}/fd/{fd}") == "/dev/null"


def answers(server):
    try:
        return server.get("/readyz").status == 200
    except OSError:
        return False


# ---- devices: exit code 4 ------------------------------------------------------------------------


def test_cuda_is_not_here(tmp_path):
    """Without a module, with a broken one, or without a driver: one line and exit code 4."""
    if pathlib.Path("/dev/nvidiactl").exists():
        pytest.skip("there is an NVIDIA driver")
    line = fails(4, "serve", checkpoint.GOLDEN / NAME, "--device", "cuda")
    assert "--device cuda: no " in line  # libtessera_cuda.so, or a driver
    program = tmp_path / "tessera"
    shutil.copy(BINARY, program)
    (tmp_path / "libtessera_cuda.so").write_bytes(b"not a module")
    done = subprocess.run([program, "serve", checkpoint.GOLDEN / NAME, "--device", "cuda"],
                          capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    assert done.returncode == 4 and done.stderr.count("\n") == 1
    assert "libtessera_cuda.so" in done.stderr


def test_program_links_no_cuda():
    needed = subprocess.run(["readelf", "-d", BINARY], capture_output=True, text=True,
                            timeout=60 * PATIENCE, check=True).stdout.lower()
    assert "needed" in needed
    assert not any(name in needed for name in ("cuda", "cublas", "nccl", "libcu"))


def test_ranks_per_device_needs_devices():
    line = fails(2, "serve", checkpoint.GOLDEN / NAME, "-tp", "2", "--ranks-per-device", "2")
    assert "--ranks-per-device" in line and "cpu" in line


@pytest.mark.parametrize("command", ["serve", "plan"])
def test_custom_all_reduce_needs_devices(command):
    line = fails(2, command, checkpoint.GOLDEN / NAME, "-tp", "2", "--disable-custom-all-reduce")
    assert "--disable-custom-all-reduce is for GPUs" in line and "cpu" in line


# ---- what a start has to say of its sizes -----------------------------------------------


def warned(*arguments, command="plan"):
    done = run(command, *arguments)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if " warning " in line]


def long_model(tmp_path):
    """A model that allows more positions than a sixteenth of any memory holds."""
    config = json.loads((checkpoint.DEMO / "config.json").read_text())
    config.update(max_position_embeddings=2**24, num_hidden_layers=400)
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path, "--load-format", "dummy"


def test_a_shorter_context_is_told(tmp_path):
    model = long_model(tmp_path)
    (line,) = warned(*model)
    assert re.search(r"context \d+ of the model's 16777216: that is what the automatic KV cache "
                     r"has room for; --kv-cache-memory N makes it longer, --max-model-len N fixes "
                     r"it$", line)
    assert not warned(*model, "--kv-cache-memory", "24M")
    assert not warned(*model, "--max-model-len", 1000)
    assert not warned(checkpoint.DEMO)


def test_fewer_sequences_are_told():
    (line,) = warned(checkpoint.DEMO, "--max-num-seqs", 999)
    assert "--max-num-seqs 999: 512 are used, because" in line
    assert "raise --max-num-batched-tokens" in line
    assert not warned(checkpoint.DEMO, "--max-num-seqs", 999, "--max-num-batched-tokens", 999)
    assert not warned(checkpoint.DEMO, "--max-num-batched-tokens", 32)  # nobody asked for 64


def test_crowded_cores(serve):
    cores = len(os.sched_getaffinity(0))
    server = serve(checkpoint.DEMO, "--threads-per-rank", cores + 1)
    assert f"1 rank of {cores + 1} threads on {cores} core" in server.log
    assert "on 1 rank (cpu" in server.log
    assert "to test function only" not in serve(checkpoint.DEMO).log


def processors(server):
    """Those that the one rank of a server may use."""
    (pid,) = server.ranks()
    return os.sched_getaffinity(pid)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two servers want two cores")
def test_two_servers_share_no_core(serve):
    """Of those that have room; other servers, such as of tests beside this one, have some, too."""
    first, second = serve(checkpoint.DEMO), serve(checkpoint.DEMO)
    for server in (first, second):
        told = re.search(r"(?m)info +rank 0 keeps to processors (\d+)$", server.log)
        if told:
            assert processors(server) == {int(told[1])}
        else:  # too few are left
            assert processors(server) == os.sched_getaffinity(0)
            assert "ranks of other servers keep to processors" in server.log
    if len(processors(first)) == len(processors(second)) == 1:
        assert not processors(first) & processors(second)
    before = processors(second)
    os.kill(second.ranks()[0], signal.SIGKILL)
    eventually(lambda: "requests go on after" in second.log, 10, "recovery")
    assert processors(second) == before  # the next rank's, too


def trial(server):
    """What the command does that the start proposes."""
    (line,) = [line for line in server.log.splitlines() if " try: " in line]
    done = subprocess.run(line.split(" try: ")[1], shell=True, capture_output=True, text=True,
                          timeout=60 * PATIENCE, check=True)
    return json.loads(done.stdout)


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_command_to_try(serve, tmp_path, host):
    keys = tmp_path / "the 'keys'"
    keys.write_text("# ours\n\nsk-first-0123456789\nsk-other-9876543210\n")
    keys.chmod(0o600)
    port = free_port()
    server = serve(checkpoint.DEMO, "--api-key-file", keys, "--host", host, "--port", port,
                   wait=False)
    eventually(lambda: " try: " in server.log, 30, "the proposal")
    assert trial(server)["choices"][0]["text"]
    assert f"http://127.0.0.1:{port}/v1" in server.log
