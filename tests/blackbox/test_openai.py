"""The official Python client works unchanged."""

import asyncio
import concurrent.futures
import os
import signal

import httpx
import openai
import pytest

import checkpoint
from harness import PATIENCE, eventually, free_port


@pytest.fixture
def client(demo):
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_completion(client):
    answer = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=12,
                                       temperature=0, extra_body={"ignore_eos": True})
    assert answer.object == "text_completion"
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_stream(client):
    fields = dict(model="demo", prompt="Once upon a time", max_tokens=20, temperature=0,
                  extra_body={"ignore_eos": True})
    whole = client.completions.create(**fields)
    chunks = list(client.completions.create(**fields, stream=True,
                                            stream_options={"include_usage": True}))
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == 20


def test_early_exit_from_a_stream(client, demo):
    stream = client.completions.create(model="demo", prompt="Once", max_tokens=500, stream=True,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    assert client.completions.create(model="demo", prompt="Once", max_tokens=2).choices


def test_models(client):
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"


def test_logprobs_are_typed(client):
    choice = client.completions.create(model="demo", prompt="Once", max_tokens=3, logprobs=2,
                                       echo=True, temperature=0).choices[0]
    count = len(choice.logprobs.tokens)
    assert count > 3 and choice.logprobs.token_logprobs[0] is None
    assert len(choice.logprobs.top_logprobs) == len(choice.logprobs.text_offset) == count
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])


def test_header_names_the_request(client):
    raw = client.completions.with_raw_response.create(model="demo", prompt="Once", max_tokens=1,
                                                      extra_headers={"X-Request-Id": "mine-1"})
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.parse()._request_id == "mine-1"


# ---- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fields, kind, param, code", [
    ({"temperature": 3}, openai.BadRequestError, "temperature", None),
    ({"suffix": "x"}, openai.BadRequestError, "suffix", "unsupported_parameter"),
    ({"prompt": [5] * 1020, "max_tokens": 9}, openai.BadRequestError, "max_tokens",
     "context_length_exceeded"),
    ({"prompt": [5] * 1024, "max_tokens": 9}, openai.BadRequestError, "prompt",
     "context_length_exceeded"),
    ({"model": "other"}, openai.NotFoundError, "model", "model_not_found"),
    ({"prompt": "x" * (5 << 20)}, openai.APIStatusError, None, "body_too_large")])
def test_errors(client, fields, kind, param, code):
    with pytest.raises(kind) as caught:
        client.completions.create(**{"model": "demo", "prompt": "Once", **fields})
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.request_id
    assert client.completions.create(model="demo", prompt="Once", max_tokens=1).choices


def test_wrong_key(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-right-0123456789\n")
    keys.chmod(0o600)
    server = serve(checkpoint.DEMO, "--api-key-file", keys, "--served-model-name", "demo")
    fields = dict(model="demo", prompt="Once", max_tokens=1)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-wrong-0123456789") as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.completions.create(**fields)
        assert caught.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-right-0123456789") as client:
        assert client.completions.create(**fields).choices


def test_error_in_a_stream(serve, synthetic):
    """A lost rank is an exception, not an answer that ends early."""
    server = serve(synthetic, "-tp", 2, "--served-model-name", "m",
                   "--max-group-restarts", 0)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(model="m", prompt=[5, 6], max_tokens=3000, stream=True,
                                           extra_body={"ignore_eos": True})
        chunks = iter(stream)
        next(chunks)
        os.kill(server.ranks()[0], signal.SIGKILL)
        with pytest.raises(openai.APIError) as caught:
            for _ in chunks:
                pass
    assert caught.value.code == "rank_lost"
    server.wait(10)


# ---- retries ----------------------------------------------------------------------------------


def counting_client(server, retries):
    """A client that tries again by itself, and the statuses it saw."""
    statuses = []
    http = httpx.Client(event_hooks={
        "response": [lambda response: statuses.append(response.status_code)]})
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=retries,
                         http_client=http), statuses


def test_full_queue_is_tried_again(serve, synthetic):
    server = serve(synthetic, "-tp", 2, "--served-model-name", "m", "--max-num-seqs", 1,
                   "--max-num-queued-reqs", 1)
    client, statuses = counting_client(server, retries=200)

    def ask(_):
        return client.completions.create(model="m", prompt=[5, 6, 7], max_tokens=100,
                                         extra_body={"ignore_eos": True})
    with client, concurrent.futures.ThreadPoolExecutor(6) as pool:
        with server.halted():
            asked = [pool.submit(ask, number) for number in range(6)]
            eventually(lambda: 429 in statuses, what="a refusal")
        answers = [answer.result() for answer in asked]
    assert all(answer.usage.completion_tokens == 100 for answer in answers)
    assert statuses.count(200) == 6 and 429 in statuses


def test_full_queue_by_type(serve, synthetic):
    server = serve(synthetic, "-tp", 2, "--served-model-name", "m", "--max-num-seqs", 1,
                   "--max-num-queued-reqs", 1)
    client, _ = counting_client(server, retries=0)

    def ask(_):
        try:
            client.completions.create(model="m", prompt=[5], max_tokens=200,
                                      extra_body={"ignore_eos": True})
        except openai.RateLimitError as error:
            return error.code
        return "done"
    with client, concurrent.futures.ThreadPoolExecutor(8) as pool:
        with server.halted():
            asked = [pool.submit(ask, number) for number in range(8)]
            eventually(lambda: any(outcome.done() for outcome in asked), what="a refusal")
        outcomes = {outcome.result() for outcome in asked}
    assert outcomes == {"done", "queue_full"}


def test_loading_is_tried_again(serve, synthetic):
    """A client that comes too early waits until the model is there."""
    server = serve(synthetic, "-tp", 2, "--served-model-name", "m", "--port", free_port(),
                   wait=False)
    server.port = int(server.arguments[-1])
    rank = eventually(server.ranks, 5, "the ranks")[0]
    os.kill(rank, signal.SIGSTOP)
    client, statuses = counting_client(server, retries=40)
    with client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.completions.create, model="m", prompt=[5], max_tokens=1)
        eventually(lambda: 503 in statuses, 10, "503")
        os.kill(rank, signal.SIGCONT)
        assert answer.result(60 * PATIENCE).choices
    assert set(statuses) == {200, 503} and statuses[-1] == 200


def test_async_client(demo):
    async def work():
        async with openai.AsyncOpenAI(base_url=f"{demo.url}/v1", api_key="none") as client:
            fields = dict(model="demo", prompt="Once", max_tokens=8, temperature=0)
            answers = await asyncio.gather(*(client.completions.create(**fields)
                                             for _ in range(8)))
            stream = await client.completions.create(**fields, stream=True)
            text = "".join([chunk.choices[0].text async for chunk in stream])
            with pytest.raises(openai.BadRequestError):
                await client.completions.create(**{**fields, "n": 999})
            return {answer.choices[0].text for answer in answers} | {text}
    assert len(asyncio.run(work())) == 1
