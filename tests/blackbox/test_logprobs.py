"""Log-probabilities equal those of Hugging Face transformers, in the shapes that clients parse.

The first half is what lm-evaluation-harness's `local-completions` model does, request and parse
step, so its loglikelihoods are checked here without installing it.
"""

import operator

import numpy
import pytest

import checkpoint

PROMPT = "Once upon a time"


def ask_harness(server, contexts, continuations):
    """[(loglikelihood, greedy)] as the harness computes it, from one request."""
    tokens = [context + continuation for context, continuation in zip(contexts, continuations)]
    answer = server.complete(tokens, max_tokens=1, logprobs=1, echo=True, temperature=0, seed=1234)
    results = []
    choices = sorted(answer["choices"], key=operator.itemgetter("index"))
    for choice, context, whole in zip(choices, contexts, tokens, strict=True):
        logprobs = choice["logprobs"]
        assert len(logprobs["token_logprobs"]) == len(whole) + 1
        own = logprobs["token_logprobs"][len(context):-1]
        best = logprobs["top_logprobs"][len(context):-1]
        results.append((sum(own), all(one == max(top.values()) for one, top in zip(own, best))))
    return results


def golden_logprobs(name, index):
    """In double precision, and how large the logits are that they come from."""
    logits = checkpoint.golden_logits(name, index)
    return checkpoint.log_softmax(logits), numpy.abs(logits).max()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", checkpoint.golden_names())
def test_harness_loglikelihoods(serve, name, ranks):
    """Both prompts, of unequal length, in one batch; every split into context and continuation."""
    server = serve(checkpoint.GOLDEN / name, "-tp", ranks, "--dtype", "float32",
                   "--quantization", "none")
    prompts = [prompt for prompt, _ in checkpoint.golden_runs(name)]
    goldens = [golden_logprobs(name, index) for index in range(len(prompts))]
    for split in (1, 2, 4):
        contexts = [prompt[:split] for prompt in prompts]
        continuations = [prompt[split:] for prompt in prompts]
        found = ask_harness(server, contexts, continuations)
        for prompt, (logprobs, largest), (total, greedy) in zip(prompts, goldens, found):
            places = range(split, len(prompt))
            wanted = sum(logprobs[place - 1, prompt[place]] for place in places)
            assert total == pytest.approx(wanted, abs=2e-5 * largest * len(places))
            assert greedy == all(logprobs[place - 1].argmax() == prompt[place] for place in places)


@pytest.mark.parametrize("name", ["tied_gqa2_f32", "untied_mqa_f16"])
def test_greedy_continuations_count_as_greedy(serve, name):
    server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--dtype", "float32")
    runs = checkpoint.golden_runs(name)
    contexts = [prompt for prompt, _ in runs]
    found = ask_harness(server, contexts, [tokens[:20] for _, tokens in runs])
    assert [greedy for _, greedy in found] == [True, True]
    wrong = [tokens[:19] + [(tokens[19] + 1) % 100] for _, tokens in runs]
    assert [greedy for _, greedy in ask_harness(server, contexts, wrong)] == [False, False]


def test_top_logprobs(serve):
    """The best ones of each place, in order, against the golden distribution."""
    name = "llama31_rope_f32"
    server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--dtype", "float32")
    prompt = checkpoint.golden_runs(name)[0][0]
    logprobs, largest = golden_logprobs(name, 0)
    answer = server.complete(prompt, max_tokens=1, logprobs=20, echo=True, temperature=0)
    shape = answer["choices"][0]["logprobs"]
    assert shape["token_logprobs"][0] is None and shape["top_logprobs"][0] is None
    for place in range(1, len(prompt) + 1):
        top = shape["top_logprobs"][place]
        best = numpy.argsort(-logprobs[place - 1], kind="stable")[:20]
        keys = [f"token_id:{token}" for token in best]
        assert set(keys) <= set(top) and len(top) <= 21
        values = [top[key] for key in keys]
        assert values == pytest.approx(list(logprobs[place - 1][best]), abs=4e-5 * largest)
        assert shape["token_logprobs"][place] == top[shape["tokens"][place]]


