"""What structures allow, against jsonschema, Python's re and plain arithmetic: every text that a
grammar lets through fulfils its schema, and what is written as models write it is let through."""

import decimal
import json
import random
import re
import subprocess

import harness
import jsonschema
import pytest

PROGRAM = harness.BINARY.parent / "tests" / "match_structure"
WALKS = 60


def ask(*lines):
    """What the program answers to each line."""
    asked = [
        json.dumps({"texts": [], "walks": 0, "seed": 1, "value": None, **line}) for line in lines
    ]
    done = subprocess.run([PROGRAM],
                          input="\n".join(asked) + "\n",
                          capture_output=True,
                          text=True,
                          encoding="utf-8",
                          timeout=300 * harness.PATIENCE,
                          check=True)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(lines), done.stderr
    return answers


def fits(kind, value, texts):
    answer, = ask({"kind": kind, "value": value, "texts": list(texts)})
    return answer["fits"]


# ---- JSON schemas ----

NAMES = {"type": "object", "properties": {"first": {"type": "string"}, "last": {"type": "string"}},
         "required": ["first"], "additionalProperties": False}
TREE = {"$defs": {"node": {"type": "object", "required": ["value"], "additionalProperties": False,
                           "properties": {"value": {"type": "integer"},
                                          "children": {"type": "array",
                                                       "items": {"$ref": "#/$defs/node"}}}}},
        "$ref": "#/$defs/node"}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
       "required": ["kind", "lives"]}
DOG = {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]}

