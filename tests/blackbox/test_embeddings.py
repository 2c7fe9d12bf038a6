"""Vectors of texts: those of transformers and of numpy, the same bits alone, in any batch and at
any number of ranks, with what each layout moves for them; and what is refused.

The goldens' logits are products of the wanted hidden states with a head of more rows than columns,
so transformers' hidden states come back from them by least squares."""

import base64
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import socket
import sys

import numpy
import openai
import pytest
import tokenizers

import checkpoint
from harness import EMULATED, PATIENCE, ROOT, eventually, is_sanitized, run
from test_device import device_server  # noqa: F401  (a fixture)
from test_modes import layout, received

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402  (lives in the folder just added)
import mode_bytes  # noqa: E402

GOLDEN = "qwen3_f32"
END = "<|endoftext|>"
TEXTS = ["Hello", "two words", "The ranks meet in two all-reduces per layer. " * 3, "ünïcödé 漢字",
         f"a {END} spelt out"]
CLOSE = 5e-6  # of numbers of a vector of length 1, against float64


def publish(model, *modules, pooling=None):
    """As sentence-transformers does: modules.json, and the pooling module's own file."""
    kind = "sentence_transformers.models."
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    names = modules or ("Transformer", "Pooling", "Normalize")
    (model / "modules.json").write_text(json.dumps(
        [{"idx": i, "name": str(i), "path": paths.get(name, f"{i}_{name}"), "type": kind + name}
         for i, name in enumerate(names)]))
    (model / "1_Pooling").mkdir(exist_ok=True)
    (model / "1_Pooling/config.json").write_text(json.dumps(
        pooling or {"word_embedding_dimension": 48, "pooling_mode_lasttoken": True}))
    return model


def beheaded(directory, name=GOLDEN):
    """A golden checkpoint as a model without a head is saved: no prefix, and no head."""
    model = checkpoint.copy_model(name, directory)
    if "lm_head.weight" in checkpoint.read_header(model / "model.safetensors")[0]:
        checkpoint.drop_tensor(model / "model.safetensors", "lm_head.weight")

    def rename(header):
        for old in [name for name in header if name.startswith("model.")]:
            header[old.removeprefix("model.")] = header.pop(old)
    checkpoint.edit_header(model / "model.safetensors", rename)
    checkpoint.edit_config(model, lambda config: config.update(architectures=["Qwen3Model"]))
    return model


def with_tokenizer(model):
    """Letters and a mark behind each text, as Qwen3-Embedding has it."""
    vocabulary = {END: 0, **{letter: i + 3 for i, letter in enumerate(sorted(
        tokenizers.pre_tokenizers.ByteLevel.alphabet())) if i < 225}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, 0)])
    tokenizer.save(str(model / "tokenizer.json"))
    return tokenizer


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    """A model of vectors; its tokenizer is `with_tokenizer`'s."""
    model = publish(beheaded(tmp_path_factory.mktemp("embedder") / "model"))
    with_tokenizer(model)
    return model


def embed(server, inputs, **fields):
    """[inputs, D] numbers, by the bytes of floats, and the answer."""
    reply = server.post("/v1/embeddings", {"input": inputs, "encoding_format": "base64", **fields})
    assert reply.status == 200, reply.body
    answer = reply.json()
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    rows = [numpy.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in answer["data"]]
    return numpy.stack(rows), answer


def refused(server, **fields):
    reply = server.post("/v1/embeddings", fields)
    assert reply.status in (400, 404), reply.body
    return reply.error


# ---- values --------------------------------------------------------------------------------------


def golden_vector(name, index):
    """What transformers has behind the last norm at the end of a golden prompt."""
    weights = llama_numpy.read_weights(checkpoint.GOLDEN / name)
    head = weights["lm_head.weight"] if "lm_head.weight" in weights else \
        weights["model.embed_tokens.weight"]
    logits = checkpoint.golden_logits(name, index)[-1]
    return numpy.linalg.lstsq(head.astype("f8"), logits, rcond=None)[0]


@pytest.mark.parametrize("name", [GOLDEN, "tied_gqa2_f32", "mistral_f32", "gemma_f32"])
def test_vectors_of_transformers(serve, name):
    """Of models that make tokens, too, where vectors are asked for."""
    server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--runner", "pooling",
                   "--skip-tokenizer-init")
    for i, (prompt, _) in enumerate(checkpoint.golden_runs(name)):
        wanted = golden_vector(name, i)
        got, _ = embed(server, prompt)
        assert abs(got[0] - wanted / numpy.linalg.norm(wanted)).max() < 1e-4
        raw, _ = embed(server, prompt, normalize=False)
        assert abs(raw[0] - wanted).max() < 1e-4 * abs(wanted).max()


