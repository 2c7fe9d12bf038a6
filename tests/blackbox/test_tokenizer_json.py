"""tokenizer.json: ids and texts are those of Hugging Face's own tokenizers, for files of the kinds
that checkpoints come with."""

import concurrent.futures
import http.client
import json
import random

import pytest
import tokenizers

import checkpoint
import tokenizer_json as oracle
from harness import run

TEXTS = 1000
FIELDS = {"temperature": 1, "seed": 5, "ignore_eos": True, "max_tokens": 60}


def write_model(directory, document, **config):
    """A checkpoint without weights that has this tokenizer.json."""
    size = tokenizers.Tokenizer.from_str(json.dumps(document)).get_vocab_size()
    checkpoint.write_config(directory, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
                            num_attention_heads=2, num_key_value_heads=2, vocab_size=size + 3,
                            max_position_embeddings=4096)
    (directory / "tokenizer.json").write_text(json.dumps(document))
    if config:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


class Client:
    """One kept connection to a server, and the oracle beside it."""

    def __init__(self, server, document):
        self.server = server
        self.oracle = tokenizers.Tokenizer.from_str(json.dumps(document))
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def post(self, path, **body):
        self.connection.request("POST", path, json.dumps(body),
                                {"Content-Type": "application/json"})
        reply = self.connection.getresponse()
        text = reply.read()
        assert reply.status == 200, text
        return json.loads(text)

    def ids(self, text, **fields):
        return self.post("/tokenize", prompt=text, **fields)["tokens"]

    def text(self, ids):
        return self.post("/detokenize", tokens=ids)["prompt"]

    def wanted(self, text, special=False, named=True):
        self.oracle.encode_special_tokens = not named
        return self.oracle.encode(text, add_special_tokens=special).ids

    def control(self):
        return {i for i, token in self.oracle.get_added_tokens_decoder().items() if token.special}


@pytest.fixture(scope="module", params=oracle.FAMILIES)
def client(request, tmp_path_factory):
    from conftest import shared
    document = oracle.FAMILIES[request.param]()
    model = write_model(tmp_path_factory.mktemp("tokenizer") / request.param, document)
    for server in shared(tmp_path_factory, model, "-tp", 1, "--load-format", "dummy"):
        yield Client(server, document)


def test_ids(client):
    for text in oracle.texts(TEXTS):
        named = client.ids(text, add_special_tokens=False)
        assert named == client.wanted(text), repr(text)
        assert client.ids(text) == client.wanted(text, special=True), repr(text)


def test_ids_of_prompts(client):
    """Control tokens that a prompt spells out are letters; other added tokens are tokens."""
    control = client.control()
    for text in oracle.texts(TEXTS, seed=2):
        wanted = client.wanted(text, named=False)
        if not wanted:
            continue
        ids = client.ids(text, add_special_tokens=False, parse_special=False)
        assert ids == wanted, repr(text)
        assert not control & set(ids) - {client.oracle.token_to_id("<unk>")}


def test_control_tokens_in_completions(client):
    """A prompt's own ones are tokens, as with vLLM and llama.cpp, and letters where it says so."""
    for _, token in sorted(client.oracle.get_added_tokens_decoder().items())[:8]:
        text = f"a {token.content} b{token.content}"
        for named in (True, False):
            answer = client.post("/v1/completions", prompt=text, max_tokens=1,
                                 add_special_tokens=False, return_token_ids=True,
                                 **({} if named else {"parse_special": False}))
            ids = answer["choices"][0]["prompt_token_ids"]
            assert ids == client.wanted(text, named=named), (text, named)
            shown = client.post("/v1/completions", prompt=text, max_tokens=0, echo=True,
                                logprobs=0, parse_special=named)["choices"][0]
            if client.text(client.wanted(text, named=named)) == text:
                assert shown["text"] == text, named
                offsets = shown["logprobs"]["text_offset"]
                assert offsets == sorted(offsets) and offsets[-1] < len(text)


