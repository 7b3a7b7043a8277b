"""The shape of the hybrid model: config.json of Qwen3.5's text architecture with a head for multi-token prediction.

    python hybrid.py FOLDER

writes FOLDER/config.json. The tokenizer and the corpus are those of the built-in model.
"""

import json
import pathlib
import sys

CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
    "initializer_range": 0.02,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "tie_word_embeddings": True,
    "use_cache": True,
    "pad_token_id": 0,
    "eos_token_id": [1, 5],
    "bos_token_id": 2,
    "dtype": "bfloat16",
}


def main():
    folder = pathlib.Path(sys.argv[1])
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")


if __name__ == "__main__":
    main()
