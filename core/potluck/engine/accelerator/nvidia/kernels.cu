// What torch has no operator for, or only slow ones, on NVIDIA GPUs: `operators.py` calls these.
//
// `program.py` compiles them for the GPU at hand. NUMBER is how activations are held: 0 f32, 1 f16, 2 bf16.
// `../../kernels/layout.py` says how packed weights lie in memory: they are multiplied as they are.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

#define FULL 0xffffffffu  // all lanes of a warp
#define HELD 8  // numbers that a thread keeps in registers
#define INFINITY_ __int_as_float(0x7f800000)

#if NUMBER == 0
typedef float number;
__device__ __forceinline__ float wide(number x) { return x; }
__device__ __forceinline__ number narrow(float x) { return x; }
#else
struct number { u16 bits; };
#if NUMBER == 1
__device__ __forceinline__ float wide(number x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ number narrow(float x) {
    number y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
#else
__device__ __forceinline__ float wide(number x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ number narrow(float x) {
    u32 bits = __float_as_uint(x);
    number y;
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;  // rounding could make it infinite
    y.bits = is_nan ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return y;
}
#endif
#endif

__device__ __forceinline__ float half_wide(u32 bits) {
    float y;
    u16 low = bits;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(low));
    return y;
}

// The sum of the products of four signed bytes each, and c.
__device__ __forceinline__ int dot(u32 a, u32 b, int c) {
    int d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

__device__ __forceinline__ float sum_of_warp(float x) {
    for (int lanes = 16; lanes; lanes >>= 1) x += __shfl_xor_sync(FULL, x, lanes);
    return x;
}

__device__ float sum_of_block(float x) {
    __shared__ float sums[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    x = sum_of_warp(x);
    if (lane == 0) sums[warp] = x;
    __syncthreads();
    return sum_of_warp(lane < warps ? sums[lane] : 0.0f);
}

// --- packed weights --------------------------------------------------------------------------------------------

enum { INT8, INT4, INT4_OFFSET, INT4_SUPER, MXFP4 };

template <int F> struct Held {
    static const int steps = F == INT4_SUPER ? 64 : 0;  // bytes before a row of blocks, for each 8 blocks
    static const int start = F == MXFP4 ? 16 : F == INT4_OFFSET ? 64 : 32;  // of the integers in a block
    static const int bytes = start + (F == INT8 ? 512 : 256);
    static const int zero = F == INT4 ? 8 : 0;
    static const bool has_offsets = F == INT4_OFFSET || F == INT4_SUPER;
};

// Four neighbouring codes of MXFP4 in four bytes → twice their numbers, signed.
__device__ __forceinline__ u32 numbers_of(u32 codes) {
    u32 pairs = codes | codes >> 4;  // the codes of two bytes side by side, in bytes 0 and 2
    u32 which = __byte_perm(pairs, 0, 0x4420) & 0x7777;
    u32 above = __byte_perm(0x03020100u, 0x0c080604u, which);
    u32 below = __byte_perm(0xfdfeff00u, 0xf4f8fafcu, which);
    u32 signs = (codes >> 3 & 0x01010101u) * 0xff;
    return (above & ~signs) | (below & signs);
}

// Scales and offsets of four rows of a block, of which the first is a multiple of 4.
template <int F> __device__ __forceinline__ void factors(
    const u8* block, const u8* steps, int row, float (&scale)[4], float (&offset)[4]
) {
    #pragma unroll
    for (int i = 0; i < 4; i++) offset[i] = 0.0f;
    if (F == INT4_SUPER) {
        u32 scales = *(const u32*)(block + row), offsets = *(const u32*)(block + 16 + row);
        uint2 of_scales = *(const uint2*)(steps + 2 * row), of_offsets = *(const uint2*)(steps + 32 + 2 * row);
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            scale[i] = (scales >> (8 * i) & 0xff) * half_wide((i < 2 ? of_scales.x : of_scales.y) >> (i % 2 * 16));
            offset[i] = (offsets >> (8 * i) & 0xff) * half_wide((i < 2 ? of_offsets.x : of_offsets.y) >> (i % 2 * 16));
        }
    } else if (F == MXFP4) {
        u32 exponents = *(const u32*)(block + row);
        #pragma unroll
        for (int i = 0; i < 4; i++) scale[i] = __uint_as_float((exponents >> (8 * i) & 0xff) << 23);
    } else {
        uint2 scales = *(const uint2*)(block + 2 * row);
        uint2 offsets = F == INT4_OFFSET ? *(const uint2*)(block + 32 + 2 * row) : make_uint2(0, 0);
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            scale[i] = half_wide((i < 2 ? scales.x : scales.y) >> (i % 2 * 16));
            if (F == INT4_OFFSET) offset[i] = half_wide((i < 2 ? offsets.x : offsets.y) >> (i % 2 * 16));
        }
    }
}

// Numbers (tokens, width) → integers (tokens, groups, 32) and for each group its scale, and scale times the sum of its
// integers. Each warp takes a group.
extern "C" __global__ void quantise(const number* x, signed char* integers, float2* factors, int tokens, int width, int groups) {
    int lane = threadIdx.x & 31, which = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (which >= tokens * groups) return;
    int token = which / groups, input = which % groups * 32 + lane;
    float value = input < width ? wide(x[(long long)token * width + input]) : 0.0f;
    float largest = fabsf(value);
    for (int lanes = 16; lanes; lanes >>= 1) largest = fmaxf(largest, __shfl_xor_sync(FULL, largest, lanes));
    bool is_nothing = !(largest >= 1e-30f);
    float scaled = is_nothing ? 0.0f : value * (127.0f / largest);
    int integer = __float2int_rn(fminf(fmaxf(scaled, -127.0f), 127.0f));
    integers[(long long)which * 32 + lane] = integer;
    float scale = is_nothing ? 0.0f : largest / 127.0f;
    float sum = sum_of_warp((float)integer);
    if (lane == 0) factors[which] = make_float2(scale, scale * sum);
}

// A row of blocks of weights times the T quantised tokens from `first` on, of so many, to the rows of y from `to` on. All warps
// share the groups of the row of blocks. A lane has four rows: of a block of 8 bits four inputs of each, and of
// one of 4 bits eight, while the other half of its warp has the next block.
template <int F, int T> __device__ __forceinline__ void multiply(
    const u8* weights, const u32* integers, const float2* factors_of, const number* bias, number* y,
    int rows, int groups, int tokens, int first, int to
) {
    const int W = F == INT8 ? 1 : 2;  // blocks of a warp
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    int part = (F == INT8 ? lane : lane & 15) >> 2, row = (lane & 3) * 4;
    long long stride = (long long)groups * Held<F>::bytes + (groups + 7) / 8 * Held<F>::steps;
    const u8* steps = weights + blockIdx.x * stride;
    const u8* blocks = steps + (groups + 7) / 8 * Held<F>::steps;
    float sums[T][4];
    #pragma unroll
    for (int t = 0; t < T; t++)
        for (int i = 0; i < 4; i++) sums[t][i] = 0.0f;
    #pragma unroll(T > 2 ? 1 : 4)
    for (int group = warp * W + (F == INT8 ? 0 : lane >> 4); group < groups; group += warps * W) {
        const u8* block = blocks + (long long)group * Held<F>::bytes;
        uint4 words = *(const uint4*)(block + Held<F>::start + part * 64 + row * 4);
        u32 four[4] = {words.x, words.y, words.z, words.w};
        float scale[4], offset[4];
        factors<F>(block, steps + group / 8 * Held<F>::steps, row, scale, offset);
        #pragma unroll
        for (int t = 0; t < T; t++) {
            long long token = min(first + t, tokens - 1), at = token * groups + group;
            const u32* x = integers + at * 8;
            float2 factor = factors_of[at];
            float worth = part ? 0.0f : factor.y;  // once for each row
            u32 low = x[part], high = F == INT8 ? 0 : x[4 + part];
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                int sum;
                if (F == INT8) {
                    sum = dot(four[i] ^ 0x80808080u, low, 0);
                } else if (F == MXFP4) {
                    sum = dot(numbers_of(four[i] & 0x0f0f0f0fu), low, dot(numbers_of(four[i] >> 4 & 0x0f0f0f0fu), high, 0));
                } else {
                    sum = dot(four[i] & 0x0f0f0f0fu, low, dot(four[i] >> 4 & 0x0f0f0f0fu, high, 0));
                }
                sums[t][i] += scale[i] * (factor.x * sum);
                if (Held<F>::zero || Held<F>::has_offsets) sums[t][i] -= (Held<F>::zero * scale[i] + offset[i]) * worth;
            }
        }
    }
    extern __shared__ float parts[];  // (warps, T, 16)
    #pragma unroll
    for (int t = 0; t < T; t++)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            float sum = sums[t][i];
            for (int lanes = 4; lanes < 32; lanes <<= 1) sum += __shfl_xor_sync(FULL, sum, lanes);
            if (lane < 4) parts[(warp * T + t) * 16 + row + i] = sum;
        }
    __syncthreads();
    for (int which = threadIdx.x; which < T * 16; which += blockDim.x) {
        int token = which / 16, at = blockIdx.x * 16 + which % 16;
        if (first + token >= tokens || at >= rows) continue;
        float sum = bias ? wide(bias[at]) : 0.0f;
        for (int other = 0; other < warps; other++) sum += parts[other * T * 16 + which];
        y[(long long)(to + token) * rows + at] = narrow(sum);
    }
}

