"""tessera convert: llama.cpp's files as Hugging Face's directories. tests/corpus/gguf_models was
written by llama.cpp's own converter, from checkpoints whose values the test makes again, so what
comes back must be what went in: each tensor bit for bit, and a model that answers with the same
bits."""

import json
import shutil
import struct
import sys

import numpy
import pytest

import fp8
from harness import ROOT, run

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402
import make_gguf_models as corpus  # noqa: E402  (lives in the folder just added)

FILES = ROOT / "tests/corpus/gguf_models"
NAMES = sorted(path.stem for path in FILES.glob("*.json"))
PROMPT = corpus.PROMPT


def convert(path, out, *arguments):
    return run("convert", path, "-o", out, *arguments)


def converted(name, out, *arguments):
    done = convert(FILES / f"{name}.gguf", out, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_known(name):
    """What is known of the checkpoint that the converter saw."""
    return json.loads((FILES / f"{name}.json").read_text())


def write_original(directory, name, **other):
    """That checkpoint, in fp32, but for other tensors."""
    known = read_known(name)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({**known["config"], "dtype": "float32"}))
    return fp8.write(directory, {**{tensor: corpus.values(tensor, shape)
                                    for tensor, shape in known["tensors"].items()}, **other},
                     directory)


GROWTH, LENGTH = "attention.temperature_scale", "attention.temperature_length"


def whole_value(value):
    """Of 32 bits, with its type, as the file has it behind the key."""
    return struct.pack("<II", 4, value)


def real_value(value):
    """Of fp32."""
    return struct.pack("<If", 6, value)


def with_keys(tmp_path, name, *keys, folder=FILES):
    """A copy with more keys, of which the last only keeps what follows aligned."""
    more = b"".join(struct.pack("<Q", len(key)) + key.encode() + value for key, value in keys)
    padding = (-len(more) - 16) % 32 or 32
    more += struct.pack("<Q", padding) + b"x" * padding + whole_value(0)
    data = (folder / f"{name}.gguf").read_bytes()
    magic, version, tensors, count = struct.unpack("<4sIQQ", data[:24])
    path = tmp_path / f"{name}.gguf"
    header = struct.pack("<4sIQQ", magic, version, tensors, count + len(keys) + 1)
    path.write_bytes(header + more + data[24:])
    return path


def as_q8_0(values):
    """ggml's Q8_0: each 32 of a row in whole parts of the largest's 127th, which is an fp16."""
    blocks = values.reshape(-1, 32)
    scale = abs(blocks).max(axis=1, keepdims=True) / numpy.float32(127)
    parts = numpy.float32(1) / numpy.where(scale == 0, 1, scale) * blocks
    codes = numpy.trunc(parts + numpy.copysign(numpy.float32(0.5), parts))
    return (codes * scale.astype("f2").astype("f4")).reshape(values.shape)


