"""The /metrics page, read by Prometheus' own parser: it is well formed, has the names that boards
made for vLLM ask for, and its numbers are those of the traffic that was sent."""

import collections
import contextlib
import os
import pathlib
import re
import resource
import socket
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

import checkpoint
import harness
from harness import eventually

LABELS = {"model_name", "engine"}
GAUGES = {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
          "vllm:cache_config_info"}
COUNTERS = {"vllm:prompt_tokens", "vllm:generation_tokens", "vllm:prefix_cache_queries",
            "vllm:prefix_cache_hits", "vllm:num_preemptions", "vllm:request_success"}
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds",
    "vllm:iteration_tokens_total", "vllm:request_prompt_tokens", "vllm:request_generation_tokens",
    "vllm:request_params_n", "vllm:request_params_max_tokens"}
PROCESS = {"process_start_time_seconds", "process_resident_memory_bytes", "process_open_fds",
           "process_max_fds"}
NAME = 'a "quoted\\name" of 2 lines'  # what a label must escape


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from conftest import shared
    yield from shared(tmp_path_factory, checkpoint.GOLDEN / "tied_gqa2_f32", "-tp", 2,
                      "--served-model-name", NAME)


def page(server):
    """{name: family}; every rule of the text format that the parser lets pass is checked here."""
    reply = server.get("/metrics")
    assert reply.status == 200
    assert re.match(r"text/plain; version=0\.0\.4\b", reply.headers["content-type"])
    text = reply.body.decode()
    assert text.endswith("\n")
    for kind in ("HELP", "TYPE"):
        told = collections.Counter(re.findall(rf"^# {kind} (\S+)", text, re.MULTILINE))
        assert told and set(told.values()) == {1}, f"{kind} twice: {told.most_common(1)}"
    families = {family.name: family for family in text_string_to_metric_families(text)}
    seen = set()
    for family in families.values():
        assert family.type in ("gauge", "counter", "histogram") and family.documentation, family
        for sample in family.samples:
            assert sample.value >= 0, sample
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in seen, f"twice: {key}"
            seen.add(key)
    return families


def value(families, family, **labels):
    """The sum of the samples of a counter or gauge that carry the labels."""
    found = [sample.value for sample in families[family].samples
             if labels.items() <= sample.labels.items()]
    assert found, (family, labels)
    return sum(found)


def histogram(families, family):
    """([(upper bound, values up to it)], count, sum)"""
    samples = families[family].samples
    buckets = [(float(sample.labels["le"]), sample.value) for sample in samples
               if sample.name.endswith("_bucket")]
    (count,) = [sample.value for sample in samples if sample.name.endswith("_count")]
    (total,) = [sample.value for sample in samples if sample.name.endswith("_sum")]
    return buckets, count, total


def growth(before, after, family):
    """What a histogram saw in between: the same three, as differences."""
    old, new = histogram(before, family), histogram(after, family)
    return ([(bound, now - was) for (bound, now), (_, was) in zip(new[0], old[0])],
            new[1] - old[1], new[2] - old[2])


def test_names_and_labels(server):
    families = page(server)
    for names, kind in ((GAUGES, "gauge"), (COUNTERS, "counter"), (HISTOGRAMS, "histogram")):
        for name in names:
            assert families[name].type == kind, name
    for name, family in families.items():
        assert name.startswith(("vllm:", "tessera:")) or name in PROCESS, name
        for sample in family.samples:
            if name.startswith("vllm:"):
                assert LABELS <= set(sample.labels), sample
                assert sample.labels["model_name"] == NAME and sample.labels["engine"] == "0"