// (tokens, rows): a matrix times quantised tokens, T of them for each blockIdx.y.
template <int F, int T> __global__ void __launch_bounds__(512) product(
    const u8* weights, const u32* integers, const float2* factors_of, const number* bias, number* y,
    int rows, int groups, int tokens
) {
    int first = blockIdx.y * T;
    multiply<F, T>(weights, integers, factors_of, bias, y, rows, groups, tokens, first, first);
}

// (chosen, rows): for each blockIdx.y the matrix that was chosen there, times a quantised token, which is that of `per` of them
// after another.
template <int F> __global__ void __launch_bounds__(512) product_of_chosen(
    const u8* const* matrices, const number* const* biases, const long long* chosen, const u32* integers,
    const float2* factors_of, number* y, int rows, int groups, int per
) {
    int token = blockIdx.y / per;
    long long which = chosen[blockIdx.y];
    const number* bias = biases ? biases[which] : 0;
    multiply<F, 1>(matrices[which], integers, factors_of, bias, y, rows, groups, token + 1, token, blockIdx.y);
}

// Rows of blocks → their numbers, (rows, groups · 32). Each warp takes a block, and a lane half a row of it.
template <int F> __global__ void dequantise(const u8* weights, number* y, int groups) {
    int lane = threadIdx.x & 31, group = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (group >= groups) return;
    int row = lane >> 1, side = lane & 1;
    long long stride = (long long)groups * Held<F>::bytes + (groups + 7) / 8 * Held<F>::steps;
    const u8* steps = weights + blockIdx.y * stride;
    const u8* block = steps + (groups + 7) / 8 * Held<F>::steps + (long long)group * Held<F>::bytes;
    float scales[4], offsets[4], scale = 0.0f, offset = 0.0f;
    factors<F>(block, steps + group / 8 * Held<F>::steps, row & ~3, scales, offsets);
    #pragma unroll
    for (int i = 0; i < 4; i++)
        if ((row & 3) == i) scale = scales[i], offset = offsets[i];
    const u32* words = (const u32*)(block + Held<F>::start) + row;
    struct alignas(16) { number each[16]; } out;
    #pragma unroll
    for (int v = 0; v < 4; v++) {
        u32 word;
        if (F == INT8) {
            word = words[(side * 4 + v) * 16] ^ 0x80808080u;
        } else {
            word = words[v * 16] >> (side * 4) & 0x0f0f0f0fu;
            if (F == MXFP4) word = numbers_of(word);
        }
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            int integer = (signed char)(word >> (8 * i)) - Held<F>::zero;
            out.each[v * 4 + i] = narrow(integer * scale - offset);
        }
    }
    *(decltype(out)*)(y + ((long long)blockIdx.y * 16 + row) * groups * 32 + group * 32 + side * 16) = out;
}

