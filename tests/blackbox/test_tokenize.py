"""/tokenize, /detokenize and /tokenizer_info against SentencePiece's own tables."""

import pytest

import checkpoint

SPECIAL = {"<s>": 1, "</s>": 2}


def tokenize(demo, status=200, **body):
    reply = demo.post("/tokenize", body)
    assert reply.status == status, reply.body
    return reply.json()


def detokenize(demo, tokens):
    reply = demo.post("/detokenize", {"tokens": tokens})
    assert reply.status == 200, reply.body
    answer = reply.json()
    assert answer["prompt"] == answer["content"]
    return answer["prompt"]


@pytest.mark.parametrize("text", ["Once upon a time", "  two  spaces", "café ☕ 🦊\n", "x" * 3000])
def test_round_trip(demo, text):
    answer = tokenize(demo, prompt=text, return_token_strs=True)
    tokens = answer["tokens"]
    assert answer["count"] == len(tokens) == len(answer["token_strs"])
    assert answer["max_model_len"] == 1024
    assert tokens[0] == SPECIAL["<s>"]
    assert tokenize(demo, content=text, add_special_tokens=False)["tokens"] == tokens[1:]
    assert detokenize(demo, tokens[1:]) == text
    assert detokenize(demo, tokens) == "<s>" + text


def test_same_ids_as_a_completion_uses(demo):
    text = "Once upon a time, there was"
    answer = demo.complete(text, max_tokens=1, return_token_ids=True)
    assert answer["choices"][0]["prompt_token_ids"] == tokenize(demo, prompt=text)["tokens"]


@pytest.mark.parametrize("text, token", SPECIAL.items())
def test_special_tokens_by_name(demo, text, token):
    """Harnesses look for the end token by encoding its text."""
    assert tokenize(demo, prompt=text, add_special_tokens=False)["tokens"] == [token]
    spelt = tokenize(demo, prompt=text, add_special_tokens=False, parse_special=False)["tokens"]
    assert token not in spelt
    inside = tokenize(demo, prompt=f"a{text}b", add_special_tokens=False)["tokens"]
    assert inside.count(token) == 1
    for fields, wanted in (({}, [token]), ({"parse_special": False}, spelt)):
        answer = demo.complete(text, max_tokens=1, return_token_ids=True, **fields)
        assert answer["choices"][0]["prompt_token_ids"][1:] == wanted


def test_tokenizer_info(demo):
    info = demo.get("/tokenizer_info").json()
    assert info["bos_token"] == "<s>" and info["eos_token"] == "</s>"
    assert info["tokenizer_class"] == "LlamaTokenizer"
    config = checkpoint.read_json(checkpoint.DEMO / "tokenizer_config.json")
    assert info == {**config, "chat_template": None}


def test_refused(demo):
    assert demo.post("/tokenize", {}).error["param"] == "prompt"
    assert demo.post("/tokenize", {"messages": []}).error["param"] == "messages"
    both = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}
    assert "only one" in demo.post("/tokenize", both).error["message"]
    alone = demo.post("/tokenize", {"prompt": "a", "add_generation_prompt": True}).error
    assert alone["param"] == "add_generation_prompt" and "messages only" in alone["message"]
    assert demo.post("/detokenize", {"tokens": [2048]}).error["param"] == "tokens"
    assert demo.post("/detokenize", {"tokens": "1"}).error["param"] == "tokens"


def test_without_a_tokenizer(serve):
    server = serve(checkpoint.GOLDEN / "tied_gqa2_f32", "-tp", 1)
    for reply in (server.post("/tokenize", {"prompt": "a"}), server.get("/tokenizer_info")):
        assert reply.status == 501
        assert reply.error["code"] == "no_tokenizer"


def test_several_names(serve):
    server = serve(checkpoint.DEMO, "-tp", 2, "--served-model-name", "a,b")
    assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["a", "b"]
    assert server.get("/v1/models/b").json()["id"] == "b"
    for name in ("a", "b"):
        assert server.complete("Once", max_tokens=1, model=name)["model"] == "a"