# each with values that fulfil it and values that do not
SCHEMAS = [
    (True, [1, "a", None, [1, {"a": 2.5}], {}], []),
    ({}, [1, "a", None, [], {"x": [True]}], []),
    ({"type": "object"}, [{}, {"a": 1}, {"b": {"c": [1, 2]}}], [1, "a", []]),
    ({"type": "string"}, ["", "a\n\"\\\u0001é😀", "x" * 300], [1, None]),
    ({"type": "integer"}, [0, -1, 12, 10 ** 17], [1.5, "1", None]),
    ({"type": "number"}, [0, -1.5, 1e20, 3.25e-7, 12], ["1", None]),
    ({"type": "boolean"}, [True, False], [1, "true"]),
    ({"type": "null"}, [None], [0, "null"]),
    ({"type": ["string", "null"]}, ["a", None], [1]),
    ({"type": ["integer", "number"]}, [1, 1.5], ["a"]),
    (NAMES, [{"first": "a"}, {"first": "a", "last": "b"}],
     [{}, {"last": "b"}, {"first": 1}, {"first": "a", "x": 1}]),
    ({"type": "object", "properties": {"a": {"type": "integer"}}},
     [{}, {"a": 1}], [{"a": "x"}, {"a": 1, "b": 2.5, "c": "x"}]),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"type": "null"}},
      "additionalProperties": {"type": "string"}},
     [{}, {"a": 1}, {"b": "x"}, {"a": 1, "ab": None, "abc": "x", "": "y"}, {"é": "x", "aé": "y"}],
     [{"a": "x"}, {"b": 1}, {"ab": "x"}]),
    ({"type": "object", "properties": {"é": {"type": "integer"}, "z😀": {"type": "null"}},
      "additionalProperties": {"type": "string"}, "required": ["q"]},
     [{"é": 1, "z😀": None, "q": "1", "z": "x"}, {"q": ""}], [{"é": "1", "q": ""}, {}, {"q": 1}]),
    ({"required": ["a", "b"]}, [{"a": 1, "b": [2]}, {"a": 1, "b": 2, "c": 3}], [{"a": 1}]),
    ({"type": "array"}, [[], [1, "a", [None]]], [{}]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
     [[1, 2], [1, 2, 3], [1, 2, 3, 4]], [[], [1], [1, 2, 3, 4, 5], ["a", "b"]]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 3}, [[1, 2, 3], [1] * 9],
    [[1, 2]]),
    ({"type": "array", "items": {"type": "integer"}, "maxItems": 0}, [[]], [[1]]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
     [[1, "a"], [1], []], [["a"], [1, 2], [1, "a", 2]]),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"},
      "minItems": 1}, [[1], [1, "a", "b"]], [[], ["a"], [1, 2]]),
    ({"enum": ["red", "green", 3, None, {"a": [1, 2]}]}, ["red", 3, None, {"a": [1, 2]}],
     ["blue", 4, {"a": [1]}]),
    ({"type": "string", "enum": ["red", 3]}, ["red"], [3]),
    ({"const": {"a": "é\n"}}, [{"a": "é\n"}], [{"a": "é"}]),
    ({"anyOf": [NAMES, {"type": "integer"}, {"type": "null"}]},
     [{"first": "a"}, 1, None], ["a", {}, 1.5]),
    ({"oneOf": [CAT, DOG]}, [{"kind": "cat", "lives": 9}, {"kind": "wolf"}],
     [{"kind": "cat"}, {"kind": "cow"}]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None, 1.5]),
    ({"allOf": [NAMES]}, [{"first": "a"}], [{}]),
    (TREE, [{"value": 1}, {"value": 1, "children": [{"value": 2, "children": []}, {"value": 3}]}],
     [{"children": []}, {"value": 1, "children": [{}]}]),
    ({"type": "object", "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}},
      "additionalProperties": False}, [{}, {"next": {"next": {"n": 1}}}, {"next": {}, "n": 3}],
     [{"next": 1}, {"n": {}}]),
    ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "\n\"\\", "é😀é😀"],
     ["a", "abcde", "é"]),
    ({"type": "string", "minLength": 3}, ["abc", "x" * 50], ["ab"]),
    ({"type": "string", "maxLength": 0}, [""], ["a"]),
    ({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}, ["AB-1", "ZZ-0099"], ["AB", "ab-1",
    "AB-1x"]),
    ({"type": "string", "pattern": "b"}, ["b", "abc", "\n\"b\\"], ["", "a"]),
    ({"type": "string", "pattern": "^ab|cd$|e|^f$|gh"}, ["abx", "xcd", "xex", "f", "gh", "xghx"],
     ["xab", "cdx", "fx", "xf", "g"]),
    ({"type": "string", "pattern": "[\"\\\\]\n"}, ["\"\n", "x\\\ny"], ["\n", "\""]),
    ({"type": "string", "format": "postcode", "pattern": "^[0-9]{5}$"}, ["01234"], ["1234"]),
    ({"type": "string", "format": "date"}, ["2024-01-31", "1999-11-30"],
     ["2024-13-01", "2024-02-30", "2024-11-31", "24-01-01"]),
    ({"type": "string", "format": "date-time"}, ["2024-01-31T12:00:00Z",
    "2024-06-30T23:59:59.5+02:00"],
     ["2024-01-31", "2024-01-31T25:00:00Z"]),
    ({"type": "string", "format": "time"}, ["12:00:00Z", "00:00:00.25-05:30"], ["24:00:00Z"]),
    ({"type": "string", "format": "duration"}, ["P1Y2M3D", "PT36H", "P1DT12H30M5S"], ["P", "1D",
    "PT"]),
    ({"type": "string", "format": "email"}, ["a@b", "first.last@example.com"], ["a", "@b", "a@"]),
    ({"type": "string", "format": "ipv4"}, ["0.0.0.0", "255.249.19.1"], ["256.1.1.1", "1.1.1",
    "01.1.1.1"]),
    ({"type": "string", "format": "ipv6"}, ["1:2:3:4:5:6:7:8", "fe80:0:0:0:0:0:0:1"], ["1:2",
    "g:1"]),
    ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]),
    ({"type": "string", "format": "uri"}, ["https://example.com/a?b=c#d", "ftp://a"], ["a", "://"]),
    ({"type": "string", "format": "hostname"}, ["a", "example.com"], ["-a", "a..b", ""]),
    ({"type": "integer", "minimum": -3, "maximum": 12}, [-3, 0, 9, 10, 12], [-4, 13, 100]),
    ({"type": "number", "minimum": 0.5, "exclusiveMaximum": 1}, [0.5, 0.75, 0.999],
    [0.25, 1, 0.4999]),
    ({"type": "number", "exclusiveMinimum": -1.5}, [-1.25, 0, 1000.5], [-1.5, -2]),
    ({"type": "integer", "minimum": -0.5}, [0, 7, 99, 100], [-1]),
    ({"type": "integer", "exclusiveMinimum": -0.5, "maximum": 5}, [0, 5], [-1, 6]),
    ({"type": "number", "maximum": -0.0}, [0, -0.5, -7], [1, 0.5]),
    ({"type": "integer", "minimum": -2 ** 63, "maximum": 2 ** 63 - 1}, [0, 10 ** 17, -5], [1.5]),
    ({"enum": [0.1, 2.3, 1e-05, 3.0, 0.1 + 0.2]}, [0.1, 2.3, 1e-05, 3.0, 0.1 + 0.2], [0.2, 0.3]),
    ({"const": 3.14}, [3.14], [3]),
    ({"type": ["object", "array", "string", "integer", "number", "boolean", "null"],
      "minLength": 3, "minimum": 3}, ["abc", 3, None, [], {}, True], ["ab", 2]),
    ({"required": ["a", "b", "a"]}, [{"a": 1, "b": 2}], [{"a": 1}]),
    ({"properties": {"a": {}}, "required": ["b", "b"], "additionalProperties": True},
     [{"b": 1}, {"a": 2, "b": 1}], [{"a": 1}]),
    # names, as Zod's records and pydantic's dictionaries with literals have them
    ({"type": "object", "propertyNames": {"type": "string"},
      "additionalProperties": {"type": "integer"}}, [{}, {"a": 1, "": 2}], [{"a": "x"}, []]),
    ({"type": "object", "propertyNames": {"enum": ["a", "b", 3, "a"]},
      "additionalProperties": {"type": "integer"}}, [{}, {"a": 1}, {"b": 2}, {"a": 1, "b": 2}],
     [{"c": 1}, {"a": "x"}, {"a": 1, "c": 2}, {"3": 1}]),
    ({"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]},
      "additionalProperties": {"type": "null"}, "required": ["b"]},
     [{"b": None}, {"a": None, "b": None}], [{}, {"a": None}]),
    ({"$defs": {"key": {"allOf": [{"const": "k\n"}]}}, "type": "object",
      "propertyNames": {"$ref": "#/$defs/key"}}, [{}, {"k\n": [1]}], [{"k": 1}]),
    ({"type": "object", "propertyNames": {"pattern": "^[a-c]{1,2}$"},
      "additionalProperties": {"type": "boolean"}, "required": ["ab"]},
     [{"ab": True}, {"ab": True, "c": False, "bb": True}],
     [{"c": True}, {"ab": True, "abc": True}]),
    ({"type": "object", "propertyNames": {"minLength": 2, "maxLength": 3, "minimum": 7}},
     [{}, {"ab": 1, "é😀\"": 2}], [{"a": 1}, {"": 1}, {"ab": 1, "abcd": 2}]),
    ({"type": "object", "propertyNames": {"format": "date"},
      "additionalProperties": {"type": "null"}}, [{"2024-01-31": None}], [{"2024-01-32": None}]),
    ({"properties": {"a": {}, "bc": {"type": "null"}}, "propertyNames": {"maxLength": 2}},
     [{"a": 1, "bc": None}], [{"bc": 1}]),
    ({"propertyNames": False}, [{}], [{"a": 1}]),
    ({"propertyNames": {"type": "integer"}}, [{}], [{"a": 1}]),
    # how many members
    ({"type": "object", "minProperties": 1, "maxProperties": 3},
     [{"a": 1}, {"a": 1, "b": [], "c": 3}], [{}, {"a": 1, "b": 2, "c": 3, "d": 4}]),
    ({"type": "object", "minProperties": 1, "additionalProperties": {"type": "integer"}},
     [{"a": 1}, {str(i): i for i in range(30)}], [{}, {"a": "x"}]),
    ({"maxProperties": 0}, [{}], [{"a": 1}]),
    ({"required": ["a", "b"], "minProperties": 3, "maxProperties": 4},
     [{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "c": 3, "d": 4}],
     [{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}]),
    ({"properties": {name: {"type": "null"} for name in "abcd"}, "required": ["b"],
      "minProperties": 2, "maxProperties": 3},
     [{"a": None, "b": None}, {"b": None, "d": None}, {"a": None, "b": None, "c": None},
      {"b": None, "c": None, "d": None}],
     [{"b": None}, {"a": None, "c": None}, dict.fromkeys("abcd")]),
    ({"properties": {name: {"type": "null"} for name in "ab"}, "minProperties": 2},
     [{"a": None, "b": None}], [{}, {"a": None}, {"b": None}]),
    ({"properties": {"a": {}, "b": {}}, "required": ["a"], "minProperties": 1,
      "maxProperties": 2}, [{"a": 1}, {"a": 1, "b": 2}], [{}, {"b": 1}]),
    ({"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"},
      "minProperties": 1, "maxProperties": 2},
     [{"a": None}, {"b": 1}, {"a": None, "b": 1}, {"b": 1, "c": 2}],
     [{}, {"a": None, "b": 1, "c": 2}]),
    ({"propertyNames": {"enum": ["a", "b", "c"]}, "additionalProperties": {"type": "integer"},
      "minProperties": 2}, [{"a": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}], [{}, {"b": 1}]),
    ({"propertyNames": {"pattern": "^[ab]*$"}, "minProperties": 1, "maxProperties": 2},
     [{"a": 1}, {"a": 1, "ba": 2}], [{}, {"a": 1, "b": 2, "ab": 3}]),
    # names that match
    ({"type": "object", "patternProperties": {"^(.*)$": {"type": "integer"}}},
     [{}, {"a": 1, "": 2}], [{"a": "x"}]),
    ({"patternProperties": {"b": {"type": "integer"}}, "additionalProperties": False},
     [{"b": 1}, {"\nabc\"": 1, "b": 2}], [{"a": 1}, {"b": 1, "a": 2}, {"b": "x"}]),
    ({"properties": {"name": {"type": "string"}}, "required": ["name", "x-id"],
      "patternProperties": {"^x-": {"type": "integer"}, "^y[0-9]?$": {"type": "null"}},
      "additionalProperties": False},
     [{"name": "a", "x-id": 1}, {"name": "a", "x-id": 1, "y": None, "x-": 3, "y7": None}],
     [{"name": "a"}, {"name": "a", "x-id": None}, {"name": "a", "x-id": 1, "y": 1},
      {"name": "a", "x-id": 1, "x": 1}, {"name": 1, "x-id": 1}]),
    ({"patternProperties": {"a": {"type": "integer"}, "b$": {"type": "integer"}},
      "additionalProperties": False, "minProperties": 1, "maxProperties": 2},
     [{"a": 1}, {"xb": 1, "bab": 2}], [{}, {"c": 1}, {"a": 1, "aa": 2, "b": 3}]),
    ({"patternProperties": {"^é?a": {"type": "null"}}, "propertyNames": {"type": "string"},
      "required": ["éab"], "additionalProperties": False},
     [{"éab": None}, {"éab": None, "a": None}], [{}, {"éab": 1}, {"éab": None, "é": None}]),
    ({"patternProperties": {}, "additionalProperties": {"type": "null"}},
     [{"a": None}], [{"a": 1}]),
    ({"type": "object", "patternProperties": {}}, [{}, {"a": 1}], [1]),
    ({"patternProperties": {"^\\.a": True, "^b+": {"type": "null"}, "^\\$": {"const": 1}},
      "additionalProperties": False},
     [{".a": [1], "bb": None, "$": 1}], [{"a": 1}, {"b": 1}, {"$": 2}]),
    # nothing, and nothing else
    ({"anyOf": [{"type": "null"}, {"not": {}}, {"not": True}]}, [None], [1]),
    ({"type": "object", "properties": {"a": {"not": {}}, "b": {"type": "null"}},
      "additionalProperties": False}, [{}, {"b": None}], [{"a": 1}, {"a": None, "b": None}]),
    ({"type": "array", "items": {"not": {}}}, [[]], [[1]]),
    ({"type": "object", "properties": {"a": {"type": "null"}}, "unevaluatedProperties": False},
     [{}, {"a": None}], [{"a": 1}, {"b": 1}]),
    ({"unevaluatedProperties": False}, [{}], [{"a": 1}]),
    ({"properties": {"a": {"type": "null"}}, "unevaluatedProperties": {"type": "integer"}},
     [{"a": None, "b": 1}], [{"a": 1}, {"b": None}]),
    ({"patternProperties": {"^a": {"type": "null"}}, "unevaluatedProperties": False},
     [{"a": None}], [{"b": None}]),
    ({"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"},
      "unevaluatedProperties": False}, [{"a": None, "b": 1}], [{"b": None}]),
    ({"type": "integer", "multipleOf": 7, "minimum": -20, "maximum": 100},
     [-14, -7, 0, 7, 70, 98], [-21, 1, 8, 99, 105]),
    ({"type": "integer", "multipleOf": 1, "minimum": 0}, [0, 3, 10 ** 17], [-1]),
    ({"multipleOf": 250}, [0, -250, 1500, 10 ** 15], [100, 125, 2.5]),
    ({"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 5}, [0, 0.5, 4.5, 5],
     [0.25, 5.5, -0.5]),
    ({"type": "integer", "multipleOf": 0.75}, [0, 3, -6, 30], [1, 2, 4, 10]),
    # sets, as pydantic's of literals
    ({"type": "array", "items": {"enum": ["a", "b", "ab"]}, "uniqueItems": True},
     [[], ["b"], ["ab", "a"], ["b", "ab", "a"]], [["a", "a"], ["b", "a", "b"], ["c"]]),
    ({"$defs": {"e": {"enum": [1, 1.0, True, None, "1", [1]], "type": ["integer", "boolean"]}},
      "type": "array", "items": {"$ref": "#/$defs/e"}, "uniqueItems": True, "minItems": 1,
      "maxItems": 2}, [[1], [True, 1], [1, True]], [[], [1, 1], [True, True], [None], ["1"]]),
    ({"type": "array", "items": {"enum": list("abcdefgh")}, "uniqueItems": True, "minItems": 3},
     [list("hgfedcba"), list("ace"), list("dbca")], [list("ab"), list("abca"), list("aba")]),
    ({"type": "array", "items": {"const": 3}, "uniqueItems": True}, [[], [3]], [[3, 3]]),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 1},
     [[], [3]], [[3, 4]]),
    ({"type": "object", "title": "T", "description": "d", "properties": {
        "a": {"type": "integer", "default": 3, "examples": [1]},
        "b": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "B"}},
      "required": ["a"], "additionalProperties": False, "x-order": 1, "uniqueItems": False},
     [{"a": 1}, {"a": 1, "b": None}], [{}, {"b": "x"}]),
]