def test_the_process(server):
    """As the kernel tells it: of the server, not of its ranks."""
    families = page(server)
    assert {name for name in families if name.startswith("process_")} == PROCESS
    assert all(families[name].type == "gauge" for name in PROCESS)
    proc = pathlib.Path(f"/proc/{server.pid}")
    began = int((proc / "stat").read_text().rsplit(")", 1)[1].split()[19])
    booted = int(re.search(r"^btime (\d+)", pathlib.Path("/proc/stat").read_text(),
                           re.MULTILINE)[1])
    assert value(families, "process_start_time_seconds") == \
        pytest.approx(booted + began / os.sysconf("SC_CLK_TCK"), abs=2)
    assert value(page(server), "process_start_time_seconds") == \
        value(families, "process_start_time_seconds")
    resident = int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    assert value(families, "process_resident_memory_bytes") == pytest.approx(resident, rel=0.2)
    assert value(families, "process_max_fds") == \
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE)[0]

    def told():
        """Its own connection is one of them, beside those that are there without it."""
        return value(page(server), "process_open_fds")
    eventually(lambda: told() == len(harness.files_of(server.pid)) + 1, what="files")
    with contextlib.ExitStack() as stack:
        before = told()
        for _ in range(7):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        eventually(lambda: told() == before + 7, what="7 connections")
    (build,) = families["tessera:build_info"].samples
    assert build.value == 1
    assert f"tessera {build.labels['version']} (" in harness.run("version").stdout


def test_histograms_are_cumulative(server):
    server.token_ids([5] * 7, 5)
    for family in page(server).values():
        if family.type == "histogram":
            buckets, count, _ = histogram({family.name: family}, family.name)
            bounds = [bound for bound, _ in buckets]
            heights = [height for _, height in buckets]
            assert bounds == sorted(set(bounds)) and bounds[-1] == float("inf"), family.name
            assert heights == sorted(heights) and heights[-1] == count, family.name


def test_cache_config(server):
    """The blocks that are told are as many as fit the memory that was given."""
    families = page(server)
    (sample,) = families["vllm:cache_config_info"].samples
    size, blocks = int(sample.labels["block_size"]), int(sample.labels["num_gpu_blocks"])
    shape = checkpoint.shape_of(checkpoint.GOLDEN / "tied_gqa2_f32")
    assert sample.value == 1 and size == 16
    per_token = 2 * 4 * shape.layers * shape.kv_heads * shape.head_dim // 2  # of one rank of two
    assert blocks == (24 << 20) // (size * per_token)


def test_answers_by_status(server):
    """Whatever the client has sent: also what is no HTTP, and what no route takes."""
    def counts():
        samples = page(server)["tessera:http_responses"].samples
        return {s.labels["code"]: s.value for s in samples if s.name.endswith("_total")}

    before = counts()
    server.complete([5], max_tokens=1)
    assert server.get("/nothing").status == 404
    assert server.post("/v1/completions", {"prompt": [5], "max_tokens": -1}).status == 400
    assert server.post("/v1/models", {}).status == 405
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"GET / HTTP/9.9\r\n\r\n")
        assert raw.recv(12) == b"HTTP/1.1 505"
    grown = {code: n - before.get(code, 0) for code, n in counts().items()}
    # the page that told what was before is one of them, the last one is not
    seen = {code: n for code, n in grown.items() if n > 0}
    assert seen == {"200": 2, "400": 1, "404": 1, "405": 1, "505": 1}
    assert grown["429"] == 0


# (prompt tokens, tokens to generate, n)
TRAFFIC = [(3, 1, 1), (11, 9, 1), (20, 4, 2), (5, 17, 1)]


