"""A model that says again what its prompt said: whatever is written DISTANCE tokens before the end
of the prompt is its answer. So a test chooses what "the model" says, token by token, and the server
under test runs real weights.

One layer. An embedding is a code of +1 and -1, and a one. Queries and keys are made of the one
alone, turned by RoPE so that the score of a key is highest DISTANCE back; values carry the codes,
and the head looks for the code that is nearest."""

import json

import numpy
import tokenizers

import checkpoint
import fp8

DISTANCE = 400  # from where the answer begins in the prompt to the prompt's end
THETA, HEAD, CODE = 10000.0, 64, 127


def weights(vocab):
    code = numpy.random.default_rng(5).choice([-1.0, 1.0], (vocab, CODE))
    one, hidden = CODE, CODE + 1
    angle = (DISTANCE - 1) / THETA ** (numpy.arange(0, HEAD, 2) / HEAD)
    query, key = numpy.zeros((HEAD, hidden)), numpy.zeros((HEAD, hidden))
    sharp = 200 ** 0.5  # a neighbour's weight is e^-27 of the best one's
    query[:, one] = sharp * numpy.concatenate([numpy.cos(angle), -numpy.sin(angle)])
    key[:HEAD // 2, one] = sharp
    value = numpy.eye(2 * HEAD, hidden)
    value[one] = 0
    output = 4 * numpy.eye(hidden, 2 * HEAD)
    output[one] = 0
    layer = "model.layers.0."
    return {name: numpy.ascontiguousarray(array, "<f4") for name, array in {
        "model.embed_tokens.weight": numpy.hstack([code, numpy.ones((vocab, 1))]),
        "lm_head.weight": numpy.hstack([code, numpy.zeros((vocab, 1))]),
        "model.norm.weight": numpy.ones(hidden),
        layer + "input_layernorm.weight": numpy.ones(hidden),
        layer + "post_attention_layernorm.weight": numpy.ones(hidden),
        layer + "self_attn.q_proj.weight": numpy.vstack([query, query]),
        layer + "self_attn.k_proj.weight": numpy.vstack([key, key]),
        layer + "self_attn.v_proj.weight": value,
        layer + "self_attn.o_proj.weight": output,
        layer + "mlp.gate_proj.weight": numpy.zeros((64, hidden)),
        layer + "mlp.up_proj.weight": numpy.zeros((64, hidden)),
        layer + "mlp.down_proj.weight": numpy.zeros((hidden, 64)),
    }.items()}


def write(directory, document, end, **config):
    """document: its tokenizer.json; end: the token that ends an answer; config: more for the
    tokenizer's."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    vocab = tokenizer.get_vocab_size()
    checkpoint.write_config(
        directory, hidden_size=CODE + 1, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=HEAD, vocab_size=vocab,
        max_position_embeddings=2048, rope_theta=THETA, torch_dtype="float32",
        eos_token_id=tokenizer.token_to_id(end))
    fp8.write(directory, weights(vocab), directory)
    (directory / "tokenizer.json").write_text(json.dumps(document))
    (directory / "tokenizer_config.json").write_text(json.dumps(
        {"eos_token": end, "model_max_length": int(1e30), **config}))
    return directory
