"""`tessera chat`: the answers of /v1/chat/completions in a terminal."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import subprocess
import termios
import time

import pytest

import checkpoint
import harness
from test_bench import DONE, Peer

MARKED = (  # each message in a line, with marks that the demo's tokenizer knows as text
    "{%- for message in messages %}{{ '[' + message['role'] + '] ' + message['content'] + '\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '[assistant]' }}{%- endif %}")
QUESTION = "Once upon a time — “Tom”"
RULE = "Tell a story."
COMMAND = harness.Command("chat")
chat, text, refused = COMMAND.run, COMMAND.text, COMMAND.refused


def delta(content, finish=None, **more):
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + b"\n\n"


def whole(content):
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    return [b"data: " + json.dumps({"choices": [role]}).encode() + b"\n\n",
            delta(content), delta("", "stop"), DONE]


@pytest.fixture
def template(tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text(MARKED)
    return path


@pytest.fixture
def server(serve, template):
    return serve(checkpoint.DEMO, "--chat-template", template)


@pytest.fixture
def peer():
    peers = []

    def start(script):
        peers.append(Peer(script))
        return peers[-1]
    yield start
    for each in peers:
        each.close()


# ---- one answer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [
    {"temperature": 0, "max_tokens": 30},
    {"temperature": 1.2, "seed": 7, "max_tokens": 30, "top_p": 0.9, "repetition_penalty": 1.1},
    {"temperature": 0},  # as long as the context has room
])
def test_same_text(server, fields):
    messages = [{"role": "system", "content": RULE}, {"role": "user", "content": QUESTION}]
    reply = server.post("/v1/chat/completions", {"messages": messages, **fields})
    assert reply.status == 200, reply.body
    wanted = reply.json()["choices"][0]["message"]["content"]
    words = [word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}",
                                                                 value)]
    words += ["--system-prompt", RULE]
    assert wanted.strip()
    wanted += "" if wanted.endswith("\n") else "\n"
    assert text(server.url, QUESTION, *words) == wanted
    assert text(server.url, *words, stdin=QUESTION.encode()) == wanted
    assert text(server.url, *words, stdin=QUESTION.encode() + b"\n") == wanted  # as if typed
    for url in (f"{server.url}/v1/", f"{server.url}/v1/chat/completions",
                f"{server.url}/v1/completions"):
        assert text(url, QUESTION, *words) == wanted


def test_a_server_of_its_own(server, template):
    wanted = text(server.url, QUESTION, "--temperature", 0, "--max-tokens", 12)
    done = chat(checkpoint.DEMO, QUESTION, "--temperature", 0, "--max-tokens", 12, "--", "-tp", 2,
                "--chat-template", template)
    assert done.returncode == 0 and done.stdout.decode() == wanted
    assert b"12 tokens in " in done.stderr


def test_a_model_without_a_template():
    """Told before anything is loaded, not as the answer to each message."""
    hint = (f"this model has no chat template: give one with --chat-template, as in tessera chat "
            f"{checkpoint.DEMO} -- --chat-template FILE")
    assert hint in refused(3, checkpoint.DEMO, QUESTION)
    terminal = Terminal(checkpoint.DEMO)
    seen = terminal.wait_for(r"-- --chat-template FILE")
    assert terminal.process.wait(60 * harness.PATIENCE) == 3
    assert "loading" not in seen and "> " not in seen


# ---- a conversation -----------------------------------------------------------------------------


class Terminal:
    """The program with a terminal of its own, where keys are typed and everything is seen."""

    def __init__(self, *arguments, echo=False):
        self.keys, theirs = pty.openpty()
        mode = termios.tcgetattr(theirs)
        if not echo:
            mode[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, mode)
        self.process = subprocess.Popen(
            [str(harness.BINARY), "chat", *map(str, arguments)], stdin=theirs, stdout=theirs,
            stderr=theirs, env=harness.environment(), start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(theirs)
        self.seen = ""

    def wait_for(self, pattern):
        """What was seen until then, which is not seen again."""
        end = time.monotonic() + 60 * harness.PATIENCE
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end, self.seen
            if select.select([self.keys], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.keys, 65536).decode()
                except OSError:  # nobody has the terminal any more
                    found = re.search(pattern, self.seen)
                    assert found, self.seen
                    break
        before, self.seen = self.seen[:found.end()], self.seen[found.end():]
        return before

    def type(self, line):
        self.wait_for("(?m)^> ")
        os.write(self.keys, line.encode() + b"\n")

    def end(self):
        assert self.process.wait(timeout=60 * harness.PATIENCE) == 0


@pytest.fixture
def terminal():
    with contextlib.ExitStack() as opened:
        def start(*arguments, **more):
            made = Terminal(*arguments, **more)
            opened.callback(os.close, made.keys)
            opened.callback(made.process.wait)
            opened.callback(made.process.kill)
            return made
        yield start


def said(peer):
    """The messages of each request."""
    assert all(path == "/v1/chat/completions" for path, _ in peer.bodies)
    return [[(m["role"], m["content"]) for m in body["messages"]] for _, body in peer.bodies]


def test_messages_are_kept(peer, terminal):
    it = peer(lambda number, _: whole(f"answer {number}"))
    t = terminal(it.url, "--system-prompt", RULE, "--temperature", 0.5)
    t.type("one")
    assert "answer 0\r\n" in t.wait_for("answer 0\r\n")
    t.type("")  # is nothing
    t.type("/quit")  # and neither is this
    t.wait_for("tessera: no such command")
    t.type("x" * 4094 + "\u00e9" * 900)
    t.wait_for("tessera: a terminal cuts lines")
    t.type('two "é"')
    t.type("/clear")
    t.type("three")
    t.type("/exit")
    t.end()
    rule, one = ("system", RULE), [("user", "one"), ("assistant", "answer 0")]
    assert said(it) == [[rule, one[0]], [rule, *one, ("user", 'two "é"')],
                        [rule, ("user", "three")]]
    assert all(body["temperature"] == 0.5 and body["model"] == "scripted" and body["stream"]
               and "max_tokens" not in body for _, body in it.bodies)


def test_an_answer_that_fails(peer, terminal):
    """Is told, and its message has not been said."""
    script = {0: [503], 1: [delta("some"), b'data: {"error": {"message": "lost"}}\n\n', DONE],
              2: [delta("cut")], 3: whole("fine")}
    it = peer(lambda number, _: script[number])
    t = terminal(it.url)
    t.type("one")
    t.wait_for("tessera: .*HTTP 503: scripted failure")
    t.type("two")
    assert "some" in t.wait_for("tessera: .*lost")
    t.type("three")
    t.wait_for("tessera: .*cut off")
    t.type("four")
    t.wait_for("fine")
    os.write(t.keys, b"\x04")  # Ctrl-D
    t.end()
    assert said(it) == [[("user", word)] for word in ("one", "two", "three", "four")]


def test_an_answer_is_stopped(peer, terminal):
    """Ctrl-C: what has come is kept; of one that has not begun the message is dropped, too."""
    script = {0: [delta("half"), 60.0], 1: [60.0], 2: whole("fine")}
    it = peer(lambda number, _: script[number])
    t = terminal(it.url, echo=True)
    t.type("one")
    t.wait_for("half")
    os.write(t.keys, b"\x03")
    t.type("two")
    end = time.monotonic() + 30
    while len(it.bodies) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    os.write(t.keys, b"\x03")
    t.type("three")
    t.wait_for("fine")
    t.wait_for("(?m)^> ")
    os.write(t.keys, b"half a line\x03")  # which is thrown away
    t.wait_for("(?m)^> ")
    os.write(t.keys, b"\x03")  # twice where nothing is to be stopped: the end
    t.end()
    half = [("user", "one"), ("assistant", "half")]
    assert said(it) == [half[:1], [*half, ("user", "two")], [*half, ("user", "three")]]


def test_the_context_fills_up(server, terminal):
    """Until the server has no room for more; then one can begin again."""
    t = terminal(server.url, "--max-tokens", 300, "--ignore-eos", "--temperature", 0)
    for _ in range(3):
        t.type(QUESTION)
        t.wait_for("300 tokens in ")
    t.type(QUESTION)
    t.wait_for("tessera: .*HTTP 400: .*maximum context length is 1024 tokens")
    t.type("/clear")
    t.type(QUESTION)
    t.wait_for("300 tokens in ")
    t.type("/exit")
    t.end()


def test_a_conversation_has_an_end(peer, terminal):
    """An answer for which there is no room is none, and what was said before is still right."""
    sizes = [1 << 20, 1 << 10, 1 << 10]
    it = peer(lambda number, _: [delta("x" * 1000)] * (sizes[min(number, 2)] // 1000 + 1) +
              [delta("", "stop"), DONE])
    t = terminal(it.url, "--log-level", "error")
    t.type("one")
    t.wait_for("tessera: the conversation has more than .*; /clear forgets it")
    t.type("two")
    t.type("three")
    t.type("/exit")
    t.end()
    assert said(it)[2] == [("user", "two"), ("assistant", "x" * 2000), ("user", "three")]


def thought(text, name):
    choice = {"index": 0, "delta": {name: text}, "finish_reason": None}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_no_part_of_the_answer(peer, name):
    it = peer(lambda *_: [thought("Hm", name), thought("m.", name), *whole("Yes")])
    done = subprocess.run([str(harness.BINARY), "chat", it.url, "one"], capture_output=True,
                          timeout=60, check=True, env=harness.environment())
    assert done.stdout == b"Yes\n" and b"Hmm.\n" in done.stderr


def test_reasoning_in_a_terminal(peer, terminal):
    """Dim, obeying nobody, and not said again."""
    it = peer(lambda *_: [thought("a\x1b]0;t", "reasoning"), *whole("Yes")])
    t = terminal(it.url)
    t.type("one")
    t.wait_for("\x1b\\[2ma\\?\\]0;t\r\n\x1b\\[0mYes")
    t.type("two")
    t.wait_for("Yes")
    t.type("/exit")
    t.end()
    assert said(it)[1] == [("user", "one"), ("assistant", "Yes"), ("user", "two")]


def test_a_terminal_obeys_nobody(peer, terminal):
    """Neither a model nor a server."""
    it = peer(lambda number, _: [[400], whole("a\x1b]0;t\x07\u009d0;t\u009bm\u00e9")][number])
    it.failure = "no\x1b[31m \u009d0;t\u00e9"
    t = terminal(it.url)
    t.type("one")
    t.wait_for("HTTP 400: no\\?\\[31m \\?0;t\u00e9")
    t.type("two")
    t.wait_for("a\\?\\]0;t\\?\\?0;t\\?m\u00e9")
    t.type("/exit")
    t.end()


# ---- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("words, wanted", [
    (("--temperature", 3), "temperature must be at least 0 and at most 2, got 3"),
    (("--max-tokens", -1), "max_tokens must be"),
    (("more",), 'expected one message, got "more" too'),
    (("--system-promt", "x"), "did you mean --system-prompt"),
    (("--system-prompt", b"\xff"), "not UTF-8"),
    (("--stop", b"\xff"), "not UTF-8"),
    (("--api-key", "a b"), "--api-key: blanks and controls cannot be sent"),
])
def test_usage(words, wanted):
    """Said before anything is started."""
    words = [word if isinstance(word, bytes) else str(word) for word in words]
    command = [str(harness.BINARY), "chat", str(checkpoint.DEMO), QUESTION, *words]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False,
                          env=harness.environment())
    assert done.returncode == 2
    assert wanted in done.stderr.decode() and b"loading" not in done.stderr


def test_what_is_wrong(demo, peer):
    assert "not UTF-8" in refused(2, demo.url, stdin=b"caf\xe9")
    assert "the message is empty" in refused(2, demo.url, stdin=b"\n")
    assert "the message is empty" in refused(2, demo.url, "")
    assert "more than 1048576 bytes" in refused(2, demo.url, stdin=b"x" * 1048577)
    assert "no chat template" in refused(2, demo.url, QUESTION)
    assert "options after --" in refused(2, demo.url, QUESTION, "--", "-tp", 2)
    assert "cut off" in refused(1, peer(lambda *_: [delta("some")]).url, QUESTION)
    assert "Connection refused" in refused(1, f"http://127.0.0.1:{harness.free_port()}", QUESTION)
    assert "no such model directory" in refused(3, "/nowhere/model", QUESTION)
