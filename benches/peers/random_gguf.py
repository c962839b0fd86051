#!/usr/bin/env python3
"""Write a model of random weights in the shape of a published MoE model straight to GGUF.

Quantised blocks are random bits with sane scales (no fp16 detour), so a 17 GB
file takes about a minute. Speed, memory and I/O of an engine can be measured
with it; its text means nothing. Needs: numpy, gguf (both from PyPI).

  gen_moe_gguf.py --arch qwen3moe --quant Q4_K --out FILE [--layers N]
                  [--router-skew S] [--seed N]

--router-skew S: 0 = every expert equally likely (worst case for any expert
cache); S > 0 adds a fixed per-layer, per-expert logit bias of std S (token
part of the logit has std ~1). S=1 is a moderate static skew; the printed
'top 25 % of experts' share says how much.
"""
import argparse, sys, time
import numpy as np
import gguf

T = gguf.GGMLQuantizationType
SHAPES = {
    # OLMoE-1B-7B-0924
    "olmoe": dict(layers=16, hidden=2048, heads=16, kv=16, hd=128, experts=64, used=8,
                  eff=1024, ff=1024, vocab=50304, theta=10000.0, eps=1e-5, ctx=4096, qknorm="full"),
    # Qwen3-30B-A3B
    "qwen3moe": dict(layers=48, hidden=2048, heads=32, kv=4, hd=128, experts=128, used=8,
                     eff=768, ff=6144, vocab=151936, theta=1e6, eps=1e-6, ctx=40960, qknorm="head"),
    # LFM2-8B-A1B
    "lfm2moe": dict(layers=24, hidden=2048, heads=32, kv=8, hd=64, experts=32, used=4, eff=1792, ff=7168, vocab=65536,
                    theta=1e6, eps=1e-5, ctx=128000, qknorm="head", attention=[2, 6, 10, 14, 18, 21], dense=2, taps=3),
    # Granite 4 H-Tiny
    "granitehybrid": dict(layers=40, hidden=1536, heads=12, kv=4, hd=128, experts=64, used=6, eff=512, ff=512, vocab=100352,
                          theta=1e4, eps=1e-5, ctx=131072, qknorm=None, attention=[5, 15, 25, 35], dense=0, taps=4, shared=1024,
                          mamba=dict(heads=48, head=64, state=128, groups=1)),
    # tiny, for a smoke test of the whole chain
    "tiny": dict(layers=2, hidden=512, heads=4, kv=2, hd=128, experts=16, used=4,
                 eff=256, ff=1024, vocab=1024, theta=1e6, eps=1e-6, ctx=4096, qknorm="head"),
}
ARCH = {name: "qwen3moe" if name == "tiny" else name for name in SHAPES}
BLK = {T.Q4_K: (256, 144), T.Q2_K: (256, 84), T.Q3_K: (256, 110), T.Q6_K: (256, 210),
       T.Q8_0: (32, 34), T.Q4_0: (32, 18), T.Q5_K: (256, 176), T.IQ2_XXS: (256, 66), T.IQ4_XS: (256, 136)}
POOL_BYTES = 96 << 20


