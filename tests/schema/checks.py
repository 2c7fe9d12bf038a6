"""What schemathesis cannot know: why a request that fits the schema may still be refused."""

import schemathesis

# A schema says what a field may be, not what fields may be together.
REASONS = (
    "at most max_tokens", "stream_options needs", "not possible with", "equal to n",
    "-1 or at least 1, got 0", "give only one", "prompt is missing", "maximum context length",
    "must not mix", "NUL byte in object key", "must have 1 to 256 bytes", "must have 1 to 64 bytes",
    "must have 0 to 64 bytes", "bad_words may have at most", "does not exist",
    "must have token ids from", "of more than 64 bits",
    "no chat template", "chat template makes no text", "do not go with the model's chat template",
    "goes with messages only", "goes with a text only", "content is missing", "cannot both be",
    "may not set", "top_logprobs needs", "tool_choice needs tools", "tool_choice must be none",
    "how this model writes calls is not known", "tool_choice must be {", "is none of the tools",
    "must name a tool by",
    "must be a JSON object", "forbids every token",
    "cannot both say what the answer is", "json_schema.schema is required", "its type is not",
    "guided_json:", "guided_regex:", "guided_choice:", "structured_outputs:", "response_format:",
    "at most max_output_tokens", "tool_choice.type must be", "tool_choice.name must be",
    "text.format.schema is required", "text.format.name is missing", "text.format:",
    "a key may have at most", "a value may have at most", "one message may have at most",
    "no message is in it",
    "must not end with", "output_config.format.schema is required", "output_config.format:",
    "seed must be a whole number",  # a real, beside an integer of more than 64 bits in messages
    "--runner pooling",
    "too big", "answers at once", "prompt tokens at once", "for each of n, are more than",
)


@schemathesis.check
def refused_for_a_reason(ctx, response, case):
    if response.status_code in (400, 404) and case.meta.generation.mode.is_positive:
        message = response.json()["error"]["message"]
        assert any(reason in message for reason in REASONS), f"refused: {message}"