def styles(value):
    """As models write it."""
    yield json.dumps(value, ensure_ascii=False)
    yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    yield json.dumps(value, ensure_ascii=False, indent=2)
    yield json.dumps(value, ensure_ascii=False, indent="\t")


def checker(schema):
    formats = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema, format_checker=formats)


def lone(text):
    """Has it NUL, which is not allowed in strings?"""
    return "\\u0000" in text


@pytest.mark.parametrize("index", range(len(SCHEMAS)))
def test_schema(index):
    schema, good, bad = SCHEMAS[index]
    validator = checker(schema)
    assert all(validator.is_valid(v) for v in good)
    texts = [text for v in good for text in styles(v)]
    assert fits("json", schema, texts) == [True] * len(texts), texts
    texts = [text for v in bad for text in styles(v)]
    assert not any(fits("json", schema, texts)), texts
    # all of them are refused by jsonschema, too, but where we are stricter
    stricter = schema == {"type": "object", "properties": {"a": {"type": "integer"}}
                          } or "format" in str(schema)
    assert stricter or not any(validator.is_valid(v) for v in bad)


@pytest.mark.parametrize("index", range(len(SCHEMAS)))
def test_whatever_is_allowed_fulfils_the_schema(index):
    schema = SCHEMAS[index][0]
    validator = checker(schema)
    answer, = ask({"kind": "json", "value": schema, "walks": WALKS, "seed": 7 + index})
    rare = "pattern" in str(schema)  # what it wants is seldom found by chance
    assert len(answer["walked"]) > WALKS // 4 or rare
    for text in answer["walked"]:
        value = json.loads(text)
        validator.validate(value)
    assert len(set(answer["walked"])) > 1 or len(SCHEMAS[index][1]) == 1 or rare