def test_texts(serve, embedder):
    """By the tokens that Hugging Face's tokenizer makes, the one behind the text among them."""
    tokenizer = tokenizers.Tokenizer.from_file(str(embedder / "tokenizer.json"))
    server = serve(embedder, "-tp", 2)
    got, answer = embed(server, TEXTS)
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    assert all(list[-1] == 0 for list in ids) and ids[-1].count(0) == 2
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == sum(map(len, ids))
    for text, vector in zip(ids, got):
        assert abs(vector - llama_numpy.vector(embedder, text)).max() < CLOSE
    bare, _ = embed(server, TEXTS[0], add_special_tokens=False)
    assert abs(bare[0] - llama_numpy.vector(embedder, ids[0][:-1])).max() < CLOSE
    numpy.testing.assert_array_equal(embed(server, ids)[0], got)


def test_forms(serve, embedder):
    """Numbers and bytes are the same floats; the first dimensions have length 1 by themselves."""
    server = serve(embedder)
    got, _ = embed(server, TEXTS)
    reply = server.post("/v1/embeddings", {"input": TEXTS}).json()
    assert reply["object"] == "list" and reply["model"] == "model"
    numbers = numpy.array([item["embedding"] for item in reply["data"]], "f4")
    numpy.testing.assert_array_equal(numbers, got)
    assert abs(numpy.linalg.norm(got, axis=1) - 1).max() < 1e-6
    raw, _ = embed(server, TEXTS, use_activation=False, endianness="little")
    numpy.testing.assert_array_equal(raw, embed(server, TEXTS, normalize=False)[0])
    few, _ = embed(server, TEXTS, dimensions=5)
    wanted = got[:, :5] / numpy.linalg.norm(got[:, :5], axis=1, keepdims=True)
    assert few.shape == (len(TEXTS), 5) and abs(few - wanted).max() < 1e-6


def test_openai_client(serve, embedder):
    server = serve(embedder, "-tp", 2)
    got, _ = embed(server, TEXTS)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="model", input=TEXTS)  # asks for base64
        numpy.testing.assert_array_equal(
            numpy.array([item.embedding for item in answer.data], "f4"), got)
        assert answer.usage.prompt_tokens > 0
        with pytest.raises(openai.BadRequestError) as error:
            client.completions.create(model="model", prompt="Once")
        assert error.value.code == "unsupported_model" and "/v1/embeddings" in str(error.value)


def test_lengths(serve, embedder):
    """A text may fill the context; what is longer is cut from behind, but for the mark."""
    tokenizer = tokenizers.Tokenizer.from_file(str(embedder / "tokenizer.json"))
    server = serve(embedder, "-tp", 2, "--max-model-len", 64)
    long, full = "abcdefgh" * 20, "x" * 63
    assert len(tokenizer.encode(full).ids) == 64
    got, _ = embed(server, full)
    assert abs(got[0] - llama_numpy.vector(embedder, tokenizer.encode(full).ids)).max() < CLOSE
    error = refused(server, input=[full, long])
    assert error["code"] == "context_length_exceeded" and error["param"] == "input"
    assert "64 tokens" in error["message"] and "161" in error["message"]
    for keep in (-1, 10):
        tokenizer.enable_truncation(64 if keep < 0 else keep)
        wanted = llama_numpy.vector(embedder, tokenizer.encode(long).ids)
        got, answer = embed(server, long, truncate_prompt_tokens=keep)
        assert answer["usage"]["prompt_tokens"] == (64 if keep < 0 else keep)
        assert abs(got[0] - wanted).max() < CLOSE


# ---- bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--quantization", "int8"), ("--dtype", "bfloat16"),
                                     ("--kv-cache-dtype", "fp8")])
def test_same_bits(serve, embedder, options):
    """Alone, together, in chunks, from the cache, and at 1, 2, 4 and 8 ranks."""
    alone = None
    for ranks, more in ((1, ()), (2, ("--max-num-batched-tokens", 16)), (4, ()),
                        (8, ("--parallel-mode", "1d_sp"))):
        server = serve(embedder, "-tp", ranks, *options, *more)
        if alone is None:
            alone = numpy.concatenate([embed(server, text)[0] for text in TEXTS])
        for _ in range(2):
            numpy.testing.assert_array_equal(embed(server, TEXTS)[0], alone)
        assert server.metrics().sum("vllm:prefix_cache_hits_total") > 0


@pytest.mark.parametrize("mode, ranks", [("1d", 3), ("1d_sp", 3), ("2d", 4), ("2.5d", 8),
                                         ("3d", 8), ("3d_gathered", 8)])