// --- what is between the products ---------------------------------------------------------------------------------

// Root mean square norms of rows (rows, width), each by a block of threads. Weights are f32, or null.
extern "C" __global__ void rms_norm(const number* x, const float* weight, number* y, int width, float eps) {
    x += (long long)blockIdx.x * width;
    y += (long long)blockIdx.x * width;
    float held[HELD], squares = 0.0f;
    #pragma unroll
    for (int i = 0; i < HELD; i++) {
        int at = threadIdx.x + i * blockDim.x;
        held[i] = at < width ? wide(x[at]) : 0.0f;
        squares += held[i] * held[i];
    }
    for (int at = threadIdx.x + HELD * blockDim.x; at < width; at += blockDim.x) squares += wide(x[at]) * wide(x[at]);
    float inverse = rsqrtf(sum_of_block(squares) / width + eps);
    #pragma unroll
    for (int i = 0; i < HELD; i++) {
        int at = threadIdx.x + i * blockDim.x;
        if (at < width) y[at] = narrow(held[i] * inverse * (weight ? weight[at] : 1.0f));
    }
    for (int at = threadIdx.x + HELD * blockDim.x; at < width; at += blockDim.x)
        y[at] = narrow(wide(x[at]) * inverse * (weight ? weight[at] : 1.0f));
}

