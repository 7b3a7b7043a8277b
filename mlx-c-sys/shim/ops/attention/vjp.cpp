// The node that computes the gradients of attention in f32, for blocks of queries and all the keys that they see:
//   s = scale q k^T, p = softmax(s), dp = dy v^T, ds = p (dp - sum(p dp))
//   dv += p^T dy, dq = scale ds k, dk += scale ds^T q
#include <algorithm>
#include <limits>

#include "flat.h"

// Defined in matmul/sgemm.cpp; on macOS in Accelerate.
extern "C" void cblas_sgemm(
    int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
    int ldb, float beta, float* c, int ldc);

namespace mlxrs::ops {
namespace {

// The query heads of one KV head in one row of the batch. All arrays are dense.
struct QueryHeads {
  long heads, queries, keys, dim, value_dim;
  // The tokens from a head to the next one: `queries`, or in a flat step the tokens of all rows.
  long axis;
  float scale;
  bool causal;
  // [heads, axis, dim], [keys, dim], [keys, value_dim], [heads, axis, value_dim]
  const float *q, *k, *v, *dy;
  float *dq, *dk, *dv;
  // The mask; at most one of the two is set. `seen` is true where a query sees a key, `added` is added to the scores.
  // The strides go from head to head, from query to query and from key to key.
  const bool* seen;
  const float* added;
  long head_step, query_step, key_step;
};

// A row-major matrix with rows `row` elements apart, read as its transpose if `turned`.
struct Side {
  const float* at;
  long row;
  bool turned = false;
};

// c = a b, or c += a b if `adds`. The product is m x n, and k is the inner size.
void multiply(long m, long n, long k, Side a, Side b, bool adds, float* c, long c_row) {
  constexpr int row_major = 101, no_trans = 111, trans = 112;
  auto whole = [](long n) { return static_cast<int>(n); };
  cblas_sgemm(
      row_major, a.turned ? trans : no_trans, b.turned ? trans : no_trans, whole(m), whole(n), whole(k), 1.0f, a.at,
      whole(a.row), b.at, whole(b.row), adds ? 1.0f : 0.0f, c, whole(c_row));
}

// Scales and masks the scores of one query.
void mask(const QueryHeads& a, long head, long token, long keys, float* scores) {
  long at = head * a.head_step + token * a.query_step;
  for (long s = 0; s < keys; s++) {
    float x = a.scale * scores[s];
    if (a.seen != nullptr) {
      x = a.seen[at + s * a.key_step] ? x : std::numeric_limits<float>::lowest();
    } else if (a.added != nullptr) {
      x += a.added[at + s * a.key_step];
    }
    scores[s] = x;
  }
}

// Zeroes the gradients of hidden scores. They have weights if all keys of the query are hidden.
void hide(const QueryHeads& a, long head, long token, long keys, float* gradients) {
  long at = head * a.head_step + token * a.query_step;
  for (long s = 0; a.seen != nullptr && s < keys; s++) {
    if (!a.seen[at + s * a.key_step]) {
      gradients[s] = 0;
    }
  }
}

// Computes dq, dk and dv of one KV head.
void differentiate(const QueryHeads& a) {
  // The queries of a block: their scores and the scores' gradients stay in L2.
  constexpr long together = 96;
  std::vector<float> memory(2 * together * a.keys);
  float *p = memory.data(), *ds = p + together * a.keys;
  std::fill_n(a.dk, a.keys * a.dim, 0.0f);
  std::fill_n(a.dv, a.keys * a.value_dim, 0.0f);
  for (long head = 0; head < a.heads; head++) {
    for (long first = 0; first < a.queries; first += together) {
      long n = std::min(together, a.queries - first), at = head * a.axis + first;
      const float *q = a.q + at * a.dim, *dy = a.dy + at * a.value_dim;
      auto keys_of = [&](long token) { return a.causal ? a.keys - (a.queries - 1 - token) : a.keys; };
      long keys = keys_of(first + n - 1);
      multiply(n, keys, a.dim, {q, a.dim}, {a.k, a.dim, true}, false, p, keys);
      multiply(n, keys, a.value_dim, {dy, a.value_dim}, {a.v, a.value_dim, true}, false, ds, keys);
      for (long i = 0; i < n; i++) {
        long own = keys_of(first + i);
        mask(a, head, first + i, own, p + i * keys);
        kernels().gradients.softmax(p + i * keys, ds + i * keys, a.scale, own, keys);
        hide(a, head, first + i, own, ds + i * keys);
      }
      multiply(keys, a.value_dim, n, {p, keys, true}, {dy, a.value_dim}, true, a.dv, a.value_dim);
      multiply(n, a.dim, keys, {ds, keys}, {a.k, a.dim}, false, a.dq + at * a.dim, a.dim);
      multiply(keys, a.dim, n, {ds, keys, true}, {q, a.dim}, true, a.dk, a.dim);
    }
  }
}

// Inputs: queries, keys, values; in a flat step `starts`; the mask if there is one; the cotangent of the result.
class AttentionVjp : public Derivative {
 public:
  AttentionVjp(mx::Stream s, std::shared_ptr<Node> of, float scale, bool causal, bool flat)
      : Derivative(s, std::move(of), 3), scale_(scale), causal_(causal), flat_(flat) {}