# ---- random objects and sets, against jsonschema ----

POOL = ["a", "b", "ab", "xa", "xb", "x", "y1", "é"]
LEAVES = [{"type": "integer"}, {"type": "null"}, {"not": {}}, True]


def random_object(dice):
    """One whose keywords may be of any combination."""
    schema, maybe = {"type": "object"}, lambda: dice.random() < 0.4
    leaf = lambda: dice.choice(LEAVES)  # noqa: E731
    if maybe():
        schema["properties"] = {n: leaf() for n in dice.sample(POOL, dice.randrange(4))}
    if maybe():
        schema["required"] = dice.sample(POOL, dice.randrange(3))
    if maybe():
        schema[dice.choice(["additionalProperties", "unevaluatedProperties"])] = dice.choice(
            [False, leaf()])
    if maybe():
        schema["propertyNames"] = dice.choice([
            {"enum": dice.sample(POOL, dice.randrange(1, 6))}, {"pattern": "^[a-x]+$"},
            {"minLength": 1, "maxLength": 1}, {"const": "a"}, {"type": "string"}, False])
    elif maybe():
        schema["patternProperties"] = {
            name: dice.choice(LEAVES[:2])
            for name in dice.sample(["^x", "a", "^é*b$", "^y[0-9]", "^xa"], dice.randrange(3))}
    if maybe():
        schema["minProperties"] = dice.randrange(4)
    if maybe():
        schema["maxProperties"] = dice.randrange(4)
    return schema


def random_value(schema, dice):
    """Members as the schema orders them, then others."""
    listed = schema.get("propertyNames") or {}
    order = [*schema.get("properties", {}), *listed.get("enum", []), *schema.get("required", [])]
    names = dice.sample(POOL, dice.randrange(5)) + dice.choice([[], schema.get("required", [])])
    ordered = [n for n in order if n in names] + [n for n in names if n not in order]
    return {name: dice.choice([1, 1, None, None, "s"]) for name in ordered}


def check_random(schemas, oracles, values):
    """Neither looser nor, where they are not refused, stricter. Returns how many were not."""
    answers = ask(*({"kind": "json", "value": schema, "walks": 8, "seed": i,
                     "texts": [json.dumps(v, ensure_ascii=False) for v in values[i]]}
                    for i, schema in enumerate(schemas)))
    kept = 0
    for schema, oracle, some, answer in zip(schemas, oracles, values, answers):
        validator = checker(oracle)
        wanted = [validator.is_valid(v) for v in some]
        if "error" in answer:
            assert "nothing can fulfil" not in answer["error"] or not any(wanted), schema
            continue
        kept += 1
        assert [v for v, g, w in zip(some, answer["fits"], wanted) if g != w] == [], schema
        assert all(validator.is_valid(json.loads(text)) for text in answer["walked"]), schema
    return kept


@pytest.mark.parametrize("seed", range(6))
def test_random_objects(seed):
    dice = random.Random(seed)
    schemas = [random_object(dice) for _ in range(250)]
    # others are allowed only where it is said, or nothing is described
    oracles = [{**s, "additionalProperties": False}
               if (s.get("properties") is not None or s.get("patternProperties")) and
               not {"additionalProperties", "unevaluatedProperties"} & set(s) else s
               for s in schemas]
    values = [[random_value(s, dice) for _ in range(30)] for s in schemas]
    assert check_random(schemas, oracles, values) > 80


def test_random_sets():
    dice = random.Random(5)
    schemas = [{"type": "array", "uniqueItems": True, "items": {"enum": dice.sample(
        [1, 1.0, 2, "1", "a", True, None, 0, False, 0.5], dice.randrange(1, 8))},
        **dice.choice([{}, {"minItems": dice.randrange(4)}]),
        **dice.choice([{}, {"maxItems": dice.randrange(6)}])} for _ in range(150)]
    values = [[[dice.choice(s["items"]["enum"]) for _ in range(dice.randrange(5))]
               for _ in range(30)] for s in schemas]
    # 1 and 1.0 are one value, which is written as it stands first
    values = [[[next(e for e in s["items"]["enum"] if e == v and isinstance(e, bool) ==
                     isinstance(v, bool)) for v in value] for value in some]
              for s, some in zip(schemas, values)]
    assert check_random(schemas, schemas, values) > 100


def test_any_object():
    answer, = ask({"kind": "object", "walks": 300})
    for text in answer["walked"]:
        assert isinstance(json.loads(text), dict)
    texts = [t for v in ({}, {"a": [1, {"b": None}], "c": "é"}) for t in styles(v)]
    assert all(fits("object", None, texts))
    wrong = [
        "", "[]", "1", " {}", "{}\n", "{", '{"a"}', '{"a":1,}', "{'a':1}", '{"a":01}', '{"a":+1}',
        '{"a":.5}', '{"a":1.}', '{"a":NaN}', '{"a":"\n"}', '{"a":"\\x"}', '{"a":"\\ud800"}',
        '{"a":"\\udc00"}', '{"a" :1}', '{"a":1 ,"b":2}', '{"a":tru}', '{"a":[1,]}'
    ]
    assert not any(fits("object", None, wrong))
    right = [
        '{"a":"\\ud83d\\ude00"}', '{"a":"\\u00e9\\/\\b"}', '{"a":-0}', '{"a":1e5}', '{"a":1.5E-3}'
    ]
    assert all(fits("object", None, right))


