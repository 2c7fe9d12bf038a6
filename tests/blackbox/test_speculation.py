"""Guessed tokens change nothing but the time: with --speculative-config answers are those of a
server without it, token by token, and each guess that is right saves a step."""

import concurrent.futures
import json
import re

import openai
import pytest

import checkpoint
import parrot
import tokenizer_json as oracle
from conftest import shared
from harness import Command, is_sanitized
from test_recovery import REQUESTS as RECOVERED, answer, kill, lose_a_rank
from test_structured import PERSON, form

SPECULATING = "--speculative-config", "ngram"
SHORTER = 4 if is_sanitized() else 1
LETTERS = "ab cd. ab cd, ef. ab cd. ef, "
# What a sampler, a history or a client can do to a row; all say much again.
REQUESTS = [
    {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0, "ignore_eos": True},
    {"prompt": LETTERS * 8, "max_tokens": 150, "temperature": 0, "logprobs": 3, "ignore_eos": True},
    {"prompt": LETTERS * 8, "max_tokens": 150, "seed": 1, "temperature": 0.4, "n": 3, "logprobs": 1,
     "ignore_eos": True},
    {"prompt": LETTERS * 4, "max_tokens": 120, "seed": 2, "temperature": 0.5, "top_p": 0.9,
     "top_k": 40, "presence_penalty": 0.2, "frequency_penalty": 0.05, "repetition_penalty": 1.02,
     "ignore_eos": True},
    {"prompt": LETTERS * 4, "max_tokens": 120, "seed": 3, "temperature": 0.3, "min_p": 0.05,
     "bad_words": ["cd. ef", " the"], "min_tokens": 60, "logit_bias": {"5": -1.5}},
    {"prompt": LETTERS * 4, "max_tokens": 120, "temperature": 0, "stop": ["ef, ab cd. ef, ab"],
     "include_stop_str_in_output": True},
    {"prompt": LETTERS * 4, "max_tokens": 30, "temperature": 0, "echo": True, "logprobs": 2},
    {"prompt": "One day", "max_tokens": 1, "temperature": 0},
    {"prompt": "One day", "max_tokens": 0, "echo": True},
]
GUIDED = [
    {"prompt": "Once", "max_tokens": 300, "seed": 1, **form(PERSON)},
    {"prompt": "Once", "max_tokens": 300, "temperature": 0, "logprobs": 2,
     "structured_outputs": {"regex": '(\\{"name": "[a-c]", "age": [0-9]{2}\\}, ){12}'}},
]


def guessed(server):
    """(drafts, guesses, right ones)"""
    seen = server.metrics()
    right = seen.sum("vllm:spec_decode_num_accepted_tokens_total")
    assert right == seen.sum("vllm:spec_decode_num_accepted_tokens_per_pos_total")
    return (seen.sum("vllm:spec_decode_num_drafts_total"),
            seen.sum("vllm:spec_decode_num_draft_tokens_total"), right)


def pays(server):
    """Are rows so cheap here, by what the server measured, that guesses have to get some?"""
    line = re.search(r"a step takes ([\d.]+) ms with 1 row, ([\d.]+) ms with (\d+)", server.log)
    one, many, rows = line.groups()
    return float(many) < float(one) * int(rows) / 3


def answers_together(server, requests):
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: answer(server, request), requests))


@pytest.fixture(scope="module")
def wanted(tmp_path_factory, demo):
    """What a server says that guesses nothing; demo is one."""
    assert "spec_decode" not in demo.get("/metrics").body.decode()
    return [answer(demo, request) for request in REQUESTS + GUIDED]


@pytest.mark.sanitized
@pytest.mark.parametrize("arguments", [
    ("-tp", 1), ("-tp", 2), ("-tp", 4, "--sampler", "distributed"),
    ("-tp", 2, "--parallel-mode", "1d_sp"), ("-tp", 2, "--max-num-seqs", 1),
    ("-tp", 1, "--max-num-batched-tokens", 5, "--max-num-seqs", 5),
    ("-tp", 2, "--no-enable-prefix-caching")],
    ids=lambda arguments: " ".join(map(str, arguments)).replace("--", ""))
