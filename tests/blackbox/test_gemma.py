"""Layers that slide, and what Gemma's models have beside the others. Their greedy tokens at every
number of ranks are tested with those of all goldens; here is what only they have."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import checkpoint
import fp8
from harness import ROOT, run
from test_mixtures import check_lost_rank, check_same_bits, fails, outcome
from test_modes import check_received, plan_file

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402

WINDOWS = ["mistral_window_f32", "olmo3_f32", "qwen2_window_bf16", "phi3_window_f32"]
GEMMAS = ["gemma_f32", "gemma2_f32", "gemma3_f32"]


# ---- windows that move --------------------------------------------------------------------------


@pytest.mark.parametrize("name", WINDOWS + GEMMAS)
def test_beyond_the_window(serve, name):
    """Prompts in small chunks, again from the prefix cache, and two answers side by side."""
    server = serve(checkpoint.GOLDEN / name, "-tp", 3, "--dtype", "float32",
                   "--max-num-batched-tokens", 16)
    assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 512
    runs = checkpoint.golden_runs(name)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(server.token_ids, prompt, len(tokens)) for prompt, tokens in 2 * runs]
        assert [job.result() for job in jobs] == 2 * [tokens for _, tokens in runs]


@pytest.mark.parametrize("window", [1, 16, 37, 400])
def test_any_window(serve, tmp_path, window):
    """Of one position, of whole blocks, odd, and longer than what is said: numpy's tokens."""
    model = checkpoint.copy_model("mistral_window_f32", tmp_path / "model")
    checkpoint.edit_config(model, lambda config: config.update(sliding_window=window))
    prompt = checkpoint.golden_runs("mistral_window_f32")[0][0]
    wanted, _ = llama_numpy.greedy(model, prompt, 48)
    assert serve(model, "-tp", 2).token_ids(prompt, 48) == wanted


def test_plan_says_which_layers_slide():
    model = checkpoint.GOLDEN / "qwen2_window_bf16"
    assert "2 of 3 layers attend to the last 19 positions only" in run("plan", model).stdout
    told = json.loads(run("plan", model, "--json").stdout)
    assert (told["sliding_window"], told["sliding_layers"]) == (19, 2)
    told = json.loads(run("plan", checkpoint.GOLDEN / "mistral_f32", "--json").stdout)
    assert (told["sliding_window"], told["sliding_layers"]) == (4096, 2)
    line = fails(4, "plan", checkpoint.GOLDEN / "mistral_f32", "--max-model-len", 513)
    assert "--max-model-len 513: the model allows 512" in line


# ---- the same bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("name, options", [
    ("gemma2_f32", ()), ("gemma3_bf16", ("--quantization", "int4")), ("olmo3_f32", ()),
    ("qwen2_window_bf16", ("--kv-cache-dtype", "fp8"))], ids=str)
def test_same_bits(serve, name, options):
    check_same_bits(serve, checkpoint.GOLDEN / name, options)


@pytest.mark.parametrize("mode", ["1d", "1d_sp"])
def test_large_sums(serve, tmp_path, mode):
    """Sums that travel in two halves, which peers still read when the next operation begins."""
    model = checkpoint.write_config(
        tmp_path / "shape", model_type="gemma2", hidden_size=256, intermediate_size=384,
        num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4, head_dim=32,
        vocab_size=900, sliding_window=100, query_pre_attn_scalar=32, tie_word_embeddings=True,
        torch_dtype="float32")
    prompts = [[50 + 7 * i % 800 for i in range(700 + n)] for n in range(4)]
    assert 4 * 256 * len(prompts[0]) > 2 * checkpoint.ONESHOT_MAX_BYTES
    outcomes = []
    for options in (("-tp", 1), ("-tp", 4, "--parallel-mode", mode)):
        server = serve(model, *options, "--load-format", "dummy", "--max-num-batched-tokens", 1024)
        outcomes.append([outcome(server, prompt, temperature=0) for prompt in prompts])
    assert outcomes[0] == outcomes[1]


def test_lost_rank(serve):
    check_lost_rank(serve, checkpoint.GOLDEN / "gemma3_f32", 400)


