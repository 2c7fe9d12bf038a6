"""`tessera complete`: the text of the HTTP answer on stdout, everything else on stderr."""

import os
import pty
import subprocess

import pytest

import checkpoint
import harness
from test_bench import DONE, Peer, event

PROMPT = "Once upon a time"
COMMAND = harness.Command("complete")
complete, text, refused = COMMAND.run, COMMAND.text, COMMAND.refused


@pytest.fixture
def peer():
    peers = []

    def start(*actions):
        peers.append(Peer(lambda *_: list(actions)))
        return peers[-1]
    yield start
    for each in peers:
        each.close()


# ---- the same text as over HTTP -----------------------------------------------------------------


@pytest.mark.parametrize("fields", [
    {"temperature": 0, "max_tokens": 40},
    {"temperature": 1.5, "seed": 7, "max_tokens": 40, "top_k": 30},
    {"temperature": 1, "seed": -3, "max_tokens": 40, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 0, "max_tokens": 40, "presence_penalty": 1.5, "frequency_penalty": -0.5,
     "repetition_penalty": 1.25},
    {"temperature": 0, "max_tokens": 60, "stop": "."},
    {"temperature": 0, "max_tokens": 300, "ignore_eos": True},
    {"temperature": 0, "max_tokens": 0},
])
def test_same_text(demo, fields):
    wanted = demo.complete(PROMPT, **fields)["choices"][0]["text"]
    words = [word for name, value in fields.items()
             for word in ([f"--{name.replace('_', '-')}"] if value is True
                          else [f"--{name.replace('_', '-')}", value])]
    got = text(demo.url, PROMPT, *words)
    assert got == wanted + ("" if wanted.endswith("\n") or not wanted else "\n")


def test_a_server_of_its_own(demo):
    wanted = demo.complete(PROMPT, temperature=0, max_tokens=30)["choices"][0]["text"]
    done = complete(checkpoint.DEMO, PROMPT, "--temperature", 0, "--max-tokens", 30, "--", "-tp", 3)
    assert done.returncode == 0
    assert done.stdout.decode() == wanted + "\n"
    assert b"30 tokens in " in done.stderr


def test_prompt_of_stdin(demo):
    """As it is, with its last newline."""
    prompt = "One day, a cat — “Tom” —\n"
    wanted = demo.complete(prompt, temperature=0, max_tokens=20)["choices"][0]["text"]
    got = text(demo.url, "--temperature", 0, "--max-tokens", 20, stdin=prompt.encode())
    assert got == wanted + "\n"


def test_quiet(demo):
    done = complete(demo.url, PROMPT, "--log-level", "error")
    assert done.returncode == 0 and not done.stderr


def test_key(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-ours\n")
    keys.chmod(0o600)
    server = serve(checkpoint.DEMO, "--api-key-file", keys)
    wanted = "HTTP 401: the server wants a key"
    for command in ("complete", "chat", "bench"):
        line = harness.Command(command).refused(1, server.url, *([PROMPT] * (command != "bench")))
        assert wanted + ": give --api-key KEY or set TESSERA_API_KEY" in line
    assert wanted + ", and not this one" in refused(1, server.url, PROMPT, "--api-key", "another")
    assert text(server.url, PROMPT, "--api-key", "a-key-of-ours", "--max-tokens", 3)


# ---- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("words, wanted", [
    (("--temperature", 3), "temperature must be at least 0 and at most 2, got 3"),
    (("--temperature", "warm"), 'temperature must be a number, got "warm"'),
    (("--temperature", "NaN"), "temperature must be a number"),
    (("--max-tokens", "0x10"), "max_tokens must be a whole number"),
    (("--max-tokens", -1), "max_tokens must be"),
    (("--seed", 1.5), "seed must be a whole number"),
    (("--top-k", '1, "n": 8'), "top_k must be a whole number"),
    (("more",), 'expected one prompt, got "more" too'),
    (("--temprature", 1), "did you mean --temperature"),
    (("--stop", b"\xff"), "not UTF-8"),
    (("--api-key", "key\r\nHost: other"), "--api-key: blanks and controls cannot be sent"),
    (("--model", "m" * 256), "--model: not a name"),
    (("--model", "m\nn"), "--model: not a name"),
])
def test_usage(words, wanted):
    """Said before anything is started."""
    words = [word if isinstance(word, bytes) else str(word) for word in words]
    command = [str(harness.BINARY), "complete", str(checkpoint.DEMO), PROMPT, *words]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False,
                          env=harness.environment())
    assert done.returncode == 2
    assert wanted in done.stderr.decode() and b"loading" not in done.stderr


