"""The server on an emulated device: whole processes over the CUDA module, against transformers.

One rank only: the emulated NCCL is between threads.
"""

import concurrent.futures
import os
import shutil
import signal
import sys

import ml_dtypes
import numpy
import pytest

import checkpoint
import fp8
import harness
import packed
import test_int_weights

sys.path.insert(0, str(harness.ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402

pytestmark = pytest.mark.skipif(not harness.EMULATED.exists(),
                                reason="no emulated device in this build")


@pytest.fixture
def hidden_ahead(monkeypatch, request):
    """From kernels that begin early, what they must not see yet is hidden. A rank that ends because
    it has looked would be started again."""
    monkeypatch.setenv("EMULATED_AHEAD", "1")
    yield
    for server in request.node.servers:
        assert "emulated device:" not in server.log


@pytest.fixture
def device_server(tmp_path, request):
    """device_server(model, arguments...): a server whose program has the module beside it."""
    program = shutil.copy(harness.BINARY, tmp_path)
    shutil.copy(harness.EMULATED, tmp_path)
    servers = request.node.servers = []

    def start(model, *arguments, dtype="float32"):
        servers.append(harness.Server(
            model, "--device", "cuda", "--threads-per-rank", 1, "--kv-cache-memory", "8M",
            "--dtype", dtype, *arguments, log=tmp_path / f"server{len(servers)}.log",
            program=program))
        return servers[-1].wait_ready(90)

    yield start
    for server in servers:
        if server.process.poll() is None:
            assert server.stop() == 0


def test_packed_values(device_server, tmp_path):
    """--quantization none: integers of a file as values of --dtype."""
    form, like = packed.FORMS["awq"], checkpoint.GOLDEN / "tied_gqa2_f32"
    model = packed.quantized(tmp_path / "m", like, form)
    prompt = list(range(5, 25))
    wanted, _ = llama_numpy.greedy(packed.plain(tmp_path / "plain", like, form), prompt, 12)
    server = device_server(model, "--quantization", "none")
    assert server.token_ids(prompt, 12) == wanted


@pytest.mark.parametrize("name", ["deepseek_v2_f32", "deepseek_v2_groups_f32", "deepseek_v3_f32",
                                  "glm4_moe_lite_f32", "mistral4_f32"])
def test_latents(device_server, name):
    """Latent attention, and experts in groups: the tokens of transformers."""
    prompt, tokens = checkpoint.golden_runs(name)[name.startswith("deepseek_v")]
    assert device_server(checkpoint.GOLDEN / name).token_ids(prompt, 24) == tokens[:24]


@pytest.mark.parametrize("name", ["gemma4_f32", "gemma4_kv_f32"])
def test_heads_of_two_sizes(device_server, name):
    """Whose caches are over one memory: the tokens of transformers, beyond the window and from the
    prefix cache."""
    server = device_server(checkpoint.GOLDEN / name, "--max-num-batched-tokens", 16)
    for prompt, tokens in 2 * checkpoint.golden_runs(name):
        assert server.token_ids(prompt, 24) == tokens[:24]


@pytest.mark.usefixtures("hidden_ahead")
def test_kept_states(device_server, name="qwen3_next_f32"):
    """A conversation goes on from the states that recorded steps have kept, as its whole text would
    without."""
    server = device_server(checkpoint.GOLDEN / name)
    prompt = [3 + i * i % 200 for i in range(70)]
    for turn in range(2):
        wanted, _ = llama_numpy.greedy(checkpoint.GOLDEN / name, prompt, 24)
        assert server.token_ids(prompt, 24) == wanted
        prompt = prompt + wanted + [5 + turn, 9]
    metrics = server.metrics()
    assert metrics.sum("tessera:step_replays_total") > 20
    assert metrics.sum("vllm:prefix_cache_hits_total") == (70 + 23) // 16 * 16


def bf16(values):
    return values.astype(ml_dtypes.bfloat16).astype(numpy.float64)


def check_scores(server, model, weights, held, many=True):
    """Logprobs of prompts are those of a forward pass with these weights, of which linears that
    are codes on the device are rounded to bf16, and activations are not rounded as on the CPU: not
    at all in steps of few rows and with --deterministic, else to bf16, but for those of experts.
    Nor is an embedding that is the head, too, where it is looked up."""
    config = llama_numpy.read_config(model)
    if config.tied:
        config = config._replace(tied=False)
        weights = {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}
    prompts = [[(7 * first + 13 * place) % (config.vocab - 10) + 5 for place in range(size)]
               for first, size in enumerate((3, 15, 16, 17, 40))]
    got = [test_int_weights.scores(server, [ids])[0] for ids in prompts]  # each a step

    def apart(weights, met=lambda x, name: x):
        every = [checkpoint.log_softmax(llama_numpy.forward(config, weights, ids, met=met))
                 for ids in prompts]
        return numpy.array([numpy.median(numpy.abs(mine - one[range(len(ids) - 1), ids[1:]]))
                            for mine, one, ids in zip(got, every, prompts)])

    wide = {name: bf16(values) if held(name) else values for name, values in weights.items()}
    error = apart(wide)
    others = {"not bf16": apart(weights),
              "x of 8 bits": apart(weights, lambda x, name: test_int_weights.rounded(x, []))}
    few = 3 if many else len(prompts)
    print(error, others)
    assert max(error[:few]) < 2e-4 and all(min(other) > 1e-3 for other in others.values())
    if many:  # roundings that fall the other way are not met, but what none makes is far larger
        rounded = apart(wide, lambda x, name: bf16(x) if len(x) > 1 and "kv_b_proj" not in name
                        else x)  # 1: an expert's; what latents are met with is no code
        print(rounded)
        assert all(rounded[few:] < error[few:] / 2)
        assert all(max(rounded[few:]) < min(other[few:]) / 2 for other in others.values())


@pytest.mark.parametrize("form, how", [
    ("packed", ()), ("packed, channels", ()), ("packed, 8 bits", ()), ("gptq, zeros", ()),
    ("awq", ()), ("packed, 8 bits", ("--deterministic",)), ("awq", ("--deterministic",))], ids=str)
def test_packed_codes(device_server, tmp_path, form, how):
    like, form = checkpoint.GOLDEN / "tied_gqa2_f32", packed.FORMS[form]
    if form.scales == "F32":
        form = form._replace(scales="F16")  # what a device keeps of one
    model = packed.quantized(tmp_path / "m", like, form)
    weights = llama_numpy.read_weights(packed.plain(tmp_path / "plain", like, form))
    check_scores(device_server(model, *how), like, weights, packed.is_linear, not how)


@pytest.mark.parametrize("kind", test_int_weights.KINDS)
@pytest.mark.parametrize("name", ["tied_gqa2_f32", "qwen3_moe_f32", "glm4_moe_f32",
                                  "untied_mha_bf16", "olmo2_f32", "deepseek_v3_f32"])
def test_made_codes(device_server, name, kind):
    """--quantization: the head, too, and experts; not what makes keys and values of latents."""
    model = checkpoint.GOLDEN / name
    config, weights = llama_numpy.read_config(model), llama_numpy.read_weights(model)
    head = "model.embed_tokens.weight" if config.tied else "lm_head.weight"

    def held(name):
        return (fp8.is_linear(name) and "kv_b_proj" not in name) or name == "lm_head.weight"

    low = {name: test_int_weights.quantized(values, 8 if name == head else int(kind[3]))
           if held(name) or name == head else values for name, values in weights.items()}
    check_scores(device_server(model, "--quantization", kind), model, low, held)


@pytest.mark.parametrize("kind", test_int_weights.KINDS)
def test_memory_of_codes(device_server, tmp_path, kind):
    """What the device holds of a weight is codes, in vectors of 16 bytes, and the bf16 scales of
    its rows, whose own are whole vectors only where a row of both is in whole lines."""
    model = checkpoint.GOLDEN / "untied_mha_bf16"
    server = device_server(model, "--quantization", kind)
    bits = int(kind[3])

    def upwards(size, unit):
        return -(-size // unit) * unit

    def held(rows, cols, bits):
        codes, scales = upwards(cols * bits // 8, 16), 2 * (-(-cols // 32))
        row = upwards(codes + scales, 16)
        return upwards(rows * (codes + scales if row % 128 else row), 256)

    shape = checkpoint.shape_of(model)
    heads, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    wanted = shape.layers * (held(heads + 2 * kv, shape.hidden, bits) +
                             held(shape.hidden, heads, bits) +
                             held(2 * shape.mlp, shape.hidden, bits) +
                             held(shape.hidden, shape.mlp, bits))
    wanted += held(shape.vocab, shape.hidden, 8)
    norms = (2 * shape.layers + 1) * shape.hidden * 4
    embedding = upwards(shape.vocab * shape.hidden * 4, 256)  # of --dtype float32
    assert server.metrics().sum("tessera:rank_weight_bytes") == wanted + norms + embedding


def test_sampled_codes(device_server, tmp_path):
    """Among others, in chunks and after a lost rank an answer has the bits that it has alone."""
    model = packed.quantized(tmp_path / "m", checkpoint.GOLDEN / "tied_gqa2_f32",
                             packed.FORMS["awq"])
    check_alone_and_among(device_server(model, "--deterministic", "--max-num-seqs", 4,
                                        "--max-num-batched-tokens", 24))


def test_lost_rank(device_server):
    """The next one is told that it is not the first, and leaves out what may be the cause."""
    name = "tied_gqa2_f32"
    server = device_server(checkpoint.GOLDEN / name)
    (prompt, tokens), *_ = checkpoint.golden_runs(name)
    for restarted in (False, True):
        assert server.token_ids(prompt, 8) == tokens[:8]
        rank, = server.ranks()
        assert ("--restarted" in harness.command_line(rank)) == restarted
        os.kill(rank, signal.SIGKILL)
        server.wait_ready(90)


@pytest.mark.usefixtures("hidden_ahead")
@pytest.mark.parametrize("arguments", [
    ("--sampler", "gather"), ("--sampler", "distributed"), ("--speculative-config", "ngram"),
    ("--speculative-config", "ngram", "--sampler", "distributed", "--enforce-eager")])
def test_greedy_tokens(device_server, arguments):
    """Requests that come and go: steps of several sizes, each launched while another runs."""
    name = "tied_gqa2_f32"
    server = device_server(checkpoint.GOLDEN / name, "--max-num-seqs", 3,
                           "--max-num-batched-tokens", 16, *arguments)
    runs = [(prompt, tokens[:count]) for count in (6, 12)
            for prompt, tokens in checkpoint.golden_runs(name)]
    requests = [(prompt, len(tokens), {}) for prompt, tokens in runs]
    assert server.token_ids_together(requests) == [tokens for _, tokens in runs]
    replays = server.metrics().sum("tessera:step_replays_total")
    assert (replays > 0) == ("--enforce-eager" not in arguments)


WIDE = {"hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 264, "vocab_size": 600,
        "num_attention_heads": 4, "num_key_value_heads": 2, "torch_dtype": "bfloat16"}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


@pytest.mark.usefixtures("hidden_ahead")
@pytest.mark.parametrize("model, options", [
    ("untied_mha_bf16", ("--quantization", "fp8")), ("gpt_oss_bf16", ()), ("gemma3_bf16", ()),
    ("qwen3_moe_bf16", ("--quantization", "int4")), ("olmo3_bf16", ()), ("glm4_moe_bf16", ()),
    ("phi3_bf16", ("--deterministic",)), ("deepseek_v3_bf16", ()), ("qwen3_5_bf16", ()),
    ("ministral3_bf16", ()), ("ernie4_5_moe_bf16", ()), ("gemma4_bf16", ()),
    ({"head_dim": 64}, ()), ({"head_dim": 128}, ("--quantization", "int8")),
    ({"head_dim": 128, "model_type": "qwen3"}, ("--kv-cache-dtype", "fp8")),
    ({"head_dim": 256, "model_type": "qwen3"}, ()),
    ({"head_dim": 64, "model_type": "qwen3_moe", **EXPERTS}, ("--quantization", "fp8"))], ids=str)
def test_recorded_steps(device_server, tmp_path, model, options):
    """In recorded steps kernels begin before those before them have ended. Nothing else changes."""
    if isinstance(model, dict):
        model = checkpoint.write_config(tmp_path / "shape", **{**WIDE, **model})
        options = (*options, "--load-format", "dummy", "--seed", 3)
    answers = []
    for more in ((), ("--enforce-eager",)):
        server = device_server(checkpoint.GOLDEN / model, *options, *more, dtype="bfloat16")

        def complete(length, n):
            choices = server.complete(list(range(5, 5 + length)), max_tokens=8, n=n, seed=1,
                                      temperature=0.8, ignore_eos=True, logprobs=2,
                                      return_token_ids=True)["choices"]
            return [(choice["token_ids"], choice["logprobs"]["token_logprobs"])
                    for choice in choices]

        answers.append([complete(20, 1), complete(55, 1)])
        if not more:
            complete(55, 5)  # steps of more rows, whose sums depend on how many there are
        assert (server.metrics().sum("tessera:step_replays_total") > 6) == (not more)
        assert server.stop() == 0
    assert answers[0] == answers[1]


def check_alone_and_among(server):
    """A drawn answer and its logprobs do not depend on who else is served, nor on ranks that are
    lost while it is given."""
    prompts = [prompt[:20] for prompt, _ in checkpoint.golden_runs("tied_gqa2_f32")][:3]

    def answer(i):
        choice = server.complete(prompts[i], max_tokens=5, temperature=0.9, top_p=0.9, seed=i,
                                 presence_penalty=0.5, ignore_eos=True, logprobs=3,
                                 return_token_ids=True)["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    alone = [answer(i) for i in range(len(prompts))]
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(answer, range(len(prompts)))) == alone
        again = pool.map(answer, range(len(prompts)))
        harness.eventually(lambda: server.requests("running") > 0, what="a running request")
        os.kill(server.ranks()[0], signal.SIGKILL)
        assert list(again) == alone
    assert "--restarted" in harness.command_line(server.ranks()[0])
    assert "order of a single rank: outputs have its bits" in server.log


@pytest.mark.usefixtures("hidden_ahead")
def test_deterministic(device_server):
    check_alone_and_among(device_server(checkpoint.GOLDEN / "tied_gqa2_f32", "--deterministic",
                                        "--max-num-seqs", 4, "--max-num-batched-tokens", 24))