# ---- what is computed ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3_text"])
def test_synthetic_model(serve, tmp_path, family):
    """Tokens of numpy, from the file and from the same values without one."""
    checkpoint.write_config(tmp_path / "shape", model_type=family, hidden_size=60,
                            intermediate_size=112, num_hidden_layers=7, num_attention_heads=6,
                            num_key_value_heads=2, head_dim=16, vocab_size=300,
                            sliding_window=11, torch_dtype="float32",
                            hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True)
    if family == "gemma":
        checkpoint.edit_config(tmp_path / "shape", lambda config: config.pop("sliding_window"))
    model = tmp_path / "model"
    done = run("synth", "--config", tmp_path / "shape/config.json", "-o", model, "--seed", 3)
    assert done.returncode == 0, done.stderr
    gain = llama_numpy.read_weights(model)["model.norm.weight"]
    assert abs(gain).max() < 0.1
    prompt = [270, 281, 292, 263]
    wanted, _ = llama_numpy.greedy(model, prompt, 40)
    assert serve(model, "-tp", 3).token_ids(prompt, 40) == wanted
    dummy = serve(tmp_path / "shape", "-tp", 2, "--load-format", "dummy", "--seed", 3)
    assert dummy.token_ids(prompt, 40) == wanted


@pytest.mark.parametrize("name", ["gemma2_f32", "gemma3_f32"])
def test_fp8(serve, tmp_path, name):
    """Codes of linears mean what ml_dtypes says; norms are as they were."""
    prompt, _ = checkpoint.golden_runs(name)[0]
    plain = fp8.plain(tmp_path / "plain", checkpoint.GOLDEN / name, (1, 0))
    wanted, _ = llama_numpy.greedy(plain, prompt, 16)
    server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--dtype", "float32",
                   "--quantization", "fp8")
    assert server.token_ids(prompt, 16) == wanted


@pytest.mark.parametrize("mode, ranks", [("1d", 3), ("1d_sp", 4), ("2d", 4), ("2.5d", 8),
                                         ("3d", 8)])
def test_received_bytes(serve, tmp_path, mode, ranks):
    """Twice as many norms exchange twice as many sums of squares, where rows are cut."""
    model = checkpoint.GOLDEN / "gemma2_f32"
    server = serve(model, "-tp", ranks, "--plan", plan_file(tmp_path, mode), "--dtype", "float32")
    check_received(server, mode, ranks, checkpoint.shape_of(model), list(range(3, 26)), 12)


# ---- files --------------------------------------------------------------------------------------


WRAPPED = "gemma3_wrapped_bf16"


def test_text_model_of_one_that_sees(serve):
    """The tensors of the others are left where they are, and not read."""
    server = serve(checkpoint.GOLDEN / WRAPPED, "-tp", 2, "--dtype", "float32")
    for prompt, tokens in checkpoint.golden_runs(WRAPPED):
        assert server.token_ids(prompt, len(tokens)) == tokens


def test_inspect_names_the_text_model():
    done = run("inspect", checkpoint.GOLDEN / WRAPPED, "-tp", 2, "--json")
    held = {tensor["name"]: tensor["slices"] for tensor in json.loads(done.stdout)}
    assert held["model.layers.0.pre_feedforward_layernorm.weight"]
    assert not [name for name in held if "language_model" in name]
    seeing = [slices for name, slices in held.items() if "vision_tower" in name]
    assert seeing and not any(seeing)


def seeing(tmp_path, name, prefix, **config):
    """A golden inside a model that also sees: its tensors behind a prefix, its config in another.
    """
    model = checkpoint.copy_model(name, tmp_path / "model")
    text = {**checkpoint.read_config(model), "sliding_window": None}
    config = {"torch_dtype": text.pop("dtype", None) or text.pop("torch_dtype"),
              "vision_config": {"depth": 1}, **config}
    inner = config.pop("inner")
    tensors = {prefix(key): tensor for key, tensor in fp8.read(model).items()}
    fp8.write(model, tensors, model)
    if inner:
        config["text_config"] = {**text, "model_type": inner}
    else:
        config = {**text, **config}
    (model / "config.json").write_text(json.dumps(config))
    return model


def newer(key):
    return key.replace("model.", "model.language_model.", 1)


