"""Event streams: framing, stop strings, text that arrives in pieces."""

import pytest

pytestmark = pytest.mark.sanitized

PROMPT = "Once upon a time"
FIELDS = {"temperature": 0, "ignore_eos": True}


def collect(server, prompt=PROMPT, **fields):
    """(text, finish reason, chunks) of a streamed completion with one choice."""
    stream = server.stream(prompt, **{**FIELDS, **fields})
    chunks = [payload for _, payload in stream]
    assert stream.done, "no [DONE]"
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(reasons) == 1
    return "".join(choice["text"] for choice in choices), reasons[0], chunks


def test_same_text_as_without_streaming(demo):
    whole = demo.complete(PROMPT, max_tokens=60, **FIELDS)
    text, reason, chunks = collect(demo, max_tokens=60)
    assert text == whole["choices"][0]["text"]
    assert reason == whole["choices"][0]["finish_reason"] == "length"
    assert len(chunks) > 20
    for key in ("id", "created", "model", "object"):
        assert len({chunk[key] for chunk in chunks}) == 1
    assert "usage" not in chunks[-1] or chunks[-1]["usage"] is None


def test_pieces_come_one_by_one(serve, synthetic):
    """The first of them is here while the last is not even computed."""
    server = serve(synthetic, "-tp", 2)
    stream = server.stream([5, 6, 7], max_tokens=2000, ignore_eos=True)
    pieces = iter(stream)
    next(pieces)
    with server.halted():
        assert server.requests("running") == 1
    assert sum(1 for _ in pieces) > 700
    assert stream.done


def test_usage_chunk(demo):
    _, _, chunks = collect(demo, [5, 6, 7], max_tokens=9, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {**chunks[-1]["usage"], "prompt_tokens": 3,
                                   "completion_tokens": 9, "total_tokens": 12}


@pytest.mark.parametrize("start, length", [(5, 1), (12, 3), (20, 9), (40, 25)])
def test_stop_string_never_leaks(demo, start, length):
    """The stop string starts and ends anywhere within tokens; nothing of it comes out."""
    text = demo.complete(PROMPT, max_tokens=80, **FIELDS)["choices"][0]["text"]
    stop = text[start:start + length]
    wanted = text[:text.index(stop)]
    whole = demo.complete(PROMPT, max_tokens=80, stop=stop, **FIELDS)
    assert whole["choices"][0]["text"] == wanted
    assert whole["choices"][0]["finish_reason"] == "stop"
    streamed, reason, _ = collect(demo, max_tokens=80, stop=["never this", stop])
    assert (streamed, reason) == (wanted, "stop")
    assert whole["usage"]["completion_tokens"] < 80


def test_stop_string_that_begins_but_does_not_come(demo):
    """Text held back as a possible beginning comes out after all."""
    text = demo.complete(PROMPT, max_tokens=60, **FIELDS)["choices"][0]["text"]
    stop = text[10:14] + "\x07"
    assert collect(demo, max_tokens=60, stop=stop)[:2] == (text, "length")
    ending = text[-3:] + "\x07"
    assert collect(demo, max_tokens=60, stop=ending)[:2] == (text, "length")


def test_end_of_sequence(demo):
    """The demo model ends its stories by itself."""
    answer = demo.complete(PROMPT, max_tokens=900, temperature=0)
    text, reason, _ = collect(demo, max_tokens=900, ignore_eos=False)
    assert answer["choices"][0]["finish_reason"] == reason == "stop"
    assert answer["choices"][0]["text"] == text
    assert "</s>" not in text


def test_several_choices_in_one_stream(demo):
    stream = demo.stream(PROMPT, n=3, max_tokens=12, temperature=1.0, seed=4, ignore_eos=True)
    texts, ended = {}, []
    for _, chunk in stream:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
            if choice["finish_reason"]:
                ended.append(choice["index"])
    assert stream.done
    assert sorted(ended) == [0, 1, 2]
    whole = demo.complete(PROMPT, n=3, max_tokens=12, temperature=1.0, seed=4, ignore_eos=True)
    assert [texts[i] for i in range(3)] == [choice["text"] for choice in whole["choices"]]


def test_every_chunk_is_whole_text(serve, synthetic):
    """Tokens that are single bytes: no chunk carries half a character."""
    server = serve(synthetic, "-tp", 1)
    ids = server.token_ids([5, 6, 7], 200, temperature=1.5, seed=1)
    whole = server.complete([5, 6, 7], max_tokens=200, temperature=1.5, seed=1, ignore_eos=True)
    text, _, chunks = collect(server, [5, 6, 7], max_tokens=200, temperature=1.5, seed=1)
    assert text == whole["choices"][0]["text"]
    assert len(ids) == 200
    assert not any(chunk["choices"][0]["text"].startswith("\ufffd")
                   for chunk in chunks if chunk["choices"]) or "\ufffd" in text
