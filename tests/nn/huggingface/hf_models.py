"""Small models of Hugging Face with random weights, and batches as data collators make them.

The libraries take seconds to load: they are loaded by the tests that use them, not by every process
that collects those tests.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, TOKENS = 23, 4, 4
_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 8,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_CAUSAL = {**_SMALL, "num_key_value_heads": 1}
_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_positions": 8,
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": 2,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BODY = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_IMAGES = {name: _SMALL[name] for name in (*_BODY, "initializer_range")}
_IMAGES |= {"image_size": 4, "patch_size": 2, "num_channels": 1, "num_labels": 3}
_T5 = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 2, "d_ff": 8, "num_layers": 2}
_T5 |= {"num_heads": 2, "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}
ADAPTED = {
    "gpt2": ["c_attn"],
    "bert": ["query", "value"],
    "llama": ["q_proj", "v_proj"],
    "qwen2": ["q_proj", "v_proj"],
    "vit": ["q_proj", "v_proj"],
    "t5": ["q", "v"],
}
NAMES = tuple(ADAPTED)


_MODELS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "bert": ("BertForMaskedLM", "BertConfig", _SMALL),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _CAUSAL),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _CAUSAL),
    "vit": ("ViTForImageClassification", "ViTConfig", _IMAGES),
    "t5": ("T5ForConditionalGeneration", "T5Config", _T5),
}


def model(name: str) -> nn.Module:
    """Return a model in float32, without dropout."""
    import transformers

    torch.manual_seed(3)
    kind, config, settings = _MODELS[name]
    settled = getattr(transformers, config)(**settings)
    return getattr(transformers, kind)(settled).eval()


def adapted(net: nn.Module, layers: list[str], **how: object) -> nn.Module:
    """Return a model of which only adapters of rank two, on these layers, are trained."""
    import peft

    return peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=layers, **how))


def with_adapters(net: nn.Module, name: str) -> nn.Module:
    """Return the model of this name with adapters that are not at their beginning."""
    torch.manual_seed(5)
    how = {"init_lora_weights": False, "fan_in_fan_out": name == "gpt2"}
    return adapted(net, ADAPTED[name], **how).eval()


def collated(name: str) -> dict[str, Tensor]:
    """Return a batch of three records: one of them padded, some labels that do not count."""
    torch.manual_seed(4)
    if name == "vit":
        return {"pixel_values": torch.randn(3, 1, 4, 4), "labels": torch.tensor([0, 2, 1])}
    ids = torch.randint(3, VOCABULARY, (3, TOKENS))
    mask = torch.ones_like(ids)
    mask[1, 2:] = 0
    ids = ids * mask
    labels = ids.masked_fill(mask == 0, -100)
    if name == "bert":
        labels[:, 0] = -100
    if name == "t5":
        labels = torch.randint(3, VOCABULARY, (3, 3))
        labels[2, 1:] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def of_type(batch: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return a batch with its real numbers in another type."""
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}


def record(batch: dict[str, Tensor], k: int) -> dict[str, Tensor]:
    """Return the batch of one record."""
    return {name: value[k : k + 1] for name, value in batch.items()}