def test_depth_is_bounded_and_never_a_dead_end():
    texts = ["[" * n + "]" * n for n in (1, 10, 40, 60, 70, 200)]
    allowed = fits("json", {"type": "array"}, texts)
    assert allowed[:3] == [True] * 3 and not allowed[-1]
    nested = {
        "$defs": {
            "a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": []}
        }, "$ref": "#/$defs/a"
    }
    answer, = ask({"kind": "json", "value": nested, "walks": 200})
    assert len(answer["walked"]) > 150


# ---- numbers, by arithmetic ----

BOUNDS = [(None, None), (0, None), (None, 0), (1, 9), (0, 10), (-5, 5), (7, 123), (99, 101),
          (100, 999), (-1000, -10), (-12, 1234), (5, 5), (1000, 100000), (-99, 99), (0, 0),
          (19, 21), (-21, -19)]


@pytest.mark.parametrize("low, high", BOUNDS)
@pytest.mark.parametrize("exclusive", [False, True])
def test_integers(low, high, exclusive):
    names = ("exclusiveMinimum", "exclusiveMaximum") if exclusive else ("minimum", "maximum")
    schema = {
        "type": "integer", **({names[0]: low} if low is not None else {}),
        **({names[1]: high} if high is not None else {})
    }
    edges = [v + d for v in (low, high) if v is not None for d in range(-12, 13)]
    values = sorted(set(list(range(-130, 131)) + edges + [10 ** k for k in range(16)]))
    wanted = [(low is None or (v > low if exclusive else v >= low)) and
              (high is None or (v < high if exclusive else v <= high)) for v in values]
    if not any(wanted):
        answer, = ask({"kind": "json", "value": schema})
        assert "nothing can fulfil" in answer["error"]
        return
    assert fits("json", schema, map(str, values)) == wanted
    spelled = [f"0{values[0]}", "+5", "5.0", "5e0", "--5", "05"]
    assert not any(fits("json", schema, spelled))


DECIMALS = [(0, 1), (0.5, 0.75), (-1.5, 2.25), (0.1, 0.1), (0.05, 10), (-0.001, 0.001), (3, None),
            (None, -0.5), (9.99, 10.01), (-20.5, -3.125), (1e-7, 2e-7), (99.5, 1000)]


@pytest.mark.parametrize("low, high", DECIMALS)
@pytest.mark.parametrize("exclusive", [False, True])
def test_decimals(low, high, exclusive):
    names = ("exclusiveMinimum", "exclusiveMaximum") if exclusive else ("minimum", "maximum")
    schema = {
        "type": "number", **({names[0]: low} if low is not None else {}),
        **({names[1]: high} if high is not None else {})
    }
    dice, texts = random.Random(3), []
    for bound in [b for b in (low, high) if b is not None]:
        plain = format(decimal.Decimal(repr(bound)), "f")
        texts += [
            plain, plain + ("000" if "." in plain else ".000"),
            plain + ("1" if "." in plain else ".1")
        ]
        for digits in range(12):
            step = decimal.Decimal(1).scaleb(-digits)
            texts += [format(decimal.Decimal(repr(bound)) + sign * \
                             dice.randrange(1, 10) * step, "f") for sign in (1, -1)]
    texts += [f"{dice.uniform(-30, 30):.{dice.randrange(1, 9)}f}" for _ in range(300)]
    texts = [t for t in texts if not (t.lstrip("-").strip("0.") == "" and t.startswith("-"))]
    exact = [decimal.Decimal(t) for t in texts]
    low, high = (None if b is None else decimal.Decimal(repr(b)) for b in (low, high))
    wanted = [(low is None or (v > low if exclusive else v >= low)) and
              (high is None or (v < high if exclusive else v <= high)) for v in exact]
    if not any(wanted):
        answer, = ask({"kind": "json", "value": schema})
        assert "nothing can fulfil" in answer["error"]
        return
    got = fits("json", schema, texts)
    assert [t for t, g, w in zip(texts, got, wanted) if g != w] == []


STEPS = ["1", "2", "3", "7", "12", "40", "99", "1000", "2500", "0.1", "0.01", "0.05", "0.25",
         "7e-3", "1e17", "3e30", "1e-17"]
STEP_BOUNDS = [(None, None), (0, None), (None, -30), (-20, 20), (7, 123), (99.5, 10000),
               (-0.35, 0.4), (0.001, 0.009)]


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("step", STEPS)
def test_multiples(kind, step):
    """As decimals: 0.3 is a multiple of 0.1, which jsonschema, by doubles, denies."""
    dice, step = random.Random(step + kind), decimal.Decimal(step)
    texts = [str(n) for n in range(-30, 130)]
    texts += [str(dice.randrange(10 ** dice.randrange(1, 18))) for _ in range(100)]
    with decimal.localcontext(decimal.Context(prec=60)):
        for _ in range(300):
            multiple = step * dice.randrange(-300, 10 ** dice.randrange(1, 6))
            near = multiple + dice.choice([0, 0, 0, 1, -1]) * decimal.Decimal(1).scaleb(
                dice.randrange(-6, 2))
            texts.append(format(near, "f"))
        # what is written otherwise than we write numbers
        texts = [t for t in texts if not (t.startswith("-") and not t.strip("-0.")) and
                 len(t.lstrip("-").partition(".")[0]) <= 18 and len(t.partition(".")[2]) <= 17]
        texts += ["1e1", "05", "00", "1.", ".5"]
        exact = [decimal.Decimal(t) for t in texts[:-5]]
        # digits behind the point that are not those of a multiple are not written either
        places = max(0, -step.as_tuple().exponent) if kind == "number" else 0
        few = [len(t.partition(".")[2]) <= places for t in texts[:-5]]
        for low, high in STEP_BOUNDS:
            schema = {"type": kind, "multipleOf": json.loads(str(step).replace("E+", "e")),
                      **({"minimum": low} if low is not None else {}),
                      **({"maximum": high} if high is not None else {})}
            wanted = [f and v % step == 0 and
                      (low is None or v >= decimal.Decimal(repr(low))) and
                      (high is None or v <= decimal.Decimal(repr(high)))
                      for v, f in zip(exact, few)] + [False] * 5
            answer, = ask({"kind": "json", "value": schema, "texts": texts, "walks": 20})
            if "error" in answer:
                assert "nothing can fulfil" in answer["error"] and not any(wanted), schema
                continue
            got = answer["fits"]
            assert [t for t, g, w in zip(texts, got, wanted) if g != w] == [], schema
            assert all(decimal.Decimal(t) % step == 0 for t in answer["walked"])


# ---- regular expressions ----

