"""Bounds on the untrusted numbers in a `config.json`, so that sizes computed from them stay small.

The largest known decoders have a hidden size of 18,432 (PaLM), 126 layers and 128 heads (Llama 3.1
405B), 512 experts (Qwen3-Next), a vocabulary of 262,208 (Gemma 3) and 10 M positions (Llama 4).
Each bound is a few times the largest known value.
"""

MAX_HIDDEN = 1 << 16  # of all residual streams together
MAX_STREAMS = 16  # residual streams; Qwen 4 has four
MAX_RANK = 1 << 14  # of the matrices that mix streams; Qwen 4 has 320
MAX_INTERMEDIATE = 1 << 18
MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_HEAD_DIM = 1024
MAX_CHOSEN = 1 << 14  # tokens that an indexer chooses for a query; 2,048 are in use
MAX_EXPERTS = 1024
MAX_EXPERT_MATRICES = 1 << 17  # of all layers together; DeepSeek V3 has 44,544, Qwen3-Next 73,728
MAX_VOCAB = 1 << 21
MAX_POSITION = 1 << 24
MAX_EOS = 64  # Llama 3 has three
MAX_THETA = 1e12  # 10 M is the largest in use
MIN_FACTOR, MAX_FACTOR = 1e-3, 1e6  # of rope scaling; 1 to 64 are in use
MIN_MULTIPLIER, MAX_MULTIPLIER = 1e-6, 1e6  # of activations; Granite has 1/128 and 16
MAX_TAPS = 16  # tokens that a short convolution reads; models have three or four
