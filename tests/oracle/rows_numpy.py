"""What layers do with rows: norms, rotations, attention, activations; in float64."""

import math

import numpy as np


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x, cos, sin, interleaved):
    """Rotary embedding of x [n, heads, head_dim]: of the elements that turn, the first ones, each
    of the first half is paired with one of the second, or with its neighbour."""
    pairs = cos.shape[-1]
    turns = slice(0, 2 * pairs, 2) if interleaved else slice(pairs)
    with_it = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    out = x.copy()
    out[..., turns] = x[..., turns] * cos - x[..., with_it] * sin
    out[..., with_it] = x[..., with_it] * cos + x[..., turns] * sin
    return out


def capped(x, cap):
    return x if cap is None else cap * np.tanh(x / cap)


def attention(config, q, k, v, window, sinks=None):
    """Causal attention of q [n, heads, head_dim] on k and v [n, kv_heads, ...], or on the
    latest `window` of them, the query's own position included. sinks: of each head the score of one
    more key, which has no value."""
    n = q.shape[0]
    age = np.arange(n)[:, None] - np.arange(n)
    unseen = (age < 0) | (age >= (window or n))
    out = np.empty((n, config.heads, v.shape[-1]))
    for head in range(config.heads):
        kv = head // (config.heads // config.kv_heads)
        scores = q[:, head] @ k[:, kv].T / math.sqrt(config.query_scalar)
        scores = capped(scores, config.score_cap)
        scores[unseen] = -np.inf
        sink = np.full((n, 1), -np.inf if sinks is None else sinks[head])
        scores = np.concatenate([scores, sink], axis=-1)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = (scores / scores.sum(axis=-1, keepdims=True))[:, :n] @ v[:, kv]
    return out.reshape(n, -1)


def silu(x):
    """As x * (1 + tanh(x / 2)) / 2, which cannot overflow."""
    return x * (0.5 + 0.5 * np.tanh(0.5 * x))


def gelu(x):
    """In the form with tanh."""
    return x * (0.5 + 0.5 * np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def sigmoid(x):
    return 0.5 + 0.5 * np.tanh(x / 2)