PATTERNS = [
    "", "abc", "a|b|", "(a|b)*c", "a+b?c*", "(?:ab){2,3}", "[a-c]{1,3}", "[^a-c]+", "a{0}", "a{3}",
    "a{2,}", "x?y", ".", ".+", "\\d+", "\\D", "\\w+\\s\\W", "[\\d_]+", "[^\\w]+", "[-a]", "[a-]",
    "[\\]]", "[a\\-z]", "\\.", "\\\\", "\\/", "\\t|\\n", "\\x41", "\\u00e9+", "é|😀", "[é-ö]+",
    "[😀-😂]", "(?P<name>a)b", "a*?b", "a+?", "(a*)*b", "(a|aa)+", "(ab|a)(bc|c)", "((a)|(b))c",
    "a{1,2}{2}x", "(x+x+)+y", "[a-zA-Z_][a-zA-Z0-9_]*", "(0|[1-9][0-9]*)", "[\"\\\\]+",
    "(a(b(c)?)?)?", "{", "a{", "a{,2}", "}", "[ -~]*", "(\\w+)@(\\w+)\\.com", "a.c", "(?:a|b){2}$",
    "^abc$", "^(a|b)$", "^a|b$", "(^a|b$)", "^", "$", "^$"
]
SEARCHED = [p for p in PATTERNS if p not in ("a{1,2}{2}x", )]


def near(pattern, dice):
    """Texts near what the pattern might match."""
    letters = "abcxy019_- .,@\"\\/\n\tABZéöè😀😁\u0001{}"
    plain = re.sub(r"[\\()?:*+|{}\[\]^$]", "", pattern)
    texts = {"", plain, "abc", "abab", "aab", "xxxxxxxxxxxxxxxxxxxxxxxx", "a@b.com"}
    for _ in range(150):
        base = dice.choice([plain, "", "ab", "abc", "abcabc"])
        n = dice.randrange(0, 4)
        texts.add("".join(
            dice.choice([base[i:i + 1], dice.choice(letters)]) for i in range(len(base) + n)))
        texts.add("".join(dice.choice("abc") for _ in range(dice.randrange(0, 7))))
    return sorted(texts)


def python_of(pattern):
    """$ is the end itself, and \\d, \\w are ASCII's, in ECMA's expressions; a{,2} has no count."""
    spaces = "[\\t-\\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"
    pattern = re.sub(r"(?<!\\)\$", r"\\Z", pattern).replace("a{,2}",
                                                            "a\\{,2\\}").replace("\\/", "/")
    return re.compile(pattern.replace("\\s", spaces), re.ASCII)


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if p != "a{1,2}{2}x"])
def test_pattern(pattern):
    texts = near(pattern, random.Random(pattern))
    compiled = python_of(pattern)
    if re.search(r"\.", pattern.replace("\\.", "")):  # ECMA's dot has no \r, U+2028, U+2029 either
        texts = [t for t in texts if not set(t) & set("\r\u2028\u2029")]
    answer, = ask({"kind": "regex", "value": pattern, "texts": texts})
    wanted = [compiled.fullmatch(t) is not None for t in texts]
    if "error" in answer:
        assert wanted == [t == "" for t in texts] and "empty" in answer["error"]
    else:
        assert [t for t, g, w in zip(texts, answer["fits"], wanted) if g != w] == []
    # the same as a part of a JSON string
    spelled = [json.dumps(t, ensure_ascii=False) for t in texts]
    wanted = [compiled.search(t) is not None for t in texts]
    got = fits("json", {"type": "string", "pattern": pattern}, spelled)
    assert [t for t, g, w in zip(texts, got, wanted) if g != w] == []


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if p != "a{1,2}{2}x"])
def test_names_that_match(pattern):
    """The given names of members are matched with patterns by themselves."""
    dice, compiled = random.Random(pattern), python_of(pattern)
    names = [t for t in dice.sample(near(pattern, dice), 40) if not set(t) & set("\r")]
    answers = ask(*({"kind": "json", "value": {
        "properties": {name: {}}, "propertyNames": {"pattern": pattern}}} for name in names))
    got = ["error" not in answer for answer in answers]
    assert all("does not fulfil it" in a.get("error", "does not fulfil it") for a in answers)
    wanted = [compiled.search(name) is not None for name in names]
    assert [n for n, g, w in zip(names, got, wanted) if g != w] == []


@pytest.mark.parametrize("pattern", SEARCHED)
def test_whatever_a_pattern_allows_matches(pattern):
    whole, part = ask(
        {"kind": "regex", "value": pattern, "walks": WALKS},
        {"kind": "json", "value": {"type": "string", "pattern": pattern}, "walks": WALKS})
    compiled = python_of(pattern)
    assert all(compiled.fullmatch(t) for t in whole.get("walked", []))
    assert all(compiled.search(json.loads(t)) for t in part["walked"])


@pytest.mark.parametrize("pattern, words", [
    ("(", "a ( without its ) at character 1"),
    ("a)", "a ) without its ( at character 2"),
    ("[a", "a [ without its ] at character 2"),
    ("*a", "nothing to repeat at character 1"),
    ("a**", "nothing to repeat"),
    ("a{2,1}", "counts in the wrong order"),
    ("[b-a]", "does not ascend"),
    ("(?=a)b", "a look around"),
    ("(?<!a)b", "a look around"),
    ("\\bword", "not supported at character 2"),
    ("(a)\\1", "not supported at character 5"),
    ("\\p{L}", "not supported"),
    ("a^b", "an anchor"),
    ("(a$)+", "an anchor"),
    ("a++", "possessive"),
    ("(?i)a", "not supported"),
    ("\\", "nothing to escape"),
    ("\\x4", "no hexadecimal"),
    ("\\ud800", "no character"),
    ("a{99999}", "too large"),
    ("é\\q", "not supported at character 3"),
    ("(" * 80 + ")" * 80, "nested too deep"),
    ("((a{1,1000}){1,1000}){1,1000}b" * 9, ""),
    ("(a{1,60000}|b{1,60000}|c{1,60000}){5}", "needs more than"),
])
def test_refused_pattern(pattern, words):
    answer, = ask({"kind": "regex", "value": pattern})
    assert words in answer.get("error", "" if words == "" else "none"), answer


def test_choices():
    choices = ["yes", "no", "yes and no", "é", "{\"a\": 1}"]
    assert fits("choice", choices,
                choices + ["", "ye", "yes ", "n", "maybe"]) == [True] * 5 + [False] * 5
    for wrong in ([], [1], [""], "yes", {"a": 1}, ["a"] * 1025):
        answer, = ask({"kind": "choice", "value": wrong})
        assert "must be" in answer["error"]


# ---- what is refused ----