// The same in place of each head of (tokens, heads, size), with weights (heads, size). Each warp takes a head.
extern "C" __global__ void norm_heads(
    number* x, const float* weight, int tokens, int heads, int size, float eps, long long of_token, long long of_head
) {
    int lane = threadIdx.x & 31, which = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (which >= tokens * heads) return;
    int head = which % heads;
    x += which / heads * of_token + head * of_head;
    float squares = 0.0f;
    for (int i = lane; i < size; i += 32) {
        float value = wide(x[i]);
        squares += value * value;
    }
    float inverse = rsqrtf(sum_of_warp(squares) / size + eps);
    for (int i = lane; i < size; i += 32) x[i] = narrow(wide(x[i]) * inverse * weight[head * size + i]);
}

// Rotate in place: the halves (a, b) of each head of (tokens, heads, …) → (a·cos - b·sin, b·cos + a·sin).
// Cosines and sines are (tokens, 2 · half), of which sines have the first half negative.
extern "C" __global__ void rotate(
    number* x, const number* cosines, const number* sines, int heads, int half, long long of_token, long long of_head
) {
    int token = blockIdx.x;
    for (int which = threadIdx.x; which < heads * half; which += blockDim.x) {
        int head = which / half, i = which % half;
        number* pair = x + token * of_token + head * of_head + i;
        float cosine = wide(cosines[token * 2 * half + i]), sine = wide(sines[token * 2 * half + half + i]);
        float a = wide(pair[0]), b = wide(pair[half]);
        pair[0] = narrow(a * cosine - b * sine);
        pair[half] = narrow(b * cosine + a * sine);
    }
}

// Gates and ups (tokens, 2 · width) → silu(gate) · up, or with gelu in place of silu, (tokens, width).
extern "C" __global__ void gate(const number* x, number* y, long long count, int width, int is_gelu) {
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    const number* row = x + at / width * 2 * width + at % width;
    float gate = wide(row[0]), up = wide(row[width]), inner = gate;
    if (is_gelu) inner = 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate);  // 2 √(2/π)
    y[at] = narrow(gate / (1.0f + expf(-inner)) * up);
}

// --- attention of one token ----------------------------------------------------------------------------------------

#define CHUNK 64  // cached tokens of a block of threads
#define THREADS 256

template <int N> struct alignas(N * sizeof(number)) Some { number each[N]; };

