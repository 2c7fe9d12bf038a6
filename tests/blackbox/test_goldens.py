"""Greedy tokens equal those of an independent implementation, at every number of ranks."""

import pytest

import checkpoint
from harness import is_sanitized

RANKS = [3] if is_sanitized() else [1, 2, 3, 4, 5, 8]  # sanitized ranks are slow


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", checkpoint.golden_names())
def test_greedy_tokens(serve, name, ranks):
    server = serve(checkpoint.GOLDEN / name, "-tp", ranks, "--dtype", "float32",
                   "--quantization", "none")
    runs = checkpoint.golden_runs(name)
    for prompt, tokens in runs:
        assert server.token_ids(prompt, len(tokens)) == tokens
    together = server.token_ids_together([(prompt, len(tokens), {}) for prompt, tokens in runs])
    assert together == [tokens for _, tokens in runs]


@pytest.mark.parametrize("arguments", [("--max-num-batched-tokens", 8), ("--max-num-seqs", 1)])
def test_greedy_tokens_in_small_steps(serve, arguments):
    """Prompts cut into chunks, and requests that wait for each other, change nothing."""
    name = "tied_gqa2_f32"
    server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--dtype", "float32", *arguments)
    runs = checkpoint.golden_runs(name)
    requests = [(prompt, len(tokens), {}) for prompt, tokens in runs * 3]
    assert server.token_ids_together(requests) == [tokens for _, tokens in runs * 3]
