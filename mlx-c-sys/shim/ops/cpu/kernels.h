// The tables of CPU kernels: one table for each instruction set, with entries for each element type (f32, f16, bf16).
// Inputs are dense. Kernels compute in f32 and round once, when they store.
//
// Results do not depend on the number of threads: the order of a sum depends only on its length.
#pragma once

#include "runtime/isa.h"

namespace mlxrs::ops {

enum class Type { f32, f16, bf16 };
constexpr int types = 3;

// sum = residual + x, or residual + norm(x) inner_weight if inner_weight is not null. If y is not null, y = norm(sum)
// weight, where `sum` is the rounded sum.
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

// The format of packed vectors in the KV cache; bits 0 means not packed. First come codes of 4 or 8 bits in U32 words,
// the first code in the lowest bits. Then come a scale and a bias for each `group` elements, in the type of the
// unpacked elements, padded to whole words. An element is code * scale + bias.
struct RowPacking {
  int bits = 0, group = 0;

  bool operator==(const RowPacking&) const = default;
  // The words of a packed vector of n elements. n is a multiple of `group`, and an unpacked element has `size` bytes.
  long words(long n, long size) const {
    return n * bits / 32 + n / group * 2 * size / 4;
  }
};

// Kernels for one vector of n elements.
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
  // Packs x. Codes, scales and biases have the same bits as those of MLX's quantize.
  void (*pack)(const void* x, const RowPacking& packing, long n, uint32_t* y);
};

// Attention divides positions into chunks of this size, each beginning at a multiple of it. Each chunk has its own
// softmax, and the chunks' results are merged in order. So a query's result depends only on the query, the keys that it
// sees and their positions; it does not depend on threads, other queries or the slots of keys.
constexpr long chunk = 256;

// The queries that share a KV head: `group` query heads for each token. Query r belongs to token r / group.
struct Attention {
  long dim, value_dim;
  // Scores are scale q k, then cap tanh(score / cap) if cap is not 0.
  float scale, cap;
  const void* q;
  long queries, group;
  // Strides from token to token and from head to head, in elements.
  long q_token, q_head;
  // The key of position p is in slot (p + turn) mod slots, where 0 <= turn < slots. k_step and v_step are strides from
  // slot to slot, in elements, or in words for packed keys and values.
  const void *k, *v;
  long k_step, v_step, slots, turn;
  // If `table` is not null, position p is in slot p mod `slots` of page table[(p / slots) mod table_size * table_step],
  // `turn` is 0, and k_page and v_page are strides from page to page.
  const int32_t* table;
  long table_size, table_step, k_page, v_page;
  // Query r sees the positions first[r] to last[r] - 1. All heads of a token see the same positions.
  const int *first, *last;
  // If `slopes` is not null, slopes[h * slope_step] * (p - own) is added to the score of position p for head h of the group,
  // where `own` is the position of the query's token: `at` for the first token.
  const float* slopes;
  long slope_step, at;
  // Masks whose columns are positions: `seen` is true where a key is seen, `added` is added to the scores. At most one of
  // them is set.
  const bool* seen;
  const float* added;
  long mask_token, mask_head, mask_slot;
  RowPacking packing;
};

// The result of a chunk for each query: the largest score, the sum of e^(score - largest), and the values [value_dim]
// summed with these weights. If the sum is 0, the values are undefined. The arrays have room for a multiple of 16
// queries.
struct Partial {
  float *largest, *sum, *values;
};

struct AttentionKernels {
  // The number of floats that `load` writes, and of the workspace of `chunk`. Both are multiples of 16 and aligned to
  // cache lines.
  long (*loaded_size)(const Attention& a);
  long (*work_size)(const Attention& a);
  // Converts the queries to the layout that `chunk` reads.
  void (*load)(const Attention& a, float* queries);
  // Computes the result of chunk c.
  void (*chunk)(const Attention& a, const float* queries, long c, float* work, const Partial& to);
  // y = values / sum for one query.
  void (*finish)(const float* values, float sum, long n, void* y);
};

// Kernels of training, for dense f32. dx is the cotangent of x.
struct GradientKernels {
  // The derivative of y = x / sqrt(mean(x^2) + eps) * weight for one vector: dx, and the vector to add to dweight.
  // `weight` may be null.
  void (*rms_norm)(
      const float* x, const float* weight, const float* dy, float eps, long n, float* dx, float* dweight);
  void (*swiglu)(const float* gate, const float* up, const float* dy, long n, float* dgate, float* dup);
  void (*geglu)(const float* gate, const float* up, const float* dy, long n, float* dgate, float* dup);
  // Turns n scores x into their softmax, and the cotangent dx of the softmax into the cotangent of the product q k,
  // where x = scale q k. Elements from n to `end` become 0.
  void (*softmax)(float* x, float* dx, float scale, long n, long end);
  // log(sum(e^x)) - x[target] of one vector. cross_entropy_vjp computes its derivative.
  float (*cross_entropy)(const float* x, long target, long n);
  void (*cross_entropy_vjp)(const float* x, long target, float dy, long n, float* dx);
};

