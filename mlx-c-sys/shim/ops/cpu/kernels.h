// The table of CPU kernels: one for each instruction set, with entries for each element type. Elements are f32, f16 or bf16 and
// dense; everything is computed in f32 and rounded once, at the end.
//
// As in sgemm, results do not depend on threads: the order of a sum depends on its length alone.
#pragma once

#include "isa.h"

namespace mlxrs::ops {

enum class Type { f32, f16, bf16 };
constexpr int types = 3;

// sum = residual + x, or residual + norm(x) inner_weight where that is not null; and y = norm(sum) weight, where y is not
// null, of the sum as it was rounded.
struct AddNorm {
  const void *x, *residual, *inner_weight, *weight;
  float eps;
  void *sum, *y;
};

// The rotation of the first 2 * half of n elements: pairs are (2i, 2i + 1) when `traditional`, else (i, i + half).
struct Rotation {
  long n, half;
  bool traditional;
  const float *cos, *sin;
};

// How vectors are packed, if bits are not 0: codes of 4 or 8 bits, the first in the lowest bits of U32 words; behind them,
// for each `group` of elements, scale and bias in the type that the elements had, filled up to words. An element stands for
// code * scale + bias.
struct RowPacking {
  int bits = 0, group = 0;

  bool operator==(const RowPacking&) const = default;
  // Words of a vector of n elements that are multiples of `group`, of `size` bytes each before.
  long words(long n, long size) const {
    return n * bits / 32 + n / group * 2 * size / 4;
  }
};

// Kernels over one vector of n elements.
struct RowKernels {
  // y = x / sqrt(mean(x^2) + eps) * weight; without weight when it is null.
  void (*rms_norm)(const void* x, const void* weight, float eps, long n, void* y);
  void (*add_norm)(const AddNorm& a, long n);
  // y may be x.
  void (*rotate)(const Rotation& r, const void* x, void* y);
  // y = gate * sigmoid(gate) * up, and gelu(gate) * up with the tanh approximation of gelu.
  void (*swiglu)(const void* gate, const void* up, long n, void* y);
  void (*geglu)(const void* gate, const void* up, long n, void* y);
  // y = cap tanh(x / cap)
  void (*soft_cap)(const void* x, float cap, long n, void* y);
  // x as a packed vector, with MLX's choice of scales and biases: to the bit what its quantize gives.
  void (*pack)(const void* x, const RowPacking& packing, long n, uint32_t* y);
};

// Attention reads keys in chunks of so many positions; a chunk begins at a multiple of this. Each chunk gives the softmax over
// its own keys, and chunks are merged in order. So a query's result depends on the query, the keys that it sees and their positions
// alone: not on threads, other queries, or slots.
constexpr long chunk = 256;

// Queries that share a head of keys and values: `group` heads of a number of tokens, query r of token r / group.
struct Attention {
  long dim, value_dim;
  // Scores are scale q k, and then cap tanh(score / cap) where cap is not 0.
  float scale, cap;
  const void* q;
  long queries, group;
  // Elements from token to token and from head to head.
  long q_token, q_head;
  // The key of position p is in slot (p + turn) mod slots, 0 <= turn < slots; steps are from slot to slot.
  // When keys and values are packed, steps are in words.
  const void *k, *v;
  long k_step, v_step, slots, turn;
  // Query r sees positions first[r] to last[r], the latter not included. Of a token's heads all see the same.
  const int *first, *last;
  // Where a slot is its position: true where a key is seen, or what is added to the scores; at most one of them.
  const bool* seen;
  const float* added;
  long mask_token, mask_head, mask_slot;
  RowPacking packing;
};

// Of each query: the largest score, the sum of e^(score - largest), and the values weighted by those, `value_dim` each;
// where the sum is 0, the values mean nothing. There is room for a multiple of 16 queries.
struct Partial {
  float *largest, *sum, *values;
};

struct AttentionKernels {
  // Floats that `load` fills, and that `chunk` needs to work in; multiples of 16, on a cache line.
  long (*loaded_size)(const Attention& a);
  long (*work_size)(const Attention& a);
  void (*load)(const Attention& a, float* queries);
  // The keys of chunk c alone.
  void (*chunk)(const Attention& a, const float* queries, long c, float* work, const Partial& to);
  // Of one query: y = values / sum.
  void (*finish)(const float* values, float sum, long n, void* y);
};

// What training needs: f32, and dense. d... is the cotangent of ...
struct GradientKernels {
  // Of y = x / sqrt(mean(x^2) + eps) * weight, one vector: dx, and what is added to dweight. Without weight when it is
  // null.
  void (*rms_norm)(
      const float* x, const float* weight, const float* dy, float eps, long n, float* dx, float* dweight);
  void (*swiglu)(const float* gate, const float* up, const float* dy, long n, float* dgate, float* dup);
  void (*geglu)(const float* gate, const float* up, const float* dy, long n, float* dgate, float* dup);
  // Of n scores x, which become their softmax, and its cotangent dx, which becomes that of what was multiplied by `scale` to be the
  // scores. What is behind them, up to `end`, becomes 0.
  void (*softmax)(float* x, float* dx, float scale, long n, long end);
  // log(sum(e^x)) - x[target] of one vector, and its derivative.
  float (*cross_entropy)(const float* x, long target, long n);
  void (*cross_entropy_vjp)(const float* x, long target, float dy, long n, float* dx);
};

// How a row's next token is drawn: the largest of logit * scale + noise, where the noise of a token is a Gumbel variable that depends
// on key and id alone. Its 32 bits are those that MLX's random::bits has at that place of n: a hash gives two, for ids i and
// i + (n + 1) / 2.
struct Draw {
  const void* x;
  long n;
  float scale;
  // Logits above `least` take part, and those equal to it up to the id `last`.
  float least;
  long last;
  uint32_t key[2];
};
struct Drawn {
  float y;
  long id;
};

// Elements of which `peaks` tells the largest.
constexpr long peak_of = 64;
constexpr long floors_at_once = 4;

// How a token changes a state.
enum class Rule {
  // The gated delta rule: the state decays, and the difference between a value and what its key reads is written.
  delta,
  // The same, where each channel of a key decays by itself.
  channels,
  // Of Mamba 2: the state decays, and values are written as they are. They also add to what is read.
  scan,
};

// Some rows of one head's state [rows, key_dim], and the tokens that change it.
struct Delta {
  Rule rule;
  long key_dim, rows, tokens;
  // Of the first token: a query and a key of `key_dim`, and the values of the rows; elements from token to token.
  const void *q, *k, *v;
  long step;
  // The factors of the state, one or `key_dim`, and that of the change, of the first token; elements from token to token.
  const float *decay, *beta;
  long decay_step, beta_step;
  // What a value adds to what is read.
  float skip;
  const float* before;
  float* after;
  // What the rows give for the first token; elements from token to token.
  void* y;
  long y_step;
};

struct RecurrentKernels {
  // y = sum of x[j] * taps[j], plus the bias if it is not null, through silu if asked for, of n channels. x has `count` vectors, and
  // taps are `step` elements apart.
  void (*conv)(
      const void* const* x, const void* taps, const void* bias, long count, long step, long n, bool silu, void* y);
  // Floats that `delta` needs to work in.
  long (*delta_size)(const Delta& d);
  // The rules of linear attention. A row's results depend on the row and its tokens alone, and a token's on nothing after it.
  void (*delta)(const Delta& d, float* work);
};

// Among the logits of a vocabulary.
struct ChooseKernels {
  float (*at)(const void* x, long i);
  float (*logsumexp)(const void* x, long n);
  // The first of the largest, and its value; numbers only.
  long (*argmax)(const void* x, long n, float* value);
  // The largest number of each `peak_of` elements, the last of which may be fewer; whether all of them are numbers.
  bool (*peaks)(const void* x, long n, float* to);
  // e^(x - best), 0 for NaN, and their sum.
  double (*weigh)(const void* x, float best, long n, float* e);
  // Hashes `first` to `end` of n / 2: whichever is better than `best` takes its place. The one in the middle of an odd number is not
  // among them.
  void (*draw)(const Draw& d, long first, long end, Drawn* best);
  // The same for one id.
  void (*draw_one)(const Draw& d, long id, Drawn* best);
};

struct Kernels {
  RowKernels rows[types];
  AttentionKernels attention[types];
  // The same with packed keys and values, whose scales are of the type.
  AttentionKernels packed_attention[types];
  // Puts `more` to `all`: of each query, `largest` becomes the larger and the rest is scaled to it.
  void (*merge)(long queries, long value_dim, const Partial& all, const Partial& more);
  // cos and sin of position * frequency.
  void (*angles)(float position, const float* frequencies, long half, float* cos, float* sin);
  ChooseKernels choose[types];
  // The sums of those of e that are not below the floors, which are positive.
  void (*above)(const float* e, long n, const float* floors, double* sums);
  // Where low <= e < high, ascending, and their number; for `to` there is room for all.
  long (*between)(const float* e, long n, float low, float high, uint32_t* to);
  GradientKernels gradients;
  RecurrentKernels recurrent[types];
};

// Those of isa().
const Kernels& kernels();
const AttentionKernels& attention_kernels(Type type, long dim, long value_dim, bool is_packed);

// Null on machines of another architecture, and when the compiler did not know the instructions.
const Kernels* kernels_avx512bf16();
const Kernels* kernels_avx512();
const Kernels* kernels_avx2();
const Kernels& kernels_portable();
// For bf16, where `dim` is a multiple of 32 and `value_dim` of 16.
const AttentionKernels* attention_amx(bool is_packed);

} // namespace mlxrs::ops