def coded(tensor, values, config):
    """As the file has it in codes: blocks are of columns in the file's order, and of keys of a
    latent down the columns."""
    if tensor.endswith(".kv_b_proj.weight"):
        heads = values.reshape(config["num_attention_heads"], -1, values.shape[1])
        keys, v = numpy.split(heads, [config["qk_nope_head_dim"]], axis=1)
        keys = as_q8_0(keys.swapaxes(1, 2)).swapaxes(1, 2)
        return numpy.concatenate([keys, as_q8_0(v)], axis=1).reshape(values.shape)
    if not tensor.endswith(".linear_attn.out_proj.weight"):
        return as_q8_0(values)
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    by_key = values.reshape(len(values), keys, heads // keys, -1)
    there = as_q8_0(by_key.swapaxes(1, 2).reshape(values.shape))
    return there.reshape(by_key.swapaxes(1, 2).shape).swapaxes(1, 2).reshape(values.shape)


# in fp32 whatever the others are; decays also come through two functions
EXACT = ("correction_bias", ".A_log", ".linear_attn.norm.weight")
EXACT_ROUTERS = ["ernie4_5_moe"]


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_comes_back(tmp_path, name):
    known = read_known(name)
    guesses = (f"model.layers.{known['config']['num_hidden_layers']}.", "mtp.")  # left out
    tensors = {tensor: shape for tensor, shape in known["tensors"].items()
               if not tensor.startswith(guesses)}
    codes = known["type"] == "Q8_0"
    said = converted(name, tmp_path / "model", *(["--dtype", "float32"] if codes else []))
    found = fp8.read(tmp_path / "model")
    kind = "F32" if codes else known["type"]
    assert f"{len(found)} tensors of {kind}" in said
    assert sorted(found) == sorted(tensors)
    for tensor, shape in tensors.items():
        exact = tensor.endswith(EXACT) or (tensor.endswith("mlp.gate.weight") and
                                           known["config"]["model_type"] in EXACT_ROUTERS)
        assert found[tensor].dtype == fp8.TYPES["F32" if exact else kind], tensor
        wanted = corpus.values(tensor, shape)
        if codes and len(shape) == 2 and not tensor.endswith("mlp.gate.weight"):
            wanted = coded(tensor, wanted, known["config"])
        if tensor.endswith(".A_log"):
            assert found[tensor] == pytest.approx(wanted, abs=3e-7), tensor
        else:
            assert numpy.array_equal(found[tensor].astype("f4"), wanted), tensor


@pytest.mark.parametrize("name", NAMES)
def test_model_answers_as_the_original(serve, tmp_path, name):
    """Bit by bit, scores too: so config.json says the same of shapes, norms, windows, rotations."""
    converted(name, tmp_path / "model", "--dtype", "float32")
    decays = {tensor: values for tensor, values in fp8.read(tmp_path / "model").items()
              if tensor.endswith(".A_log")}
    original = write_original(tmp_path / "original", name, **decays)
    if read_known(name)["type"] == "Q8_0":
        shutil.copy(tmp_path / "model/model.safetensors", original)
    answers = []
    for model in (original, tmp_path / "model"):
        server = serve(model, "--skip-tokenizer-init", "-tp", 2)
        reply = server.complete(PROMPT, max_tokens=24, temperature=0, logprobs=3, ignore_eos=True,
                                return_token_ids=True)["choices"][0]
        answers.append((reply["token_ids"], reply["logprobs"]["token_logprobs"],
                        reply["logprobs"]["top_logprobs"]))
    assert len(answers[0][0]) == 24
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", [name for name in NAMES if "answers" in read_known(name)])
def test_answers_of_transformers(serve, tmp_path, name):
    """To the checkpoint that the converter saw."""
    wanted = read_known(name)["answers"]
    converted(name, tmp_path / "model", "--dtype", "float32")
    for ranks in (1, 3):
        server = serve(tmp_path / "model", "--skip-tokenizer-init", "-tp", ranks)
        reply = server.complete(PROMPT, max_tokens=24, temperature=0, logprobs=0, ignore_eos=True,
                                return_token_ids=True)["choices"][0]
        assert reply["token_ids"] == wanted["tokens"]
        assert reply["logprobs"]["token_logprobs"] == pytest.approx(wanted["logprobs"], abs=1e-4)


@pytest.mark.parametrize("name, arch", [("deepseek_v3", "deepseek2"), ("dots1", "dots1"),
                                        ("exaone_moe", "exaone-moe")])
def test_numbers_that_are_not_said(tmp_path, name, arch):
    """Are what llama.cpp takes for them, not what the family's class does."""
    changes = lost(*(f"{arch}.expert_{key}".encode() for key in (
        "group_count", "group_used_count", "weights_norm", "weights_scale")))
    done = convert(damaged(tmp_path, name, *changes), tmp_path / "model")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert [config[key] for key in ("n_group", "topk_group", "norm_topk_prob",
                                    "routed_scaling_factor")] == [1, 1, False, 1]


def test_dots_has_no_window(tmp_path):
    """Its class has one where a config says nothing of it."""
    converted("dots1", tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert config["sliding_window"] is None and config["model_type"] == "dots1"


def test_ernie_without_numbers(tmp_path):
    """All layers are of experts and none is shared, if the file does not say it."""
    changes = lost(*(b"ernie4_5-moe." + key for key in (b"leading_dense_block_count",
                                                        b"expert_shared_count")))
    done = convert(damaged(tmp_path, "ernie4_5_moe_old", *changes), tmp_path / "model")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert config["moe_layer_start_index"] == config["moe_num_shared_experts"] == 0


def test_mistral3_whose_queries_do_not_grow(tmp_path):
    """Mistral's own class has a window of 4,096 where its config says nothing of one."""
    converted("mistral3", tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert config["model_type"] == "llama" and config["rope_theta"] == 1e6
    assert not {"sliding_window", "rope_scaling"} & set(config)


@pytest.mark.parametrize("name, changes, model_type", [
    ("ministral3", [("mistral3." + LENGTH, whole_value(64))], "ministral3"),
    ("deepseek_v3", [("deepseek2." + GROWTH, real_value(0)),
                     ("deepseek2." + LENGTH, whole_value(7))], "deepseek_v3"),
    ("mistral3", [("mistral3." + GROWTH, real_value(0))], "llama"),
])
def test_growth_that_changes_nothing(tmp_path, name, changes, model_type):
    """Is the length that the family has, or none."""
    done = convert(with_keys(tmp_path, name, *changes), tmp_path / "model")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert config["model_type"] == model_type
    grows = "llama_4_scaling_beta" in config.get("rope_scaling", {})
    assert grows == (name == "ministral3")


WINDOW, PATTERN = "exaone4.attention.sliding_window", "exaone4.attention.sliding_window_pattern"


def listed(*slides, kind=7):
    """Which layers slide, as the file has it behind the key: truth values, or of another type."""
    return struct.pack(f"<IIQ{len(slides)}B", 9, kind, len(slides), *slides)


@pytest.mark.parametrize("keys, kinds", [
    ([], ["full", "full"]),
    ([(WINDOW, whole_value(24))], ["sliding", "sliding"]),
    ([(WINDOW, whole_value(24)), (PATTERN, whole_value(2))], ["sliding", "full"]),
    ([(WINDOW, whole_value(24)), (PATTERN, listed(0, 1))], ["full", "sliding"]),
])
def test_layers_that_slide(tmp_path, keys, kinds):
    """By a list, by a number, or as llama.cpp takes it."""
    done = convert(with_keys(tmp_path, "exaone4_plain", *keys), tmp_path / "model")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert config["layer_types"] == [f"{kind}_attention" for kind in kinds]
    assert config["sliding_window"] == (24 if keys else None)


def with_value(tmp_path, name, key, value):
    """A copy with another value of a key, of any length."""
    path = with_keys(tmp_path, name, (key[:-1] + "q", value))
    key = key.encode()
    path.write_bytes(path.read_bytes().replace(key, key[:-1] + b"_").replace(key[:-1] + b"q", key))
    return path


def with_list(tmp_path, *slides):
    """K-EXAONE, of four layers and one that guesses, with another list of those that slide."""
    return with_value(tmp_path, "exaone_moe", "exaone-moe.attention.sliding_window_pattern",
                      listed(*slides))


@pytest.mark.parametrize("guesses", [[], [0], [1]])
def test_list_with_layers_that_guess(tmp_path, guesses):
    """They are left out, whatever the list says of them."""
    done = convert(with_list(tmp_path, 0, 1, 0, 1, *guesses), tmp_path / "model")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert config["layer_types"] == ["full_attention", "sliding_attention"] * 2


# ---- what is refused ----------------------------------------------------------------------------


def damaged(tmp_path, name, *changes):
    """A copy with bytes in the place of as many others."""
    data = (FILES / f"{name}.gguf").read_bytes()
    for old, new in changes:
        assert len(old) == len(new) and old in data
        data = data.replace(old, new)
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(data)
    return path


def number(key, value):
    """A key of 32 bits as the file has it."""
    return key.encode() + whole_value(value)


def sizes(name, *shape):
    """Of a tensor, as the file has them."""
    return name.encode() + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))


def lost(*names):
    return [(name, name[:-1] + b"_") for name in names]  # one more letter would move tensors


def real(key, value):
    """A key of fp32."""
    return key.encode() + real_value(value)


def llama3_factors(theta=500000.0, pairs=4, factor=8.0, original=64):
    """Of Llama 3.1's model card, in fp32 as the converter has them."""
    found = []
    for i in range(pairs):
        length = 2 * numpy.pi * theta ** (i / pairs)
        smooth = (original / length - 1) / 3
        found.append(1 if length < original / 4 else factor if length > original
                     else 1 / ((1 - smooth) / factor + smooth))
    return numpy.array(found, "<f4")


def assert_refused(path, out, said):
    """In one line, which names the file and what is wrong with it, and nothing is left."""
    done = convert(path, out)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith(f"tessera: {path}: ") and said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize("name, changes, said", [
    ("llama", [(b"llama", b"mamba")],
     'general.architecture is "mamba"; expected one of llama, mistral3, qwen2, '),
    ("llama", [(b"llama.block_count", b"llama.block_coumt")],
     "llama.block_count: expected an integer, got nothing"),
    ("llama", [(number("llama.embedding_length", 32), number("llama.embedding_length", 48))],
     "token_embd.weight: expected 64 x 48 values for model.embed_tokens.weight, got 64 x 32"),
    ("llama", [(number("llama.block_count", 2), number("llama.block_count", 1))],
     "blk.1."),
    ("llama", [(number("llama.block_count", 2), number("llama.block_count", 3))],
     "no tensor for model.layers.2.input_layernorm.weight"),
    ("qwen3", [(number("attention.head_count_kv", 2), number("attention.head_count_kv", 3))],
     "num_key_value_heads"),
    ("llama", [(number("rope.dimension_count", 8), number("rope.dimension_count", 4))],
     "llama.rope.dimension_count: expected an integer from 8 to 8, got another"),
    ("glm4_moe", [(number("nextn_predict_layers", 1), number("nextn_predict_layers", 4))],
     "glm4moe.nextn_predict_layers: expected an integer from 0 to 3, got another"),
    ("glm4_moe", [(number("expert_gating_func", 2), number("expert_gating_func", 1))],
     "glm4moe.expert_gating_func: expected an integer from 2 to 2, got another"),
    ("qwen3", [(real("rope.freq_base", 1000), real("rope.freq_base", float("nan")))],
     "qwen3.rope.freq_base: expected a finite number"),
    ("qwen3", [(real("rope.freq_base", 1000), number("rope.freq_base", 1000)[:-8]
                + struct.pack("<II", 5, 1000)), (b"scaling.factor", b"scaling.facxor")],
     "qwen3.rope.scaling.factor: expected a number, got nothing"),
    ("llama", [(b"blk.1.attn_k.weight", b"blk.1.attn_z.weight")],
     "no tensor for model.layers.1.self_attn.k_proj.weight"),
    ("llama", [(llama3_factors().tobytes(), llama3_factors()[::-1].tobytes())],
     "rope_freqs.weight: expected the factors of Llama 3's rotation"),
    ("qwen2", [(b"qwen2", b"llama")], "attention_bias"),
    ("gemma", [(b"token_embd.weight", b"token_embq.weight")],
     "token_embd.weight: expected a matrix, got nothing"),
    ("qwen3", [(b"yarn", b"yard")],
     'qwen3.rope.scaling.type is "yard"; expected none, linear, yarn or longrope'),
    ("qwen3_moe", [(number("expert_count", 5), number("expert_count", 4))], "expected 4 x 32"),
    ("deepseek_v2", lost(b"deepseek2.attention.kv_lora_rank"),
     "deepseek2.attention.kv_lora_rank: expected an integer, got nothing"),
    ("deepseek_v2", lost(b"deepseek2.attention.value_length_mla"),
     "deepseek2.attention.value_length_mla: expected an integer, got nothing"),
    ("deepseek_v2_old", lost(b"deepseek2.attention.value_length"),
     "deepseek2.attention.value_length: expected an integer, got nothing"),
    ("deepseek_v2", [(number("key_length_mla", 48), number("key_length_mla", 16))],
     "deepseek2.attention.key_length_mla: expected an integer from 17 to"),
    ("deepseek_v2", [(sizes("attn_k_b.weight", 4, 64, 32), sizes("attn_k_b.weight", 4, 32, 64))],
     "blk.0.attn_k_b.weight: expected 64 x 32 values for "
     "model.layers.0.self_attn.kv_b_proj.weight, got 32 x 64"),
    ("deepseek_v2", [(sizes("attn_v_b.weight", 4, 16, 64), sizes("attn_v_b.weight", 2, 32, 64))],
     "blk.0.attn_v_b.weight: expected 4 matrices for "
     "model.layers.0.self_attn.kv_b_proj.weight, got 2"),
    ("deepseek_v2", [(b"blk.1.attn_v_b.weight", b"blk.1.attn_v_c.weight")],
     "no tensor for model.layers.1.self_attn.kv_b_proj.weight"),
    ("deepseek_v2_old", [(number("attention.kv_lora_rank", 64),
                          number("attention.kv_lora_rank", 32))],
     "blk.0.attn_kv_a_mqa.weight: expected 48 x 32 values for "
     "model.layers.0.self_attn.kv_a_proj_with_mqa.weight, got 80 x 32"),
    ("deepseek_v3", [(number("expert_gating_func", 2), number("expert_gating_func", 3))],
     "deepseek2.expert_gating_func: expected an integer from 2 to 2, got another"),
    ("ministral3", [(real(GROWTH, 0.3), real(GROWTH, float("nan")))],
     "mistral3.attention.temperature_scale: expected a finite number"),
    ("ministral3", [(real(GROWTH, 0.3), real(GROWTH, -0.3))], "llama_4_scaling_beta"),
    ("ministral3", [(b"yarn", b"none")],
     "mistral3.rope.scaling.type: expected yarn alone beside attention.temperature_scale, got "),
    ("ministral3", lost(b"mistral3.rope.scaling.original_context_length"),
     "mistral3.rope.scaling.original_context_length: expected an integer, got nothing"),
    ("exaone4", lost(b"exaone4.attention.layer_norm_rms_epsilon"),
     "exaone4.attention.layer_norm_rms_epsilon: expected a number, got nothing"),
    ("exaone4", [(listed(1, 0, 1, 0, 1), listed(1, 0, 1, 0, 2, kind=0))],
     "exaone4.attention.sliding_window_pattern: expected truth values, got something else"),
    ("exaone4", [(b"blk.1.post_ffw_norm.weight", b"blk.1.post_ffw_norn.weight")],
     "no tensor for model.layers.1.post_feedforward_layernorm.weight"),
    *(("ernie4_5_moe", lost(b"ernie4_5-moe." + key),
       f"ernie4_5-moe.{key.decode()}: expected an integer, got nothing")
      for key in (b"interleave_moe_layer_step", b"expert_count", b"expert_used_count",
                  b"expert_feed_forward_length")),
    ("ernie4_5_moe", [(number("interleave_moe_layer_step", 1),
                       number("interleave_moe_layer_step", 2))], "moe_layer_interval"),
    ("ernie4_5_moe", [(number("leading_dense_block_count", 1),
                       number("leading_dense_block_count", 0))],
     "no tensor for model.layers.0.mlp."),
    ("ernie4_5_moe", [(number("expert_shared_count", 2), number("expert_shared_count", 1))],
     "_shexp.weight: expected 32 x 32 values"),
    ("ernie4_5_moe", lost(b"ernie4_5-moe.expert_shared_count"),
     "_shexp.weight: no such tensor in a model of this kind"),
    ("ernie4_5_moe", [(b"blk.2.exp_probs_b.bias", b"blk.2.exp_probs_c.bias")],
     "no tensor for model.layers.2.mlp.moe_statics.e_score_correction_bias"),
    ("dots1", lost(b"dots1.expert_gating_func"),
     "dots1.expert_gating_func: expected an integer, got nothing"),
    *(("dots1", [(number("expert_gating_func", 2), number("expert_gating_func", kind))],
       "dots1.expert_gating_func: expected an integer from 2 to 2, got another")
      for kind in (1, 3)),
    ("dots1", lost(b"dots1.expert_shared_count"),
     "dots1.expert_shared_count: expected an integer, got nothing"),
    ("dots1", lost(b"dots1.leading_dense_block_count"), "no tensor for model.layers.0.mlp."),
    ("dots1", [(number("expert_group_count", 1), number("expert_group_count", 4))], "n_group"),
    ("dots1", [(b"blk.2.exp_probs_b.bias", b"blk.2.exp_probs_c.bias")],
     "no tensor for model.layers.2.mlp.gate.e_score_correction_bias"),
    ("exaone_moe", lost(b"exaone-moe.expert_gating_func"),
     "exaone-moe.expert_gating_func: expected an integer, got nothing"),
    ("exaone_moe", [(number("expert_gating_func", 2), number("expert_gating_func", 1))],
     "exaone-moe.expert_gating_func: expected an integer from 2 to 2, got another"),
    ("exaone_moe", [(number("attention.sliding_window", 24),
                     number("attention.sliding_windo_", 24))],
     "exaone-moe.attention.sliding_window: expected an integer, got nothing"),
    ("exaone_moe", lost(b"exaone-moe.expert_shared_count"),
     "exaone-moe.expert_shared_count: expected an integer, got nothing"),
    ("exaone_moe", [(number("nextn_predict_layers", 1), number("nextn_predict_layers", 5))],
     "exaone-moe.nextn_predict_layers: expected an integer from 0 to 4, got another"),
    ("exaone_moe", [(b"blk.3.exp_probs_b.bias", b"blk.3.exp_probs_c.bias")],
     "no tensor for model.layers.3.mlp.e_score_correction_bias"),
    ("phi3", [(b"rope_factors_long", b"rope_factors_lost")], "4 short factors of rotation, but 0"),
])
def test_refused(tmp_path, name, changes, said):
    assert_refused(damaged(tmp_path, name, *changes), tmp_path / "out", said)


@pytest.mark.parametrize("name, keys, said", [
    ("ministral3", [("mistral3." + LENGTH, whole_value(32))],
     "mistral3.attention.temperature_length: expected an integer from 64 to 64, got another"),
    ("mistral3", [("mistral3." + GROWTH, struct.pack("<Id", 12, 1e300))],  # more than fp32 holds
     "mistral3.attention.temperature_scale: expected a finite number"),
    *((name, [(f"{arch}.{GROWTH}", real_value(0.1)), (f"{arch}.{LENGTH}", whole_value(64))],
       f"{arch}.attention.temperature_scale is 0.1: queries that grow with their positions are "
       "not supported in this architecture")
      for name, arch in (("deepseek_v2", "deepseek2"), ("deepseek_v3", "deepseek2"),
                         ("qwen3", "qwen3"), ("llama", "llama"))),
])
def test_growth_refused(tmp_path, name, keys, said):
    """llama.cpp's converter writes such a key of Mistral's mixtures, which it takes for DeepSeek's
    architecture; without it they would answer, and otherwise."""
    assert_refused(with_keys(tmp_path, name, *keys), tmp_path / "out", said)


@pytest.mark.parametrize("name, keys, said", [
    ("exaone4_plain", [(PATTERN, listed(1, 0))], "sliding_window"),
    ("exaone4_plain", [(WINDOW, whole_value(24)), (PATTERN, listed(1))],
     f"{PATTERN}: expected 2 truth values, got 1"),
    ("exaone4_plain", [(WINDOW, whole_value(24)), (PATTERN, whole_value(0))],
     f"{PATTERN}: expected an integer from 1 to 2147483647, got another"),
    ("exaone4_plain", [(WINDOW, real_value(24.5))], f"{WINDOW}: expected an integer"),
    *((name, [(f"{arch}.rope.{key}", real_value(8))],
       f"{arch}.rope.{key}: expected 1 where there is no rope.scaling.type, got ")
      for name, arch in (("gemma4", "gemma4"), ("exaone4_plain", "exaone4"))
      for key in ("scaling.factor", "scale_linear")),
    ("ernie4_5_moe", [("ernie4_5-moe.expert_gating_func", whole_value(2))],
     "ernie4_5-moe.expert_gating_func: expected an integer from 1 to 1, got another"),
    ("ernie4_5_moe", [("ernie4_5-moe.expert_group_count", whole_value(2))], "n_group"),
])
def test_more_keys_refused(tmp_path, name, keys, said):
    assert_refused(with_keys(tmp_path, name, *keys), tmp_path / "out", said)


@pytest.mark.parametrize("count", [3, 6])
def test_list_of_other_layers(tmp_path, count):
    assert_refused(with_list(tmp_path, *[1] * count), tmp_path / "out",
                   "exaone-moe.attention.sliding_window_pattern: expected 5 truth values, got "
                   f"{count}")


# ---- Gemma 4, which has layers of two kinds ------------------------------------------------------

SLIDES, KV_HEADS = "gemma4.attention.sliding_window_pattern", "gemma4.attention.head_count_kv"


def whole_values(*values):
    """An array, as the file has it behind the key."""
    return struct.pack(f"<IIQ{len(values)}i", 9, 5, len(values), *values)


def test_gemma4_says_what_transformers_reads(tmp_path):
    converted("gemma4", tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    original = read_known("gemma4")["config"]
    for key in ("model_type", "head_dim", "num_key_value_heads", "attention_k_eq_v", "layer_types",
                "sliding_window", "final_logit_softcapping", "rope_parameters",
                "hidden_size_per_layer_input", "num_kv_shared_layers", "enable_moe_block",
                "hidden_activation", "vocab_size"):
        assert config[key] == original[key], key
    own = {"head_dim": config["global_head_dim"],
           "num_key_value_heads": config["num_global_key_value_heads"]}
    assert original["per_layer_config"] == {"5": own}
    assert not {"query_pre_attn_scalar", "rope_theta", "rope_scaling"} & set(config)


@pytest.mark.parametrize("keys, kv_heads", [
    ([(KV_HEADS, whole_values(2, 2, 2, 2, 2, 1))], (2, 1)), ([(SLIDES, listed(*[0] * 6))], None)])
def test_gemma4_kinds_of_layers(tmp_path, keys, kv_heads):
    """A list as it was, and none that slides, which needs tensors of other shapes."""
    path = with_value(tmp_path, "gemma4", *keys[0])
    if kv_heads is None:
        assert_refused(path, tmp_path / "model", f"{KV_HEADS}: expected as many in all layers that "
                       "slide, and in all others, got something else")
        return
    assert convert(path, tmp_path / "model").returncode == 0
    config = json.loads((tmp_path / "model/config.json").read_text())
    found = config["num_key_value_heads"], config["num_global_key_value_heads"]
    assert found == kv_heads


@pytest.mark.parametrize("turning", range(13))
def test_gemma4_part_that_turns(tmp_path, turning):
    """Of twelve pairs any number, by what transformers makes of the part."""
    there = numpy.array([1.0] * 6 + [1e30] * 6, "<f4")
    other = numpy.array([1.0] * turning + [1e30] * (12 - turning), "<f4")
    path = damaged(tmp_path, "gemma4_kv", (there.tobytes(), other.tobytes()))
    assert convert(path, tmp_path / "model").returncode == 0
    config = json.loads((tmp_path / "model/config.json").read_text())
    part = config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    assert part * 24 // 2 == turning


@pytest.mark.parametrize("name, key, value, said", [
    ("gemma4", SLIDES, listed(*[1] * 6), f"{SLIDES}: expected false of the last layer, got"),
    ("gemma4", SLIDES, listed(1, 1, 0), f"{SLIDES}: expected 6 truth values, got 3"),
    ("gemma4", SLIDES, whole_value(6), f"{SLIDES}: expected 6 truth values, got 0"),
    ("gemma4", KV_HEADS, whole_values(2, 2, 4, 2, 2, 1), f"{KV_HEADS}: expected as many in all "
     "layers that slide, and in all others, got"),
    ("gemma4", KV_HEADS, whole_values(2, 1), f"{KV_HEADS}: expected an integer, or one of each"),
    ("gemma4", KV_HEADS, whole_values(2, 2, 2, 2, 2, 0), f"{KV_HEADS}: expected positive"),
    ("gemma4", KV_HEADS, real_value(2), f"{KV_HEADS}: expected an integer, or one of each layer"),
    ("gemma4", KV_HEADS, whole_values(2, 2, 2, 2, 2, 2), "blk.5.attn_k.weight: expected 64 x 32 "
     "values for model.layers.5.self_attn.k_proj.weight, got 32 x 32"),
    ("gemma4_kv", KV_HEADS, whole_values(1, 2, 1),
     f"{KV_HEADS}: expected as many in all layers, where all have values of their own, got"),
    *((name, "gemma4.feed_forward_length", columns, "gemma4.feed_forward_length: expected an "
       "integer, or one of each layer, twice as many where layers share, got something else")
      for name, columns in (("gemma4", whole_values(64, 64, 64, 64, 128, 128)),
                            ("gemma4_small", whole_values(64, 64, 64, 64, 128, 128)),
                            ("gemma4_small", whole_values(64, 64, 64, 64, 128, 128, 64)),
                            ("gemma4_small", whole_values(64, 64, 64, 64, 96, 96, 96)),
                            ("gemma4_small", whole_values(64, 64, 64, 128, 128, 128, 128)),
                            ("gemma4_small", real_value(64)))),
    ("gemma4", "gemma4.embedding_length_per_layer_input", whole_value(8),
     "per_layer_token_embd.weight: expected a matrix, got nothing"),
    ("gemma4", "gemma4.attention.shared_kv_layers", whole_value(1), "num_kv_shared_layers"),
    ("gemma4_small", "gemma4.attention.shared_kv_layers", whole_value(2),
     "gemma4.feed_forward_length: expected an integer, or one of each layer"),
    ("gemma4_small", "gemma4.embedding_length_per_layer_input", whole_value(0),
     "no such tensor in a model of this kind"),
    ("gemma4_moe", "gemma4.expert_count", whole_value(5),
     "expected 5 x 32 values for model.layers.0.router.proj.weight, got 6 x 32"),
    ("gemma4_moe", "gemma4.expert_count", whole_value(0), "no such tensor in a model of this kind"),
    ("gemma4_moe", "gemma4.expert_used_count", whole_value(7), "top_k_experts"),
    ("gemma4_moe", "gemma4.expert_feed_forward_length", whole_value(16),
     "expected 16 x 32 values for model.layers.0.experts.0.gate_proj.weight, got 32 x 32"),
    ("gemma4", "gemma4.rope.freq_base", real_value(float("inf")), "gemma4.rope.freq_base: expected "
     "a finite number"),
    *(("gemma4", f"gemma4.{key}", whole_value(8), f"gemma4.{key}: expected an integer from {wanted}"
       f" to {wanted}, got another")
      for key, wanted in (("attention.value_length", 32), ("attention.value_length_swa", 16),
                          ("rope.dimension_count", 32), ("rope.dimension_count_swa", 16))),
], ids=range(28))
def test_gemma4_refused(tmp_path, name, key, value, said):
    assert_refused(with_value(tmp_path, name, key, value), tmp_path / "out", said)


@pytest.mark.parametrize("name, changes, said", [
    *(("gemma4", lost(b"gemma4." + key.encode()), f"gemma4.{key}: expected {kind}, got nothing")
      for key, kind in (("attention.key_length_swa", "an integer"),
                        ("attention.sliding_window", "an integer"),
                        ("embedding_length_per_layer_input", "an integer"),
                        ("rope.freq_base_swa", "a number"))),
    ("gemma4", [(b"rope_freqs.weight", b"rope_freqs.weighd")],
     "rope_freqs.weight: expected 1 for each pair that turns, then 1e30 for the others"),
    ("gemma4", [(struct.pack("<5f", 1, 1, 1, 1, 1e30), struct.pack("<5f", 1, 1, 1, 1, 4))],
     "rope_freqs.weight: expected 1 for each pair that turns"),
    ("gemma4", [(struct.pack("<5f", 1, 1, 1, 1, 1e30), struct.pack("<5f", 1, 1e30, 1, 1, 1e30))],
     "rope_freqs.weight: expected 1 for each pair that turns"),
    ("gemma4", [(b"blk.1.attn_v.weight", b"blk.1.attn_w.weight")],
     "no tensor for model.layers.1.self_attn.v_proj.weight"),
    ("gemma4_kv", [(b"blk.0.attn_v.weight", b"blk.0.attn_w.weight")],
     "no tensor for model.layers.0.self_attn.v_proj.weight"),
    ("gemma4_kv", [(b"blk.2.attn_v.weight", b"blk.2.attn_w.weight")],
     "no such tensor in a model of this kind"),
    ("gemma4_moe", lost(b"gemma4.expert_used_count"), "top_k_experts"),
    *(("gemma4_moe", [(f"blk.2.{name}".encode(), f"blk.2.{name[:-1]}_".encode())],
       f"no tensor for model.layers.2.{lost}")
      for name, lost in (("ffn_gate_inp.scale", "router.scale"),
                         ("ffn_down_exps.scale", "router.per_expert_scale"),
                         ("pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"),
                         ("post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"))),
    ("gemma4_small", [(b"blk.6.inp_gate.weight", b"blk.6.inp_gave.weight")],
     "no tensor for model.layers.6.per_layer_input_gate.weight"),
    ("gemma4_small", [(b"blk.3.attn_k.weight", b"blk.3.attn_j.weight")],
     "no tensor for model.layers.3.self_attn.k_proj.weight"),
    ("gemma4", [(b"blk.3.layer_output_scale.weight", b"blk.3.layer_output_scape.weight")],
     "no tensor for model.layers.3.layer_scalar")])
def test_gemma4_damaged(tmp_path, name, changes, said):
    assert_refused(damaged(tmp_path, name, *changes), tmp_path / "out", said)


def test_gemma4_more_keys_refused(tmp_path):
    key = "gemma4.rope.scaling.type"
    path = with_keys(tmp_path, "gemma4", (key, struct.pack("<IQ", 8, 6) + b"linear"))
    assert_refused(path, tmp_path / "out", f"{key}: expected nothing, got something else")


def test_gemma4_keys_of_layers_that_share(serve, tmp_path):
    """A file may have tensors for them of layers that have those of others; nobody reads them."""
    path = with_value(tmp_path, "gemma4_kv", "gemma4.attention.shared_kv_layers", whole_value(1))
    done = convert(path, tmp_path / "model", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    assert "model.layers.2.self_attn.k_proj.weight" not in fp8.read(tmp_path / "model")
    original = write_original(tmp_path / "original", "gemma4_kv")
    config = json.loads((original / "config.json").read_text())
    (original / "config.json").write_text(json.dumps({**config, "num_kv_shared_layers": 1}))
    wanted, _ = llama_numpy.greedy(original, PROMPT, 24)
    assert serve(tmp_path / "model", "-tp", 2).token_ids(PROMPT, 24) == wanted
    assert wanted != read_known("gemma4_kv")["answers"]["tokens"]


def test_gemma4_mixture(tmp_path):
    converted("gemma4_moe", tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert [config[key] for key in ("enable_moe_block", "num_experts", "top_k_experts",
                                    "moe_intermediate_size")] == [True, 6, 2, 32]


def test_more_tokens_than_rows(tmp_path):
    """Ids without an embedding: said now, not when the model is to be served."""
    tokens = [b"%03d" % i for i in range(64)] + [b"more"]
    array = b"".join(struct.pack("<Q", len(token)) + token for token in tokens)
    value = struct.pack("<IIQ", 9, 8, len(tokens)) + array
    path = with_keys(tmp_path, "llama", ("tokenizer.ggml.tokens", value))
    done = convert(path, tmp_path / "out")
    assert done.returncode == 3, done.stderr
    assert "tokenizer.ggml.tokens: 65 of them, but token_embd.weight has 64 rows" in done.stderr
    assert not (tmp_path / "out").exists()


def test_beyond_float16(tmp_path):
    """An infinity is no rounding."""
    path = damaged(tmp_path, "qwen2", (struct.pack("<f", 0.25), struct.pack("<f", 70000)))
    done = convert(path, tmp_path / "out", "--dtype", "float16")
    assert done.returncode == 3 and "values beyond 65504" in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()
    assert convert(path, tmp_path / "out", "--dtype", "bfloat16").returncode == 0


def test_truncated(tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes((FILES / "llama.gguf").read_bytes()[:-100])
    done = convert(path, tmp_path / "out")
    assert done.returncode == 3 and str(path) in done.stderr
    assert not (tmp_path / "out").exists()


def test_usage(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("kept")
    for arguments, said in (
            ([], "convert: which GGUF file?"), ([FILES / "llama.gguf"], "-o DIR is needed"),
            ([FILES / "llama.gguf", "-o", tmp_path / "full"], str(tmp_path / "full")),
            ([FILES / "llama.gguf", "-o", tmp_path / "x", "--dtype", "q4"], "float32")):
        done = run("convert", *arguments)
        assert done.returncode == 2 and said in done.stderr, done.stderr
    assert (tmp_path / "full/file").read_text() == "kept"
    done = run("serve", FILES / "llama.gguf")
    assert done.returncode == 3 and f"tessera convert {FILES / 'llama.gguf'} -o DIR" in done.stderr


# ---- models for vectors --------------------------------------------------------------------------


def with_pooling(path, out, architecture, kind):
    """One key more, and another behind it so that tensors stay aligned."""
    def text(value):
        return struct.pack("<Q", len(value)) + value

    raw = path.read_bytes()
    more = text(f"{architecture}.pooling_type".encode()) + struct.pack("<II", 4, kind)
    empty = text(b"test.filler") + struct.pack("<I", 8) + text(b"")
    more += text(b"test.filler") + struct.pack("<I", 8) + text(b" " * (-len(more + empty) % 32))
    tensors, keys = struct.unpack_from("<QQ", raw, 8)
    out.write_bytes(raw[:8] + struct.pack("<QQ", tensors, keys + 2) + more + raw[24:])
    return out


def test_model_for_vectors(serve, tmp_path):
    """The file says what is pooled, and the directory does, too."""
    original = write_original(tmp_path / "original", "qwen3")
    wanted = llama_numpy.vector(original, PROMPT[:20])
    file = with_pooling(FILES / "qwen3.gguf", tmp_path / "m.gguf", "qwen3", 3)
    done = convert(file, tmp_path / "model", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    reply = serve(tmp_path / "model", "-tp", 2).post("/v1/embeddings", {"input": PROMPT[:20]})
    assert abs(numpy.array(reply.json()["data"][0]["embedding"]) - wanted).max() < 5e-6
    file = with_pooling(FILES / "qwen3.gguf", tmp_path / "mean.gguf", "qwen3", 1)
    assert convert(file, tmp_path / "mean").returncode == 0
    done = run("serve", tmp_path / "mean", "--port", 0)
    assert done.returncode == 3 and "pooling_mode_mean_tokens" in done.stderr
    assert not (tmp_path / "model/1_Pooling/config.json.partial").exists()
