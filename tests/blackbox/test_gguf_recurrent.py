"""tessera convert of models whose layers recur. That each tensor comes back, and that the model
answers as the original and as transformers, is tested in test_gguf.py with all others; here is what
only such files can lack or have wrong."""

import struct

import numpy
import pytest

import fp8
from test_gguf import (corpus, FILES, PROMPT, convert, converted, damaged, lost, number, read_known,
                       sizes)

NEXT, OLD = "qwen3_next", "qwen3_next_old"
DENSE, CODES, MOE = "qwen3_5", "qwen3_5_q8_0", "qwen3_5_moe"


def test_convolution_has_the_shape_of_transformers(tmp_path):
    converted(DENSE, tmp_path / "model")
    found = fp8.read(tmp_path / "model")
    assert found["model.layers.0.linear_attn.conv1d.weight"].shape == (256, 1, 3)


def test_values_of_codes_answer(serve, tmp_path):
    """In the type that they have unless another is asked for."""
    assert "tensors of BF16" in converted(CODES, tmp_path / "model")
    server = serve(tmp_path / "model", "--skip-tokenizer-init", "-tp", 2)
    assert len(server.token_ids(PROMPT, 8)) == 8


# ---- keys that files may lack -------------------------------------------------------------------


@pytest.mark.parametrize("name, key", [
    (MOE, b"qwen35moe.feed_forward_length"),          # of no use where all layers have experts
    (CODES, b"qwen35.attention.recurrent_layers"),    # every third attends, which
    (OLD, b"qwen3next.full_attention_interval")])     # these two keys say; 4 where neither does
def test_missing_keys(tmp_path, name, key):
    lost = key[:-1] + b"_"
    changes = [(key, lost)]
    if name == CODES:
        changes.append((number("full_attention_interval", 4), number("full_attention_interval", 3)))
    done = convert(damaged(tmp_path, name, *changes), tmp_path / "model")
    if name == OLD:
        assert done.returncode == 3
        assert "no tensor for model.layers.1.linear_attn.in_proj_qkvz.weight" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    converted(name, tmp_path / "whole")
    whole = (tmp_path / "whole/model.safetensors").read_bytes()
    assert (tmp_path / "model/model.safetensors").read_bytes() == whole


# ---- what is refused ----------------------------------------------------------------------------


def flags(*layers, kind=7):
    """Which layers recur, as the file has it: truth values, or of another type of one byte."""
    return b"recurrent_layers" + struct.pack("<IIQ", 9, kind, len(layers)) + bytes(layers)