def test_prompt_logprobs(serve):
    """vLLM's shape: by token id, with rank and text."""
    name = "tied_gqa2_f32"
    server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--dtype", "float32")
    prompt = checkpoint.golden_runs(name)[1][0]
    logprobs, largest = golden_logprobs(name, 1)
    answer = server.complete(prompt, max_tokens=1, prompt_logprobs=3, temperature=0)
    choice = answer["choices"][0]
    assert choice["logprobs"] is None
    assert choice["prompt_logprobs"][0] is None
    assert len(choice["prompt_logprobs"]) == len(prompt)
    for place in range(1, len(prompt)):
        entry = choice["prompt_logprobs"][place]
        best = numpy.argsort(-logprobs[place - 1], kind="stable")[:3]
        ranks = {value["rank"]: int(key) for key, value in entry.items() if value["rank"]}
        assert ranks == {rank + 1: token for rank, token in enumerate(best)}
        own = entry[str(prompt[place])]["logprob"]
        assert own == pytest.approx(logprobs[place - 1, prompt[place]], abs=4e-5 * largest)


# ---- with a tokenizer -------------------------------------------------------------------------


def test_nothing_generated(demo):
    """max_tokens 0 scores the prompt alone."""
    answer = demo.complete(PROMPT, max_tokens=0, logprobs=2, echo=True)
    choice = answer["choices"][0]
    assert choice["text"] == PROMPT
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    longer = demo.complete(PROMPT, max_tokens=5, logprobs=2, echo=True, temperature=0)
    begin = longer["choices"][0]["logprobs"]["token_logprobs"]
    assert begin[:len(choice["logprobs"]["tokens"])] == choice["logprobs"]["token_logprobs"]


def test_echo(demo):
    plain = demo.complete(PROMPT, max_tokens=9, temperature=0)["choices"][0]
    echoed = demo.complete(PROMPT, max_tokens=9, temperature=0, echo=True)["choices"][0]
    assert echoed["text"] == PROMPT + plain["text"]
    assert echoed["logprobs"] is None


@pytest.mark.parametrize("echo", [False, True])
def test_offsets_are_places_in_the_text(demo, echo):
    answer = demo.complete(PROMPT + " café ☕", max_tokens=30, logprobs=1, echo=echo, temperature=0)
    choice = answer["choices"][0]
    shape = choice["logprobs"]
    assert shape["text_offset"] == sorted(shape["text_offset"])
    pieces = zip(shape["tokens"], shape["text_offset"])
    for index, (token, offset) in enumerate(pieces):
        if token.startswith("bytes:") or token in ("<s>", "</s>"):
            continue
        first = echo and index == 1  # the space that encoding puts before a text is no part of it
        assert choice["text"].startswith(token.lstrip() if first else token, offset)


def test_the_end_token_is_an_entry(demo):
    """Else a harness that drops the last entry would drop a token of the prompt."""
    ids = demo.complete(PROMPT, max_tokens=900, temperature=0, return_token_ids=True)
    choice = ids["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["token_ids"][-1] == 2
    prompt = choice["prompt_token_ids"] + choice["token_ids"][:-1]
    answer = demo.complete(prompt, max_tokens=1, logprobs=1, echo=True, temperature=0, seed=1234)
    shape = answer["choices"][0]["logprobs"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert shape["tokens"][-1] == "</s>"
    assert len(shape["token_logprobs"]) == len(prompt) + 1
    assert shape["token_logprobs"][-1] == max(shape["top_logprobs"][-1].values())


def test_stream_has_the_same_logprobs(demo):
    fields = dict(max_tokens=12, temperature=0, logprobs=3, echo=True)
    whole = demo.complete(PROMPT, **fields)["choices"][0]
    joined = {}
    text = ""
    for _, chunk in demo.stream(PROMPT, **fields):
        for choice in chunk["choices"]:
            text += choice["text"]
            for key, values in choice["logprobs"].items():
                joined.setdefault(key, []).extend(values)
    assert text == whole["text"]
    assert joined == whole["logprobs"]


def test_tokens_as_ids(demo):
    answer = demo.complete(PROMPT, max_tokens=3, temperature=0, logprobs=2, return_token_ids=True,
                           return_tokens_as_token_ids=True)
    choice = answer["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    for token, top in zip(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"]):
        assert token in top and len(top) == 2