// The draw of a row's next token: the largest of logit * scale + noise. The noise is Gumbel noise that depends only on
// the key and the token's id. Its 32 bits are those of MLX's random::bits of size n: one hash gives the bits of ids i
// and i + (n + 1) / 2.
struct Draw {
  const void* x;
  long n;
  float scale;
  // Logits above `least` take part, and of logits equal to `least` those with ids up to `last`.
  float least;
  long last;
  uint32_t key[2];
};
struct Drawn {
  float y;
  long id;
};

// peak_of: elements for each entry of `peaks`. floors_at_once: floors of one call of `above`.
constexpr long peak_of = 64;
constexpr long floors_at_once = 4;

// The update rule of a state.
enum class Rule {
  // The gated delta rule: the state decays, then the difference between the value and what the state gives for its key
  // is added at the key.
  delta,
  // The delta rule with a decay for each channel of the key.
  channels,
  // Mamba 2: the state decays, then the value is added at the key. The value is also added to the output.
  scan,
};

// Some rows of one head's state [rows, key_dim], and the tokens that update it.
struct Delta {
  Rule rule;
  long key_dim, rows, tokens;
  // The first token's query and key [key_dim], and its values [rows]; `step` is the stride to the next token, in
  // elements.
  const void *q, *k, *v;
  long step;
  // The first token's decay factors (one, or `key_dim`) and its beta; then their strides from token to token.
  const float *decay, *beta;
  long decay_step, beta_step;
  // The factor with which a value is added to the output (scan only).
  float skip;
  const float* before;
  float* after;
  // The first token's output [rows]; y_step is the stride to the next token.
  void* y;
  long y_step;
};

struct RecurrentKernels {
  // y = sum over j of x[j] * taps[j], plus the bias if not null, then SiLU if `silu`, for n channels. x has `count`
  // vectors, and the taps of a channel are `step` elements apart.
  void (*conv)(
      const void* const* x, const void* taps, const void* bias, long count, long step, long n, bool silu, void* y);
  // The floats of `delta`'s workspace.
  long (*delta_size)(const Delta& d);
  // Updates the state with all tokens. The result of a row of the state depends only on that row and its tokens, and
  // the output of a token does not depend on later tokens.
  void (*delta)(const Delta& d, float* work);
};

// Sampling kernels: reductions of logits over a vocabulary.
struct ChooseKernels {
  float (*at)(const void* x, long i);
  float (*logsumexp)(const void* x, long n);
  // The index of the largest element, the first of equal ones, and its value. NaN is skipped.
  long (*argmax)(const void* x, long n, float* value);
  // The largest of each `peak_of` elements; the last block may be shorter. Returns false if an element is NaN.
  bool (*peaks)(const void* x, long n, float* to);
  // e = e^(x - best), with 0 for NaN. Returns the sum.
  double (*weigh)(const void* x, float best, long n, float* e);
  // Evaluates the hashes `first` to `end` of n / 2, which give two ids each, and keeps the best token in `best`. The
  // middle id of an odd n is left out.
  void (*draw)(const Draw& d, long first, long end, Drawn* best);
  // Evaluates a single id.
  void (*draw_one)(const Draw& d, long id, Drawn* best);
};

struct Kernels {
  RowKernels rows[types];
  AttentionKernels attention[types];
  // The same for packed keys and values, whose scales have this type.
  AttentionKernels packed_attention[types];
  // Merges `more` into `all`: `largest` becomes the larger one, and the sums are rescaled to it.
  void (*merge)(long queries, long value_dim, const Partial& all, const Partial& more);
  // cos and sin of position * frequency.
  void (*angles)(float position, const float* frequencies, long half, float* cos, float* sin);
  ChooseKernels choose[types];
  // For each floor, the sum of the elements of e that are at least the floor. Floors are positive.
  void (*above)(const float* e, long n, const float* floors, double* sums);
  // Writes the ascending indices with low <= e < high to `to`, which has room for n. Returns their number.
  long (*between)(const float* e, long n, float low, float high, uint32_t* to);
  GradientKernels gradients;
  RecurrentKernels recurrent[types];
};

// The kernels for isa() (isa.h).
const Kernels& kernels();
const AttentionKernels& attention_kernels(Type type, long dim, long value_dim, bool is_packed);

// Null on other architectures, and if the compiler does not support the instruction set.
const Kernels* kernels_avx512bf16();
const Kernels* kernels_avx512();
const Kernels* kernels_avx2();
const Kernels& kernels_portable();
// AMX attention for bf16, where `dim` is a multiple of 32 and `value_dim` of 16.
const AttentionKernels* attention_amx(bool is_packed);

} // namespace mlxrs::ops