def test_layouts(serve, embedder, mode, ranks):
    """Nothing is received for logits, and of the wanted rows what a rank has not got already."""
    server = serve(embedder, "-tp", ranks, *layout(mode), "--no-enable-prefix-caching")
    tokenizer = tokenizers.Tokenizer.from_file(str(embedder / "tokenizer.json"))
    shape, ids = checkpoint.shape_of(embedder), tokenizer.encode(TEXTS[2]).ids
    before = server.metrics()
    got, _ = embed(server, ids)
    assert abs(got[0] - llama_numpy.vector(embedder, ids)).max() < CLOSE
    many = server.get("/metrics") and len(ids) >= many_from(server)
    wanted = sum(mode_bytes.step_bytes(shape, mode, ranks, rank, len(ids), [], many)
                 for rank in range(ranks))
    wanted += 0 if mode == "1d" else 4 * (ranks - 1) * shape.hidden  # all but one lack each part

    def counted():
        after = server.metrics()
        return sum(received(after, rank) - received(before, rank) for rank in range(ranks))
    eventually(lambda: counted() >= wanted, 2, "the last collective")
    assert counted() == wanted


def many_from(server):
    """Rows from which on steps have a second form, as the start says."""
    line = next(line for line in server.log.splitlines() if " layout " in line)
    return int(line.split(" in steps of ")[1].split()[0]) if " in steps of " in line else 1 << 30


def test_many_at_once(serve, embedder):
    """2,048 inputs in one request beside others, with few places and little cache; in order."""
    server = serve(embedder, "-tp", 2, "--max-num-seqs", 5, "--max-num-batched-tokens", 24,
                   "--kv-cache-memory", "100K", "--max-model-len", 64)
    inputs = [[3 + i % 200, 3 + i // 200, 7] for i in range(2048)]
    wanted, _ = embed(server, inputs[:40])
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        large = pool.submit(embed, server, inputs)
        small = pool.submit(embed, server, inputs[:40])
        numpy.testing.assert_array_equal(small.result(60 * PATIENCE)[0], wanted)
        got = large.result(60 * PATIENCE)[0]
    numpy.testing.assert_array_equal(got[:40], wanted)
    assert len(numpy.unique(got, axis=0)) == 2048
    assert abs(got[2000] - llama_numpy.vector(embedder, inputs[2000])).max() < CLOSE


@pytest.mark.parametrize("lost", [0, 1])
def test_lost_rank(serve, embedder, lost):
    """A pause: the vectors are those that would have come."""
    server = serve(embedder, "-tp", 2, "--max-num-batched-tokens", 16, "--max-num-seqs", 4)
    inputs = [list(range(3 + i, 163 + i % 60)) for i in range(40)]
    wanted, _ = embed(server, inputs)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with server.halted():
            answer = pool.submit(embed, server, inputs, cache_salt="other")
            eventually(lambda: server.requests("running") + server.requests("waiting") == 40)
            os.kill(server.ranks()[lost], signal.SIGKILL)
        numpy.testing.assert_array_equal(answer.result(60 * PATIENCE)[0], wanted)
    eventually(lambda: "starting the ranks again (1)" in server.log, what="the log")


def test_client_that_leaves(serve, embedder):
    server = serve(embedder, "--max-num-batched-tokens", 16)
    with server.halted():
        with pytest.raises(TimeoutError):
            server.post("/v1/embeddings", {"input": [[3, 4]] * 200}, timeout=0.5 / PATIENCE)
    eventually(lambda: server.requests("running") + server.requests("waiting") == 0)
    assert len(embed(server, [[3, 4]])[0]) == 1


@pytest.mark.skipif(not EMULATED.exists(), reason="no emulated device in this build")
def test_device(device_server, embedder):  # noqa: F811
    """Rows go from the device's memory to the answer, from recorded steps, too."""
    server = device_server(embedder)
    tokenizer = tokenizers.Tokenizer.from_file(str(embedder / "tokenizer.json"))
    for _ in range(3):
        for text in ("a", "Hello"):
            ids = tokenizer.encode(text).ids
            for inputs in (ids, [ids, [5]]):
                wanted = llama_numpy.vector(embedder, ids)
                assert abs(embed(server, inputs)[0][0] - wanted).max() < 1e-4


# ---- which models --------------------------------------------------------------------------------


def test_as_published(serve, tmp_path):
    """With files of sentence-transformers, or as a class without a head; --runner decides."""
    model = beheaded(tmp_path / "bare")
    wanted = llama_numpy.vector(model, [5, 6, 7])
    assert abs(embed(serve(model, "-tp", 2), [5, 6, 7])[0][0] - wanted).max() < CLOSE
    done = run("serve", model, "--runner", "generate", "--port", 0)
    assert done.returncode == 3 and "lm_head.weight" in done.stderr
    whole = publish(checkpoint.copy_model(GOLDEN, tmp_path / "whole"), "Transformer", "Pooling")
    assert abs(embed(serve(whole), [5, 6, 7], normalize=True)[0][0] - wanted).max() < CLOSE
    assert numpy.linalg.norm(embed(serve(whole), [5, 6, 7])[0]) > 1.1  # no Normalize in it
    prompt, tokens = checkpoint.golden_runs(GOLDEN)[0]
    assert serve(whole, "--runner", "generate").token_ids(prompt, 8) == tokens[:8]


def test_sharded(serve, embedder, tmp_path):
    done = run("shard", embedder, "-tp", 2, "-o", tmp_path / "shards")
    assert done.returncode == 0, done.stderr
    got, _ = embed(serve(tmp_path / "shards", "-tp", 4), TEXTS)
    numpy.testing.assert_array_equal(got, embed(serve(embedder, "-tp", 4), TEXTS)[0])


def test_links_of_the_hub(serve, embedder, tmp_path):
    """Members are links to blobs there, those of the folder, too."""
    hub = tmp_path / "models--a--b"
    snapshot = hub / "snapshots/c0ffee"
    (hub / "blobs").mkdir(parents=True)
    for file in embedder.rglob("*"):
        if file.is_file():
            link = snapshot / file.relative_to(embedder)
            link.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, hub / "blobs" / file.name.replace(".", f"-{len(str(file))}."))
            link.symlink_to(hub / "blobs" / file.name.replace(".", f"-{len(str(file))}."))
    assert run("shard", snapshot, "-tp", 2, "-o", tmp_path / "out").returncode == 0
    assert embed(serve(snapshot), TEXTS)[0].shape == (len(TEXTS), 48)


@pytest.mark.parametrize("pooling, modules, said", [
    ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}, (), "pooling_mode_mean"),
    ({"pooling_mode_cls_token": True}, (), "pooling_mode_cls_token"),
    ({"pooling_mode": "mean"}, (), "lasttoken"),
    (None, ("Transformer", "Pooling", "Dense"), "modules.json"),
])
def test_other_pooling(tmp_path, pooling, modules, said):
    model = publish(beheaded(tmp_path / "model"), *modules, pooling=pooling)
    done = run("serve", model, "--port", 0)
    assert done.returncode == 3 and said in done.stderr, done.stderr


