#!/usr/bin/env python3
"""Closed forms for 1D tensor parallelism of a Llama, Mistral, Mixtral, Qwen, GLM, Gemma, gpt-oss,
OLMo, MiniMax-M2 or DeepSeek model: bytes moved and held.

    tp1d_bytes.py config.json P [--rows T] [--sampled R]     a table for each rank
    tp1d_bytes.py --self-check                               hand-computed values

Independent of the engine: nothing here runs or reads it, so that the bytes it counts can be held
against these.  All communication is counted as bytes RECEIVED by a rank in one step.

The 1D cut, per layer: QKV and gate/up by output columns (whole heads, MLP columns), O and down by
input columns, each of the two followed by an all-reduce of [T, hidden].  The embedding is cut by
vocabulary rows and summed by one more all-reduce; the output head is cut by vocabulary rows and
its logits all-gathered for the R sampled rows.  Norms are replicated; biases of q, k and v
go with their heads.  Each expert of a mixture is cut as an MLP is, its router is replicated.
A shared expert is as many as are as wide as the others.
OLMo and MiniMax-M2 norm all heads of q together, and those of k: the sums of squares of every head
are summed by an all-reduce of [T, heads + kv_heads] in fp32, and the norms go with their heads.
DeepSeek's keys and values, and some queries, are made of latents: one product, of which each rank
has columns by the balanced rule, makes [query | value | turns] of a row, and an all-gather in fp32
completes it on all ranks.  What makes queries of their latent, or of the row, and keys and values
goes with its heads, and has no KV head of its own: all ranks cache [turns | value].
Of Qwen3-Next and Qwen3.5 most layers recur: of each key head, by the balanced rule, with its value
heads, a rank has the rows of q, k, v and z, those of both gates, the columns of what follows, and
in fp32 the taps of a convolution and two numbers of each value head.  The last rows before the
convolution and a matrix of each value head are all that it keeps of a sequence, however long.  In
their other layers queries have gates, as wide, which go with their heads.
gpt-oss has sinks, one of each head, and biases of all linears: those behind a sum are replicated.
Gemma 4's layers without a window have other heads, of another size and of fewer keys and values,
which are cut alike; where keys and values are one product it is held twice, as both.  A factor of
each layer is replicated.  Its mixtures have an MLP beside the experts of each layer, whose sum is
another all-reduce; factors of experts and gains of the router are replicated.  The last layers of
its small models make queries alone, of sampled rows, and have wider MLPs.  There
each layer takes, of each token, a row of its own: in front of all layers a rank makes those of some
layers, by the balanced rule, of a table and of the embeddings, and an all-gather in fp32 completes
them; what a layer makes of its row is replicated.

The distributed sampler exchanges candidates instead of logits: 32 bytes a row; and when any row
keeps a nucleus (top-k, top-p or min-p), 8 bytes a row and 8 per place in a second exchange.
"""

import argparse
import json
import sys
import typing

import gemma4_numpy

PLACES_MAX = 256  # of a row and rank
ONESHOT_MAX_BYTES = 256 << 10  # default of the command line only; the functions are told
GEMMA3 = {  # what a multimodal checkpoint's text_config need not say
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
RECURRENT = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
SHARED = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "mistral4", "glm4_moe", "dots1",
          "ernie4_5_moe", "exaone_moe", "solar_open")  # mixtures whose first layers may be dense
LATENTS = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "mistral4", "youtu")


class Latent(typing.NamedTuple):
    """Columns of the latents of queries, 0: none, and of keys and values; elements of a head's
    query and key that turn and that do not, and of its value."""

    query: int
    value: int
    turns: int
    plain: int
    head: int

    @property
    def columns(self):
        """Of the product that makes latents."""
        return self.query + self.value + self.turns