def test_texts(client):
    control = client.control()
    for text in oracle.texts(TEXTS, seed=3):
        ids = client.wanted(text, named=False)
        if ids and not control & set(ids):
            assert client.text(ids) == client.oracle.decode(ids), repr(text)


def test_texts_of_any_ids(client):
    """Characters that are cut or damaged come out as the same replacement characters."""
    noise = random.Random(4)
    document = json.loads(client.oracle.to_str())
    bytewise = document["decoder"]["type"] == "ByteLevel"
    usable = [i for i in range(client.oracle.get_vocab_size())
              if bytewise or not (client.oracle.id_to_token(i).startswith("<")
                                  or i in client.control())]
    for _ in range(300):
        ids = noise.choices(usable, k=noise.randrange(1, 20))
        assert client.text(ids) == client.oracle.decode(ids, skip_special_tokens=False), ids


def test_completions(client):
    """What comes out of a completion is the text of its tokens, whole and in pieces."""
    prompt = "Once upon a time the water"
    answer = client.server.complete(prompt, return_token_ids=True, **FIELDS)
    choice = answer["choices"][0]
    assert choice["prompt_token_ids"] == client.wanted(prompt, special=True)
    if json.loads(client.oracle.to_str())["decoder"]["type"] != "ByteLevel":
        return  # damaged characters differ, and the first space is that of the whole
    assert choice["text"] == client.oracle.decode(choice["token_ids"])
    stream = client.server.stream(prompt, **FIELDS)
    pieces = [payload["choices"][0]["text"] for _, payload in stream]
    assert "".join(pieces) == choice["text"]
    assert len([piece for piece in pieces if piece]) > 10


@pytest.mark.sanitized
def test_ids_for_many_at_once(client):
    """Each asks on a connection of its own, so that the pattern is run on several threads."""
    texts = oracle.texts(40, seed=5)
    wanted = [client.wanted(text) for text in texts]
    document = json.loads(client.oracle.to_str())

    def ids_of_all(_):
        own = Client(client.server, document)
        return [own.ids(text, add_special_tokens=False) for text in texts]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(ids == wanted for ids in pool.map(ids_of_all, range(8)))


# ---- one server of Llama 3's kind -------------------------------------------------------------


@pytest.fixture(scope="module")
def llama3(tmp_path_factory):
    from conftest import shared
    document = oracle.llama3()
    model = write_model(tmp_path_factory.mktemp("tokenizer") / "llama3", document,
                        bos_token="<|begin_of_text|>", eos_token="<|eot|>",
                        chat_template="{{ messages }}")
    for server in shared(tmp_path_factory, model, "-tp", 2, "--load-format", "dummy"):
        yield Client(server, document)


def test_info(llama3):
    info = llama3.server.get("/tokenizer_info").json()
    assert info == {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|eot|>",
                    "bos_token": "<|begin_of_text|>", "unk_token": None, "pad_token": None,
                    "chat_template": "{{ messages }}"}
    assert f"tokenizer.json: {llama3.oracle.get_vocab_size()} tokens" in llama3.server.log


def test_parts_of_characters_have_names(llama3):
    """A token that is no text by itself is spelt in bytes."""
    text = "a 你🦊"
    answer = llama3.post("/tokenize", prompt=text, add_special_tokens=False, return_token_strs=True)
    alphabet = {c: b for b, c in bytes_to_unicode().items()}
    for token, name in zip(answer["tokens"], answer["token_strs"]):
        raw = bytes(alphabet[c] for c in llama3.oracle.id_to_token(token))
        try:
            assert name == raw.decode()
        except UnicodeDecodeError:
            assert name == "bytes:" + "".join(
                chr(b) if 0x20 <= b < 0x7f else f"\\x{b:02x}" for b in raw)
    assert any(name.startswith("bytes:") for name in answer["token_strs"])


def bytes_to_unicode():
    """GPT-2's table, as its authors wrote it."""
    same = [*range(ord("!"), ord("~") + 1), *range(0xa1, 0xad), *range(0xae, 0x100)]
    table, n = {b: chr(b) for b in same}, 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + n)
            n += 1
    return table


