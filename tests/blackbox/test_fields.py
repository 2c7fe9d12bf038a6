"""Every field of a completion by its effect; where there is one, against an outside oracle."""

import collections
import shutil

import numpy
import pytest

import checkpoint

MODEL = "tied_gqa2_f32"
PROMPT = "Once upon a time"
EOS = 2


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """A checkpoint whose logits transformers computed."""
    import conftest
    yield from conftest.shared(tmp_path_factory, checkpoint.GOLDEN / MODEL, "-tp", 2,
                               "--dtype", "float32")


@pytest.fixture(scope="module")
def last_row():
    """(prompt, the logits of the token after it)."""
    prompt, _ = checkpoint.golden_runs(MODEL)[0]
    return prompt, checkpoint.golden_logits(MODEL, 0)[len(prompt) - 1]


def greedy(server, prompt=PROMPT, count=24, **fields):
    fields = {"temperature": 0, "return_token_ids": True, **fields}
    return server.complete(prompt, max_tokens=count, **fields)["choices"][0]


# ---- against golden logits --------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.2, 0.8, 1.3, 5])
def test_repetition_penalty_counts_the_prompt(golden, last_row, penalty):
    prompt, logits = last_row
    wanted = logits.copy()
    for token in set(prompt):
        wanted[token] = wanted[token] / penalty if wanted[token] > 0 else wanted[token] * penalty
    assert golden.token_ids(prompt, 1, repetition_penalty=penalty) == [wanted.argmax()]


@pytest.mark.parametrize("size", [0.5, 2, 100, -100])
def test_logit_bias(golden, last_row, size):
    prompt, logits = last_row
    order = numpy.argsort(-logits)
    bias = {int(order[0]): -abs(size) / 2, int(order[1]): size, int(order[50]): size / 2}
    wanted = logits.copy()
    for token, value in bias.items():
        wanted[token] += value
    found = golden.token_ids(prompt, 1, logit_bias={str(key): v for key, v in bias.items()})
    assert found == [wanted.argmax()]


def drawn(server, prompt, **fields):
    """Which tokens come first in 96 draws."""
    fields = {"max_tokens": 1, "n": 8, "return_token_ids": True, **fields}
    answers = [server.complete(prompt, seed=seed, **fields) for seed in range(12)]
    return collections.Counter(choice["token_ids"][0] for answer in answers
                               for choice in answer["choices"])


@pytest.mark.parametrize("fields", [
    {"top_k": 1}, {"top_k": 4}, {"top_p": 0.05}, {"top_p": 0.4}, {"min_p": 0.5}, {"min_p": 1.0},
    {"top_k": 30, "top_p": 0.5, "min_p": 0.1}])
def test_only_the_likeliest_are_drawn(golden, last_row, fields):
    prompt, logits = last_row
    order = numpy.argsort(-logits)[:fields.get("top_k", len(logits))]
    share = numpy.exp(checkpoint.log_softmax(logits[order]))
    before = numpy.cumsum(share) - share
    allowed = (before < fields.get("top_p", 1)) & (share >= fields.get("min_p", 0) * share[0])
    found = drawn(golden, prompt, temperature=1, **fields)
    assert set(found) <= {int(token) for token in order[allowed]}
    assert len(found) == 1 or allowed.sum() > 1
    if allowed.sum() > 3:
        assert len(found) > 1


@pytest.mark.parametrize("temperature", [0.5, 1, 2])
def test_temperature(golden, last_row, temperature):
    """How often the likeliest is drawn: within five standard deviations of 96 draws."""
    prompt, logits = last_row
    share = numpy.exp(checkpoint.log_softmax(logits / temperature))
    best = int(logits.argmax())
    found = drawn(golden, prompt, temperature=temperature)[best]
    assert abs(found - 96 * share[best]) <= 5 * (96 * share[best] * (1 - share[best])) ** 0.5 + 1


