"""What the kernel of decoding is told: a record of a step, and one of each layer."""

from llvmlite import ir

from potluck.engine.kernels.writing.ir_types import I8, I32, I64, KIND_F32, POINTER, VOID
from potluck.engine.kernels.writing.memory import Address, Function, Number, Record

# What replaces numbers by their sums over the ranks of a group: an argument of its own, the numbers (f32), their count.
SUM = ir.FunctionType(VOID, [POINTER, POINTER, I64])


class Angles(Record):
    """How a position is turned by one kind of rope, as `RopeAndCache` takes it; null where a layer has no rope."""

    cosines = Address(KIND_F32)
    sines = Address(KIND_F32)
    query_factors = Address(KIND_F32)


class Expert(Record):
    """The matrices of an expert; missing biases are null."""

    gate_up = Address(I8)
    gate_up_bias = Address(KIND_F32)
    down = Address(I8)
    down_bias = Address(KIND_F32)


class Step(Record):
    """What all layers of a step share: the token, and memory that each layer writes to."""

    hidden = Address(KIND_F32)
    position = Number()
    angles = Address(Angles)  # first those of no rope, then those of each kind of rope
    records = Address(I8)  # the input of a product
    wide = Address(KIND_F32)  # the output of a product
    attended = Address(KIND_F32)
    parts = Address(KIND_F32)  # of attention: see `parts_floats`
    job = Address(I8)
    shares = Number()
    normed = Address(KIND_F32)  # of a MoE: the input of the router and of the experts
    gated = Address(I8)
    added = Address(KIND_F32)
    total = Address(KIND_F32)
    beside = Address(KIND_F32)  # the result of an MLP beside experts
    routed = Address(KIND_F32)
    factors = Address(KIND_F32)
    narrow = Address(KIND_F32)  # what experts read, if it is not the hidden states
    queries = Address(KIND_F32)  # of latent attention: made of their latent
    absorbed = Address(KIND_F32)
    mixed = Address(KIND_F32)  # what heads have of the latents
    head_inputs = Address(I8)
    index_queries = Address(KIND_F32)  # of an indexer, as are the next five
    index_key = Address(KIND_F32)
    head_weights = Address(KIND_F32)
    scores = Address(I32)
    token_scores = Address(KIND_F32)  # of one of blocks, before those of blocks are made of them
    places = Address(I64)
    pools = Address(I64)  # that an indexer has chosen
    pooling = Address(
        KIND_F32
    )  # of attention to pools: what pools are made of, as are the next three
    pooled = Address(KIND_F32)
    pool_cosines = Address(KIND_F32)  # of the first token of the pool that ends with this one
    pool_sines = Address(KIND_F32)
    rows = Address(I8)  # the cached rows that it has chosen
    rates = Address(KIND_F32)  # of a delta net
    few = Address(KIND_F32)  # what its gates, or the decays of its channels, are made of
    inputs = Address(KIND_F32)  # the token's row of the table of layers' embeddings
    input_gates = Address(KIND_F32)  # of these, and behind as many what they are applied to
    block = Address(KIND_F32)  # of residual streams: what a block reads of them
    stream_shares = Address(KIND_F32)
    token = Number()  # its id, if a layer looks at it
    sum = Function(SUM)  # of ranks; null: nothing is summed
    sum_argument = Address(I8)


class Layer(Record):
    """What a layer has of its own. Norms that the shape lacks are never read, missing biases are null."""

    before_attention = Address(KIND_F32)
    qkv = Address(I8)
    qkv_bias = Address(KIND_F32)
    query_norm = Address(KIND_F32)
    key_norm = Address(KIND_F32)
    value_norm = Address(KIND_F32)
    output = Address(I8)
    output_bias = Address(KIND_F32)
    after_attention = Address(KIND_F32)
    before_mlp = Address(KIND_F32)
    gate_up = Address(I8)
    gate_up_bias = Address(KIND_F32)
    down = Address(I8)
    down_bias = Address(KIND_F32)
    learned = Address(KIND_F32)  # numbers of the activation
    after_mlp = Address(KIND_F32)
    keys = Address(I8)
    values = Address(I8)
    head_stride = Number()  # bytes from one head of the cache to the next
    own_from = Number()  # the panels before this position are those that sessions share
    shared_keys = Address(I8)  # likewise, of those
    shared_values = Address(I8)
    shared_stride = Number()
    decay_up = Address(KIND_F32)  # of a delta net, as are the next two
    gates = Address(I8)
    rates = Address(KIND_F32)  # what follows, of a state space too
    bias = Address(KIND_F32)  # of the convolution of a state space, as are the next ones
    skips = Address(KIND_F32)
    convolution = Address(KIND_F32)
    decays = Address(KIND_F32)
    offsets = Address(KIND_F32)
    norm = Address(KIND_F32)
    before = Address(KIND_F32)
    state = Address(KIND_F32)
    window = Number()  # cached tokens that a query sees, itself among them
    chunk = Number()  # a query sees none before the multiple of it that it follows
    rope = Number()  # which of the angles
    sinks = Address(KIND_F32)
    router = Address(KIND_F32)
    router_bias = Address(KIND_F32)
    choice_bias = Address(KIND_F32)
    id_table = Address(I32)  # the experts of each id, if a table says them
    queries = Address(I8)  # of latent attention, as are the next two
    key_up = Address(I8)
    value_up = Address(I8)
    pooling = Address(I8)  # of attention to pools, as are the next five
    group_output = Address(I8)
    pool_norm = Address(KIND_F32)
    pool_bias = Address(KIND_F32)
    index_bias = Address(KIND_F32)
    pool_rows = Address(I8)
    index_queries = Address(I8)  # of an indexer, as are the next four
    index_keys = Address(I8)
    head_weights = Address(KIND_F32)
    index_gates = Address(I8)  # of one of pools, as is the next
    index_gate_bias = Address(KIND_F32)
    index_query_norm = Address(KIND_F32)  # of one of blocks
    index_norm = Address(KIND_F32)
    index_norm_bias = Address(KIND_F32)
    experts = Address(Expert)  # then the shared one and the MLP beside them, if there are any
    expert_scales = Address(KIND_F32)
    space_input = Address(I8)  # the matrices of a state space beside attention
    space_output = Address(I8)
    narrow_first = Address(I8)  # the matrices to the few numbers that experts read, and back
    narrow_last = Address(I8)
    after_dense = Address(KIND_F32)
    router_norm = Address(KIND_F32)
    before_moe = Address(KIND_F32)
    after_moe = Address(KIND_F32)
    scale = Address(KIND_F32)  # one number
    mixer_matrix = Address(KIND_F32)  # of the streams around the mixer, as are the next two
    mixer_base = Address(KIND_F32)
    mixer_scale = Address(KIND_F32)
    mlp_matrix = Address(KIND_F32)  # likewise around the feed-forward
    mlp_base = Address(KIND_F32)
    mlp_scale = Address(KIND_F32)
    gives_at = (
        Number()
    )  # where its keys and values go along behind the hidden states, in numbers; 0: nowhere
    takes_at = Number()  # likewise, those that it takes
    input_context = Address(I8)  # of a layer's own embedding, as are the next five
    input_gate = Address(I8)
    input_output = Address(I8)
    context_norm = Address(KIND_F32)
    input_norm = Address(KIND_F32)
    input_first = Number()  # of the token's numbers in the table, the layer's first