@pytest.mark.parametrize("schema, words", [
    (1, "schema at #: a schema must be an object, true or false, got"),
    ({"type": "objekt"}, "type must be object, array"),
    ({"type": "object", "proprieties": {}}, "did you mean properties?"),
    ({"type": "string", "nullable": True}, "schema at #: nullable is not known"),
    ({"properties": {"a": {"items": {"contains": {}}}}},
     "schema at #/properties/a/items: contains is not supported"),
    ({"not": {"type": "string"}}, "not is not supported"),
    ({"type": "array", "uniqueItems": True}, "schema at #: uniqueItems is supported only where"),
    ({"items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems is supported only where"),
    ({"items": {"enum": list("abcdefghi")}, "uniqueItems": True}, "with at most 8 values"),
    ({"items": {"enum": [[1]]}, "uniqueItems": True}, "no lists or objects"),
    ({"items": {"enum": [1]}, "prefixItems": [{}], "uniqueItems": True}, "uniqueItems is"),
    ({"items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3}, "nothing can fulfil"),
    ({"uniqueItems": 1}, "uniqueItems must be true or false"),
    ({"allOf": [{}, {}]}, "allOf with 2 schemas"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "both number 0 and number 1"),
    ({"oneOf": [CAT, CAT]}, "both number 0 and number 1"),
    ({"oneOf": [CAT, {"type": "object"}]}, "both number 0"),
    ({"$ref": "#/$defs/a"}, "$ref must name a part"),
    ({"$ref": "http://x"}, "$ref must name a part"),
    ({"$ref": "#", "type": "object"}, "other keywords beside $ref"),
    ({"oneOf": [{"minimum": 3}, {"type": "string"}]}, "both number 0 and number 1"),
    ({"oneOf": [{"required": ["a"]}, {"type": "array"}]}, "both number 0 and number 1"),
    ({"type": "string\u0000x"}, "type must be object"),
    ({"$ref": "#/$defs/a\u0000b", "$defs": {"a": {}}}, "$ref must name a part"),
    ({"properties": {"x": {"$id": "http://e/x", "type": "string"}}}, "$id within a schema"),
    ({"type": "integer", "minimum": 2 ** 53 + 1}, "minimum is beyond 2^53"),
    ({"type": "array", "minItems": 5, "maxItems": 3}, "nothing can fulfil"),
    ({"type": "array", "minItems": 2, "maxItems": 1}, "nothing can fulfil"),
    ({"$ref": "#"}, "nothing can fulfil"),
    ({"anyOf": []}, "anyOf must be a list"),
    ({"enum": []}, "enum must be a list"),
    ({"type": "string", "format": "colour"}, "format colour is not supported"),
    ({"type": "string", "pattern": "a", "minLength": 1}, "cannot be combined"),
    ({"type": "string", "format": "date", "maxLength": 9}, "cannot be combined"),
    ({"type": "string", "pattern": "("}, "schema at #: the regular expression has a ( without"),
    ({"type": "string", "minLength": -1}, "minLength must be an integer"),
    ({"type": "string", "minLength": 2, "maxLength": 1}, "nothing can fulfil"),
    ({"type": "integer", "minimum": "1"}, "minimum must be a number"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "nothing can fulfil"),
    ({"type": "integer", "minimum": 1e300}, "too many digits"),
    ({"type": "array", "items": [{}]}, "prefixItems"),
    ({"type": "array", "items": False, "minItems": 1}, "nothing can fulfil"),
    ({"properties": [], "type": "object"}, "properties must be an object"),
    ({"required": "a"}, "required must be a list"),
    ({"required": [1]}, "a list of names"),
    ({"properties": {}, "required": ["a"]}, "\"a\" is required, but is none of the properties"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]
      }, "nothing can fulfil"),
    ({"properties": {"a": {"propertyNames": {"enum": ["x", "y"]}, "properties": {"z": {}}}}},
     'schema at #/properties/a/propertyNames: the member "z" does not fulfil it'),
    ({"propertyNames": {"pattern": "^x"}, "properties": {"x1": {}, "y": {}}},
     'the member "y" does not fulfil it'),
    ({"propertyNames": {"format": "date"}, "properties": {"2024-01-31": {}, "now": {}}},
     'the member "now" does not fulfil it'),
    ({"propertyNames": {"maxLength": 2}, "required": ["abc"]},
     'the member "abc" does not fulfil it'),
    ({"propertyNames": {"const": "a"}, "required": ["b"]}, 'the member "b" does not fulfil it'),
    ({"propertyNames": {"pattern": "^x"}, "properties": {"x1": {}}, "additionalProperties": {}},
     "propertyNames beside properties and additionalProperties"),
    ({"propertyNames": {"anyOf": [{"const": "a"}]}}, "anyOf is not supported for names"),
    ({"propertyNames": {"pattern": "("}}, "schema at #/propertyNames: the regular expression has"),
    ({"propertyNames": {"pattern": 3}}, "schema at #/propertyNames: pattern must be a string"),
    ({"propertyNames": {"enum": "a"}}, "schema at #/propertyNames: enum must be a list"),
    ({"propertyNames": {"$ref": "#/a"}}, "schema at #/propertyNames: $ref must name a part"),
    ({"propertyNames": {"contains": {}}}, "schema at #/propertyNames: contains is not supported"),
    ({"propertyNames": 3}, "schema at #/propertyNames: a schema must be an object"),
    ({"minProperties": 2}, "minProperties of 2 is not supported beside 0 required members"),
    ({"required": ["a"], "minProperties": 2, "propertyNames": {"pattern": "a"}},
     "minProperties of 2 is not supported beside 1 required"),
    ({"properties": {"a": {}}, "minProperties": 2},
     "minProperties is 2, but members that can be written are 1"),
    ({"properties": {"a": {}}, "minProperties": 2, "additionalProperties": False},
     "nothing can fulfil"),
    ({"propertyNames": {"enum": ["a", "a"]}, "minProperties": 2}, "nothing can fulfil"),
    ({"required": ["a", "b"], "maxProperties": 1}, "nothing can fulfil"),
    ({"minProperties": 1, "maxProperties": 0}, "nothing can fulfil"),
    ({"minProperties": -1}, "minProperties must be an integer"),
    ({"maxProperties": 1.5}, "maxProperties must be an integer"),
    ({"maxProperties": 10 ** 9}, "needs more than"),
    ({"maxProperties": 10 ** 5}, "needs more than"),
    ({"properties": {f"property {i}": {} for i in range(3000)}, "minProperties": 1000},
     "needs more than"),
    ({"patternProperties": {"^a": {"type": "null"}, "b$": {}}},
     'a name might match both "^a" and "b$"'),
    ({"patternProperties": {"^ab?": {"type": "null"}, "^abc": {}}}, "might match both"),
    ({"patternProperties": {"^é*": {"type": "null"}, "^ê": {}}}, "might match both"),
    ({"patternProperties": {"^a|x": {"type": "null"}, "^b": {}}}, "might match both"),
    ({"patternProperties": {"^a\\d": {"type": "null"}, "^ad": {}}}, "might match both"),
    ({"patternProperties": {"a": {}}, "properties": {"b": {}, "xa": {}}},
     'schema at #/patternProperties/a: it matches "xa", which is one of the properties'),
    ({"patternProperties": {"a": {}}, "additionalProperties": True},
     "only where additionalProperties is false"),
    ({"patternProperties": {"a": {}}, "propertyNames": {"enum": ["a"]}},
     "propertyNames beside patternProperties"),
    ({"patternProperties": {"a": {}}, "required": ["b"]}, '"b" is required, but is none'),
    ({"patternProperties": {"a": {}}, "minProperties": 2}, "minProperties of 2"),
    ({"patternProperties": {"a": {}}, "required": ["a"], "minProperties": 2}, "minProperties of 2"),
    ({"patternProperties": {"(": {}}},
     "schema at #/patternProperties/(: the regular expression has"),
    ({"patternProperties": {"^x": {"type": "x"}}}, "schema at #/patternProperties/^x: type must"),
    ({"patternProperties": [], "type": "object"}, "patternProperties must be an object"),
    ({"patternProperties": {f"^{i}": {} for i in range(17)}}, "17 patterns, at most are 16"),
    ({"not": {}}, "nothing can fulfil"),
    ({"not": {}, "type": "object"}, "other keywords beside not"),
    ({"not": False}, "not is not supported"),
    ({"properties": {"a": {"not": {}}}, "required": ["a"]}, "nothing can fulfil"),
    ({"oneOf": [{"not": {}}, {"type": "null"}]}, "both number 0 and number 1"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {}}, "unevaluatedProperties": False},
     "other keywords beside $ref"),
    ({"unevaluatedItems": False}, "unevaluatedItems is not supported"),
    ({"if": {}, "then": {}}, "is not supported"),
    ({"multipleOf": 0}, "multipleOf must be a number above 0"),
    ({"multipleOf": -2}, "multipleOf must be a number above 0"),
    ({"properties": {"a": {"multipleOf": "2"}}}, "schema at #/properties/a: multipleOf must be"),
    ({"type": "integer", "multipleOf": 101}, "multipleOf 101 is not supported"),
    ({"multipleOf": 0.0123}, "multipleOf 0.0123 is not supported"),
    ({"multipleOf": 1e-18}, "multipleOf 1e-18 is not supported"),
    ({"multipleOf": 10 ** 18 + 1}, "is not supported"),
    ({"type": "integer", "multipleOf": 7, "minimum": 8, "maximum": 13}, "nothing can fulfil"),
    ({"type": "integer", "multipleOf": 1e20, "minimum": 1}, "nothing can fulfil"),
    (False, "nothing can fulfil"),
    ({"type": "string", "maxLength": 10 ** 9}, "needs more than"),
    ({"type": "array", "minItems": 10 ** 9}, "needs more than"),
])
def test_refused_schema(schema, words):
    answer, = ask({"kind": "json", "value": schema})
    assert words in answer.get("error", ""), answer