@pytest.mark.parametrize("presence, frequency", [(2, 0), (0, 0.5), (0.7, 1.1), (-2, 0)])
def test_penalties_count_what_was_generated(golden, presence, frequency):
    """Replayed from the distributions that come with the answer, which are those before them."""
    prompt, _ = checkpoint.golden_runs(MODEL)[0]
    choice = greedy(golden, prompt, 40, presence_penalty=presence, frequency_penalty=frequency,
                    logprobs=20, ignore_eos=True)
    seen = collections.Counter()
    for token, top in zip(choice["token_ids"], choice["logprobs"]["top_logprobs"], strict=True):
        top = {int(key.removeprefix("token_id:")): value for key, value in top.items()}
        scores = {key: value - frequency * seen[key] - presence * (seen[key] > 0)
                  for key, value in top.items()}
        assert scores[token] == pytest.approx(max(scores.values()), abs=1e-4)
        seen[token] += 1
    assert choice["token_ids"] != golden.token_ids(prompt, 40)


# ---- how an answer ends -----------------------------------------------------------------------


def test_stop_token_ids(demo):
    ids = greedy(demo)["token_ids"]
    stop = ids[6]
    count = ids.index(stop) + 1
    choice = greedy(demo, stop_token_ids=[stop, 2000])
    assert choice["token_ids"] == ids[:count]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    before = greedy(demo, count=count - 1)["text"]
    assert choice["text"] == before
    kept = greedy(demo, stop_token_ids=[stop], include_stop_str_in_output=True)
    assert kept["text"] == greedy(demo, count=count)["text"] != before


def test_stop_strings(demo):
    text = greedy(demo)["text"]
    stop = text[20:25]
    choice = greedy(demo, stop=["\x07", stop])
    assert choice["text"] == text[:text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    kept = greedy(demo, stop=[stop], include_stop_str_in_output=True)
    assert kept["text"] == text[:text.index(stop) + len(stop)]
    assert greedy(demo, stop=None)["stop_reason"] is None
    assert greedy(demo, stop=[])["text"] == text


def test_min_tokens(demo):
    ids = greedy(demo, count=900)["token_ids"]
    assert ids[-1] == EOS
    longer = greedy(demo, count=900, min_tokens=len(ids) + 3)["token_ids"]
    assert longer[:len(ids) - 1] == ids[:-1]
    assert EOS not in longer[:len(ids) + 3]
    early = greedy(demo, min_tokens=5, stop_token_ids=[ids[0]])["token_ids"]
    assert len(early) > 5 and ids[0] not in early[:5]
    word = greedy(demo, count=2)["text"]
    assert greedy(demo, stop=word)["text"] == ""
    assert greedy(demo, stop=word, min_tokens=3)["text"].startswith(word)


def test_ignore_eos(demo):
    ids = greedy(demo, count=900)["token_ids"]
    choice = greedy(demo, count=len(ids) + 10, ignore_eos=True)
    assert choice["token_ids"][:len(ids)] == ids
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (len(ids) + 10, "length")
    assert "</s>" not in choice["text"]
    shown = greedy(demo, count=len(ids) + 10, ignore_eos=True, skip_special_tokens=False)
    assert "</s>" in shown["text"]
    assert shown["text"].replace("</s>", "").replace("<s>", "") == choice["text"]


def test_nothing_to_generate(demo):
    answer = demo.complete(PROMPT, max_tokens=0)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "length")
    assert answer["usage"]["completion_tokens"] == 0
    chunks = [chunk for _, chunk in demo.stream(PROMPT, max_tokens=0)]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == ["length"]


def test_bad_words(demo):
    text = greedy(demo)["text"]
    words = text.split()[:4]
    for word in words:
        assert word not in greedy(demo, bad_words=word)["text"].split()
    assert not set(words) & set(greedy(demo, bad_words=words)["text"].split())


def test_bad_words_that_name_control_tokens(demo):
    """As prompts do: the token is forbidden, unless its name is said to be letters."""
    end, = demo.post("/tokenize", {"prompt": "</s>", "add_special_tokens": False}).json()["tokens"]
    for word, letters, ended in ((None, None, True), ("</s>", None, False), (" </s>", None, False),
                                 ("</s>", False, True), ("</s", None, True)):
        choice = greedy(demo, count=1, logit_bias={str(end): 100}, bad_words=word,
                        parse_special=letters)
        assert (choice["finish_reason"] == "stop") == ended, (word, letters)