@pytest.mark.parametrize("name, prefix, config", [
    ("mistral_f32", lambda key: "language_model." + key,
     {"model_type": "mistral3", "inner": "mistral", "image_token_index": 10}),
    ("ministral3_f32", lambda key: "language_model." + key,
     {"model_type": "mistral3", "inner": "ministral3", "image_token_index": 10,
      "tie_word_embeddings": True}),
    ("mistral4_f32", lambda key: "language_model." + key,
     {"model_type": "mistral3", "inner": "mistral4", "image_token_index": 10}),
    ("qwen2_f32", str, {"model_type": "qwen2_5_vl", "inner": None, "rope_theta": 10000.0,
                        "rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 1]}}),
    ("qwen2_f32", newer, {"model_type": "qwen2_vl", "inner": "qwen2_vl_text"}),
    ("qwen3_f32", newer, {"model_type": "qwen3_vl", "inner": "qwen3_vl_text"})],
    ids=["mistral3", "ministral3", "mistral4", "qwen2_5_vl", "qwen2_vl", "qwen3_vl"])
def test_others_that_see(serve, tmp_path, name, prefix, config):
    """As they are published. transformers' classes give texts the golden's logits, too."""
    model = seeing(tmp_path, name, prefix, **config)
    prompt, tokens = checkpoint.golden_runs(name)[0]
    assert serve(model, "-tp", 2).token_ids(prompt, len(tokens)) == tokens


def test_index_and_fp8(serve, tmp_path):
    """Its tensors in two files, and then its linears as codes with scales beside them."""
    prompt, tokens = checkpoint.golden_runs(WRAPPED)[0]
    coded = fp8.quantized(tmp_path / "coded", checkpoint.GOLDEN / WRAPPED, fp8.BLOCK, (128, 128),
                          "_scale_inv")
    plain = fp8.plain(tmp_path / "plain", checkpoint.GOLDEN / WRAPPED, (128, 128))
    wanted = serve(plain, "-tp", 2, "--dtype", "float32").token_ids(prompt, 16)
    assert serve(coded, "-tp", 2, "--dtype", "float32").token_ids(prompt, 16) == wanted
    model = checkpoint.copy_model(WRAPPED, tmp_path / "model")
    names, tensors = {}, fp8.read(model)
    for i, part in enumerate((list(tensors)[::2], list(tensors)[1::2]), 1):
        file = f"model-0000{i}-of-00002.safetensors"
        fp8.write(model, {name: tensors[name] for name in part}, model)
        (model / "model.safetensors").rename(model / file)
        names.update(dict.fromkeys(part, file))
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert serve(model, "--dtype", "float32").token_ids(prompt, 24) == tokens[:24]


def test_newer_names(serve, tmp_path):
    """As transformers writes them today: model.language_model. in front."""
    model = checkpoint.copy_model(WRAPPED, tmp_path / "model")
    tensors = fp8.read(model)
    renamed = {}
    for name, tensor in tensors.items():
        _, _, rest = name.partition("language_model.model.")
        renamed["model.language_model." + rest if rest else "model." + name] = tensor
    fp8.write(model, renamed, model)
    prompt, tokens = checkpoint.golden_runs(WRAPPED)[0]
    assert serve(model, "--dtype", "float32").token_ids(prompt, 24) == tokens[:24]


@pytest.mark.parametrize("change, wanted", [
    (lambda config: config.pop("text_config"), "text_config is missing, expected an object"),
    (lambda config: config["text_config"].update(hidden_activation="gelu"),
     'hidden_activation is "gelu", expected "gelu_pytorch_tanh"'),
    (lambda config: config["text_config"].update(
        rope_scaling=None, rope_parameters={"rope_type": "default"}),
     "rope_parameters is an object, expected full_attention and sliding_attention"),
    (lambda config: config["text_config"].update(layer_types=["full_attention"]),
     "layer_types is an array, expected a list of as many as num_hidden_layers"),
    (lambda config: config["text_config"].update(use_bidirectional_attention=True),
     "use_bidirectional_attention is true, expected false")])
def test_bad_config(tmp_path, change, wanted):
    model = checkpoint.copy_model(WRAPPED, tmp_path / "model")
    checkpoint.edit_config(model, change)
    assert wanted in fails(3, "plan", model)


def test_missing_norm(tmp_path):
    model = checkpoint.copy_model("gemma2_f32", tmp_path / "model")
    name = "model.layers.1.post_feedforward_layernorm.weight"
    checkpoint.drop_tensor(model / "model.safetensors", name)
    assert name in fails(3, "serve", model, "--port", 0)
