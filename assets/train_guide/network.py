"""The guide's network while it is trained: a Llama with dropout, under Hugging Face's names.

Checked against `transformers` (modeling_llama.py): the same weights give the same logits.
"""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

FUSED_FROM = 128  # tokens; below it PyTorch's fused attention takes four times as long on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The guide's size: 2.8 million parameters, small enough for a repository."""

    vocab_size: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 512
    num_hidden_layers: int = 6  # enough to be divided among several computers
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 32
    max_position_embeddings: int = 1024
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    def config(self, end_id: int, pad_id: int) -> dict[str, object]:
        """The model's `config.json`."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **asdict(self),
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "rope_scaling": None,
            "tie_word_embeddings": True,
            "initializer_range": 0.02,
            "use_cache": True,
            "bos_token_id": None,
            "eos_token_id": end_id,
            "pad_token_id": pad_id,
            "torch_dtype": "float16",
        }


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        self.width, self.dropout = shape.head_dim, dropout
        self.q_proj = nn.Linear(shape.hidden_size, self.heads * self.width, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.width, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.width, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q = (
            self.q_proj(x).view(rows, length, self.heads, self.width).transpose(1, 2)
        )  # (B, H, T, K)
        k = self.k_proj(x).view(rows, length, self.kv_heads, self.width).transpose(1, 2)
        v = self.v_proj(x).view(rows, length, self.kv_heads, self.width).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        groups = self.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        # Causal attention never looks at the padding, which is at the end, so it needs no mask.
        if length > FUSED_FROM:
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) * self.width**-0.5 + future(length)  # (B, H, T, T)
            out = scores.softmax(-1).to(v.dtype) @ v
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


class Mlp(nn.Module):
    """The gated feed-forward half of a layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape, dropout)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = Mlp(shape)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Module):
    """Embedding, layers and final norm: what Hugging Face calls `model`."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, dropout) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class Network(nn.Module):
    """The whole model; the head is the embedding's weight."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape, dropout)
        self.dropout = nn.Dropout(dropout)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                # Residual outputs start smaller, so that depth does not add variance (GPT-2, 2.3).
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = (2 * shape.num_hidden_layers) ** -0.5 if residual else 1.0
                nn.init.normal_(weight, std=0.04 * scale)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) of token ids (B, T)."""
        cos, sin = rotary(ids.shape[1], self.shape)
        x = self.dropout(self.model.embed_tokens(ids))
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return functional.linear(self.model.norm(x), self.model.embed_tokens.weight)


def rotary(length: int, shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines (T, K) of rotary positions (RoFormer, arXiv 2104.09864, 3.2.2)."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float32), shape.rope_theta**-half)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def future(length: int) -> Tensor:
    """A mask (T, T) that hides what comes later."""
    return torch.full((length, length), -torch.inf).triu(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys (B, H, T, K) by their positions, with halves paired as in Llama."""
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)