# ---- prompts ----------------------------------------------------------------------------------


def prompt_ids(server, prompt, **fields):
    return greedy(server, prompt, 1, **fields)["prompt_token_ids"]


def test_special_tokens_of_prompts(demo):
    with_start = prompt_ids(demo, PROMPT)
    assert with_start[0] == 1
    assert prompt_ids(demo, PROMPT, add_special_tokens=False) == with_start[1:]
    assert prompt_ids(demo, with_start[1:]) == with_start[1:]


def test_truncate_prompt_tokens(demo):
    whole = prompt_ids(demo, PROMPT)
    assert prompt_ids(demo, PROMPT, truncate_prompt_tokens=2) == whole[-2:]
    assert prompt_ids(demo, PROMPT, truncate_prompt_tokens=500) == whole
    assert prompt_ids(demo, PROMPT, truncate_prompt_tokens=-1) == whole
    long = [5 + i % 1000 for i in range(3000)]
    assert prompt_ids(demo, long, truncate_prompt_tokens=-1) == long[-1023:]
    answer = demo.complete(long, truncate_prompt_tokens=900, max_tokens=2, echo=True, logprobs=0)
    assert answer["usage"]["prompt_tokens"] == 900
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == 902


@pytest.mark.parametrize("text", ["a\0b", "\u2028 \u00a0\ufeff", "\U0001f98a" * 9, "<s></s>", " "])
def test_odd_text_comes_back(demo, text):
    """What echo shows is what was sent, whatever characters it has."""
    for fields in ({}, {"parse_special": False}):
        answer = demo.complete(text, max_tokens=0, echo=True, **fields)
        assert answer["choices"][0]["text"] == text


# ---- streams ----------------------------------------------------------------------------------


