"""Checkpoints with integers of 4 or 8 bits in words of 32, as quantisers publish them, and what
they mean, by numpy. The layouts are those of compressed-tensors' pack_quantized, of AutoGPTQ's
QuantLinear and of AutoAWQ's WQLinear_GEMM."""

import typing

import numpy

import fp8

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


class Form(typing.NamedTuple):
    method: str  # packed, gptq, gptq_v2 or awq
    bits: int = 4
    group: int = 64  # -1: all columns
    symmetric: bool = True
    scales: str = "F16"

    def config(self):
        """quantization_config, as the tools write it."""
        if self.method == "packed":
            weights = {"num_bits": self.bits, "type": "int", "symmetric": self.symmetric,
                       "strategy": "channel" if self.group < 0 else "group",
                       "group_size": None if self.group < 0 else self.group, "dynamic": False,
                       "actorder": None, "block_structure": None, "observer": "minmax"}
            return {"quant_method": "compressed-tensors", "format": "pack-quantized",
                    "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                                  "input_activations": None,
                                                  "output_activations": None}},
                    "ignore": ["lm_head"], "kv_cache_scheme": None,
                    "quantization_status": "compressed"}
        if self.method == "awq":
            return {"quant_method": "awq", "bits": self.bits, "group_size": self.group,
                    "version": "gemm", "zero_point": True, "modules_to_not_convert": None}
        return {"quant_method": "gptq", "bits": self.bits, "group_size": self.group,
                "sym": self.symmetric, "desc_act": False, "checkpoint_format": self.method,
                "true_sequential": True, "damp_percent": 0.01, "static_groups": False}


FORMS = {
    "packed": Form("packed", scales="BF16"),
    "packed, zeros": Form("packed", group=32, symmetric=False),
    "packed, channels": Form("packed", group=-1, scales="F32"),
    "packed, 8 bits": Form("packed", bits=8, scales="BF16"),
    "gptq": Form("gptq", group=128),
    "gptq, zeros": Form("gptq", symmetric=False),
    "gptq_v2, channels, zeros": Form("gptq_v2", group=-1, symmetric=False),
    "gptq, 8 bits": Form("gptq", bits=8, group=32),
    "awq": Form("awq", symmetric=False),
    "awq, 128": Form("awq", group=128, symmetric=False, scales="BF16"),
}


def is_linear(name):
    """With Mixtral's experts, which have names of their own."""
    return fp8.is_linear(name) or ".experts." in name


def quantize(values, form):
    """(codes [N, K], zeros [N, G], scales [N, G]) of a matrix; codes and zeros are not negative."""
    rows, cols = values.shape
    size = cols if form.group < 0 else form.group
    most, half = 2 ** form.bits - 1, 2 ** (form.bits - 1)
    codes = numpy.empty(values.shape, numpy.int64)
    zeros, scales = [], []
    for begin in range(0, cols, size):
        part = values[:, begin:begin + size].astype(numpy.float32)
        if form.symmetric:
            scale = numpy.abs(part).max(1) / numpy.float32(half - 0.5)
        else:
            scale = (part.max(1).clip(0) - part.min(1).clip(max=0)) / most
        scale = numpy.maximum(scale, 1e-6).astype(fp8.TYPES[form.scales])
        wide = scale.astype(numpy.float32)
        zero = numpy.full(rows, half) if form.symmetric else \
            numpy.rint(-part.min(1) / wide).clip(0, most).astype(numpy.int64)
        codes[:, begin:begin + size] = \
            (numpy.rint(part / wide[:, None]) + zero[:, None]).clip(0, most)
        zeros.append(zero)
        scales.append(scale)
    return codes, numpy.stack(zeros, 1), numpy.stack(scales, 1)


def meant(codes, zeros, scales, form):
    """The matrix, exactly where scales have 16 bits."""
    group = numpy.arange(codes.shape[1]) // (form.group if form.group > 0 else codes.shape[1])
    return scales.astype(numpy.float32)[:, group] * (codes - zeros[:, group]).astype(numpy.float32)


def words(values, bits, axis, order=None):
    """Values along an axis into words of 32 bits, the first in the lowest bits."""
    count = 32 // bits
    values = numpy.moveaxis(values, axis, -1)
    short = -values.shape[-1] % count
    values = numpy.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, short)]).astype(numpy.uint64)
    values = values.reshape(*values.shape[:-1], -1, count)
    packed = sum(values[..., place] << numpy.uint64(bits * i)
                 for i, place in enumerate(order or range(count)))
    return numpy.ascontiguousarray(numpy.moveaxis(packed.astype(numpy.uint32).view("<i4"), -1,
                                                  axis))


def less_one(packed, form):
    """Of version 1 zeros are one less: words are, as GPTQModel makes them."""
    ones = numpy.uint32((2 ** 32 - 1) // (2 ** form.bits - 1) if form.method == "gptq" else 0)
    return (packed.view("<u4") - ones).view("<i4")


def tensors_of(name, codes, zeros, scales, form):
    """The tensors of the linear X.weight."""
    name, bits = name.removesuffix("weight"), form.bits
    group = numpy.arange(codes.shape[1]) // (form.group if form.group > 0 else codes.shape[1])
    if form.method == "packed":
        found = {"weight_packed": words(codes, bits, 1), "weight_scale": scales,
                 "weight_shape": numpy.array(codes.shape, "<i8")}
        if not form.symmetric:
            found["weight_zero_point"] = words(zeros, bits, 0)
    elif form.method == "awq":
        found = {"qweight": words(codes.T, bits, 1, AWQ_ORDER), "scales": scales.T.copy(),
                 "qzeros": words(zeros.T, bits, 1, AWQ_ORDER)}
    else:
        found = {"qweight": words(codes.T, bits, 0), "scales": scales.T.copy(),
                 "qzeros": less_one(words(zeros.T, bits, 1), form),
                 "g_idx": group.astype("<i4")}
    return {name + suffix: values for suffix, values in found.items()}


def quantized(directory, model, form, left_out=lambda name: False, **config):
    """The model with its linears packed; left_out: those that stay."""
    tensors = {}
    for name, values in fp8.read(model).items():
        if is_linear(name) and not left_out(name):
            tensors.update(tensors_of(name, *quantize(values, form), form))
        else:
            tensors[name] = values
    return fp8.write(directory, tensors, model, quantization_config=form.config(), **config)


def plain(directory, model, form, left_out=lambda name: False):
    """The same numbers as F32."""
    tensors = {}
    for name, values in fp8.read(model).items():
        if is_linear(name) and not left_out(name):
            values = meant(*quantize(values, form), form)
        tensors[name] = values.astype(numpy.float32)
    return fp8.write(directory, tensors, model, torch_dtype="float32", dtype="float32")
