"""What a user sees when a process dies and may not come back, and what is left behind."""

import concurrent.futures
import os
import pathlib
import re
import signal

import pytest

import checkpoint
from harness import PATIENCE, check_rests, eventually, files_of, is_running, listening

LONG = 3000  # tokens: many seconds of work for the synthetic model
FINAL = ("--max-group-restarts", 0)  # a lost rank is the end


def kill_rank_during(server, work):
    """Starts work(), kills a rank in the middle; returns the result."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        before = server.metrics().sum("vllm:generation_tokens_total")
        future = pool.submit(work)
        eventually(lambda: server.metrics().sum("vllm:generation_tokens_total") > before + 1, 5,
                   "running")
        assert not future.done()
        os.kill(server.ranks()[-1], signal.SIGKILL)
        return future.result(20 * PATIENCE)


def check_lost(server):
    assert server.wait(5) == 5
    assert not server.ranks()
    assert "rank" in server.log


@pytest.mark.parametrize("ranks", [2, 4])
def test_rank_killed_while_streaming(serve, synthetic, ranks):
    server = serve(synthetic, "-tp", ranks, *FINAL)

    def work():
        stream = server.stream([5, 6, 7], max_tokens=LONG, ignore_eos=True, temperature=0)
        return stream, [payload for _, payload in stream]
    stream, chunks = kill_rank_during(server, work)
    assert len(chunks) > 1
    assert chunks[-1]["error"]["code"] == "rank_lost"
    assert not stream.done, "[DONE] after an error"
    check_lost(server)


def test_rank_killed_during_a_plain_request(serve, synthetic):
    server = serve(synthetic, "-tp", 2, *FINAL)
    body = {"prompt": [5, 6, 7], "max_tokens": LONG, "ignore_eos": True}
    reply = kill_rank_during(server, lambda: server.post("/v1/completions", body))
    assert reply.status == 503
    assert reply.error["code"] == "rank_lost"
    check_lost(server)


def test_rank_killed_while_idle(serve, synthetic):
    server = serve(synthetic, "-tp", 2, *FINAL)
    os.kill(server.ranks()[0], signal.SIGKILL)
    assert server.wait(5) == 5


def test_rank_killed_while_loading(serve, synthetic):
    server = serve(synthetic, "-tp", 2, wait=False)
    pids = eventually(server.ranks, 5, "ranks")
    os.kill(pids[0], signal.SIGKILL)
    assert server.wait(5) == 5
    assert re.search(r"killed by signal 9 \(Killed\)[^;]*; the server ends, because nothing was "
                     "ready", server.log)


def test_server_killed(serve, synthetic):
    server = serve(synthetic, "-tp", 4)
    pids = server.ranks()
    assert len(pids) == 4
    server.process.kill()
    server.process.wait()
    eventually(lambda: not any(map(is_running, pids)), 2, "ranks gone")


def test_nothing_is_shared_by_name(serve, synthetic):
    """Shared memory has no name: nothing of /dev/shm is mapped or open."""
    def named(pid):
        lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
        return [what for what in [*lines, *files_of(pid).values()] if "/dev/shm/" in what]
    server = serve(synthetic, "-tp", 2)
    assert not [what for pid in [server.pid, *server.ranks()] for what in named(pid)]


def test_one_listening_socket(serve, synthetic):
    """Ranks listen on nothing; the server only on its port."""
    server = serve(synthetic, "-tp", 2)
    assert listening(server.pid) == {server.port}
    assert not any(map(listening, server.ranks()))


def test_client_that_leaves_frees_its_place(serve, synthetic):
    server = serve(synthetic, "-tp", 2)
    stream = server.stream([5, 6, 7], max_tokens=LONG, ignore_eos=True)
    next(iter(stream))
    stream.response.close()
    stream.connection.close()
    eventually(lambda: server.metrics().sum("vllm:num_requests_running") == 0, 2, "cancelled")
    eventually(lambda: server.metrics().sum("vllm:kv_cache_usage_perc") == 0, 2, "blocks are back")


def test_sigterm_lets_running_requests_finish(serve, synthetic):
    server = serve(synthetic, "-tp", 2, "--drain-timeout", 3600)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with server.halted():
            future = pool.submit(server.token_ids, [5, 6, 7], 300)
            eventually(lambda: server.requests("running") > 0, 5, "running")
            server.process.send_signal(signal.SIGTERM)
        assert len(future.result(30 * PATIENCE)) == 300
    assert server.wait(5) == 0


def test_stopped_ranks_are_noticed(serve, synthetic):
    """A rank that hangs, rather than dies, is given up after --step-timeout."""
    server = serve(synthetic, "-tp", 2, "--step-timeout", 1, *FINAL)
    body = {"prompt": [5, 6, 7], "max_tokens": LONG, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(server.post, "/v1/completions", body)
        eventually(lambda: server.metrics().sum("vllm:num_requests_running") > 0, 5, "running")
        os.kill(server.ranks()[1], signal.SIGSTOP)
        assert future.result(10 * PATIENCE).status == 503
    assert server.wait(5) == 5


def test_idle_server_uses_no_cpu(serve):
    """Blocking reads everywhere: an idle group does not spin."""
    server = serve(checkpoint.GOLDEN / "tied_gqa2_f32", "-tp", 4)
    server.token_ids([5, 6, 7], 4)
    check_rests(server.pid, *server.ranks())


# ---- values that are no numbers -----------------------------------------------------------------


def test_damaged_weights(serve, tmp_path):
    """NaN among the logits fails the request, says why, and loses nothing else."""
    model = checkpoint.copy_model("tied_gqa2_f32", tmp_path / "model")
    checkpoint.fill_tensor(model / "model.safetensors", "model.norm.weight", b"\0\0\xc0\x7f")
    server = serve(model, "-tp", 2)
    for fields in [{}, {"temperature": 0, "logprobs": 2},
                   {"max_tokens": 0, "echo": True, "logprobs": 1}]:
        reply = server.post("/v1/completions", {"prompt": [5, 6, 7], **fields})
        assert (reply.status, reply.error["code"]) == (500, "not_finite")
    *_, (_, last) = server.stream([5, 6, 7])
    assert last["error"]["code"] == "not_finite"
    assert server.get("/readyz").status == 200