def test_counts_equal_the_traffic(server):
    before = page(server)
    begin = time.monotonic()
    for prompt, tokens, n in TRAFFIC:
        server.complete([5 + i for i in range(prompt)], max_tokens=tokens, n=n, ignore_eos=True)
    seconds = time.monotonic() - begin
    after = page(server)

    choices = [(prompt, tokens) for prompt, tokens, n in TRAFFIC for _ in range(n)]
    grown = {name: value(after, name) - value(before, name) for name in COUNTERS}
    assert grown["vllm:generation_tokens"] == sum(tokens for _, tokens in choices)
    assert grown["vllm:prompt_tokens"] == sum(prompt for prompt, _ in choices)
    ends = {reason: value(after, "vllm:request_success", finished_reason=reason) -
            value(before, "vllm:request_success", finished_reason=reason)
            for reason in ("stop", "length", "abort", "error")}
    assert ends == {"stop": 0, "length": len(choices), "abort": 0, "error": 0}

    def check(family, values):
        buckets, count, total = growth(before, after, family)
        assert (count, total) == (len(values), sum(values)), family
        for bound, height in buckets:
            assert height == sum(number <= bound for number in values), (family, bound)
    check("vllm:request_prompt_tokens", [prompt for prompt, _ in choices])
    check("vllm:request_generation_tokens", [tokens for _, tokens in choices])
    check("vllm:request_params_max_tokens", [tokens for _, tokens in choices])
    check("vllm:request_params_n", [n for _, _, n in TRAFFIC])

    # Every choice is seen once, every gap between its tokens once; one token has no pace.
    for family, count in (("time_to_first_token", len(choices)),
                          ("e2e_request_latency", len(choices)),
                          ("request_queue_time", len(choices)),
                          ("request_prefill_time", len(choices)),
                          ("request_decode_time", len(choices)),
                          ("request_inference_time", len(choices)),
                          ("inter_token_latency", sum(tokens - 1 for _, tokens in choices)),
                          ("request_time_per_output_token",
                           sum(tokens > 1 for _, tokens in choices))):
        assert growth(before, after, f"vllm:{family}_seconds")[1] == count, family

    def spent(family):
        return growth(before, after, f"vllm:{family}_seconds")[2]
    assert spent("request_prefill_time") + spent("request_decode_time") == \
        pytest.approx(spent("request_inference_time"), abs=1e-6)
    assert spent("inter_token_latency") == pytest.approx(spent("request_decode_time"), abs=1e-6)
    assert spent("request_queue_time") + spent("request_inference_time") <= \
        spent("e2e_request_latency") + 1e-6
    assert spent("request_queue_time") + spent("request_prefill_time") == \
        pytest.approx(spent("time_to_first_token"), abs=1e-6)
    assert spent("e2e_request_latency") <= seconds * max(n for _, _, n in TRAFFIC)

    # A step's rows are the prompt's, then one for each further token.
    rows = sum(prompt + tokens - 1 for prompt, tokens in choices)
    assert growth(before, after, "vllm:iteration_tokens_total")[2] <= rows
    assert growth(before, after, "vllm:iteration_tokens_total")[1:] == \
        (growth(before, after, "tessera:step_seconds")[1],
         value(after, "tessera:step_rows") - value(before, "tessera:step_rows"))


def test_waiting_counts_as_queue(server):
    """A request behind a full house waits: that time is its queue time, not its prefill."""
    before = page(server)
    slots = 40  # more than the server's default number of places
    begin = time.monotonic()
    server.token_ids_together([([7, 8, 9 + i], 60, {}) for i in range(slots)])
    seconds = time.monotonic() - begin
    after = page(server)
    buckets, count, total = growth(before, after, "vllm:request_queue_time_seconds")
    assert count == slots and 0 < total <= slots * seconds
    assert sum(height for _, height in buckets[-1:]) == slots


def test_a_client_that_leaves_is_an_abort(serve, synthetic):
    server = serve(synthetic)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        body = b'{"prompt": [5, 6], "max_tokens": 3000, "ignore_eos": true}'
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: "
                       b"application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        eventually(lambda: value(page(server), "vllm:num_requests_running") == 1, 5, "running")
    eventually(lambda: value(page(server), "vllm:request_success", finished_reason="abort") == 1,
               5, "abort")
    families = page(server)
    assert histogram(families, "vllm:e2e_request_latency_seconds")[1] == 0
