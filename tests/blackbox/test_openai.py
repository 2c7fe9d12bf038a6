"""The official Python client works unchanged."""

import openai
import pytest


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


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="demo", prompt="Once", temperature=3)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="other", prompt="Once")
    assert caught.value.code == "model_not_found"


def test_async_client(demo):
    import asyncio

    async def work():
        async with openai.AsyncOpenAI(base_url=f"{demo.url}/v1", api_key="none") as client:
            answers = await asyncio.gather(*(
                client.completions.create(model="demo", prompt="Once", max_tokens=8, temperature=0)
                for _ in range(8)))
            return {answer.choices[0].text for answer in answers}
    assert len(asyncio.run(work())) == 1
