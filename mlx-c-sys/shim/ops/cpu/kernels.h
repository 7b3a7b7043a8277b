// The table of CPU kernels: one for each instruction set, with entries for each element type. Elements are f32, f16 or
// bf16 and dense. Everything is computed in f32 and rounded once, at the end.
//
// As in sgemm, results do not depend on the number of threads: the order of a sum depends only on its length.
#pragma once

#include "isa.h"

namespace mlxrs::ops {

enum class Type { f32, f16, bf16 };
constexpr int types = 3;

// sum = residual + x, or residual + norm(x) inner_weight if inner_weight is not null. If y is not null, y = norm(sum)
// weight, where the norm is that of the rounded sum.
struct AddNorm {
  const void *x, *residual, *inner_weight, *weight;
  float eps;
  void *sum, *y;
};

// The rotation of the first 2 * half of n elements. Pairs are (2i, 2i + 1) if `traditional`, else (i, i + half).
struct Rotation {
  long n, half;
  bool traditional;
  const float *cos, *sin;
};

// The format of packed vectors, unless bits is 0: codes of 4 or 8 bits, the first in the lowest bits of U32 words.
// Scale and bias of each `group` of elements follow, in the type of the unpacked elements, filled up to words. An
// element is code * scale + bias.
struct RowPacking {
  int bits = 0, group = 0;