@pytest.mark.parametrize("name, changes, said", [
    (NEXT, lost(b"qwen3next.ssm.group_count"),
     "qwen3next.ssm.group_count: expected an integer, got nothing"),
    (DENSE, lost(b"qwen35.ssm.time_step_rank"),
     "qwen35.ssm.time_step_rank: expected an integer, got nothing"),
    (DENSE, lost(b"qwen35.ssm.state_size"),
     "qwen35.ssm.state_size: expected an integer, got nothing"),
    (DENSE, lost(b"qwen35.ssm.conv_kernel"),
     "qwen35.ssm.conv_kernel: expected an integer, got nothing"),
    (DENSE, lost(b"qwen35.ssm.inner_size"),
     "qwen35.ssm.inner_size: expected an integer, got nothing"),
    (DENSE, lost(b"qwen35.feed_forward_length"),
     "qwen35.feed_forward_length: expected an integer, got nothing"),
    (MOE, lost(b"qwen35moe.expert_shared_feed_forward_length"),
     "qwen35moe.expert_shared_feed_forward_length: expected an integer, got nothing"),
    (DENSE, [(number("ssm.inner_size", 192), number("ssm.inner_size", 194))],
     "qwen35.ssm.inner_size: expected a multiple of ssm.time_step_rank, which is 6, got 194"),
    (DENSE, [(number("ssm.inner_size", 192), number("ssm.inner_size", 0))],
     "qwen35.ssm.inner_size: expected an integer from 1 to"),
    (DENSE, [(number("ssm.time_step_rank", 6), number("ssm.time_step_rank", 0))],
     "qwen35.ssm.time_step_rank: expected an integer from 1 to"),
    (DENSE, [(number("ssm.group_count", 2), number("ssm.group_count", 4))],
     "linear_num_value_heads is 6, expected a multiple of linear_num_key_heads, which is 4"),
    (DENSE, [(number("ssm.group_count", 2), number("ssm.group_count", 3))],
     "blk.0.attn_qkv.weight: expected 288 x 32 values for "
     "model.layers.0.linear_attn.in_proj_qkv.weight, got 256 x 32"),
    (NEXT, [(number("ssm.group_count", 2), number("ssm.group_count", 1))],
     "blk.0.attn_qkv.weight: expected 160 x 32 values for "
     "model.layers.0.linear_attn.in_proj_qkvz.weight, got 192 x 32"),
    (OLD, [(number("ssm.group_count", 2), number("ssm.group_count", 1))],
     "blk.0.ssm_in.weight: expected 192 x 32 values for "
     "model.layers.0.linear_attn.in_proj_qkvz.weight, got 256 x 32"),
    (NEXT, [(number("ssm.conv_kernel", 4), number("ssm.conv_kernel", 2))],
     "blk.0.ssm_conv1d.weight: expected 192 x 2 values for "
     "model.layers.0.linear_attn.conv1d.weight, got 192 x 4"),
    (NEXT, [(sizes("attn_gate.weight", 128, 32), sizes("attn_gate.weight", 64, 64))],
     "blk.0.attn_gate.weight: expected 128 x 32 values for "
     "model.layers.0.linear_attn.in_proj_qkvz.weight, got 64 x 64"),
    (NEXT, [(sizes("attn_qkv.weight", 192, 32), sizes("attn_qkv.weight", 96, 64))],
     "blk.0.attn_qkv.weight: expected 192 x 32 values for "
     "model.layers.0.linear_attn.in_proj_qkvz.weight, got 96 x 64"),
    (DENSE, [(sizes("ssm_conv1d.weight", 256, 3), sizes("ssm_conv1d.weight", 128, 6))],
     "blk.0.ssm_conv1d.weight: expected 256 x 3 values for "
     "model.layers.0.linear_attn.conv1d.weight, got 128 x 6"),
    (MOE, [(sizes("ffn_gate_up_exps.weight", 3, 64, 32),
            sizes("ffn_gate_up_exps.weight", 2, 96, 32))],
     "blk.0.ffn_gate_up_exps.weight: expected 32 x 32 values for "
     "model.layers.0.mlp.experts.0.gate_proj.weight, got 48 x 32"),
    (NEXT, [(b"blk.1.attn_gate.weight", b"blk.1.attn_gone.weight")],
     "no tensor for model.layers.1.linear_attn.in_proj_qkvz.weight"),
    (DENSE, [(b"blk.2.ssm_a\1", b"blk.2.ssm_b\1")],
     "no tensor for model.layers.2.linear_attn.A_log"),
    (DENSE, [(flags(1, 0, 1, 1, 0, 0), flags(1, 0, 1, 0, 0, 0))],
     "no tensor for model.layers.3.self_attn.q_proj.weight"),
    (DENSE, [(flags(1, 0, 1, 1, 0, 0), flags(1, 0, 1, 1, 2, 0, kind=0))],
     "qwen35.attention.recurrent_layers: expected truth values, got something else"),
    (DENSE, [(number("block_count", 6), number("block_count", 7))],
     "qwen35.attention.recurrent_layers: expected 7 truth values, got 6"),
    (DENSE, [(number("nextn_predict_layers", 1), number("nextn_predict_layers", 6))],
     "qwen35.nextn_predict_layers: expected an integer from 0 to 5, got another"),
    (DENSE, lost(b"qwen35.nextn_predict_layers"), "blk.5.nextn.eh_proj.weight: no such tensor"),
    (DENSE, [(number("rope.dimension_count", 8), number("rope.dimension_count", 32))],
     "qwen35.rope.dimension_count: expected an integer from 1 to 16, got another"),
    (MOE, [(b"blk.0.ffn_gate_up_exps.weight", b"blk.0.ffn_gate_us_exps.weight")],
     "no tensor for model.layers.0.mlp.experts.0.gate_proj.weight"),
    (MOE, [(number("moe.expert_feed_forward_length", 32),
            number("moe.expert_feed_forward_length", 16))],
     "blk.0.ffn_gate_up_exps.weight: expected 16 x 32 values for "
     "model.layers.0.mlp.experts.0.gate_proj.weight, got 32 x 32"),
])
def test_refused(tmp_path, name, changes, said):
    """One line, which names the file and what is wrong with it, and nothing is left."""
    path = damaged(tmp_path, name, *changes)
    done = convert(path, tmp_path / "out")
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith(f"tessera: {path}: ") and said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [0.5, 0, float("nan"), float("-inf")])
def test_what_is_no_decay(tmp_path, value):
    """Is only found among the values, behind what is said of the tokenizer."""
    name = "model.layers.3.linear_attn.A_log"
    logs = corpus.values(name, read_known(DENSE)["tensors"][name])
    raw = (FILES / f"{DENSE}.gguf").read_bytes()
    there = [raw[at:at + 24] for at in range(0, len(raw) - 24, 32)]
    with numpy.errstate(invalid="ignore", divide="ignore"):
        old, = [b for b in there if numpy.sort(numpy.log(-numpy.frombuffer(b, "<f4")))
                == pytest.approx(numpy.sort(logs), abs=1e-6)]
    done = convert(damaged(tmp_path, DENSE, (old, old[:20] + struct.pack("<f", value))),
                   tmp_path / "out")
    assert done.returncode == 3
    assert ("blk.3.ssm_a: expected values below 0 (each minus an exponential), got "
            f"{value:g}") in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out").exists()