class Recurrent(typing.NamedTuple):
    """Heads of queries and keys, and of values, in layers that recur; the sizes of each; rows that
    the convolution sees; how many layers do."""

    keys: int
    values: int
    key_dim: int
    value_dim: int
    taps: int
    layers: int

    def own(self, ranks, rank):
        """Value heads of a rank, and its elements of a row that are convolved."""
        keys = len(block(self.keys, ranks, rank))
        values = keys * (self.values // self.keys)
        return values, 2 * keys * self.key_dim + values * self.value_dim


class Wide(typing.NamedTuple):
    """Heads of keys and values, and the size of a head, in layers without a window; how many they
    are."""

    kv_heads: int
    head_dim: int
    layers: int


class Sharing(typing.NamedTuple):
    """Layers with keys and values of others: that slide, or not; columns of their MLPs."""

    local: int
    wide: int
    mlp: int


class Inputs(typing.NamedTuple):
    """Elements of what a layer takes of each token; rows of the table with some of it."""

    columns: int
    vocab: int


class Shape(typing.NamedTuple):
    """The sizes of a model that decide bytes."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    tied: bool
    bias: bool = False  # of q, k and v
    o_bias: bool = False
    head_norm: bool = False  # of q and of k
    joint_norm: bool = False  # the same, of all heads together
    experts: int = 0  # that have the MLP's columns each, and a router; 0: an MLP
    post_norm: bool = False  # of what attention and MLP add: four norms in a layer, not two
    gpt_oss: bool = False  # sinks, and biases of router and experts
    shared: int = 0  # more experts, for all tokens
    gated: bool = False  # a row of the router for them
    corrections: bool = False  # of the choice: one of each expert that is chosen
    dense: int = 0  # layers with a plain MLP instead,
    dense_mlp: int = 0  # this wide
    latent: Latent | None = None  # then head_dim means nothing
    recurrent: Recurrent | None = None
    gate: bool = False  # as wide as queries
    wide: Wide | None = None
    scaled: bool = False  # a factor of each layer
    beside: int = 0  # columns of an MLP beside experts
    sharing: Sharing = Sharing(0, 0, 0)
    inputs: Inputs = Inputs(0, 0)

    @property
    def attending(self):
        """How many layers attend."""
        return self.layers - (self.recurrent.layers if self.recurrent else 0)

    @property
    def kinds(self):
        """(how many layers attend alike, how many of these have keys and values, the shape with
        their heads) of each kind."""
        if not self.wide:
            return [(self.attending, self.attending, self)]
        kv_heads, head_dim, layers = self.wide
        return [(self.attending - layers, self.attending - layers - self.sharing.local, self),
                (layers, layers - self.sharing.wide,
                 self._replace(kv_heads=kv_heads, head_dim=head_dim))]

    @property
    def norms(self):
        """Of whole rows, in a layer."""
        return (4 if self.post_norm else 2) + 3 * (self.beside > 0) + (self.inputs.columns > 0)

    @property
    def sums(self):
        """Of a layer, over all ranks: of attention, of an MLP, and of experts beside it."""
        return 2 + (self.beside > 0)


def recurrent_of(config):
    if config["model_type"] not in RECURRENT:
        return None
    types, every = config.get("layer_types"), config.get("full_attention_interval", 4)
    layers = (types.count("linear_attention") if types else
              sum(i % every != 0 for i in range(1, config["num_hidden_layers"] + 1)))
    return Recurrent(config["linear_num_key_heads"], config["linear_num_value_heads"],
                     config["linear_key_head_dim"], config["linear_value_head_dim"],
                     config["linear_conv_kernel_dim"], layers)


def wide_of(config):
    """Of a Gemma 4's text_config, with its defaults."""
    heads = gemma4_numpy.heads_of(config)
    wide = [i for i, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    head_dim, kv_heads = heads[wide[0]]
    return Wide(kv_heads, head_dim, len(wide))


def sharing_of(config):
    """Likewise."""
    first = config["num_hidden_layers"] - config["num_kv_shared_layers"]
    kinds, wide = config["layer_types"][first:], config.get("use_double_wide_mlp", False)
    return Sharing(kinds.count("sliding_attention"), kinds.count("full_attention"),
                   0 if config["enable_moe_block"] else config["intermediate_size"] * (1 + wide))


def gemma4_of(config):
    """What a Shape has of a Gemma 4 alone."""
    columns = config["hidden_size_per_layer_input"] or 0
    return {"wide": wide_of(config), "sharing": sharing_of(config), "scaled": True,
            "beside": config["intermediate_size"] if config["enable_moe_block"] else 0,
            "inputs": Inputs(columns, config.get("vocab_size_per_layer_input", 262144))
            if columns else Inputs(0, 0)}


def shape_of(config):
    """The Shape of a parsed config.json, with that file's defaults filled in."""
    gemma4 = config["model_type"] in (*gemma4_numpy.MODELS, *gemma4_numpy.MODELS.values())
    if gemma4:
        config = gemma4_numpy.read_text(config)
    if config["model_type"] in ("qwen3_5", "qwen3_5_moe"):  # likewise
        config = {**config["text_config"], "model_type": f"{config['model_type']}_text"}
    if config["model_type"] == "gemma3":  # of a multimodal checkpoint: the text model
        config = {"model_type": "gemma3_text", **GEMMA3, **config["text_config"]}
    gemma = config["model_type"] in ("gemma", "gemma2", "gemma3_text") or gemma4
    latents = config["model_type"] in LATENTS
    recurrent = recurrent_of(config)
    glm = config["model_type"] in SHARED
    qwen2 = config["model_type"] == "qwen2_moe" or bool(recurrent and config.get("num_experts"))
    minimax = config["model_type"] == "minimax_m2"
    olmo = config["model_type"] in ("olmo2", "olmo3", "olmoe")
    qwen3 = config["model_type"] == "qwen3_moe"
    beside = gemma4 and config["enable_moe_block"]
    own = glm or qwen2 or qwen3 or beside
    mlp = config["moe_intermediate_size" if own else "intermediate_size"]
    heads = config["num_attention_heads"]
    head_dim = 256 if gemma else 128 if minimax else config["hidden_size"] // heads
    return Shape(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or head_dim,
        mlp=mlp,
        tied=config.get("tie_word_embeddings", gemma or config["model_type"] in (
            "ernie4_5", "ernie4_5_moe", "youtu")),
        bias=config["model_type"] in ("qwen2", "qwen2_moe", "gpt_oss") or config.get(
            "attention_bias", config["model_type"] in ("seed_oss", "glm", "glm4")),
        o_bias=config["model_type"] == "gpt_oss" or config.get("attention_out_bias", False)
        or ((olmo or config["model_type"] in ("granite", "smollm3"))
            and config.get("attention_bias", False)),
        head_norm=config["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text", "dots1", "exaone4",
                                           "exaone_moe", *RECURRENT) or gemma4
        or (glm and not latents and config.get("use_qk_norm", False)),
        joint_norm=minimax or olmo,
        experts=0 if gemma4 and not beside
        else config.get("num_local_experts") or config.get("num_experts")
        or config.get("n_routed_experts") or config.get("moe_num_experts") or 0,
        post_norm=config["model_type"] in ("gemma2", "gemma3_text", "glm4") or gemma4,
        gpt_oss=config["model_type"] == "gpt_oss",
        shared=next(config[key] for key in (
            "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
            if key in config) if glm else
        config["shared_expert_intermediate_size"] // mlp if qwen2 else 0,
        gated=qwen2,
        corrections=minimax or glm and config["model_type"] not in ("deepseek_v2", "mistral4"),
        dense=config.get("first_k_dense_replace",
                         config.get("moe_layer_start_index")) if glm else 0,
        dense_mlp=config["intermediate_size"] if glm else 0,
        latent=Latent(config["q_lora_rank"] or 0, config["kv_lora_rank"],
                      config["qk_rope_head_dim"], config["qk_nope_head_dim"],
                      config["v_head_dim"]) if latents else None,
        recurrent=recurrent,
        gate=bool(recurrent),
        **(gemma4_of(config) if gemma4 else {}),
    )


def block(units, ranks, rank):
    """The range of units of one rank by the balanced rule."""
    return range(units * rank // ranks, units * (rank + 1) // ranks)


# ---- communication ----------------------------------------------------------------------------


def is_oneshot(count, ranks, elem_size, oneshot_max_bytes):
    return ranks == 2 or count * elem_size <= oneshot_max_bytes


def all_reduce_bytes(count, ranks, rank, elem_size=4, oneshot_max_bytes=ONESHOT_MAX_BYTES):
    """Bytes a rank receives to sum `count` elements over all ranks.

    One-shot: everyone's whole vector.  Two-shot: everyone's version of the own block (the
    reduce-scatter), then everyone's finished block (the all-gather).
    """
    if is_oneshot(count, ranks, elem_size, oneshot_max_bytes):
        return (ranks - 1) * count * elem_size
    own = len(block(count, ranks, rank))
    return ((ranks - 1) * own + (count - own)) * elem_size


def logits_gather_bytes(sampled, vocab, ranks, rank, elem_size=4):
    """Bytes a rank receives to complete the logits of the sampled rows."""
    return sampled * (vocab - len(block(vocab, ranks, rank))) * elem_size


def latent_gather_bytes(shape, ranks, rank, rows):
    """Bytes a rank receives to complete the latents of so many rows in a layer."""
    columns = shape.latent.columns if shape.latent else 0
    return rows * (columns - len(block(columns, ranks, rank))) * 4


def input_gather_bytes(shape, ranks, rank, rows):
    """Bytes a rank receives to complete what layers take of so many rows."""
    others = shape.layers - len(block(shape.layers, ranks, rank))
    return rows * others * shape.inputs.columns * 4


def places(vocab, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0):
    """Candidates that each rank sends for a row of the distributed sampler."""
    has_top_k = 0 < top_k < vocab
    if temperature == 0 or not (has_top_k or top_p < 1 or min_p > 0):
        return 0
    return min(PLACES_MAX, vocab, top_k if has_top_k else vocab)


def election_bytes(row_places, ranks):
    """(calls, bytes received by a rank) to elect the tokens of rows with so many places each."""
    surveys = 32 * len(row_places)
    ballots = 8 * (len(row_places) + sum(row_places)) if any(row_places) else 0
    return 1 + (ballots > 0), (ranks - 1) * (surveys + ballots)


def step_bytes(shape, ranks, rank, rows, sampled, elem_size=4,
               oneshot_max_bytes=ONESHOT_MAX_BYTES):
    """One step of `rows` tokens: operation -> (calls, bytes received in all of its calls).  A
    single rank calls nobody."""
    calls = 1 if ranks > 1 else 0
    one = all_reduce_bytes(rows * shape.hidden, ranks, rank, elem_size, oneshot_max_bytes)
    gather = logits_gather_bytes(sampled, shape.vocab, ranks, rank, elem_size)
    squares = all_reduce_bytes(rows * (shape.heads + shape.kv_heads), ranks, rank, 4,
                               oneshot_max_bytes)
    layers = shape.layers * shape.joint_norm
    latents = shape.layers * bool(shape.latent)
    inputs = calls * (shape.inputs.columns > 0)
    last = shape.sharing.local + shape.sharing.wide  # go on with sampled rows alone
    few = all_reduce_bytes(sampled * shape.hidden, ranks, rank, elem_size, oneshot_max_bytes)
    return {
        "embedding all_reduce": (calls, one),
        "layer all_reduce": (calls * shape.sums * (shape.layers - last * (sampled == 0)),
                             shape.sums * ((shape.layers - last) * one + last * few)),
        "norm all_reduce": (calls * layers, layers * squares),
        "latent all_gather": (calls * latents, latents * latent_gather_bytes(shape, ranks, rank,
                                                                             rows)),
        "input all_gather": (inputs, input_gather_bytes(shape, ranks, rank, rows)),
        "logits all_gather": (calls, gather),
    }


# ---- memory -----------------------------------------------------------------------------------


def kv_heads_of(shape, ranks, rank):
    """The KV heads that the rank's query heads read; ranks may share one."""
    group = shape.heads // shape.kv_heads
    return sorted({head // group for head in block(shape.heads, ranks, rank)})


def latent_elements(shape, ranks, rank):
    """Of a layer: what a rank has of all that makes queries, keys and values, and columns of O."""
    latent, heads = shape.latent, len(block(shape.heads, ranks, rank))
    queries = heads * (latent.plain + latent.turns) * (latent.query or shape.hidden)
    pairs = heads * (latent.plain + latent.head) * latent.value
    columns = len(block(latent.columns, ranks, rank))
    return columns * shape.hidden + queries + pairs, heads * latent.head


def recurrent_elements(shape, ranks, rank):
    """Of all layers that recur: those of their linears, and those held in fp32."""
    if not shape.recurrent:
        return 0, 0
    recurrent = shape.recurrent
    values, channels = recurrent.own(ranks, rank)
    wide = values * recurrent.value_dim
    linears = (channels + wide + 2 * values + wide) * shape.hidden
    others = channels * recurrent.taps + 2 * values + recurrent.value_dim
    return recurrent.layers * linears, recurrent.layers * others


def attention_elements(shape, ranks, rank, stores=True):
    """Of a layer: what makes queries, keys and values, columns of O, biases, and norms of heads.
    stores: it has keys and values."""
    q_width = len(block(shape.heads, ranks, rank)) * shape.head_dim
    kv_width = len(kv_heads_of(shape, ranks, rank)) * shape.head_dim * stores
    qkv, o_width = (q_width * (1 + shape.gate) + 2 * kv_width) * shape.hidden, q_width
    if shape.latent:
        qkv, o_width = latent_elements(shape, ranks, rank)
    bias = (q_width + 2 * kv_width) * shape.bias + shape.hidden * shape.o_bias
    norms = (1 + stores) * shape.head_dim * shape.head_norm
    norms += (q_width + kv_width) * shape.joint_norm
    norms += shape.latent.query + shape.latent.value if shape.latent else 0
    return qkv, o_width, bias, norms


def mlp_columns(shape, ranks, rank):
    """Of all MLPs and experts of all layers, those that a rank has."""
    def own(columns):
        return len(block(columns, ranks, rank))

    sharing = 0 if shape.experts else shape.sharing.local + shape.sharing.wide
    mixed = shape.layers - shape.dense - sharing
    columns = own(shape.mlp) * mixed * max(shape.experts + shape.shared, 1)
    return (columns + own(shape.dense_mlp) * shape.dense + own(shape.sharing.mlp) * sharing
            + own(shape.beside) * shape.layers)


def input_elements(shape, ranks, rank):
    """What makes all layers' inputs of a token, and what each makes of its own."""
    columns, vocab = shape.inputs
    own = len(block(shape.layers, ranks, rank)) * columns
    return (vocab + shape.hidden) * own + columns + shape.layers * 2 * columns * shape.hidden


def weight_elements(shape, ranks, rank):
    """Elements of each kind of weight that a rank holds, over all layers."""
    each = [[layers * part for part in attention_elements(kind, ranks, rank, stores)]
            for all_layers, storing, kind in shape.kinds
            for layers, stores in ((storing, True), (all_layers - storing, False))]
    qkv, o_width, bias, norms = map(sum, zip(*each))
    columns = len(block(shape.mlp, ranks, rank))
    table = len(block(shape.vocab, ranks, rank)) * shape.hidden
    if shape.gpt_oss:
        own = len(block(shape.heads, ranks, rank))  # sinks
        own += shape.experts * (1 + 2 * columns + shape.hidden)  # router, gates and ups, down
        bias += shape.layers * own
    mixed = shape.layers - shape.dense
    columns = mlp_columns(shape, ranks, rank)
    linears, others = recurrent_elements(shape, ranks, rank)
    return {
        "embedding": table,
        "lm_head": 0 if shape.tied else table,
        "qkv": qkv,
        "o": o_width * shape.hidden,
        "recurrent": linears,
        "recurrent, fp32": others,
        "gate_up": 2 * columns * shape.hidden,
        "down": columns * shape.hidden,
        "router": mixed * (shape.experts + shape.gated) * shape.hidden,
        "bias": bias + mixed * shape.experts * shape.corrections,
        "norms": norms + (shape.layers * shape.norms + 1) * shape.hidden,
        "scales": shape.layers * (shape.scaled
                                  + (shape.hidden + shape.experts) * (shape.beside > 0)),
        "inputs": input_elements(shape, ranks, rank),
    }


def kv_bytes_per_token(shape, ranks, rank, elem_size=4):
    """Bytes of keys and values that a rank keeps for one token, over all layers."""
    if shape.latent:
        cached = shape.latent.value + shape.latent.turns
        return shape.layers * cached * elem_size * bool(block(shape.heads, ranks, rank))
    return sum(2 * storing * len(kv_heads_of(kind, ranks, rank)) * kind.head_dim * elem_size
               for _, storing, kind in shape.kinds)


def state_bytes(shape, ranks, rank):
    """Bytes that a rank keeps of a sequence in layers that recur, however long it is."""
    if not shape.recurrent:
        return 0
    recurrent = shape.recurrent
    values, channels = recurrent.own(ranks, rank)
    each = values * recurrent.key_dim * recurrent.value_dim + (recurrent.taps - 1) * channels
    return 4 * recurrent.layers * each


# ---- self-check -------------------------------------------------------------------------------

LLAMA3_8B = Shape(128256, 4096, 32, 32, 8, 128, 14336, False)
LLAMA32_1B = Shape(128256, 2048, 16, 32, 8, 64, 8192, True)
QWEN25_05B = Shape(151936, 896, 24, 14, 2, 64, 4864, True, bias=True)
QWEN3_06B = Shape(151936, 1024, 28, 16, 8, 128, 3072, True, head_norm=True)
MIXTRAL_8X7B = Shape(32000, 4096, 32, 32, 8, 128, 14336, False, experts=8)
QWEN3_30B_A3B = Shape(151936, 2048, 48, 32, 4, 128, 768, False, head_norm=True, experts=128)
QWEN15_MOE_A27B = Shape(151936, 2048, 24, 16, 16, 128, 1408, False, bias=True, experts=60, shared=4,
                        gated=True)
GLM45_AIR = Shape(151552, 4096, 46, 96, 8, 128, 1408, False, bias=True, experts=128, shared=1,
                  corrections=True, dense=1, dense_mlp=10944)
OLMO2_7B = Shape(100352, 4096, 32, 32, 32, 128, 11008, False, joint_norm=True)
OLMO2_32B = Shape(100352, 5120, 64, 40, 8, 128, 27648, False, joint_norm=True)
OLMOE_1B_7B = Shape(50304, 2048, 16, 16, 16, 128, 1024, False, joint_norm=True, experts=64)
MINIMAX_M2 = Shape(200064, 3072, 62, 48, 8, 128, 1536, False, joint_norm=True, experts=256,
                   corrections=True)
DEEPSEEK_V2_LITE = Shape(102400, 2048, 27, 16, 16, 0, 1408, False, experts=64, shared=2, dense=1,
                         dense_mlp=10944, latent=Latent(0, 512, 64, 128, 128))
DEEPSEEK_V2 = Shape(102400, 5120, 60, 128, 128, 0, 1536, False, experts=160, shared=2, dense=1,
                    dense_mlp=12288, latent=Latent(1536, 512, 64, 128, 128))
DEEPSEEK_V3 = Shape(129280, 7168, 61, 128, 128, 0, 2048, False, experts=256, shared=1,
                    corrections=True, dense=3, dense_mlp=18432,
                    latent=Latent(1536, 512, 64, 128, 128))
QWEN3_NEXT = Shape(151936, 2048, 48, 16, 2, 256, 512, False, head_norm=True, experts=512, shared=1,
                   gated=True, recurrent=Recurrent(16, 32, 128, 128, 4, 36), gate=True)
QWEN35_35B_A3B = Shape(248320, 2048, 40, 16, 2, 256, 512, False, head_norm=True, experts=256,
                       shared=1, gated=True, recurrent=Recurrent(16, 32, 128, 128, 4, 30),
                       gate=True)
GEMMA_2B = Shape(256000, 2048, 18, 8, 1, 256, 16384, True)
GEMMA2_9B = Shape(256000, 3584, 42, 16, 8, 256, 14336, True, post_norm=True)
GPT_OSS_20B = Shape(201088, 2880, 24, 64, 8, 64, 2880, False, bias=True, o_bias=True, experts=32,
                    gpt_oss=True)
GEMMA3_1B = Shape(262144, 1152, 26, 4, 1, 256, 6912, True, head_norm=True, post_norm=True)
GEMMA3_4B = Shape(262208, 2560, 34, 8, 4, 256, 10240, True, head_norm=True, post_norm=True)
GEMMA4_31B = Shape(262144, 5376, 60, 32, 16, 256, 21504, True, head_norm=True, post_norm=True,
                   wide=Wide(4, 512, 10), scaled=True)
GEMMA4_26B = Shape(262144, 2816, 30, 16, 8, 256, 704, True, head_norm=True, post_norm=True,
                   experts=128, wide=Wide(2, 512, 5), scaled=True, beside=2112)
GEMMA4_E2B = Shape(262144, 1536, 35, 8, 1, 256, 6144, True, head_norm=True, post_norm=True,
                   wide=Wide(1, 512, 7), scaled=True, sharing=Sharing(16, 4, 12288),
                   inputs=Inputs(256, 262144))
GEMMA4_E4B = Shape(262144, 2560, 42, 8, 2, 256, 10240, True, head_norm=True, post_norm=True,
                   wide=Wide(2, 512, 7), scaled=True, sharing=Sharing(15, 3, 10240),
                   inputs=Inputs(256, 262144))


def expect(what, value, by_hand):
    if value != by_hand:
        raise SystemExit(f"tp1d_bytes: {what}: {value}, by hand {by_hand}")
    print(f"ok: {what}: {value}")


def check_communication():
    # Two all-reduces of one bf16 token, two-shot: 4 (P-1)/P h 2 bytes = 4 * 3/4 * 4096 * 2.
    step = step_bytes(LLAMA3_8B, 4, 0, 1, 1, elem_size=2, oneshot_max_bytes=0)
    expect("Llama 3 8B, P=4, bytes per layer and token", step["layer all_reduce"][1] // 32, 24576)
    # The same in fp32 and one-shot: 2 * 3 * 4096 * 4.
    step = step_bytes(LLAMA3_8B, 4, 0, 1, 1)
    expect("the same, fp32 one-shot", step["layer all_reduce"][1] // 32, 98304)
    # 7 of 8 blocks of 16032 fp32 logits.
    gather = step_bytes(LLAMA3_8B, 8, 3, 1, 1)["logits all_gather"][1]
    expect("Llama 3 8B, P=8, logits of one row", gather, 448896)
    # One row's sums of squares of 32 + 32 heads from three others; none of Llama's.
    step = step_bytes(OLMO2_7B, 4, 0, 1, 1)["norm all_reduce"]
    expect("OLMo 2 7B, P=4, joint norms", step, (32, 32 * 3 * 64 * 4))
    # Two-shot, 4096 rows of 48 + 8 heads: 2 * 3/4 of them.
    step = step_bytes(MINIMAX_M2, 4, 0, 4096, 1)["norm all_reduce"]
    expect("MiniMax-M2, P=4, joint norms of 4096 rows", step, (62, 62 * 6 * 1024 * 56 * 4))
    # 61 times 2112 columns of one row less the 264 that a rank has; none of Llama's.
    step = step_bytes(DEEPSEEK_V3, 8, 3, 1, 1)["latent all_gather"]
    expect("DeepSeek-V3, P=8, latents of a row", step, (61, 61 * 1848 * 4))
    # 576 columns on seven ranks: from 246 to 329.
    step = step_bytes(DEEPSEEK_V2_LITE, 7, 3, 5, 1)["latent all_gather"]
    expect("DeepSeek-V2-Lite, P=7, latents of five rows", step, (27, 27 * 5 * (576 - 83) * 4))
    step = step_bytes(LLAMA3_8B, 4, 0, 1, 1)["latent all_gather"]
    expect("Llama 3 8B, latents", step, (0, 0))
    expect("Llama 3 8B, the same", step_bytes(LLAMA3_8B, 4, 0, 1, 1)["norm all_reduce"], (0, 0))
    # Three sums in each of 30 layers, of 2816 fp32 from seven ranks; two in Gemma 4's small ones.
    step = step_bytes(GEMMA4_26B, 8, 3, 1, 1)
    expect("Gemma 4 26B, P=8, sums of a row", step["layer all_reduce"], (90, 90 * 7 * 2816 * 4))
    step = step_bytes(GEMMA4_E2B, 8, 3, 1, 1)
    expect("Gemma 4 E2B, P=8, sums of a row", step["layer all_reduce"], (70, 70 * 7 * 1536 * 4))
    # 35 layers on eight ranks: the fourth has those from 13 to 16.
    expect("the same, inputs of a row", step["input all_gather"], (1, 31 * 256 * 4))
    # Of nine rows one is sampled, or none: the last 20 layers sum that one.
    expect("of nine", [step_bytes(GEMMA4_E2B, 8, 3, 9, n)["layer all_reduce"] for n in (1, 0)],
           [(70, (30 * 9 + 40) * 7 * 1536 * 4), (30, 30 * 9 * 7 * 1536 * 4)])
    # Top-k 40 moves 3 * (32 + 8 + 8 * 40) bytes a row, greedy 3 * 32.
    expect("P=4, top-k 40", election_bytes([places(128256, top_k=40)], 4), (2, 1080))
    expect("P=4, greedy", election_bytes([places(128256, temperature=0)], 4), (1, 96))
    # Greedy and top-p together: 2 * 32 and 2 * 8 + 8 * 256 from one peer.
    expect("P=2, two rows", election_bytes([0, places(128256, top_p=0.9)], 2), (2, 2128))
    # 10 elements in blocks of 3, 3, 4: the others send 2 * len, then 10 - len, four bytes each.
    uneven = [all_reduce_bytes(10, 3, rank, 4, 0) for rank in range(3)]
    expect("two-shot all_reduce of 10 over 3", uneven, [52, 52, 56])
    expect("two ranks never use two-shot", all_reduce_bytes(10, 2, 0, 4, 0), 40)
    expect("one rank receives nothing", all_reduce_bytes(10, 1, 0, 4, 0), 0)


def check_memory():
    # The published parameter counts.
    whole = sum(weight_elements(LLAMA3_8B, 1, 0).values())
    expect("Llama 3 8B parameters", whole, 8030261248)
    whole = sum(weight_elements(LLAMA32_1B, 1, 0).values())
    expect("Llama 3.2 1B parameters", whole, 1235814400)
    whole = sum(weight_elements(QWEN25_05B, 1, 0).values())
    expect("Qwen2.5 0.5B parameters", whole, 494032768)
    whole = sum(weight_elements(QWEN3_06B, 1, 0).values())
    expect("Qwen3 0.6B parameters", whole, 596049920)
    whole = sum(weight_elements(MIXTRAL_8X7B, 1, 0).values())
    expect("Mixtral 8x7B parameters", whole, 46702792704)
    whole = sum(weight_elements(QWEN3_30B_A3B, 1, 0).values())
    expect("Qwen3 30B A3B parameters", whole, 30532122624)
    # "14.3B parameters in total" (its model card).
    whole = sum(weight_elements(QWEN15_MOE_A27B, 1, 0).values())
    expect("Qwen1.5 MoE A2.7B, hundreds of millions of parameters", round(whole / 1e8), 143)
    # 45 layers of 129 MLPs and one of one, routers, attention, norms and tables.
    whole = sum(weight_elements(GLM45_AIR, 1, 0).values())
    expect("GLM-4.5-Air parameters", whole,
           45 * (129 * 3 * 4096 * 1408 + 128 * 4097) + 3 * 4096 * 10944 + 4096
           + 46 * (208 * 128 * 4096 + 112 * 128 + 2 * 4096) + 2 * 151552 * 4096)
    # The published parameter counts, as those of Llama.
    whole = sum(weight_elements(OLMO2_7B, 1, 0).values())
    expect("OLMo 2 7B parameters", whole, 7298617344)
    whole = sum(weight_elements(OLMO2_32B, 1, 0).values())
    expect("OLMo 2 32B, tens of millions of parameters", round(whole / 1e7), 3223)
    whole = sum(weight_elements(OLMOE_1B_7B, 1, 0).values())
    expect("OLMoE 1B 7B parameters", whole, 6919161856)
    # Its shards of norms: two of rows, a quarter of those of heads.
    expect("OLMo 2 7B, P=4, elements of norms", weight_elements(OLMO2_7B, 4, 2)["norms"],
           32 * (2 * 4096 + 2 * 1024) + 4096)
    # "230 billion total parameters" (its model card): 228.7.
    whole = sum(weight_elements(MINIMAX_M2, 1, 0).values())
    expect("MiniMax-M2 parameters", whole, 62 * (
        256 * (3 * 3072 * 1536 + 3073) + 112 * 128 * 3072 + 56 * 128 + 2 * 3072)
        + 2 * 200064 * 3072 + 3072)
    # "236B total parameters", "15.7B" and "671B" (arXiv 2405.04434, 2412.19437).
    for name, shape, digits, count in (("V2", DEEPSEEK_V2, 9, 236), ("V3", DEEPSEEK_V3, 9, 671),
                                       ("V2-Lite", DEEPSEEK_V2_LITE, 8, 157)):
        whole = sum(weight_elements(shape, 1, 0).values())
        expect(f"DeepSeek-{name}, 1e{digits} parameters", round(whole / 10 ** digits), count)
    # No rank has what another has.
    held = [weight_elements(DEEPSEEK_V3, 4, rank) for rank in range(4)]
    expect("DeepSeek-V3, P=4, parts of attention",
           sum(part["qkv"] + part["o"] for part in held), 61 * (
               7168 * 2112 + 128 * (192 * 1536 + 256 * 512 + 128 * 7168)))
    # "80B in total", "35B in total" (their model cards).
    for name, shape, count in (("Qwen3-Next", QWEN3_NEXT, 80), ("Qwen3.5-35B", QWEN35_35B_A3B, 35)):
        whole = sum(weight_elements(shape, 1, 0).values())
        expect(f"{name}, billions of parameters", round(whole / 1e9), count)
    # A layer of it: 8192 + 4096 outputs, gates of 32 heads, 4096 columns back.
    whole = weight_elements(QWEN3_NEXT, 1, 0)
    expect("Qwen3-Next, what recurs", whole["recurrent"], 36 * 2048 * (8192 + 4096 + 64 + 4096))
    # A quarter of it: 8 value heads, 4 key heads; norms of values on every rank.
    held = weight_elements(QWEN3_NEXT, 4, 1)
    expect("a quarter of that", held["recurrent"], whole["recurrent"] // 4)
    expect("in fp32", held["recurrent, fp32"], 36 * (2048 * 4 + 2 * 8 + 128))
    # 36 layers of 8 matrices of 128 x 128, and 3 rows of 2048; 12 layers of 1 KV head.
    expect("Qwen3-Next, P=4, bytes per sequence", state_bytes(QWEN3_NEXT, 4, 1),
           36 * 4 * (8 * 16384 + 3 * 2048))
    expect("the same, KV bytes per token in bf16", kv_bytes_per_token(QWEN3_NEXT, 4, 1, 2),
           12 * 2 * 256 * 2)
    # Three key heads on two ranks: one and two.
    odd = Shape(99, 64, 4, 4, 2, 16, 96, True, recurrent=Recurrent(3, 9, 32, 16, 3, 2), gate=True)
    expect("3 key and 9 value heads, P=2, bytes per sequence",
           [state_bytes(odd, 2, rank) for rank in range(2)],
           [2 * 4 * (3 * 512 + 2 * 112), 2 * 4 * (6 * 512 + 2 * 224)])
    # 61 layers of 512 + 64 elements, whatever ranks there are, if they have a head.
    expect("DeepSeek-V3, KV bytes per token in bf16",
           [kv_bytes_per_token(DEEPSEEK_V3, 256, rank, 2) for rank in (0, 1, 255)],
           [0, 70272, 70272])
    # gpt-oss' model card (arXiv 2508.10925, table 1): 19.12, 0.64 and 1.16 billion, 20.91 in all.
    whole = weight_elements(GPT_OSS_20B, 1, 0)
    expect("gpt-oss-20b, tens of millions of parameters of its tables",
           round((whole["embedding"] + whole["lm_head"]) / 1e7), 116)
    expect("its attention", round((whole["qkv"] + whole["o"]) / 1e7), 64)
    expect("its MLPs", round((whole["gate_up"] + whole["down"] + whole["router"] +
                              24 * 32 * (1 + 3 * 2880)) / 1e7), 1912)
    expect("all", round(sum(whole.values()) / 1e7), 2091)
    whole = sum(weight_elements(GEMMA_2B, 1, 0).values())
    expect("Gemma 2B parameters", whole, 2506172416)
    whole = sum(weight_elements(GEMMA2_9B, 1, 0).values())
    expect("Gemma 2 9B parameters", whole, 9241705984)
    whole = sum(weight_elements(GEMMA3_1B, 1, 0).values())
    expect("Gemma 3 1B parameters", whole, 999885952)
    # Of 4300079472, 416866032 are the vision tower's and 2950272 the projector's.
    whole = sum(weight_elements(GEMMA3_4B, 1, 0).values())
    expect("Gemma 3 4B parameters of the text", whole, 4300079472 - 416866032 - 2950272)
    # As its file has it: what is left out takes the defaults.
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    expect("its shape", shape_of({"model_type": "gemma3", "text_config": text}), GEMMA3_4B)
    # Its tables, MLPs, attention of 50 layers and of 10, where keys are held twice, norms and
    # factors.
    whole = sum(weight_elements(GEMMA4_31B, 1, 0).values())
    expect("Gemma 4 31B elements", whole,
           5376 * (262144 + 60 * 3 * 21504 + 50 * (2 * 32 + 2 * 16) * 256
                   + 10 * (2 * 32 + 2 * 4) * 512 + 60 * 4 + 1) + 2 * (50 * 256 + 10 * 512) + 60)
    # On eight ranks a KV head of 512 is on two: 50 layers of two of 256, 10 of one.
    expect("Gemma 4 31B, P=8, KV bytes per token in bf16",
           [kv_bytes_per_token(GEMMA4_31B, 8, rank, 2) for rank in (0, 7)],
           2 * [2 * 2 * (50 * 2 * 256 + 10 * 512)])
    # Its table, experts and MLPs; attention of 25 layers and of 5; norms, routers and factors.
    whole = weight_elements(GEMMA4_26B, 1, 0)
    expect("Gemma 4 26B elements", sum(whole.values()),
           2816 * (262144 + 30 * 3 * (128 * 704 + 2112) + 25 * (2 * 16 + 2 * 8) * 256
                   + 5 * (2 * 16 + 2 * 2) * 512 + 30 * (7 + 1 + 128) + 1)
           + 30 * (128 + 1) + 2 * (25 * 256 + 5 * 512))
    # A quarter: 176 of an expert's columns, 528 of the MLP's.
    expect("Gemma 4 26B, P=4, down", weight_elements(GEMMA4_26B, 4, 3)["down"],
           30 * 2816 * (128 * 176 + 528))
    # A KV head of 512 is on two ranks: 25 layers of two of 256, 5 of one.
    expect("the same, KV bytes per token in bf16", kv_bytes_per_token(GEMMA4_26B, 4, 3, 2),
           2 * 2 * (25 * 2 * 256 + 5 * 512))
    # 15 layers have keys and values, 12 of them a window; the others have MLPs of 12288 columns.
    whole = weight_elements(GEMMA4_E2B, 1, 0)
    expect("Gemma 4 E2B, its MLPs", whole["gate_up"] + whole["down"],
           3 * 1536 * (15 * 6144 + 20 * 12288))
    expect("its attention", whole["qkv"] + whole["o"],
           1536 * (28 * 16 * 256 + 7 * 16 * 512 + 12 * 2 * 256 + 3 * 2 * 512))
    expect("its inputs", whole["inputs"],
           262144 * 8960 + 8960 * 1536 + 256 + 35 * 2 * 256 * 1536)
    # Five norms of rows; those of queries, and of 15 layers' keys.
    expect("its norms", whole["norms"],
           (35 * 5 + 1) * 1536 + 28 * 256 + 7 * 512 + 12 * 256 + 3 * 512)
    expect("its KV bytes per token in bf16", kv_bytes_per_token(GEMMA4_E2B, 1, 0, 2), 18432)
    # 35 layers on eight ranks: the last has five of them, and all that makes something of them.
    expect("Gemma 4 E2B, P=8, inputs", weight_elements(GEMMA4_E2B, 8, 7)["inputs"],
           (262144 + 1536) * 5 * 256 + 256 + 35 * 2 * 256 * 1536)
    # 24 layers have keys and values, 20 of them a window; all MLPs are as wide.
    whole = weight_elements(GEMMA4_E4B, 1, 0)
    expect("Gemma 4 E4B elements", sum(whole.values()),
           262144 * (2560 + 42 * 256) + 42 * (3 * 10240 + 3 * 256 + 5) * 2560 + 2560 + 42
           + (35 * 16 * 256 + 7 * 16 * 512 + 2 * 2 * (20 * 256 + 4 * 512)) * 2560
           + 35 * 256 + 7 * 512 + 20 * 256 + 4 * 512 + 256)
    # As transformers writes them, and what is left out.
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42,
            "num_key_value_heads": 2, "num_kv_shared_layers": 18}
    expect("its shape", shape_of({"model_type": "gemma4", "text_config": text}), GEMMA4_E4B)
    kinds = (["sliding_attention"] * 4 + ["full_attention"]) * 7
    text = {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35,
            "num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
            "layer_types": kinds}
    expect("E2B's", shape_of({"model_type": "gemma4", "text_config": text}), GEMMA4_E2B)
    text = {"hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30,
            "num_attention_heads": 16, "num_key_value_heads": 8, "attention_k_eq_v": True,
            "num_global_key_value_heads": 2, "enable_moe_block": True, "num_experts": 128,
            "moe_intermediate_size": 704, "top_k_experts": 8, "hidden_size_per_layer_input": 0}
    expect("26B's", shape_of({"model_type": "gemma4", "text_config": text}), GEMMA4_26B)
    # Norms of a layer: 4 * 1152 + 2 * 256, and the last.
    expect("Gemma 3 1B, P=4, elements of norms", weight_elements(GEMMA3_1B, 4, 2)["norms"],
           26 * 5120 + 1152)
    # When everything divides, the ranks together repeat only the norms: 65 * 4096 each.
    total = sum(sum(weight_elements(LLAMA3_8B, 4, rank).values()) for rank in range(4))
    expect("Llama 3 8B, P=4, elements in all", total, 8030261248 + 3 * 266240)
    # 2 (K and V) * 32 layers * 2 KV heads * 128 * 2 bytes.
    expect("Llama 3 8B, P=4, KV bytes per token in bf16",
           kv_bytes_per_token(LLAMA3_8B, 4, 1, 2), 32768)
    # Six query heads of one KV head on eight ranks: floor(6 r / 8) = 0 0 1 2 3 3 4 5 6.
    mqa = Shape(131, 48, 3, 6, 1, 8, 131, False)
    expect("heads of MQA 6/1 at P=8", [len(block(6, 8, rank)) for rank in range(8)],
           [0, 1, 1, 1, 0, 1, 1, 1])
    expect("its KV heads", [len(kv_heads_of(mqa, 8, rank)) for rank in range(8)],
           [0, 1, 1, 1, 0, 1, 1, 1])
    # Eight query heads in two groups of four on three ranks: 0-1, 2-4, 5-7.
    gqa = Shape(259, 64, 3, 8, 2, 8, 176, True)
    expect("KV heads of GQA 8/2 at P=3", [kv_heads_of(gqa, 3, rank) for rank in range(3)],
           [[0], [0, 1], [1]])


# ---- command line -----------------------------------------------------------------------------


def print_tables(shape, args):
    ranks = range(args.ranks)
    oneshot = is_oneshot(args.rows * shape.hidden, args.ranks, args.elem_size, args.oneshot_max)
    steps = [step_bytes(shape, args.ranks, rank, args.rows, args.sampled, args.elem_size,
                        args.oneshot_max) for rank in ranks]
    weights = [weight_elements(shape, args.ranks, rank) for rank in ranks]

    def row(name, values):
        print(f"{name:<36}" + "".join(f"{value:>15,}" for value in values))

    row(f"rank of {args.ranks}", ranks)
    print(f"bytes received: {args.rows} rows, {args.sampled} sampled, "
          f"{'one-shot' if oneshot else 'two-shot'}")
    for name, (calls, _) in steps[0].items():
        row(f"  {name} x{calls}", [step[name][1] for step in steps])
    row("  total", [sum(received for _, received in step.values()) for step in steps])
    print("weight elements")
    for name in weights[0]:
        row(f"  {name}", [held[name] for held in weights])
    row("  total", [sum(held.values()) for held in weights])
    row(f"KV bytes per token ({args.kv_size}-byte elements)",
        [kv_bytes_per_token(shape, args.ranks, rank, args.kv_size) for rank in ranks])
    row("bytes of a sequence that recurs", [state_bytes(shape, args.ranks, rank) for rank in ranks])


def main():
    parser = argparse.ArgumentParser(description="Closed forms for 1D tensor parallelism.")
    parser.add_argument("config", nargs="?", help="a config.json")
    parser.add_argument("ranks", nargs="?", type=int, metavar="P", help="number of ranks")
    parser.add_argument("--rows", type=int, default=1, metavar="T", help="tokens in the step")
    parser.add_argument("--sampled", type=int, default=1, metavar="R", help="rows of logits")
    parser.add_argument("--elem-size", type=int, default=4, help="bytes of a sent element")
    parser.add_argument("--kv-size", type=int, default=4, help="bytes of a KV element")
    parser.add_argument("--oneshot-max", type=int, default=ONESHOT_MAX_BYTES,
                        help="largest all-reduce, in bytes, done one-shot")
    parser.add_argument("--self-check", action="store_true", help="check hand-computed values")
    args = parser.parse_args()
    if args.self_check:
        check_communication()
        check_memory()
        return 0
    if args.config is None or args.ranks is None or args.ranks < 1:
        parser.error("give --self-check, or config.json and P >= 1")
    with open(args.config, encoding="utf-8") as file:
        print_tables(shape_of(json.load(file)), args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