// The queries (heads of keys, G, K) of one token against some of the tokens of a cache, (heads of keys, length, K): what a
// softmax over these tokens alone makes of the values, as (chunks, heads, K), and their largest score and sum of powers.
// A mask (length,) is added to scores. All loads of a loop are begun before the first of them is waited for: so tokens that
// there are not any more are read as the last one.
template <int K, int G> __global__ void attend(
    const number* q, const number* keys, const number* values, long long of_head, const number* mask, float scale,
    float* parts, float2* ends, int length
) {
    const int N = K % 32 == 0 ? 4 : 2;  // numbers that a lane reads at once; eight lanes have a key
    const int TOGETHER = THREADS / (K / 2);  // values at a time: a thread has a pair of numbers of each
    __shared__ float queries[G][K], scores[G][CHUNK], sums[TOGETHER][G][K];
    int head = blockIdx.x, heads = gridDim.x, first = blockIdx.y * CHUNK, count = min(CHUNK, length - first);
    keys += head * of_head + (long long)first * K;
    values += head * of_head + (long long)first * K;
    if (mask) mask += first;
    int own = threadIdx.x;
    if (!__syncthreads_or(own < count && (!mask || wide(mask[own]) > -INFINITY_))) {
        if (own < G) ends[(blockIdx.y * heads + head) * G + own] = make_float2(-INFINITY_, 0.0f);
        return;
    }
    for (int i = own; i < G * K; i += THREADS) queries[0][i] = wide(q[head * G * K + i]) * scale;
    __syncthreads();
    int lane = own & 7;
    #pragma unroll
    for (int round = 0; round < CHUNK * 8 / THREADS; round++) {
        int key = round * (THREADS / 8) + (own >> 3), read = min(key, count - 1);
        float more = key >= count ? -INFINITY_ : mask ? wide(mask[key]) : 0.0f, products[G];
        #pragma unroll
        for (int g = 0; g < G; g++) products[g] = 0.0f;
        #pragma unroll
        for (int step = 0; step < K / (8 * N); step++) {
            int at = (step * 8 + lane) * N;
            Some<N> some = *(const Some<N>*)(keys + (long long)read * K + at);
            #pragma unroll
            for (int i = 0; i < N; i++) {
                float number_of_key = wide(some.each[i]);
                #pragma unroll
                for (int g = 0; g < G; g++) products[g] += queries[g][at + i] * number_of_key;
            }
        }
        #pragma unroll
        for (int g = 0; g < G; g++) {
            for (int lanes = 4; lanes; lanes >>= 1) products[g] += __shfl_xor_sync(FULL, products[g], lanes);
            if (lane == 0) scores[g][key] = more > -INFINITY_ ? products[g] + more : -INFINITY_;
        }
    }
    __syncthreads();
    for (int g = own >> 5; g < G; g += THREADS / 32) {
        float largest = -INFINITY_, sum = 0.0f;
        for (int key = own & 31; key < CHUNK; key += 32) largest = fmaxf(largest, scores[g][key]);
        for (int lanes = 16; lanes; lanes >>= 1) largest = fmaxf(largest, __shfl_xor_sync(FULL, largest, lanes));
        for (int key = own & 31; key < CHUNK; key += 32) sum += scores[g][key] = __expf(scores[g][key] - largest);
        sum = sum_of_warp(sum);
        if ((own & 31) == 0) ends[(blockIdx.y * heads + head) * G + g] = make_float2(largest, sum);
    }
    __syncthreads();
    int slot = own / (K / 2), pair = own % (K / 2);
    if (slot < TOGETHER) {
        float added[G][2];
        #pragma unroll
        for (int g = 0; g < G; g++) added[g][0] = added[g][1] = 0.0f;
        #pragma unroll 8
        for (int round = 0; round < (CHUNK + TOGETHER - 1) / TOGETHER; round++) {
            int key = min(round * TOGETHER + slot, CHUNK - 1), read = min(key, count - 1);
            bool is_new = round * TOGETHER + slot < CHUNK;
            Some<2> some = *(const Some<2>*)(values + (long long)read * K + 2 * pair);
            float a = wide(some.each[0]), b = wide(some.each[1]);
            #pragma unroll
            for (int g = 0; g < G; g++) {
                float power = is_new ? scores[g][key] : 0.0f;
                if (power == 0.0f) continue;  // what is read there may be no number
                added[g][0] += power * a;
                added[g][1] += power * b;
            }
        }
        #pragma unroll
        for (int g = 0; g < G; g++) {
            sums[slot][g][2 * pair] = added[g][0];
            sums[slot][g][2 * pair + 1] = added[g][1];
        }
    }
    __syncthreads();
    for (int i = own; i < G * K; i += THREADS) {
        float sum = 0.0f;
        #pragma unroll
        for (int other = 0; other < TOGETHER; other++) sum += sums[other][0][i];
        parts[(long long)(blockIdx.y * heads + head) * G * K + i] = sum;
    }
}

// The parts of all chunks, (chunks, heads, size), as one: (heads, size). Each head has a block of threads.
extern "C" __global__ void combine(const float* parts, const float2* ends, number* y, int chunks, int size) {
    extern __shared__ float weights[];  // of the chunks; then a sum of each thread
    float* sums = weights + chunks;
    int heads = gridDim.x, head = blockIdx.x, own = threadIdx.x, together = blockDim.x / size;
    float largest = -INFINITY_, powers = 0.0f;
    for (int chunk = own; chunk < chunks; chunk += blockDim.x) largest = fmaxf(largest, ends[chunk * heads + head].x);
    for (int lanes = 16; lanes; lanes >>= 1) largest = fmaxf(largest, __shfl_xor_sync(FULL, largest, lanes));
    if ((own & 31) == 0) sums[own >> 5] = largest;
    __syncthreads();
    for (int warp = 0; warp < (int)blockDim.x >> 5; warp++) largest = fmaxf(largest, sums[warp]);
    for (int chunk = own; chunk < chunks; chunk += blockDim.x) {
        float2 end = ends[chunk * heads + head];
        weights[chunk] = end.y == 0.0f ? 0.0f : __expf(end.x - largest);
        powers += weights[chunk] * end.y;
    }
    powers = sum_of_block(powers);  // waits for all weights, too
    float sum = 0.0f;
    if (own / size < together) {
        #pragma unroll 8
        for (int chunk = own / size; chunk < chunks; chunk += together) {
            float part = parts[((long long)chunk * heads + head) * size + own % size];
            if (weights[chunk] != 0.0f) sum += weights[chunk] * part;  // else there is no part
        }
    }
    sums[own] = sum;
    __syncthreads();
    if (own < size) {
        for (int other = 1; other < together; other++) sum += sums[other * size + own];
        y[head * size + own] = narrow(sum / powers);
    }
}