def test_answers_are_the_same(serve, wanted, arguments):
    server = serve(checkpoint.DEMO, *arguments, *SPECULATING)
    assert [answer(server, request) for request in REQUESTS + GUIDED] == wanted
    drafts, guesses, right = guessed(server)
    assert guesses >= drafts and right <= guesses
    assert right > 20 or not pays(server)
    assert answers_together(server, REQUESTS + GUIDED) == wanted
    assert answers_together(server, REQUESTS + GUIDED) == wanted  # from the prefix cache, too


@pytest.mark.parametrize("sampler", ["gather", "distributed"])
def test_each_right_guess_saves_a_step(serve, tmp_path, sampler):
    """A model that says its prompt again: from the third token on, the prompt has what follows."""
    count = 300 // SHORTER
    model = parrot.write(tmp_path / "parrot", oracle.qwen(), "<|endoftext|>")
    server = serve(model, "-tp", 2, "--sampler", sampler, "--speculative-config",
                   json.dumps({"method": "ngram", "num_speculative_tokens": 15}))
    prompt = [(i * 37 + i // 9) % 490 for i in range(parrot.DISTANCE)]
    before = server.metrics().sum("tessera:step_seconds_count")
    assert server.token_ids(prompt, count) == prompt[:count]
    steps = server.metrics().sum("tessera:step_seconds_count") - before
    _, guesses, right = guessed(server)
    assert right == guesses  # of what repeats itself word by word
    prefill = steps - (count - right) + 1
    assert prefill in (1, 2)  # 400 tokens, of steps with at most 512 rows
    assert right > count / 2 or not pays(server)


@pytest.mark.sanitized
@pytest.mark.parametrize("ranks, lost", [(1, 0), (2, 1)])
def test_a_lost_rank(serve, synthetic, ranks, lost):
    plain = serve(synthetic, "-tp", ranks)
    wanted = [answer(plain, request) for request in RECOVERED]
    server = serve(synthetic, "-tp", ranks, *SPECULATING)
    assert [answer(server, request) for request in RECOVERED] == wanted
    assert lose_a_rank(server, RECOVERED, kill(lost)) == wanted
    assert server.metrics().sum("tessera:group_restarts_total") == 1
    assert guessed(server)[2] > 0 or not pays(server)


@pytest.mark.sanitized
def test_undecided_rows(serve):
    """Elections that decide little, several threads a rank: rows are drawn a second time, side by
    side, and what is drawn behind a wrong guess is still the same on all ranks."""
    requests = [{"prompt": [1] + [264] * 40, "max_tokens": 100 // SHORTER, "seed": seed,
                 "temperature": 2, "top_p": 0.99, "logit_bias": {"264": 14, "261": 11},
                 "ignore_eos": True, "logprobs": 0, "frequency_penalty": 0.3,
                 "repetition_penalty": 1.1, "bad_words": ["a the", " a the"]}
                for seed in range(20 // SHORTER)]
    many = "-tp", 2, "--threads-per-rank", 4, "--cpu-bind", "none"
    plain = serve(checkpoint.DEMO, *many)
    wanted = [answer(plain, request) for request in requests]
    server = serve(checkpoint.DEMO, *many, "--sampler", "distributed", *SPECULATING)
    assert [answer(server, request) for request in requests] == wanted
    assert server.metrics().sum("tessera:group_restarts_total") == 0
    assert server.metrics().sum("tessera:sampler_fallback_total") > 0


def test_short_of_blocks(serve, wanted):
    """Guesses take blocks that are free, and whoever gives way says the same later."""
    server = serve(checkpoint.DEMO, "-tp", 2, "--kv-cache-memory", "1M", "--max-model-len", 256,
                   *SPECULATING)
    short = [i for i, request in enumerate(REQUESTS) if len(request["prompt"]) < 130]
    requests = [REQUESTS[i] for i in short] * 3
    assert answers_together(server, requests) == [wanted[i] for i in short] * 3
    assert server.metrics().sum("vllm:num_preemptions_total") > 0


def test_chat_and_stream(serve):
    """Tokens that come together go out in order, each with its logprob."""
    server = serve(checkpoint.DEMO, *SPECULATING)
    request = REQUESTS[1]
    whole = server.complete(**request)["choices"][0]
    chunks = [chunk["choices"][0] for _, chunk in server.stream(**request) if chunk["choices"]]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    tokens = [token for chunk in chunks if chunk["logprobs"]
              for token in chunk["logprobs"]["tokens"]]
    assert tokens == whole["logprobs"]["tokens"] and len(tokens) == request["max_tokens"]


@pytest.fixture(scope="module")
def guessing(tmp_path_factory):
    """A server with a chat template, and the official client's completions."""
    template = tmp_path_factory.mktemp("template") / "plain.jinja"
    template.write_text("{{ messages[-1].content }}")
    for server in shared(tmp_path_factory, checkpoint.DEMO, "-tp", 2, "--chat-template", template,
                         *SPECULATING):
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

        def ask(**fields):
            request = {"model": "model", "messages": [{"role": "user", "content": "One day"}],
                       "max_tokens": 150, "temperature": 0, **fields}
            return client.chat.completions.create(**request)
        yield server, ask


def test_prediction(guessing):
    """What a client says that the answer will be is guessed, and changes nothing else."""
    server, ask = guessing
    alone = ask()
    text = alone.choices[0].message.content
    assert alone.usage.completion_tokens_details is None

    def accepted(prediction):
        answer = ask(prediction={"type": "content", "content": prediction})
        assert answer.choices == alone.choices
        details = answer.usage.completion_tokens_details
        assert details.rejected_prediction_tokens >= 0
        return details.accepted_prediction_tokens
    words = text.split(" ")
    edited = " ".join(words[:20] + ["seven", "green", "dragons"] + words[20:])
    parts = [{"type": "text", "text": edited[:100]}, {"type": "text", "text": edited[100:]}]
    nothing = accepted("0123456789" * 20)
    for prediction in text, edited, parts:
        assert accepted(prediction) > nothing + 30 or not pays(server)
    chunks = list(ask(prediction={"type": "content", "content": text}, stream=True,
                      stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text
    assert chunks[-1].usage.completion_tokens_details.accepted_prediction_tokens >= 0


@pytest.mark.parametrize("prediction, says", [
    ("text", 'prediction must be {"type": "content"'),
    ({"type": "text", "content": "a"}, 'prediction must be {"type": "content"'),
    ({"type": "content"}, "prediction.content must be text"),
    ({"type": "content", "content": 5}, "prediction.content must be text"),
    ({"type": "content", "content": ["a"]}, "prediction.content[0] must be"),
    ({"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
     "prediction.content[1] must be"),
    ({"type": "content", "content": "a b c d " * 1000}, "more tokens than the model's context"),
    ({"type": "content", "content": "a b c d " * 400000}, "more tokens than the model's context")])
def test_refused_predictions(guessing, prediction, says):
    _, ask = guessing
    with pytest.raises(openai.BadRequestError) as refused:
        ask(prediction=prediction)
    assert says in refused.value.message and refused.value.param == "prediction"


@pytest.mark.parametrize("value, says", [
    ("eagle", 'got "eagle", expected none, ngram or a JSON object'),
    ('{"method": "medusa"}', 'method is "medusa", expected "ngram"'),
    ('{"num_speculative_tokens": 99}', "num_speculative_tokens: expected a whole number from 1"),
    ('{"promt_lookup_min": 2}', "did you mean prompt_lookup_min?"),
    ('{"method": "ngram"', "--speculative-config: ")])
def test_refused(value, says):
    assert says in Command("serve").refused(2, checkpoint.DEMO, "--speculative-config", value)


def test_plan_counts_its_places():
    """With more guesses than sequences, steps have more places to sample at."""
    def held(*arguments):
        text = Command("plan").text(checkpoint.DEMO, "--json", "-tp", 2, "--max-num-seqs", 1,
                                    *arguments)
        rank = json.loads(text)["per_rank"][0]
        return rank["activation_bytes"] + rank["comm_buffer_bytes"]
    assert held(*SPECULATING) - held() > 7 * 4 * 2048  # rows of logits
