"""The float cases of DeepSeek V4.1, which only mlx-vlm has. Their weights are formulas (formula.py)."""

import torch

from cases import THETA, V, base, mutation
from late_cases import late_case
from stream_cases import SCALED, YARN


def rounded_cases():
    yield deepseek_v41()
    yield deepseek_v41_ngrams()


def case(name, covers, mutations, longest=45, **more):
    config = base(
        "DeepseekV41ForCausalLM",
        "deepseek_v41",
        compress_rope_theta=5000.0,
        engram_layer_ids=[],
        hc_eps=1e-2,
        hc_mult=4,
        hc_sinkhorn_iters=3,
        head_dim=32,
        hidden_size=64,
        index_head_dim=32,
        index_n_heads=8,
        intermediate_size=None,
        moe_intermediate_size=32,
        n_routed_experts=6,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=2,
        num_key_value_heads=1,
        num_nextn_predict_layers=1,
        o_groups=2,
        o_lora_rank=32,
        q_lora_rank=32,
        qk_rope_head_dim=16,
        rms_norm_eps=1e-20,
        rope_scaling=YARN,
        routed_scaling_factor=1.5,
        scoring_func="sqrtsoftplus",
        sliding_window=6,
        swiglu_limit=0.8,
        topk_method="noaux_tc",
    )
    config |= more
    return late_case(
        name,
        covers,
        config,
        mutations,
        spreads=[
            ("embed.weight", (0.5, 0.0)),
            ("head.weight", (2.5, None)),
            ("gate.weight", (2.0, None)),
            ("gate.bias", (0.4, 0.0)),
            ("gate.bias_vl", (0.4, 0.0)),
            ("weights_proj.weight", (2.0, None)),
            ("attn_sink", (1.0, 0.5)),
            ("_fn", (0.6, None)),
            ("_scale", (0.4, 1.0)),
            ("_base", (0.6, 0.0)),
            ("wq_b.weight", (1.6, None)),
            ("engram.wkv.weight", (2.0, None)),
            ("wkv.weight", (1.6, None)),
            ("norm.weight", (0.4, 1.0)),
            ("engram.q_weight", (0.6, 0.8)),
            ("engram.k_weight", (0.6, 0.8)),
        ],
        extra={"mtp.0.norm.weight": (4,), "vision.norm.weight": (4,)},
        prompts=(5, longest),
        by_mlx_vlm=True,
        composed=True,
        dtype=torch.float32,
    )


def deepseek_v41():
    return case(
        "deepseek_v41",
        "activations rounded to 8 and 4 bits; a layer that keeps pairs of positions and one that keeps each of them, layers that choose "
        "again among the blocks of others or see the choice of others, candidates that one layer makes for those after it",
        [
            THETA,
            mutation("rms_norm_eps", {"rms_norm_eps": 0.2}),
            SCALED,
            mutation("bias of gates", fill={"ffn.gate.bias": 0.0}),
            mutation("norm_topk_prob", {"norm_topk_prob": False}),
            mutation("compress_rope_theta", {"compress_rope_theta": 100.0}),
            mutation("sliding_window", {"sliding_window": 4}),
            mutation("hc_eps", {"hc_eps": 0.3}),
            mutation("hc base", fill={"hc_attn_base": 0.0}),
            mutation("swiglu_limit", {"swiglu_limit": 10.0}),
            mutation("sinks", fill={"attn_sink": -30.0}),
            mutation("q_norm", fill={"q_norm.weight": 1.0}),
            mutation("kv_norm", fill={"kv_norm.weight": 1.0}),
            mutation("norm of blocks", fill={"compressor.norm.weight": 1.0}),
            mutation("weights_proj", fill={"indexer.weights_proj.weight": 1.0}),
            mutation("k_norm", fill={"indexer.k_norm.weight": 1.0}),
            mutation("shared_experts", fill={"shared_experts.w2.weight": 0.0}),
            mutation("index_topk", {"index_topk": 4}),
            mutation("candidate_topk_blocks", {"candidate_topk_blocks": 4}),
            mutation("candidate_block_size", {"candidate_block_size": 6}),
            mutation("candidate_source_layer_id", {"candidate_source_layer_id": -1}),
        ],
        candidate_block_size=4,
        candidate_source_layer_id=3,
        candidate_topk_blocks=3,
        compress_ratios=[0, 2, 2, 1, 1, 1, 0],
        index_source_layer_ids=[1, 3, 5],
        index_topk=6,
        kv_source_layer_ids=[1, 3],
        num_hidden_layers=6,
    )


def deepseek_v41_ngrams():
    kinds = [token % 40 for token in range(V)]
    return case(
        "deepseek_v41_ngrams",
        "features of hashed n-grams before the second and third layers, over kinds of tokens; single positions that the second layer keeps",
        [
            mutation("engram_pad_token_id", {"engram_pad_token_id": 5}, changes="logits"),
            mutation("kinds of tokens", {"engram_token_map": [*kinds[1:40], 0, *kinds[40:]]}),
            mutation("engram_vocab_size", {"engram_vocab_size": 30}),
            mutation("values", fill={"engram.wkv.weight": 0.0}),
            mutation("q_weight", fill={"engram.q_weight": 0.0}),
        ],
        longest=22,
        candidate_source_layer_id=-1,
        compress_ratios=[0, 1, 1],
        engram_compressed_vocab_size=40,
        engram_head_dim=32,
        engram_layer_ids=[1, 2],
        engram_max_ngram_size=3,
        engram_n_heads=2,
        engram_num_embeddings=[190, 262],
        engram_pad_token_id=2,
        engram_token_map=kinds,
        engram_vocab_size=40,
        index_source_layer_ids=[1],
        index_topk=6,
        kv_source_layer_ids=[1],
        num_hidden_layers=3,
    )