def test_usage_in_every_chunk(demo):
    usage = {"include_usage": True, "continuous_usage_stats": True}
    chunks = [chunk for _, chunk in demo.stream(PROMPT, max_tokens=6, temperature=0,
                                                ignore_eos=True, stream_options=usage)]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[0] == 1 and counts[-1] == 6
    assert chunks[-1]["choices"] == []
    only_last = [chunk for _, chunk in demo.stream(PROMPT, max_tokens=3, ignore_eos=True,
                                                   stream_options={"include_usage": True})]
    assert only_last[-1]["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in only_last[:-1])
    none = [chunk for _, chunk in demo.stream(PROMPT, max_tokens=3, ignore_eos=True)]
    assert not any("usage" in chunk for chunk in none)


def test_ids_in_a_stream(demo):
    fields = dict(max_tokens=12, temperature=0, ignore_eos=True, return_token_ids=True)
    whole = demo.complete(PROMPT, **fields)["choices"][0]
    choices = [chunk["choices"][0] for _, chunk in demo.stream(PROMPT, **fields)]
    assert [token for choice in choices for token in choice["token_ids"]] == whole["token_ids"]
    prompts = [choice["prompt_token_ids"] for choice in choices if "prompt_token_ids" in choice]
    assert prompts == [whole["prompt_token_ids"]]


# ---- defaults and leniency --------------------------------------------------------------------


def test_generation_config(serve, tmp_path):
    """The model's own defaults hold unless the request or the operator says otherwise."""
    model = tmp_path / "model"
    shutil.copytree(checkpoint.DEMO, model)
    (model / "generation_config.json").write_text(
        '{"temperature": 0.9, "top_k": 1, "repetition_penalty": 1.5, "eos_token_id": 2}')
    fields = dict(max_tokens=24, return_token_ids=True, ignore_eos=True)
    own, plain = serve(model, "-tp", 1), serve(model, "-tp", 1, "--generation-config", "none")
    wanted = plain.complete(PROMPT, temperature=0, repetition_penalty=1.5, **fields)
    assert own.complete(PROMPT, **fields)["choices"] == wanted["choices"]
    other = own.complete(PROMPT, repetition_penalty=1, **fields)["choices"]
    assert other == plain.complete(PROMPT, temperature=0, **fields)["choices"] != wanted["choices"]
    texts = {plain.complete(PROMPT, **fields)["choices"][0]["text"] for _ in range(4)}
    assert len(texts) > 1  # temperature 1
    document = own.get("/openapi.json").json()["paths"]["/v1/completions"]["post"]
    schema = document["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["top_k"]["default"] == 1
    assert schema["properties"]["temperature"]["default"] == 0.9


def test_integral_floats_are_integers(demo):
    answer = greedy(demo, count=4.0, n=1.0, seed=7.0, logprobs=1.0, top_k=0.0, ignore_eos=True)
    assert len(answer["token_ids"]) == 4


def test_unknown_fields_are_named_once(serve):
    server = serve(checkpoint.DEMO, "-tp", 1)
    for _ in range(3):
        server.complete(PROMPT, max_tokens=1, no_such_field=1, user="me", metadata={"a": "b"})
    assert server.log.count("no_such_field") == 1
    assert "metadata" not in server.log


def test_refused_because_of_another(demo):
    for fields, param in [({"best_of": 2}, "best_of"), ({"stream_options": {}}, "stream_options"),
                          ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
                          ({"min_tokens": 17}, "min_tokens"), ({"suffix": "x"}, "suffix"),
                          ({"response_format": {"type": "json_schema"}}, "response_format"),
                          ({"structured_outputs": {"regex": "a"}, "guided_regex": "a"},
                           "guided_regex")]:
        reply = demo.post("/v1/completions", {"prompt": PROMPT, **fields})
        assert (reply.status, reply.error["param"]) == (400, param), reply.body
    two = demo.post("/v1/completions", {
        "prompt": PROMPT, "structured_outputs": {"choice": ["a"], "regex": "b"}}).error
    assert "structured_outputs.regex and structured_outputs.choice cannot" in two["message"]
    demo.complete(PROMPT, max_tokens=1, n=2, best_of=2, response_format={"type": "text"}, suffix="")


# ---- names ------------------------------------------------------------------------------------


def test_names_with_slashes(serve):
    server = serve(checkpoint.DEMO, "-tp", 1, "--served-model-name", "team/story model,alias")
    assert [model["id"] for model in server.get("/v1/models").json()["data"]] == [
        "team/story model", "alias"]
    assert server.get("/v1/models/").body == server.get("/v1/models").body
    for path in ("team/story%20model", "team%2Fstory%20model", "team%2fstory%20model"):
        assert server.get(f"/v1/models/{path}").json()["id"] == "team/story model", path
    for path in ("team", "team/", "other", "alias/", "%00", "a%00lias", "alias%00x"):
        reply = server.get(f"/v1/models/{path}")
        assert reply.status in (400, 404), path
        assert reply.error["message"]
    reply = server.post("/v1/completions", {"prompt": "a", "model": "alias\0x"})
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path, methods", [
    ("/v1/completions", "POST"), ("/tokenize", "POST"), ("/detokenize", "POST"),
    ("/v1/models", "GET"), ("/v1/models/demo", "GET"), ("/tokenizer_info", "GET"),
    ("/openapi.json", "GET"), ("/health", "GET"), ("/metrics", "GET"), ("/", "GET")])
def test_methods(demo, path, methods):
    allowed = {"GET": "GET, HEAD, OPTIONS", "POST": "POST, OPTIONS"}[methods]
    for method in ("DELETE", "PUT", "PATCH", "POST" if methods == "GET" else "GET"):
        reply = demo.request(method, path, headers={"X-Request-Id": "mine"})
        assert (reply.status, reply.headers["allow"]) == (405, allowed), method
        assert reply.headers["x-request-id"] == "mine"
        assert reply.error["message"].endswith(f"the method {method}: it has {allowed}")
    assert demo.request("OPTIONS", path).status in (200, 204)
    head = demo.request("HEAD", path)
    assert head.body == b""
    assert head.status == (200 if methods == "GET" else 405)
    if methods == "GET" and path != "/metrics":
        assert head.headers["content-length"] == demo.get(path).headers["content-length"]
