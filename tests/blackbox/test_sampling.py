"""A sampled token depends on the request alone: not on ranks, batch or order."""

import concurrent.futures

import pytest

import checkpoint

MODEL = "tied_gqa2_f32"
COUNT = 48
REQUESTS = 16


def requests():
    """Sixteen different prompts of different lengths, each with its own seed."""
    prompt, _ = checkpoint.golden_runs(MODEL)[0]
    return [(prompt[i:] + prompt[:i], COUNT,
             {"temperature": 0.8, "top_p": 0.9, "seed": 1000 + i}) for i in range(REQUESTS)]


@pytest.fixture(scope="module")
def reference():
    """What the first server of the module answered; the others must agree."""
    return []


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_same_tokens_at_every_size_and_in_every_batch(serve, reference, ranks):
    server = serve(checkpoint.GOLDEN / MODEL, "-tp", ranks, "--dtype", "float32")
    together = server.token_ids_together(requests())
    for i in (0, 7, 15):
        prompt, count, fields = requests()[i]
        assert server.token_ids(prompt, count, **fields) == together[i], f"request {i} alone"
    assert len({tuple(tokens) for tokens in together}) == REQUESTS
    if not reference:
        reference.append(together)
    assert together == reference[0]


ASKED = [
    {"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.95},
    {"temperature": 1.0, "top_p": 0.9}, {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    {"temperature": 1.2, "min_p": 0.05}, {"temperature": 1.0, "top_k": 40, "logprobs": 3},
    {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.1, "presence_penalty": 0.3},
    {"temperature": 0.0, "frequency_penalty": 0.5, "logprobs": 2},
    {"temperature": 1.0, "top_p": 0.98, "logit_bias": {"300": 5, "301": -100}},
]


@pytest.mark.parametrize("ranks", [2, 3])
def test_both_samplers_write_the_same_text(serve, ranks):
    """Token for token and logprob for logprob; and rows are seldom gathered for want of
    candidates."""
    stories = ["Once upon a time", "The dog", "One day, a girl named Lily"]
    answers, rows = [], 0
    for sampler in ("gather", "distributed"):
        server = serve(checkpoint.DEMO, "-tp", ranks, "--sampler", sampler)
        answers.append([server.complete(story, max_tokens=COUNT, ignore_eos=True, seed=i,
                                        **{**fields, "return_token_ids": True})["choices"]
                        for i, fields in enumerate(ASKED) for story in stories])
        fallbacks = server.metrics().sum("tessera:sampler_fallback_total")
        rows = server.metrics().sum("vllm:generation_tokens_total")
        server.stop()
    assert answers[0] == answers[1]
    assert rows == COUNT * len(ASKED) * len(stories)
    assert fallbacks <= 0.01 * rows


def test_rows_that_cannot_be_decided_are_counted(serve):
    """A model of nothing: the nucleus of 509 nearly equal ids is larger than a ballot."""
    prompt, _ = checkpoint.golden_runs("llama31_rope_f32")[0]
    answers = []
    for sampler in ("gather", "distributed"):
        server = serve(checkpoint.GOLDEN / "llama31_rope_f32", "--sampler", sampler)
        answers.append(server.token_ids(prompt, COUNT, temperature=2.0, top_p=0.95, seed=4))
        fallbacks = server.metrics().sum("tessera:sampler_fallback_total")
        assert (fallbacks > COUNT / 2) == (sampler == "distributed")
        server.stop()
    assert answers[0] == answers[1]


def crowd():
    """Two hundred different requests: greedy, drawn, with penalties, with logprobs; prompts of one
    to sixty tokens, some that begin alike."""
    for i in range(200):
        prompt = [1, *range(400, 400 + i % 60), 300 + i] if i % 3 else [1, 500 + i]
        yield prompt, {"seed": i, "max_tokens": 4 + i % 13, "ignore_eos": True,
                       "return_token_ids": True, **ASKED[i % len(ASKED)],
                       **({"prompt_logprobs": 2} if i % 20 == 7 else {})}


def answers_to(server, together, count=200):
    with concurrent.futures.ThreadPoolExecutor(together) as pool:
        answers = pool.map(lambda asked: server.complete(asked[0], **asked[1]),
                           list(crowd())[:count])
        return [answer["choices"] for answer in answers]


def test_nobody_else_matters(serve):
    """Tokens and logprobs, bit for bit: one after the other; all at once with little room for
    their keys and values, in other chunks, on other ranks, by the other sampler."""
    server = serve(checkpoint.DEMO)
    alone = answers_to(server, 1)
    server.stop()
    server = serve(checkpoint.DEMO, "-tp", 2, "--sampler", "distributed", "--max-num-seqs", 24,
                   "--max-num-batched-tokens", 40, "--max-model-len", 128, "--kv-cache-memory",
                   "1M")
    crowded = answers_to(server, 50)
    for asked, one, other in zip(crowd(), alone, crowded):
        assert one == other, asked
    assert len({str(choices) for choices in alone}) == 200


@pytest.mark.parametrize("layout", [("2d",), ("2.5d",), ("3d", "--mesh", "1,2,2")])
def test_nobody_else_matters_in_any_layout(serve, layout):
    """Alone most steps have the form for few rows, in a crowd the form for many."""
    options = ("-tp", 4, "--parallel-mode", *layout, "--max-model-len", 128)
    server = serve(checkpoint.DEMO, *options, "--prefill-rows", 1000)
    alone = answers_to(server, 1, 60)
    server.stop()
    server = serve(checkpoint.DEMO, *options, "--prefill-rows", 6, "--max-num-seqs", 24,
                   "--max-num-batched-tokens", 40, "--kv-cache-memory", "1M")
    assert answers_to(server, 50, 60) == alone


def test_stored_type_of_the_model(serve):
    """The same promise where weights stay in bfloat16."""
    answers = []
    for ranks in (1, 2, 4):
        server = serve(checkpoint.GOLDEN / "untied_mha_bf16", "-tp", ranks)
        prompt, _ = checkpoint.golden_runs("untied_mha_bf16")[0]
        answers.append(server.token_ids(prompt, COUNT, temperature=1.0, seed=5))
        server.stop()
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("fields", [
    {"temperature": 1.5}, {"temperature": 1.0, "top_k": 3}, {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 0.7, "top_p": 0.5, "top_k": 20}])
def test_seed_decides(demo, fields):
    prompt = [1, 400, 500, 600]
    first = demo.token_ids(prompt, 40, seed=11, **fields)
    assert demo.token_ids(prompt, 40, seed=11, **fields) == first
    assert demo.token_ids(prompt, 40, seed=12, **fields) != first


def test_top_k_1_is_greedy(demo):
    prompt = [1, 400, 500, 600]
    greedy = demo.token_ids(prompt, 32)
    assert demo.token_ids(prompt, 32, temperature=1.0, top_k=1, seed=3) == greedy
    assert demo.token_ids(prompt, 32, temperature=1.0, top_p=1e-6, seed=3) == greedy


def test_without_a_seed_each_request_gets_its_own(demo):
    prompt = [1, 400, 500, 600]
    drawn = {tuple(demo.token_ids(prompt, 24, temperature=1.0)) for _ in range(4)}
    assert len(drawn) > 1


@pytest.mark.parametrize("n", [1, 2])
def test_equal_prompts_of_a_request(demo, n):
    """They are as independent as requests without a seed, and as equal as requests with one."""
    def drawn(**fields):
        answer = demo.complete(4 * [[1, 400, 500, 600]], n=n, temperature=1.5, max_tokens=24,
                               ignore_eos=True, return_token_ids=True, **fields)
        return [tuple(choice["token_ids"]) for choice in answer["choices"]]
    assert len(set(drawn())) == 4 * n
    seeded = drawn(seed=3)
    assert seeded == 4 * seeded[:n] and len(set(seeded)) == n


def test_choices_differ_and_repeat(demo):
    fields = dict(n=3, temperature=1.0, seed=9, max_tokens=16, ignore_eos=True,
                  return_token_ids=True)
    first, second = (demo.complete("Once upon a time", **fields)["choices"] for _ in range(2))
    assert [choice["index"] for choice in first] == [0, 1, 2]
    ids = [choice["token_ids"] for choice in first]
    assert ids == [choice["token_ids"] for choice in second]
    assert len({tuple(tokens) for tokens in ids}) == 3