  void encode(const Arrays& in, Arrays& out) override {
    const auto &q = in[0], &k = in[1], &v = in[2];
    if (q.size() == 0 || in.back().size() == 0) {
      for (auto& array : out) {
        std::fill_n(array.data<float>(), array.size(), 0.0f);
      }
      return;
    }
    uint32_t kv_heads = k.shape(1);
    long group = q.shape(1) / kv_heads;
    QueryHeads all{};
    all.heads = group;
    all.queries = q.shape(2);
    all.keys = k.shape(2);
    all.dim = q.shape(3);
    all.value_dim = v.shape(3);
    all.axis = all.queries;
    all.scale = scale_;
    all.causal = causal_;
    mx::Strides mask(4, 0);
    const bool* seen = nullptr;
    const float* added = nullptr;
    long columns = 0;
    if (size_t at = flat_ ? 4 : 3; in.size() > at + 1) {
      mask = in[at].strides();
      if (flat_) {
        columns = in[at].shape(2);
        mask = {0, in[at].shape(0) > 1 ? mask[0] : 0, in[at].shape(1) > 1 ? mask[1] : 0, mask[2]};
      }
      if (in[at].dtype() == mx::bool_) {
        seen = in[at].data<bool>();
      } else {
        added = in[at].data<float>();
      }
    }
    all.head_step = mask[1];
    all.query_step = mask[2];
    all.key_step = mask[3];
    std::optional<Step> step;
    if (flat_) {
      step.emplace(std::span(in).subspan(3, 1), q.shape(2), 0, 0);
    }
    auto work = 3.0 * q.shape(0) * q.shape(1) * all.queries * all.keys * (all.dim + all.value_dim);
    uint32_t tasks = (step ? step->rows() : q.shape(0)) * kv_heads;
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, q = q.data<float>(), k = k.data<float>(), v = v.data<float>(), dy = in.back().data<float>(),
         dq = out[0].data<float>(), dk = out[1].data<float>(), dv = out[2].data<float>()] {
          if (step) {
            step->check(0, 0, columns);
            // Tokens of no row.
            int64_t own = step->begin(step->rows()), rest = all.axis - own;
            for (int64_t head = 0; head < int64_t(kv_heads) * group; head++) {
              std::fill_n(dq + (head * all.axis + own) * all.dim, rest * all.dim, 0.0f);
            }
            for (int64_t head = 0; head < kv_heads; head++) {
              std::fill_n(dk + (head * all.axis + own) * all.dim, rest * all.dim, 0.0f);
              std::fill_n(dv + (head * all.axis + own) * all.value_dim, rest * all.value_dim, 0.0f);
            }
          }
          auto attend = [&](uint32_t task) {
            QueryHeads a = all;
            // The heads before the task's, and its first token.
            int64_t at = task, token = 0, row = task / kv_heads;
            if (step) {
              at = task % kv_heads;
              token = step->begin(static_cast<int>(row));
              a.queries = a.keys = step->count(static_cast<int>(row));
            }
            int64_t query = at * a.heads * a.axis + token, key = at * all.keys + token;
            a.q = q + query * a.dim;
            a.k = k + key * a.dim;
            a.v = v + key * a.value_dim;
            a.dy = dy + query * a.value_dim;
            a.dq = dq + query * a.dim;
            a.dk = dk + key * a.dim;
            a.dv = dv + key * a.value_dim;
            int64_t from = (step ? 0 : row * mask[0]) + task % kv_heads * a.heads * mask[1] + token * mask[2];
            a.seen = seen != nullptr ? seen + from : nullptr;
            a.added = added != nullptr ? added + from : nullptr;
            differentiate(a);
          };
          // With fewer tasks than threads, tasks run one after the other and threads share each matrix product.
          if (static_cast<int>(tasks) < Threads::shared().count()) {
            for (uint32_t task = 0; task < tasks; task++) {
              attend(task);
            }
          } else {
            share(tasks, work, attend);
          }
        });
  }

  const char* name() const override {
    return "AttentionVjp";
  }

 private:
  float scale_;
  bool causal_, flat_;
};

} // namespace

Arrays attention_vjp(std::shared_ptr<Node> of, const AttentionOptions& options, const Arrays& primals,
                     const mx::array& dy, const std::vector<int>& argnums) {
  return attention_vjp(std::move(of), options.scale, options.mask == Mask::causal, false, primals, dy, argnums);
}

Arrays attention_vjp(
    std::shared_ptr<Node> of, float scale, bool causal, bool flat, const Arrays& primals, const mx::array& dy,
    const std::vector<int>& argnums) {
  auto s = of->stream();
  Arrays inputs;
  for (int i = 0; i < 3; i++) {
    inputs.push_back(widened(primals[i], s));
  }
  for (auto more = primals.begin() + 3; more != primals.end(); more++) {
    bool is_read = more->dtype() == mx::bool_ || more->dtype() == mx::int32;
    inputs.push_back(is_read ? *more : mx::astype(*more, mx::float32, s));
  }
  inputs.push_back(widened(dy, s));
  auto node = std::make_shared<AttentionVjp>(s, std::move(of), scale, causal, flat);
  return Derivative::make(std::move(node), std::move(inputs), primals, argnums);
}

} // namespace mlxrs::ops