CHAIN = {"$defs": {f"a{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}}
                   for i in range(3000)} | {"a3000": {}}, "$ref": "#/$defs/a0"}
# objects that only their last member tells apart, where their values are compared at length
KINDS = {f"k{d}": {"type": "object", "required": [f"m{i}" for i in range(40)], "properties": {
    f"m{i}": {"enum": [f"{d} {j}" for j in range(63)] + ["last"] if i < 39 else [str(d)]}
    for i in range(40)}} for d in range(64)}
HUGE = [
    ({"$defs": KINDS, "anyOf": [{"oneOf": [{"$ref": f"#/$defs/{name}"} for name in KINDS]}]},
     "a value might fulfil both"),
    (CHAIN, "schema within another"),
    ({"const": [1] * 90000}, "needs more than"),
    ({"const": {str(i): i for i in range(40000)}}, "needs more than"),
    ({"enum": [f"value {i}" for i in range(40000)]}, "needs more than"),
    ({"oneOf": [{"const": f"value {i}"} for i in range(65)]}, "at most are 64"),
    ({"oneOf": [{"type": "object", "required": [f"p{k}" for k in range(300)],
                 "properties": {f"p{k}": {"enum": ["a", "b"]} for k in range(300)}}
                for _ in range(60)]}, "both number 0"),
    ({"anyOf": [{"anyOf": [{"anyOf": [{"type": "object"}] * 30}] * 30}] * 30}, "too large"),
    ({"properties": {f"p{i}": {"type": "string", "maxLength": 500} for i in range(300)}},
     "too large"),
    ({"properties": {f"p{i}": {} for i in range(500)}, "additionalProperties": True}, None),
    ({"properties": {f"p{i}": {} for i in range(3000)}, "required": [f"p{i}" for i in range(900)]},
     None),
    ({"enum": [f"value {i}" for i in range(4000)]}, None),
    ({"type": "object", "x-a": [[[[[]]]]] * 9000}, None),
    ({"propertyNames": {"pattern": "^p"}, "properties": {f"p{i}": {} for i in range(3000)}}, None),
    ({"propertyNames": {"enum": [f"p{i}" for i in range(4000)]}}, None),
    ({"propertyNames": {"pattern": "(" * 60 + "a+" + ")+" * 60}, "properties": {"a" * 900: {}}},
     "too many steps"),
    ({"properties": {f"p{i}" + "x" * 200: {} for i in range(2000)},
      "patternProperties": {f"(x+x+)+{i}": {} for i in range(16)}}, "too many steps"),
    ({"patternProperties": {"a": {}}, "required": ["a" * 2000]}, "more than 1023 characters"),
    ({"$defs": {"n": {"enum": [f"n{i}" for i in range(4000)]}}, "properties": {  # no time to build
        f"o{i}": {"minProperties": 1, "maxProperties": 0, "propertyNames": {"$ref": "#/$defs/n"}}
        for i in range(2500)}}, "too many names"),
]


@pytest.mark.parametrize("index", range(len(HUGE)))
def test_huge_schema(index):
    """An answer in any case, and soon: it is the thread of a request that thinks about it."""
    schema, words = HUGE[index]
    answer, = ask({"kind": "json", "value": schema, "walks": 2})
    assert words in answer["error"] if words else "walked" in answer, answer