def test_echo_and_logprobs(llama3):
    prompt = "the water 🦊 don't"
    answer = llama3.server.complete(prompt, echo=True, logprobs=3, return_token_ids=True, **FIELDS)
    choice = answer["choices"][0]
    assert choice["text"].startswith(prompt)
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["text_offset"])
    offsets = logprobs["text_offset"]
    assert offsets == sorted(offsets) and offsets[-1] <= len(choice["text"])
    for name, begin, end in zip(logprobs["tokens"], offsets, offsets[1:]):
        if not name.startswith("bytes:") and not name.startswith("<|") and end - begin == len(name):
            assert choice["text"][begin:end] == name


@pytest.mark.parametrize("start, length", [(3, 1), (7, 4), (20, 9)])
def test_stop_strings(llama3, start, length):
    whole = llama3.server.complete("the water", **FIELDS)["choices"][0]["text"]
    stop = whole[start:start + length]
    choice = llama3.server.complete("the water", stop=stop, **FIELDS)["choices"][0]
    assert choice["text"] == whole[:whole.index(stop)]
    assert choice["finish_reason"] == "stop"


def test_a_long_run_is_an_answer(llama3):
    """n symbols cost n log n; and what is too long for a pattern is refused."""
    for text in ("a" * 200000, " " * 200000, "\n" * 200000, "1" * 200000, "é" * 100000):
        assert llama3.ids(text, add_special_tokens=False) == llama3.wanted(text)
    reply = llama3.server.post("/tokenize", {"prompt": " " * 3000000})
    assert reply.status == 400 and "too long" in reply.error["message"]


# ---- files ------------------------------------------------------------------------------------


def test_template_against_configuration(serve, tmp_path):
    """add_bos_token of tokenizer_config.json has the last word."""
    model = write_model(tmp_path / "model", oracle.llama3(), add_bos_token=False,
                        bos_token="<|begin_of_text|>", add_eos_token=True, eos_token="<|eot|>")
    server = serve(model, "-tp", 1, "--load-format", "dummy")
    ids = server.post("/tokenize", {"prompt": "a"}).json()["tokens"]
    eot = tokenizers.Tokenizer.from_str(json.dumps(oracle.llama3())).token_to_id("<|eot|>")
    assert len(ids) == 2 and ids[1] == eot


def test_tokenizer_model_wins(serve, tmp_path):
    model = checkpoint.write_config(tmp_path / "model", vocab_size=2048, hidden_size=64,
                                    num_attention_heads=2, num_key_value_heads=2)
    (model / "tokenizer.json").write_text("{}")
    (model / "tokenizer.model").write_bytes((checkpoint.DEMO / "tokenizer.model").read_bytes())
    server = serve(model, "-tp", 1, "--load-format", "dummy")
    assert server.get("/tokenizer_info").json()["tokenizer_class"] == "LlamaTokenizer"


@pytest.mark.parametrize("place, value, message", [
    ("normalizer", {"type": "NFKC"}, "normalizer: NFKC is not supported"),
    ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"}]},
     "pre_tokenizer.pretokenizers[0]: BertPreTokenizer is not supported"),
    ("model", {"type": "Unigram"}, "model.type: Unigram is not supported"),
])
def test_refused(tmp_path, place, value, message):
    document = oracle.llama3()
    document[place] = value
    size = {"vocab_size": 300}
    model = checkpoint.write_config(tmp_path / "model", **size)
    (model / "tokenizer.json").write_text(json.dumps(document))
    done = run("serve", model, "-tp", 1, "--load-format", "dummy", "--port", 0)
    assert done.returncode == 3
    assert f"tokenizer.json: {message}" in done.stderr and "--skip-tokenizer-init" in done.stderr


def test_none_is_wanted(serve, tmp_path):
    model = checkpoint.write_config(tmp_path / "model", vocab_size=300)
    (model / "tokenizer.json").write_text("{")
    server = serve(model, "-tp", 1, "--load-format", "dummy", "--skip-tokenizer-init")
    assert len(server.token_ids([1, 2, 3], 4)) == 4
    assert server.post("/v1/completions", {"prompt": "a"}).status == 400
