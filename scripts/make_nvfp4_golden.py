#!/usr/bin/env python3
"""Makes a small NVFP4 file as llama.cpp's converter writes it: blocks, and F32 scale tensors beside them.

    python3 scripts/make_nvfp4_golden.py

The weights are those of engine/runtime/tests/data/gguf/qwen3-moe.gguf. Each matrix whose rows are multiples of 64 is
quantized, with one scale per tensor, or per expert where the tensor stacks experts. In the same folder:

qwen3-moe-nvfp4.gguf         the model
qwen3-moe-nvfp4.safetensors  F32, by tensor: first 64 weights of each matrix of the tensor, as gguf-py dequantizes them,
                             times the scale, rounded once

Needs gguf 0.19 or later, numpy and safetensors.
"""
import pathlib

import gguf
import numpy as np
from gguf.quants import NVFP4
from safetensors.numpy import save_file

DATA = pathlib.Path(__file__).resolve().parent.parent / "engine" / "runtime" / "tests" / "data" / "gguf"
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def quantize(matrix):
    """Returns the blocks and the scale of a matrix, as a quantizer for NVFP4 chooses them."""
    scale = np.float32(np.abs(matrix).max() / (6 * 448))
    groups = (matrix / scale).reshape(-1, 4, 16)
    steps = NVFP4.fp32_to_ue4m3(np.abs(groups).max(axis=-1) / 6)
    # The values of gguf-py's decoder are doubled, and its scales halved.
    factors = 2 * NVFP4.ue4m3_to_fp32(steps)[..., None]
    wanted = np.divide(groups, factors, out=np.zeros_like(groups), where=factors != 0)
    codes = np.abs(np.abs(wanted)[..., None] - E2M1).argmin(axis=-1).astype(np.uint8) | (wanted < 0).astype(np.uint8) << 3
    packed = codes[..., :8] | codes[..., 8:] << 4
    blocks = np.concatenate([steps, packed.reshape(len(steps), 32)], axis=-1).astype(np.uint8)
    return blocks.reshape(len(matrix), -1), scale


def copy_keys(reader, writer):
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind = field.types[0]
            part = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, part)


def main():
    reader = gguf.GGUFReader(DATA / "qwen3-moe.gguf")
    writer = gguf.GGUFWriter(DATA / "qwen3-moe-nvfp4.gguf", reader.fields["general.architecture"].contents())
    copy_keys(reader, writer)
    golden = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim < 2 or values.shape[-1] % 64 or "ffn_gate_inp" in tensor.name:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        matrices = values if values.ndim == 3 else values[None]
        blocks, scales = zip(*map(quantize, matrices))
        data = np.stack(blocks) if values.ndim == 3 else blocks[0]
        writer.add_tensor(tensor.name, data, raw_dtype=gguf.GGMLQuantizationType.NVFP4)
        writer.add_tensor(tensor.name.removesuffix(".weight") + ".scale", np.array(scales, np.float32))
        writer.add_tensor(tensor.name.removesuffix(".weight") + ".input_scale", np.ones(len(scales), np.float32))
        weights = [gguf.quants.dequantize(one, gguf.GGMLQuantizationType.NVFP4)[0, :64] for one in blocks]
        exact = np.stack(weights).astype(np.float64) * np.array(scales, np.float64)[:, None]
        golden[tensor.name] = exact.astype(np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(golden, DATA / "qwen3-moe-nvfp4.safetensors")


main()