  bool operator==(const RowPacking&) const = default;
  // The words of a packed vector of n elements (a multiple of `group`) of `size` bytes each.
  long words(long n, long size) const {
    return n * bits / 32 + n / group * 2 * size / 4;
  }
};

// Kernels over one vector of n elements.
struct RowKernels {
  // y = x / sqrt(mean(x^2) + eps) * weight. `weight` may be null.
  void (*rms_norm)(const void* x, const void* weight, float eps, long n, void* y);
  void (*add_norm)(const AddNorm& a, long n);
  // y may be x.
  void (*rotate)(const Rotation& r, const void* x, void* y);
  // y = gate * sigmoid(gate) * up, and gelu(gate) * up with the tanh approximation of gelu.
  void (*swiglu)(const void* gate, const void* up, long n, void* y);
  void (*geglu)(const void* gate, const void* up, long n, void* y);
  // y = cap tanh(x / cap)
  void (*soft_cap)(const void* x, float cap, long n, void* y);
  // Packs x. Scales and biases are chosen as in MLX's quantize, with the same bits.
  void (*pack)(const void* x, const RowPacking& packing, long n, uint32_t* y);
};

// Attention reads keys in chunks of this many positions; a chunk begins at a multiple of it. Each chunk has its own
// softmax, and the results of chunks are merged in order. So a query's result depends only on the query, the keys that
// it sees and their positions, and not on threads, other queries, or slots.
constexpr long chunk = 256;

// Queries that share a KV head: `group` query heads for each token. Query r belongs to token r / group.
struct Attention {
  long dim, value_dim;
  // Scores are scale q k, then cap tanh(score / cap) if cap is not 0.
  float scale, cap;
  const void* q;
  long queries, group;
  // The distances from token to token and from head to head, in elements.
  long q_token, q_head;
  // The key of position p is in slot (p + turn) mod slots, 0 <= turn < slots. Steps are from slot to slot, in elements,
  // or in words if keys and values are packed.
  const void *k, *v;
  long k_step, v_step, slots, turn;
  // Query r sees positions first[r] to last[r] - 1. All heads of a token see the same positions.
  const int *first, *last;
  // Masks, for caches where a slot is its position: true where a key is seen, or numbers to add to the scores. At most
  // one is set.
  const bool* seen;
  const float* added;
  long mask_token, mask_head, mask_slot;
  RowPacking packing;
};

// For each query: its largest score, the sum of e^(score - largest), and the sum of values with these weights,
// `value_dim` each. If the sum is 0, the values are undefined. There is room for a multiple of 16 queries.
struct Partial {
  float *largest, *sum, *values;
};

struct AttentionKernels {
  // The floats that `load` fills, and the floats of `chunk`'s workspace. Both are multiples of 16, aligned to a cache
  // line.
  long (*loaded_size)(const Attention& a);
  long (*work_size)(const Attention& a);
  void (*load)(const Attention& a, float* queries);
  // Attends to the keys of chunk c alone.
  void (*chunk)(const Attention& a, const float* queries, long c, float* work, const Partial& to);
  // For one query: y = values / sum.
  void (*finish)(const float* values, float sum, long n, void* y);
};

// Kernels of training, for dense f32. A name d... is the cotangent of ...
struct GradientKernels {
  // The derivative of y = x / sqrt(mean(x^2) + eps) * weight for one vector: dx, and the vector to add to dweight.
  // `weight` may be null.
  void (*rms_norm)(
      const float* x, const float* weight, const float* dy, float eps, long n, float* dx, float* dweight);
  void (*swiglu)(const float* gate, const float* up, const float* dy, long n, float* dgate, float* dup);
  void (*geglu)(const float* gate, const float* up, const float* dy, long n, float* dgate, float* dup);
  // Turns n scores x into their softmax, and the softmax's cotangent dx into the cotangent of the product that was
  // multiplied by `scale` to give the scores. Elements from n to `end` become 0.
  void (*softmax)(float* x, float* dx, float scale, long n, long end);
  // log(sum(e^x)) - x[target] of one vector, and its derivative.
  float (*cross_entropy)(const float* x, long target, long n);
  void (*cross_entropy_vjp)(const float* x, long target, float dy, long n, float* dx);
};

// The draw of a row's next token: the largest of logit * scale + noise. The noise of a token is a Gumbel variable that
// depends only on the key and the token's id. Its 32 bits are those of MLX's random::bits of size n at that place: one
// hash gives the bits of ids i and i + (n + 1) / 2.
struct Draw {
  const void* x;
  long n;
  float scale;
  // Logits above `least` take part, and logits equal to `least` up to the id `last`.
  float least;
  long last;
  uint32_t key[2];
};
struct Drawn {
  float y;
  long id;
};

// The number of elements for each entry of `peaks`.
constexpr long peak_of = 64;
constexpr long floors_at_once = 4;

// How a token changes a state.
enum class Rule {
  // The gated delta rule: the state decays, and the difference between a value and what its key reads from the state is
  // written.
  delta,
  // The same, with a decay for each channel of a key.
  channels,
  // Mamba 2: the state decays, and values are written unchanged. Values also add to the output.
  scan,
};

// Some rows of one head's state [rows, key_dim], and the tokens that change it.
struct Delta {
  Rule rule;
  long key_dim, rows, tokens;
  // Of the first token: a query and a key of `key_dim`, and the values of these rows. Then the elements from token to
  // token.
  const void *q, *k, *v;
  long step;
  // Of the first token: the decay factors of the state (one, or `key_dim`), and the factor of the change. Then the
  // elements from token to token.
  const float *decay, *beta;
  long decay_step, beta_step;
  // The factor with which a value adds to the output.
  float skip;
  const float* before;
  float* after;
  // The output of these rows for the first token. Then the elements from token to token.
  void* y;
  long y_step;
};

struct RecurrentKernels {
  // y = sum of x[j] * taps[j], plus the bias if it is not null, through silu if `silu`, for n channels. x has `count`
  // vectors, and taps are `step` elements apart.
  void (*conv)(
      const void* const* x, const void* taps, const void* bias, long count, long step, long n, bool silu, void* y);
  // The floats of `delta`'s workspace.
  long (*delta_size)(const Delta& d);
  // The rules of linear attention. The result of a row of the state depends only on that row and its tokens, and the
  // output of a token does not depend on later tokens.
  void (*delta)(const Delta& d, float* work);
};

// Sampling kernels: reductions of logits over a vocabulary.
struct ChooseKernels {
  float (*at)(const void* x, long i);
  float (*logsumexp)(const void* x, long n);
  // The index of the largest element, the first of equal ones, and its value. NaN is skipped.
  long (*argmax)(const void* x, long n, float* value);
  // The largest number of each `peak_of` elements; the last block may be shorter. Returns whether no element is NaN.
  bool (*peaks)(const void* x, long n, float* to);
  // e^(x - best), 0 for NaN, and the sum of these.
  double (*weigh)(const void* x, float best, long n, float* e);
  // Tries hashes `first` to `end` of n / 2. A token that is better than `best` replaces it. The middle id of an odd n
  // is left out.
  void (*draw)(const Draw& d, long first, long end, Drawn* best);
  // The same for one id.
  void (*draw_one)(const Draw& d, long id, Drawn* best);
};

struct Kernels {
  RowKernels rows[types];
  AttentionKernels attention[types];
  // The same for packed keys and values, whose scales have this type.
  AttentionKernels packed_attention[types];
  // Merges `more` into `all`: for each query, `largest` becomes the larger one, and the sums are scaled to it.
  void (*merge)(long queries, long value_dim, const Partial& all, const Partial& more);
  // cos and sin of position * frequency.
  void (*angles)(float position, const float* frequencies, long half, float* cos, float* sin);
  ChooseKernels choose[types];
  // For each floor, the sum of those elements of e that are at least the floor. Floors are positive.
  void (*above)(const float* e, long n, const float* floors, double* sums);
  // The indices with low <= e < high, ascending, and their number. `to` has room for n.
  long (*between)(const float* e, long n, float low, float high, uint32_t* to);
  GradientKernels gradients;
  RecurrentKernels recurrent[types];
};

// The kernels of isa().
const Kernels& kernels();
const AttentionKernels& attention_kernels(Type type, long dim, long value_dim, bool is_packed);

// Null on other architectures, and if the compiler does not support the instructions.
const Kernels* kernels_avx512bf16();
const Kernels* kernels_avx512();
const Kernels* kernels_avx2();
const Kernels& kernels_portable();
// For bf16, where `dim` is a multiple of 32 and `value_dim` of 16.
const AttentionKernels* attention_amx(bool is_packed);

} // namespace mlxrs::ops
