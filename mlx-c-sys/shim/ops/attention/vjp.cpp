// The node that computes the gradients of attention in f32, for blocks of queries and all the keys that they see:
//   s = scale q k^T, p = softmax(s), dp = dy v^T, ds = p (dp - sum(p dp))
//   dv += p^T dy, dq = scale ds k, dk += scale ds^T q
#include <algorithm>
#include <limits>

#include "attention.h"

// Defined in matmul/sgemm.cpp; on macOS in Accelerate.
extern "C" void cblas_sgemm(
    int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
    int ldb, float beta, float* c, int ldc);

namespace mlxrs::ops {
namespace {

// The query heads of one KV head in one row of the batch. All arrays are dense.
struct QueryHeads {
  long heads, queries, keys, dim, value_dim;
  float scale;
  bool causal;
  // [heads, queries, dim], [keys, dim], [keys, value_dim], [heads, queries, value_dim]
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
      long n = std::min(together, a.queries - first), at = head * a.queries + first;
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

class AttentionVjp : public Derivative {
 public:
  AttentionVjp(mx::Stream s, std::shared_ptr<Node> of, float scale, bool causal)
      : Derivative(s, std::move(of), 3), scale_(scale), causal_(causal) {}

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
    all.scale = scale_;
    all.causal = causal_;
    mx::Strides mask(4, 0);
    const bool* seen = nullptr;
    const float* added = nullptr;
    if (in.size() > 4) {
      mask = in[3].strides();
      if (in[3].dtype() == mx::bool_) {
        seen = in[3].data<bool>();
      } else {
        added = in[3].data<float>();
      }
    }
    all.head_step = mask[1];
    all.query_step = mask[2];
    all.key_step = mask[3];
    auto work = 3.0 * q.shape(0) * q.shape(1) * all.queries * all.keys * (all.dim + all.value_dim);
    uint32_t tasks = q.shape(0) * kv_heads;
    mx::cpu::get_command_encoder(stream()).dispatch(
        [=, q = q.data<float>(), k = k.data<float>(), v = v.data<float>(), dy = in.back().data<float>(),
         dq = out[0].data<float>(), dk = out[1].data<float>(), dv = out[2].data<float>()] {
          auto attend = [&](uint32_t task) {
            QueryHeads a = all;
            int64_t at = task, queries = a.heads * a.queries;
            a.q = q + at * queries * a.dim;
            a.k = k + at * a.keys * a.dim;
            a.v = v + at * a.keys * a.value_dim;
            a.dy = dy + at * queries * a.value_dim;
            a.dq = dq + at * queries * a.dim;
            a.dk = dk + at * a.keys * a.dim;
            a.dv = dv + at * a.keys * a.value_dim;
            int64_t from = task / kv_heads * mask[0] + task % kv_heads * a.heads * mask[1];
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
  bool causal_;
};

} // namespace

Arrays attention_vjp(std::shared_ptr<Node> of, const AttentionOptions& options, const Arrays& primals,
                     const mx::array& dy, const std::vector<int>& argnums) {
  auto s = of->stream();
  Arrays inputs;
  for (int i = 0; i < 3; i++) {
    inputs.push_back(widened(primals[i], s));
  }
  for (auto mask = primals.begin() + 3; mask != primals.end(); mask++) {
    inputs.push_back(mask->dtype() == mx::bool_ ? *mask : mx::astype(*mask, mx::float32, s));
  }
  inputs.push_back(widened(dy, s));
  auto node = std::make_shared<AttentionVjp>(s, std::move(of), options.scale, options.mask == Mask::causal);
  return Derivative::make(std::move(node), std::move(inputs), primals, argnums);
}

} // namespace mlxrs::ops