def test_how_texts_are_read(serve, embedder, tmp_path):
    """A shorter context is kept to, a prompt in front is told of, other letters are refused."""
    model = tmp_path / "model"
    shutil.copytree(embedder, model)
    (model / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    (model / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "Find: "}, "default_prompt_name": "query"}')
    server = serve(model)
    assert 'default_prompt_name "query"' in server.log
    assert "40 tokens" in refused(server, input="x" * 40)["message"]
    assert embed(server, "x" * 40, truncate_prompt_tokens=-1)[1]["usage"]["prompt_tokens"] == 40
    (model / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    done = run("serve", model, "--port", 0)
    assert done.returncode == 3 and "do_lower_case" in done.stderr


def test_head_is_kept(serve, tmp_path):
    """`shard` cuts all of a model that has one, whatever it was published for."""
    whole = publish(checkpoint.copy_model(GOLDEN, tmp_path / "whole"))
    assert run("shard", whole, "-tp", 2, "-o", tmp_path / "shards").returncode == 0
    prompt, tokens = checkpoint.golden_runs(GOLDEN)[0]
    server = serve(tmp_path / "shards", "-tp", 2, "--runner", "generate")
    assert server.token_ids(prompt, 8) == tokens[:8]
    assert embed(serve(tmp_path / "shards"), [5, 6])[0].shape == (1, 48)


@pytest.mark.skipif(is_sanitized(), reason="sanitizers keep what is freed")
def test_slow_readers(serve, embedder):
    """What is kept for those who do not read is their answer, not what it was made of."""
    server = serve(embedder, "--max-num-seqs", 64)
    body = json.dumps({"input": [[3, 4]] * 2048, "dimensions": 1, "encoding_format": "base64"})
    embed(server, [[3, 4]] * 2048, dimensions=1)

    def resident():
        status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024
    before, readers = resident(), []
    for _ in range(12):
        readers.append(socket.create_connection(("127.0.0.1", server.port)))
        readers[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        readers[-1].sendall((f"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: "
                             f"{len(body)}\r\nContent-Type: application/json\r\n\r\n{body}"
                             ).encode())
        eventually(lambda: server.requests("running") + server.requests("waiting") == 0, 20)
    assert resident() - before < 12 * 4  # of an answer of 0.2 MiB; choices are 2 MiB
    for reader in readers:
        reader.close()


def test_metrics_of_vectors(serve, embedder):
    """Who waits is seen: in the queue's time, and in what a 429 says."""
    server = serve(embedder, "--max-num-seqs", 1)
    embed(server, TEXTS)
    metrics = server.metrics()
    for family in ("queue", "prefill", "inference"):
        assert metrics.sum(f"vllm:request_{family}_time_seconds_count") == len(TEXTS)
    assert metrics.sum("vllm:request_prefill_time_seconds_sum") > 0
    eventually(lambda: " queue_s=" in server.log, what="the request's line")


def test_more_tokens_than_can_ever_wait(serve, embedder):
    """Not a 429, after which a client would come again for ever."""
    server = serve(embedder, "--max-num-queued-tokens", 1000)
    error = refused(server, input=[list(range(3, 203))] * 6)
    assert error["param"] == "input" and "1200" in error["message"] and "1000" in error["message"]
    assert embed(server, [list(range(3, 203))] * 5)[0].shape == (5, 48)


@pytest.mark.parametrize("options", [("--speculative-config", "ngram"),
                                     ("--tool-call-parser", "hermes"),
                                     ("--reasoning-parser", "think"),
                                     ("--sampler", "distributed")])
def test_options_for_tokens(embedder, options):
    done = run("serve", embedder, "--port", 0, *options)
    assert done.returncode == 2 and options[0] in done.stderr, done.stderr


def test_attention_to_what_follows(tmp_path):
    model = beheaded(tmp_path / "model")
    checkpoint.edit_config(model, lambda config: config.update(is_causal=False))
    done = run("serve", model, "--port", 0)
    assert done.returncode == 3 and "is_causal" in done.stderr


# ---- bad input -----------------------------------------------------------------------------------


def test_refusals(serve, embedder, demo):
    server = serve(embedder, "--max-num-queued-reqs", 16, "--max-num-seqs", 4)
    for field, fields in (
            ("input", {}), ("input", {"input": ""}), ("input", {"input": []}),
            ("input", {"input": ["a", 5]}), ("input", {"input": [5, "a"]}),
            ("input", {"input": [[5], []]}), ("input", {"input": [233]}), ("input", {"input": 5}),
            ("input", {"input": ["a"] * 2049}), ("input", {"input": ["a"] * 21}),
            ("dimensions", {"input": "a", "dimensions": 49}),
            ("dimensions", {"input": "a", "dimensions": 0}),
            ("encoding_format", {"input": "a", "encoding_format": "hex"}),
            ("truncate_prompt_tokens", {"input": "a", "truncate_prompt_tokens": 0}),
            ("messages", {"input": "a", "messages": [{"role": "user", "content": "a"}]}),
            ("embed_dtype", {"input": "a", "embed_dtype": "float16"}),
            ("endianness", {"input": "a", "endianness": "big"}),
            ("truncation_side", {"input": "a", "truncation_side": "left"}),
            ("model", {"input": "a", "model": "other"})):
        assert refused(server, **fields)["param"] == field, fields
    assert embed(server, ["a"] * 20)[0].shape == (20, 48)
    for path, fields in (("/v1/completions", {"prompt": "a"}),
                         ("/v1/chat/completions", {"messages": []}),
                         ("/v1/responses", {"input": "a"}),
                         ("/v1/messages", {"max_tokens": 5, "messages": []})):
        reply = server.post(path, fields)
        assert reply.status == 400 and "--runner pooling" in reply.body.decode()
    assert "--runner pooling" in refused(demo, input="a")["message"]


def test_not_finite(serve, tmp_path):
    """One text that meets a damaged row, not those beside it."""
    model = beheaded(tmp_path / "model")
    header, start = checkpoint.read_header(model / "model.safetensors")
    begin = header["embed_tokens.weight"]["data_offsets"][0]
    with open(model / "model.safetensors", "r+b") as file:
        file.seek(start + begin + 9 * 48 * 4)
        file.write(numpy.full(48, numpy.nan, "<f4").tobytes())
    server = serve(model, "-tp", 2)
    reply = server.post("/v1/embeddings", {"input": [5, 9, 7]})
    assert reply.status == 500 and reply.error["code"] == "not_finite"
    assert embed(server, [5, 8, 7])[0].shape == (1, 48)