def test_prompts_that_are_none():
    assert "not UTF-8" in refused(2, checkpoint.DEMO, stdin=b"caf\xe9")
    assert "more than 1048576 bytes" in refused(2, checkpoint.DEMO, stdin=b"x" * 1048577)


def test_what_the_server_refuses(demo):
    line = refused(2, demo.url, PROMPT, "--max-tokens", 5000)
    assert "HTTP 400" in line and "maximum context length is 1024 tokens" in line
    assert "HTTP 404" in refused(1, demo.url, PROMPT, "--model", "another")


def test_a_server_without_a_scheme(demo, tmp_path, monkeypatch):
    """HOST:PORT is a server, unless there is a directory of that name."""
    short = demo.url.removeprefix("http://")
    assert text(short, PROMPT, "--max-tokens", 3, "--temperature", 0) == \
        text(demo.url, PROMPT, "--max-tokens", 3, "--temperature", 0)
    (tmp_path / short).mkdir()
    monkeypatch.chdir(tmp_path)
    assert "config.json" in refused(3, short, PROMPT)


def test_nobody_there():
    assert "Connection refused" in refused(1, f"http://127.0.0.1:{harness.free_port()}", PROMPT)
    assert "no such model directory" in refused(3, "/nowhere/model", PROMPT)
    assert "options after --" in refused(2, "http://127.0.0.1:1", PROMPT, "--", "-tp", 2)


# ---- servers that fail, readers that leave ------------------------------------------------------


@pytest.mark.parametrize("actions, wanted", [
    ((503,), "HTTP 503: scripted failure"),
    ((event("some"), b'data: {"error": {"message": "lost"}}\n\n', DONE), "lost"),
    ((event("some"),), "cut off"),
    ((event("some"), b"data: nonsense\n\n"), "not JSON: nonsense"),
])
def test_failures(peer, actions, wanted):
    assert wanted in refused(1, peer(*actions).url, PROMPT)


def test_text_comes_before_a_failure(peer):
    done = complete(peer(event("some"), event(" text")).url, PROMPT)
    assert done.returncode == 1 and done.stdout == b"some text\n"


def test_a_terminal_is_not_told_what_to_do(peer):
    """Control bytes of the text are masked there, and left alone in files."""
    answer = (event("a\x1b]0;title\x07\tb\n"), event("é\x7f", "stop"), DONE)
    assert text(peer(*answer).url, PROMPT) == "a\x1b]0;title\x07\tb\né\x7f\n"
    ours, theirs = pty.openpty()
    done = complete(peer(*answer).url, PROMPT, stdout=theirs)
    os.close(theirs)
    assert done.returncode == 0
    assert os.read(ours, 1000).decode() == "a?]0;title?\tb\r\né?\r\n"
    os.close(ours)


def test_full_disk(demo):
    with open("/dev/full", "wb") as full:
        assert "stdout: No space left" in refused(1, demo.url, PROMPT, stdout=full)


def test_a_reader_that_leaves(demo):
    """As any filter: ended by SIGPIPE, without a word."""
    command = [harness.BINARY, "complete", demo.url, PROMPT, "--max-tokens", "500",
               "--ignore-eos", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=harness.environment()) as process:
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.wait(timeout=60) == -13
        assert process.stderr.read() == b""
