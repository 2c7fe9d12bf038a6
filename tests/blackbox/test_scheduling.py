"""Prefix cache, preemption and the bounds of the queue, as clients see them."""

import concurrent.futures
import json

import pytest

import checkpoint
from harness import eventually

BLOCK = 16
PROMPT = [3 + i * 7 % 2000 for i in range(5 * BLOCK + 5)]
KEYS = "sk-first-0123456789", "sk-other-9876543210"


def cached(server, prompt, headers=None, **fields):
    """(tokens found in the cache, text) of one request."""
    body = {"model": "demo", "prompt": prompt, "max_tokens": 8, "temperature": 0,
            "ignore_eos": True, **fields}
    reply = server.request("POST", "/v1/completions", json.dumps(body).encode(),
                           {"Content-Type": "application/json", **(headers or {})})
    assert reply.status == 200, reply.body
    answer = reply.json()
    return (answer["usage"]["prompt_tokens_details"]["cached_tokens"],
            answer["choices"][0]["text"])


def test_hits_and_usage(serve):
    server = serve(checkpoint.DEMO, "-tp", 2, "--served-model-name", "demo")
    first = cached(server, PROMPT)
    assert first[0] == 0
    assert cached(server, PROMPT) == (5 * BLOCK, first[1])
    assert cached(server, PROMPT[:4 * BLOCK])[0] == 3 * BLOCK  # its last token is computed
    assert cached(server, PROMPT[:4 * BLOCK + 1])[0] == 4 * BLOCK
    assert cached(server, PROMPT[1:])[0] == 0
    changed = list(PROMPT)
    changed[2 * BLOCK] += 1
    assert cached(server, changed)[0] == 2 * BLOCK
    assert cached(server, PROMPT, cache_salt="a") == (0, first[1])
    assert cached(server, PROMPT, cache_salt="a")[0] == 5 * BLOCK
    assert cached(server, PROMPT, cache_salt="b")[0] == 0
    assert cached(server, PROMPT, prompt_logprobs=0) == (0, first[1])
    metrics = server.metrics()
    assert metrics.sum("vllm:prefix_cache_hits_total") == (5 + 3 + 4 + 2 + 5) * BLOCK
    assert metrics.sum("vllm:kv_cache_usage_perc") == 0  # kept, not used


def test_answers_are_prefixes_too(serve):
    """The next turn of a conversation begins with the last answer."""
    server = serve(checkpoint.DEMO, "--served-model-name", "demo")
    answer = server.token_ids(PROMPT, 3 * BLOCK)
    # the last token of the answer was never computed
    assert cached(server, PROMPT + answer)[0] == (len(PROMPT) + 3 * BLOCK - 1) // BLOCK * BLOCK


def test_keys_share_nothing(serve, tmp_path):
    path = tmp_path / "keys"
    path.write_text("\n".join(KEYS) + "\n")
    path.chmod(0o600)
    server = serve(checkpoint.DEMO, "--served-model-name", "demo", "--api-key-file", path)
    for key in KEYS:
        headers = {"Authorization": f"Bearer {key}"}
        assert cached(server, PROMPT, headers)[0] == 0
        assert cached(server, PROMPT, headers)[0] == 5 * BLOCK


def test_without_the_cache(serve):
    server = serve(checkpoint.DEMO, "--no-enable-prefix-caching", "--served-model-name", "demo")
    for _ in range(2):
        assert cached(server, PROMPT)[0] == 0
    assert server.metrics().sum("vllm:prefix_cache_hits_total") == 0


@pytest.mark.parametrize("options", [[], ["--no-enable-prefix-caching"]])
def test_shortage_changes_no_text(serve, options):
    """16 requests of up to 300 tokens where the cache holds 400."""
    server = serve(checkpoint.DEMO, "--max-model-len", 384, "--kv-cache-memory", 25 * 16 * 3072,
                   "--served-model-name", "demo", *options)
    requests = [{"prompt": PROMPT[:20 + 4 * i], "count": 150, "temperature": 0.8 * (i % 2),
                 "seed": i, "frequency_penalty": 0.3 * (i % 3)}
                for i in range(16)]
    alone = [server.token_ids(**request) for request in requests]
    assert server.metrics().sum("vllm:num_preemptions_total") == 0
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        with server.halted():
            asked = [pool.submit(server.token_ids, **request) for request in requests]
            eventually(lambda: server.requests("running") + server.requests("waiting") == 16)
        together = [answer.result() for answer in asked]
    assert together == alone
    assert server.metrics().sum("vllm:num_preemptions_total") > 0


def test_queue_is_bounded_by_tokens(serve):
    server = serve(checkpoint.DEMO, "--max-num-seqs", 1, "--max-num-queued-tokens", 100,
                   "--served-model-name", "demo")
    body = {"prompt": PROMPT[:60], "max_tokens": 400, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        with server.halted():
            running = pool.submit(server.post, "/v1/completions", body)
            eventually(lambda: server.requests("running") == 1)
            waiting = pool.submit(server.post, "/v1/completions", body)
            eventually(lambda: server.requests("waiting") == 1)
            refused = server.post("/v1/completions", body)
        assert refused.status == 429 and int(refused.headers["retry-after"]) > 0
        assert "60 prompt tokens are waiting" in refused.error["message"]
        assert running.result().status == waiting.result().status == 200


def test_refused_by_the_engine_is_no_failure(serve):
    """Many at once are all let in and read before the first of them waits, so that it is the engine
    that has no room for the rest: they are counted as what they were answered, and nowhere else."""
    server = serve(checkpoint.DEMO, "--max-num-seqs", 1, "--max-num-queued-tokens", 600)
    body = {"prompt": PROMPT * 4, "max_tokens": 2, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        with server.halted():
            asked = [pool.submit(server.post, "/v1/completions", body) for _ in range(8)]
            eventually(lambda: sum(reply.done() for reply in asked) >= 5, what="refusals")
        replies = [reply.result() for reply in asked]
    refused = [reply for reply in replies if reply.status == 429]
    served = 8 - len(refused)
    assert {reply.status for reply in replies} == {200, 429}
    assert any(f"with {len(PROMPT) * 4} more" in reply.error["message"] for reply in refused)
    metrics = server.metrics()
    assert metrics.sum("tessera:http_responses_total", code=429) == len(refused)
    assert metrics.sum("vllm:request_success_total", finished_reason="error") == 0
    assert metrics.sum("vllm:request_success_total", finished_reason="length") == served
    eventually(lambda: server.log.count("status=200") == served, what="a line of each answer")
    assert "status=429" not in server.log
