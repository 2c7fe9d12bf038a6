"""A lost rank is a pause: what clients get is what they would have got."""

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import signal

import pytest

from harness import PATIENCE, eventually, is_sanitized
from test_health import hollow_checkpoint

PROMPT = [5, 6, 7, 8, 9]
SHORTER = 5 if is_sanitized() else 1  # sanitized ranks are slow
HANGS = max(1, PATIENCE / 2)  # seconds after which a rank is given up
# Everything that a rank keeps of a request: KV, counts of penalties, place in the noise, scores.
REQUESTS = [
    {"prompt": PROMPT, "max_tokens": 500 // SHORTER, "temperature": 0, "ignore_eos": True},
    {"prompt": PROMPT, "max_tokens": 500 // SHORTER, "seed": 3, "top_p": 0.9,
     "frequency_penalty": 0.5,
     "presence_penalty": 0.3, "repetition_penalty": 1.1, "logprobs": 3, "ignore_eos": True},
    {"prompt": list(range(10, 310)), "max_tokens": 50 // SHORTER, "seed": 4, "n": 2,
     "ignore_eos": True},
    {"prompt": list(range(40, 240)), "max_tokens": 50, "temperature": 0, "echo": True,
     "logprobs": 2, "ignore_eos": True},
    {"prompt": PROMPT, "max_tokens": 500 // SHORTER, "seed": 5, "logit_bias": {"17": 8},
     "min_tokens": 100 // SHORTER,
     "stop_token_ids": [17]},
]


def answer(server, request):
    reply = server.post("/v1/completions", {**request, "return_token_ids": True})
    assert reply.status == 200, reply.body
    return [(choice["token_ids"], choice["logprobs"], choice["finish_reason"])
            for choice in reply.json()["choices"]]


def lose_a_rank(server, requests, lose):
    """All answers to requests that are under way when lose(server) is called."""
    choices = sum(request.get("n", 1) for request in requests)
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        before = server.metrics().sum("vllm:generation_tokens_total")
        with server.halted():  # so that all come together
            futures = [pool.submit(answer, server, request) for request in requests]
            eventually(lambda: server.requests("running") + server.requests("waiting") == choices,
                       what="all requests")
        eventually(lambda: server.metrics().sum("vllm:generation_tokens_total") > before + 20, 20,
                   "tokens")
        lose(server)
        return [future.result(60 * PATIENCE) for future in futures]


def is_draining(server):
    reply = server.get("/readyz")
    return reply.status == 503 and reply.error["code"] == "draining"


def kill(rank):
    return lambda server: os.kill(server.ranks()[rank], signal.SIGKILL)


@pytest.mark.parametrize("ranks, lost", [(1, 0), (2, 0), (2, 1), (4, 3)])
def test_answers_are_the_same(serve, synthetic, ranks, lost):
    server = serve(synthetic, "-tp", ranks)
    wanted = [answer(server, request) for request in REQUESTS]
    first = server.ranks()
    assert lose_a_rank(server, REQUESTS, kill(lost)) == wanted
    assert not set(first) & set(server.ranks())
    assert server.metrics().sum("tessera:group_restarts_total") == 1
    assert server.metrics().sum("tessera:rank_up") == ranks
    assert server.metrics().sum("tessera:ready") == 1
    assert server.get("/readyz").status == 200
    assert "was killed by signal 9 (Killed), often sent by the kernel when memory is short" \
        in server.log
    # what the cache knew is forgotten with its content
    assert [answer(server, request) for request in REQUESTS] == wanted


@pytest.mark.sanitized
def test_stream_goes_on(serve, synthetic):
    server = serve(synthetic, "-tp", 2)
    fields = {"max_tokens": 600 // SHORTER, "temperature": 0, "ignore_eos": True}
    wanted = server.token_ids(PROMPT, 600 // SHORTER)
    stream = server.stream(PROMPT, **fields, return_token_ids=True)
    got = []
    for _, chunk in stream:
        if len(got) == 0:
            kill(1)(server)
        got += chunk["choices"][0]["token_ids"]
    assert stream.done
    assert got == wanted


def test_waiting_requests_are_kept(serve, synthetic):
    server = serve(synthetic, "-tp", 2, "--max-num-seqs", 2)
    requests = [{"prompt": [i], "max_tokens": 60, "temperature": 0, "ignore_eos": True}
                for i in range(20, 40)]
    wanted = [answer(server, request) for request in requests]
    assert lose_a_rank(server, requests, kill(0)) == wanted


def test_short_of_blocks(serve, synthetic):
    """Those that gave way before the loss come back as well."""
    server = serve(synthetic, "-tp", 2, "--max-model-len", 512, "--kv-cache-memory", "1200K")
    requests = [{"prompt": [i] * 40, "max_tokens": 200, "seed": i, "ignore_eos": True}
                for i in range(20, 32)]
    wanted = [answer(server, request) for request in requests]
    assert lose_a_rank(server, requests, kill(1)) == wanted
    assert server.metrics().sum("vllm:num_preemptions_total") > 0


@pytest.mark.sanitized
def test_lost_while_idle(serve, synthetic):
    server = serve(synthetic, "-tp", 2)
    wanted = server.token_ids(PROMPT, 20)
    first = server.ranks()
    kill(0)(server)
    eventually(lambda: "requests go on after" in server.log, 10, "recovery")
    assert not set(first) & set(server.ranks())
    assert server.token_ids(PROMPT, 20) == wanted


@pytest.mark.sanitized
def test_hung_rank(serve, synthetic):
    server = serve(synthetic, "-tp", 2, "--step-timeout", HANGS)
    wanted = [answer(server, REQUESTS[0])]

    def stop(server):
        os.kill(server.ranks()[1], signal.SIGSTOP)

    assert lose_a_rank(server, REQUESTS[:1], stop) == wanted


def test_no_more_restarts(serve, synthetic):
    server = serve(synthetic, "-tp", 2, "--max-group-restarts", 2)
    for restarts in range(1, 3):
        kill(0)(server)
        eventually(lambda: server.log.count("requests go on after") == restarts, 10, "recovery")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(server.post, "/v1/completions",
                             {"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True})
        eventually(lambda: server.metrics().sum("vllm:num_requests_running") > 0, 5, "running")
        kill(0)(server)
        reply = future.result(10 * PATIENCE)
    assert (reply.status, reply.error["code"]) == (503, "rank_lost")
    assert server.wait(5) == 5
    assert not server.ranks()
    assert ("ending all requests: 2 restarts within 5 minutes are used up (--max-group-restarts)"
            in server.log)


def read_by_ranks(server):
    """Bytes that the ranks have asked files for."""
    texts = [pathlib.Path(f"/proc/{pid}/io").read_text() for pid in server.ranks()]
    return [int(text.split()[1]) for text in texts]  # rchar


def test_weights_are_kept(serve, synthetic):
    """What a rank that died had read need not be read again; of one that hung it is."""
    server = serve(synthetic, "-tp", 2, "--step-timeout", HANGS)
    first = read_by_ranks(server)
    assert min(first) > 8 << 20
    wanted = server.token_ids(PROMPT, 20)
    kill(1)(server)
    eventually(lambda: "requests go on after" in server.log, 10, "recovery")
    assert max(read_by_ranks(server)) < min(first) / 4
    assert server.metrics().sum("tessera:rank_weight_bytes") > 16 << 20
    assert server.token_ids(PROMPT, 20) == wanted
    os.kill(server.ranks()[0], signal.SIGSTOP)
    assert server.token_ids(PROMPT, 20) == wanted
    assert min(read_by_ranks(server)) > 8 << 20
    assert server.metrics().sum("tessera:group_restarts_total") == 2


class Hung:
    """A server whose ranks load again, and a request that waits for them. They do not get on with
    it before go_on(). However long they then take, a drain waits for them; and they may seem to
    hang again, as on a busy machine they do."""

    def __init__(self, serve, directory):
        self.model, _ = hollow_checkpoint(directory)
        self.server = serve(self.model, "-tp", 2, "--step-timeout", HANGS,
                            "--drain-timeout", 3600, "--max-group-restarts", 10)
        self.pool = concurrent.futures.ThreadPoolExecutor(1)

    def __enter__(self):
        old = self.server.ranks()
        os.kill(old[1], signal.SIGSTOP)
        self.reply = self.pool.submit(self.server.post, "/v1/completions",
                                      {"prompt": PROMPT, "max_tokens": 2})
        eventually(lambda: "starting the ranks again (1)" in self.server.log, 10, "loss noticed")

        def started():
            new = self.server.ranks()
            return len(new) == 2 and not set(old) & set(new) and new
        self.ranks = eventually(started, 5, "ranks")
        for pid in self.ranks:
            os.kill(pid, signal.SIGSTOP)
        return self

    def go_on(self):
        for pid in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def __exit__(self, *_):
        self.go_on()
        self.pool.shutdown()


def test_probes_tell(serve, tmp_path):
    """While the ranks load again the server is alive, not ready, and takes requests."""
    with Hung(serve, tmp_path) as hung:
        server = hung.server
        ready = server.get("/readyz")
        assert (ready.status, ready.error["code"]) == (503, "recovering")
        assert server.get("/livez").status == 200
        startup = server.get("/startupz")
        assert (startup.status, startup.json()["phase"]) == (200, "recovering")
        assert server.metrics().sum("tessera:rank_up") == 0
        assert server.metrics().sum("tessera:ready") == 0
        hung.go_on()
        assert len(server.token_ids(PROMPT, 2)) == 2
        assert hung.reply.result(60 * PATIENCE).status == 200
    assert server.get("/readyz").status == 200
    assert server.get("/startupz").json()["phase"] == "ready"


def collectives(server):
    return {(name, *sorted(labels.items())): value for name, labels, value
            in server.metrics().samples if name.startswith("tessera:comm_")}


def test_counters_while_recovering(serve, tmp_path):
    """A graph of what the ranks send goes on while they are away: no series ends, none is new."""
    recovering = Hung(serve, tmp_path)
    assert len(recovering.server.token_ids(PROMPT, 2)) == 2
    before = collectives(recovering.server)
    assert sum(before.values()) > 0
    with recovering as hung:
        meanwhile = collectives(hung.server)
        assert set(meanwhile) == set(before)
        assert all(meanwhile[series] >= before[series] for series in before)
        hung.go_on()
        assert hung.reply.result(60 * PATIENCE).status == 200
    assert set(collectives(recovering.server)) == set(before)


def test_lost_again_while_loading(serve, tmp_path):
    with Hung(serve, tmp_path) as hung:
        os.kill(hung.ranks[0], signal.SIGKILL)
        eventually(lambda: "starting the ranks again (2)" in hung.server.log, 5, "loss noticed")
        assert hung.reply.result(60 * PATIENCE).status == 200


def test_stopped_while_recovering(serve, tmp_path):
    """What waits for the ranks gets its answer; a second signal ends it at once."""
    with Hung(serve, tmp_path) as hung:
        hung.server.process.send_signal(signal.SIGTERM)
        eventually(lambda: is_draining(hung.server), 5, "draining")
        hung.go_on()
        assert hung.reply.result(60 * PATIENCE).status == 200
        assert hung.server.wait(10) == 0
        assert not hung.server.ranks()


def test_stopped_twice_while_recovering(serve, tmp_path):
    with Hung(serve, tmp_path) as hung:
        hung.server.process.send_signal(signal.SIGTERM)
        eventually(lambda: "stopping: " in hung.server.log, 5, "draining")
        hung.server.process.send_signal(signal.SIGTERM)
        assert hung.reply.result(10 * PATIENCE).status == 503
        assert hung.server.wait(10) == 0
        assert not hung.server.ranks()


@pytest.mark.sanitized
def test_lost_while_draining(serve, synthetic):
    """Streams that the end of the server waits for outlive a rank too; nothing else is taken."""
    server = serve(synthetic, "-tp", 2, "--drain-timeout", 3600)
    tokens = 1500 // SHORTER
    wanted = server.token_ids(PROMPT, tokens)
    stream = server.stream(PROMPT, max_tokens=tokens, temperature=0, ignore_eos=True,
                           return_token_ids=True)
    got = []
    for _, chunk in stream:
        if not got:
            with server.halted():
                server.process.send_signal(signal.SIGTERM)
                eventually(lambda: is_draining(server), 5, "draining")
                kill(1)(server)
            eventually(lambda: "starting the ranks again" in server.log, 5, "loss noticed")
            assert server.post("/v1/completions", {"prompt": [1]}).error["code"] == "draining"
        got += chunk["choices"][0]["token_ids"]
    assert stream.done
    assert got == wanted
    assert server.wait(10) == 0
    assert "requests go on after" in server.log


@pytest.mark.parametrize("name, change, lose, goes_on", [
    ("config.json", lambda text: text.replace(b"10000.0", b"20000.0"), signal.SIGKILL, False),
    ("model.safetensors", bytes, signal.SIGSTOP, False),
    ("model.safetensors", bytes, signal.SIGKILL, True),  # what was read is still in memory
])
def test_model_changed_meanwhile(serve, synthetic, tmp_path, name, change, lose, goes_on):
    """Answers go on as the model they began with would have had them, or not at all."""
    model = tmp_path / "model"
    shutil.copytree(synthetic, model)
    server = serve(model, "-tp", 2, "--step-timeout", HANGS)
    wanted = server.token_ids(PROMPT, 20)
    before = (model / name).read_bytes()
    (model / name).unlink()
    (model / name).write_bytes(change(before))
    assert change is bytes or (model / name).read_bytes() != before
    os.kill(server.ranks()[1], lose)
    reply = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 20, "temperature": 0,
                                            "ignore_eos": True, "return_token_ids": True})
    if goes_on:
        assert reply.json()["choices"][0]["token_ids"] == wanted
    else:
        assert (reply.status, reply.error["code"]) == (503, "rank_lost")
        assert server.wait(10) == 5
        assert ("config.json" if name == "config.json" else "written again") in server.log


def test_model_gone_meanwhile(serve, tmp_path):
    """What cannot start again ends, and says why."""
    model, _ = hollow_checkpoint(tmp_path)
    server = serve(model, "-tp", 2)
    (model / "config.json").unlink()
    kill(1)(server)
    assert server.wait(20) == 5
    assert "config.json" in server.log


def test_files_that_are_away_for_a_while(serve, synthetic, tmp_path):
    """New ranks that find no files are no reason to give up at once, nor to read all weights again,
    which are in memory still."""
    model = tmp_path / "model"
    shutil.copytree(synthetic, model)
    server = serve(model, "-tp", 2)
    first = read_by_ranks(server)
    wanted = server.token_ids(PROMPT, 20)
    (model / "config.json").rename(tmp_path / "config.json")
    kill(1)(server)
    eventually(lambda: "starting the ranks again (1), requests wait" in server.log, 5, "loss")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waits = pool.submit(server.token_ids, PROMPT, 20)
        eventually(lambda: "starting the ranks again (2) in 1 s, requests wait" in server.log, 5,
                   "another attempt")
        eventually(lambda: "starting the ranks again (3) in 4 s, requests wait" in server.log, 5,
                   "a third one")
        (tmp_path / "config.json").rename(model / "config.json")
        assert waits.result() == wanted
    assert "requests go on after" in server.log
    assert max(read_by_ranks(server)) < min(first) / 4


def test_stopped_between_attempts(serve, synthetic, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(synthetic, model)
    server = serve(model, "-tp", 2)
    (model / "config.json").unlink()
    kill(0)(server)
    eventually(lambda: "starting the ranks again (3) in 4 s" in server.log, 10, "the last pause")
    server.process.send_signal(signal.SIGTERM)
    assert server.wait(10) == 0
    assert "stopping: " in server.log and "ending all requests" not in server.log
