"""Checkpoints that quantisers publish: compressed-tensors' pack-quantized, GPTQ and AWQ. Held as
values they are the model that numpy makes of the same integers; held as they come they meet
activations as integers, with the same bits whoever computes them."""

import json
import sys

import numpy
import pytest

import checkpoint
import fp8
import packed
from harness import ROOT, run
from packed import FORMS
from test_int_weights import GROUP, GREEDY, PROMPTS, SAMPLED, lacks, outcome, outcomes, rounded
from test_int_weights import scores

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402

VALUES = ("--quantization", "none", "--dtype", "float32")
FEW = ["packed", "gptq, zeros", "awq"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """{form: directory} of the demo model."""
    home = tmp_path_factory.mktemp("packed")
    return {name: packed.quantized(home / str(i), checkpoint.DEMO, form)
            for i, (name, form) in enumerate(FORMS.items())}


# ---- what is read -------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_values(serve, models, tmp_path, form, ranks):
    """--quantization none: the bits of a model that has these numbers as F32."""
    plain = packed.plain(tmp_path / "plain", checkpoint.DEMO, FORMS[form])
    assert outcomes(serve(models[form], *VALUES, "-tp", ranks)) == \
        outcomes(serve(plain, "-tp", ranks))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", [checkpoint.DEMO, checkpoint.GOLDEN / "tied_gqa2_f32"],
                         ids=lambda model: model.name)
def test_against_numpy(serve, tmp_path, model, form):
    """Logprobs of the second and third token are those of a forward pass with the numbers that the
    file means, and activations rounded by the definition (test_int_weights.py says why the median,
    and why no later tokens). The head is not quantised."""
    served = packed.quantized(tmp_path / "m", model, FORMS[form])
    config = llama_numpy.read_config(model)
    weights = llama_numpy.read_weights(packed.plain(tmp_path / "plain", model, FORMS[form]))
    mlp = checkpoint.shape_of(model).mlp
    cuts = {"mlp.down_proj": [mlp * leaf // 8 for leaf in range(9)],
            "self_attn.o_proj": [config.heads * leaf // 8 * config.head_dim for leaf in range(9)]}
    prompts = [[(7 * first + 13 * place) % (config.vocab - 10) + 5 for place in range(3)]
               for first in range(48)]
    got = numpy.array(scores(serve(served, "--dtype", "float32", "-tp", 2), prompts))

    def apart(met):
        every = [checkpoint.log_softmax(llama_numpy.forward(config, weights, ids[:2], met=met))
                 for ids in prompts]
        want = [one[[0, 1], ids[1:]] for one, ids in zip(every, prompts)]
        return numpy.median(numpy.abs(got - want), axis=0)  # of either place

    error = apart(lambda x, name: x if name == "lm_head" else rounded(x, cuts.get(name, [])))
    head = apart(lambda x, name: rounded(x, cuts.get(name, [])))
    plain = apart(lambda x, name: x)
    print(f"{model.name} {form}: {error}, not rounded {plain}, nor the head {head}")
    assert error.max() < 1e-5 and plain[1] > 1e-3 and head[1] > 3e-4