class Source:
    """Random bytes from a pool read at random offsets (fast, incompressible)."""
    def __init__(self, seed):
        self.rng = np.random.Generator(np.random.SFC64(seed))
        self.pool = np.frombuffer(self.rng.bytes(POOL_BYTES), dtype=np.uint8)

    def take(self, n):
        out = np.empty(n, dtype=np.uint8)
        at = 0
        while at < n:
            off = int(self.rng.integers(0, POOL_BYTES // 2))
            k = min(n - at, POOL_BYTES - off)
            out[at:at + k] = self.pool[off:off + k]
            at += k
        return out


def f16(x):
    return np.frombuffer(np.float16(x).tobytes(), dtype=np.uint8)


def qbytes(src, qt, n_elem, std):
    """Random but sane blocks of type qt for n_elem weights of about that std."""
    per, size = BLK[qt]
    nb = n_elem // per
    assert nb * per == n_elem
    b = src.take(nb * size).reshape(nb, size)
    if qt == T.Q4_K or qt == T.Q5_K:          # d, dmin, scales[12], ...
        m = 7.5 if qt == T.Q4_K else 15.5
        d = std / (258.0 if qt == T.Q4_K else 530.0)
        b[:, 0:2] = f16(d); b[:, 2:4] = f16(d * m)
    elif qt == T.Q2_K:                        # scales[16], qs[64], d, dmin
        d = std / 12.5
        b[:, 80:82] = f16(d); b[:, 82:84] = f16(d * 1.5)
    elif qt == T.Q3_K:                        # hmask, qs, scales, d at the end
        b[:, 108:110] = f16(std / 42.0)
    elif qt == T.Q6_K:                        # ql, qh, scales, d at the end
        b[:, 208:210] = f16(std / 1360.0)
    elif qt == T.Q8_0:
        b[:, 0:2] = f16(std / 73.6)
    elif qt == T.Q4_0:
        b[:, 0:2] = f16(std / 4.6)
    elif qt == T.IQ2_XXS:                     # d, then 32 u16 of grid index, signs, scale
        b[:, 0:2] = f16(std / 60.0)
    elif qt == T.IQ4_XS:                      # d, scales_h, scales_l, qs
        b[:, 0:2] = f16(std / 1200.0)
    return b.reshape(-1)


def byte_unicode():
    bs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    cs, n = bs[:], 0
    for b in range(256):
        if b not in bs:
            bs.append(b); cs.append(256 + n); n += 1
    return {b: chr(c) for b, c in zip(bs, cs)}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--arch", choices=SHAPES, required=True)
    ap.add_argument("--quant", required=True, help="type of experts and attention: " + " ".join(t.name for t in BLK))
    ap.add_argument("--down", help="type of ffn_down_exps (default: --quant)")
    ap.add_argument("--out-type", help="type of output.weight (default Q6_K, Q8_0 for Q8_0)")
    ap.add_argument("--layers", type=int)
    ap.add_argument("--router-skew", type=float, default=0.0)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    s = dict(SHAPES[a.arch]); arch = ARCH[a.arch]
    if a.layers:
        s["layers"] = a.layers
    q = T[a.quant]; qd = T[a.down] if a.down else q
    qo = T[a.out_type] if a.out_type else (T.Q8_0 if q == T.Q8_0 else T.Q6_K)
    H, E, L, V = s["hidden"], s["experts"], s["layers"], s["vocab"]
    qdim, kvdim = s["heads"] * s["hd"], s["kv"] * s["hd"]
    src = Source(a.seed); rng = np.random.default_rng(a.seed)

    w = gguf.GGUFWriter(a.out, arch)
    w.add_name(f"random-{a.arch}-{L}L-{q.name}")
    w.add_block_count(L); w.add_context_length(s["ctx"]); w.add_embedding_length(H)
    hybrid = s.get("attention")
    kinds = range(L) if hybrid is None else hybrid
    w.add_feed_forward_length(s["ff"]); w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv"] if hybrid is None else [s["kv"] if i in kinds else 0 for i in range(L)])
    w.add_layer_norm_rms_eps(s["eps"]); w.add_rope_freq_base(s["theta"])
    w.add_expert_count(E); w.add_expert_used_count(s["used"]); w.add_vocab_size(V)
    if arch == "qwen3moe":
        w.add_key_length(s["hd"]); w.add_value_length(s["hd"]); w.add_expert_feed_forward_length(s["eff"])
        w.add_rope_dimension_count(s["hd"])
    if arch == "lfm2moe":
        w.add_shortconv_l_cache(s["taps"]); w.add_leading_dense_block_count(s["dense"])
        w.add_expert_feed_forward_length(s["eff"]); w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if arch == "granitehybrid":
        m = s["mamba"]
        w.add_ssm_conv_kernel(s["taps"]); w.add_ssm_state_size(m["state"]); w.add_ssm_group_count(m["groups"])
        w.add_ssm_inner_size(m["heads"] * m["head"]); w.add_ssm_time_step_rank(m["heads"])
        w.add_expert_shared_feed_forward_length(s["shared"]); w.add_rope_scaling_finetuned(False)
        w.add_attention_scale(1 / 128); w.add_embedding_scale(12.0); w.add_residual_scale(0.22); w.add_logit_scale(6.0)
    w.add_quantization_version(2)
    bu = byte_unicode()
    toks = [bu[b] for b in range(256)] + [bu[ord("t")] + bu[ord("h")]] + [f"<t{i}>" for i in range(257, V - 1)] + ["<|end|>"]
    types = [1] * (V - 1) + [3]
    w.add_tokenizer_model("gpt2"); w.add_tokenizer_pre("qwen2" if arch == "qwen3moe" else "lfm2" if arch == "lfm2moe" else "olmo")
    w.add_token_list(toks); w.add_token_types(types); w.add_token_merges(["t h"])
    w.add_eos_token_id(V - 1); w.add_bos_token_id(V - 1); w.add_pad_token_id(V - 1); w.add_add_bos_token(False)

    std = 0.02
    plan = []                                  # (name, shape in ggml order, type, maker)
    def quant(name, ne, qt, sd=std):
        plan.append((name, ne, qt, lambda: qbytes(src, qt, int(np.prod(ne)), sd)))
    def f32(name, ne, make):
        plan.append((name, ne, T.F32, make))
    ones = lambda n, v=1.0: (lambda: np.full(n, v, dtype=np.float32))
    # Small norm gains keep the residual stream close to the token's own embedding in
    # every layer. Without them a random model's routing collapses to the same few
    # experts for all tokens (attention averages the tokens), and any cache looks great.
    ATTN_GAIN, FFN_GAIN = 0.02, 0.25
    CONST = 4.0                                # dims 0..31 of each embedding: a constant, carries the router bias

    def embd():
        b = qbytes(src, T.Q8_0, H * V, 1.0).reshape(V, H // 32, 34)
        b[:, 0, 0:2] = f16(CONST / 127.0); b[:, 0, 2:] = 127
        return b.reshape(-1)
    shares = []
    def router():
        r = rng.standard_normal((E, H)).astype(np.float32) / np.sqrt(H)
        bias = rng.standard_normal(E).astype(np.float32) * a.router_skew
        r[:, 0:32] = (bias / (32 * CONST / 1.2))[:, None]
        lg = rng.standard_normal((4000, E)) * 0.9 + bias
        top = np.argpartition(-lg, s["used"], axis=1)[:, :s["used"]]
        c = np.sort(np.bincount(top.ravel(), minlength=E))[::-1]
        shares.append([c[:E // 8].sum() / c.sum(), c[:E // 4].sum() / c.sum(), c[:E // 2].sum() / c.sum()])
        return (r / FFN_GAIN).astype(np.float32)
    plan.append(("token_embd.weight", (H, V), T.Q8_0, embd))
    for l in range(L):
        p = f"blk.{l}."
        f32(p + "attn_norm.weight", (H,), ones(H, ATTN_GAIN))
        if l in kinds:
            quant(p + "attn_q.weight", (H, qdim), q); quant(p + "attn_k.weight", (H, kvdim), q)
            quant(p + "attn_v.weight", (H, kvdim), q); quant(p + "attn_output.weight", (qdim, H), q)
            nq, nk = (qdim, kvdim) if s["qknorm"] == "full" else (s["hd"], s["hd"])
            if s["qknorm"]:
                f32(p + "attn_q_norm.weight", (nq,), ones(nq)); f32(p + "attn_k_norm.weight", (nk,), ones(nk))
        elif arch == "lfm2moe":
            quant(p + "shortconv.in_proj.weight", (H, 3 * H), q); quant(p + "shortconv.out_proj.weight", (H, H), q)
            f32(p + "shortconv.conv.weight", (s["taps"], H), ones(s["taps"] * H, 0.3))
        else:
            m = s["mamba"]
            inner, channels = m["heads"] * m["head"], m["heads"] * m["head"] + 2 * m["groups"] * m["state"]
            quant(p + "ssm_in.weight", (H, inner + channels + m["heads"]), q); quant(p + "ssm_out.weight", (inner, H), q)
            f32(p + "ssm_conv1d.weight", (s["taps"], channels), ones(s["taps"] * channels, 0.3))
            f32(p + "ssm_conv1d.bias", (channels,), ones(channels, 0.0)); f32(p + "ssm_dt.bias", (m["heads"],), ones(m["heads"], 0.0))
            f32(p + "ssm_a", (1, m["heads"]), ones(m["heads"], -0.5)); f32(p + "ssm_d", (1, m["heads"]), ones(m["heads"]))
            f32(p + "ssm_norm.weight", (inner // m["groups"], m["groups"]), ones(inner))
        f32(p + "ffn_norm.weight", (H,), ones(H, FFN_GAIN))
        if l < s.get("dense", 0):
            quant(p + "ffn_gate.weight", (H, s["ff"]), q); quant(p + "ffn_up.weight", (H, s["ff"]), q)
            quant(p + "ffn_down.weight", (s["ff"], H), q)
            continue
        if arch == "lfm2moe":
            f32(p + "exp_probs_b.bias", (E,), ones(E, 0.0))
        if "shared" in s:
            quant(p + "ffn_gate_shexp.weight", (H, s["shared"]), q); quant(p + "ffn_up_shexp.weight", (H, s["shared"]), q)
            quant(p + "ffn_down_shexp.weight", (s["shared"], H), q)
        f32(p + "ffn_gate_inp.weight", (H, E), router)
        quant(p + "ffn_gate_exps.weight", (H, s["eff"], E), q)
        quant(p + "ffn_up_exps.weight", (H, s["eff"], E), q)
        quant(p + "ffn_down_exps.weight", (s["eff"], H, E), qd)
    f32("token_embd_norm.weight" if arch == "lfm2moe" else "output_norm.weight", (H,), ones(H))
    quant("output.weight", (H, V), qo)

    def nbytes(ne, qt):
        n = int(np.prod(ne))
        return n * 4 if qt == T.F32 else n // BLK[qt][0] * BLK[qt][1]
    tot = act = exp = 0
    for name, ne, qt, _ in plan:
        nb = nbytes(ne, qt); tot += nb
        if qt == T.F32:
            w.add_tensor_info(name, tuple(reversed(ne)), np.dtype(np.float32), nb)
        else:   # the writer wants the BYTE shape of a quantised tensor
            shp = list(reversed(ne)); shp[-1] = shp[-1] // BLK[qt][0] * BLK[qt][1]
            w.add_tensor_info(name, tuple(shp), np.dtype(np.uint8), nb, raw_dtype=qt)
        if name.endswith("_exps.weight"):
            exp += nb; act += nb * s["used"] // E
        elif name != "token_embd.weight":
            act += nb
    t0 = time.time()
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_ti_data_to_file()
    for name, ne, qt, make in plan:
        w.write_tensor_data(np.ascontiguousarray(make()))
    w.close()
    print(f"{a.out.split('/')[-1]}: tensors {tot/1e9:.3f} GB, experts {exp/1e9:.3f} GB ({exp/tot:.1%}), "
          f"active per token {act/1e9:.4f} GB (dense part {(act - exp*s['used']/E)/1e9:.4f} GB), "
          f"one expert {exp/(L - s.get('dense', 0))/E/1e6:.3f} MB, top 12.5/25/50 % of experts take "
          f"{'/'.join(f'{x:.0%}' for x in np.mean(shares, axis=0))} of the routes, "
          f"{time.time()-t0:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
