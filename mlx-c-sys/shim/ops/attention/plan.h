// The plan of a CPU attention: addresses and strides of the operands, and the tasks.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

#include "attention.h"
#include "ops/pages.h"

namespace mlxrs::ops {

// An array [B, H, L, D] whose last axis is dense: the array's own memory, or a copy.
class HeadRows {
 public:
  const char* at;
  std::array<int64_t, 4> strides;
  int64_t size; // bytes of an element

  explicit HeadRows(const mx::array& a) : at(a.data<char>()), size(static_cast<int64_t>(a.itemsize())) {
    std::copy_n(a.strides().begin(), 4, strides.begin());
    if (strides[3] == 1 || a.shape(3) <= 1 || a.size() == 0) {
      return;
    }
    copy_ = std::make_shared<Copy>(a);
    at = copy_->memory.data();
    int64_t d = a.shape(3), s = a.shape(2), h = a.shape(1);
    strides = {h * s * d, s * d, d, 1};
  }

  // Copies the elements if they need a copy. Runs on the stream's thread, before the elements are read.
  void copy() const {
    for (uint32_t i = 0; copy_ != nullptr && i < copy_->n; i++) {
      copy_->vectors.copy(i, copy_->memory.data() + i * copy_->vectors.nbytes());
    }
  }

 private:
  struct Copy {
    Vectors vectors;
    uint32_t n;
    std::vector<char> memory;

    explicit Copy(const mx::array& a) : vectors(a), n(static_cast<uint32_t>(a.size() / a.shape(3))), memory(a.nbytes()) {}
  };
  std::shared_ptr<Copy> copy_;
};

// One attention. It is read on the stream's thread.
struct Plan {
  AttentionOptions options;
  HeadRows q, k, v;
  int rows, heads, kv_heads, tokens, slots;
  long dim, value_dim;
  size_t size;
  const AttentionKernels* kernel;
  const bool* seen = nullptr;
  const float* added = nullptr;
  std::array<int64_t, 4> mask_strides{};
  const int32_t* offsets = nullptr;
  int64_t offset_step = 0;
  const float* sinks = nullptr;
  int64_t sink_step = 0;
  // [B, L, H, Dv] in memory.
  char* y = nullptr;
  // The rows of a flat step, whose tokens are on one axis. Then `rows`, `tokens` and `slots` are those of the arrays: 1 row
  // of all tokens, and the positions of a page.
  std::optional<Step> step = std::nullopt;
  bool has_pages = false;
  long seen_chunk = 0; // 0, or queries see only positions of their own chunk of this size
  long ahead = 0;      // the positions after its own that a query sees, in a flat step without pages
  const float* slopes = nullptr;
  int64_t slope_step = 0;
  long columns = 0; // of the mask of a flat step; 0 without

  long group() const {
    return heads / kv_heads;
  }
  int row_count() const {
    return step ? step->rows() : rows;
  }
  int tokens_of(int row) const {
    return step ? step->count(row) : tokens;
  }
  // The row's place on the first axis of arrays, and the place of its first token on the axis of tokens.
  int batch_of(int row) const {
    return step ? 0 : row;
  }
  int first_token(int row) const {
    return step ? step->begin(row) : 0;
  }
  // The position of the row's first query.
  long offset(int row) const {
    if (step) {
      return step->position(row);
    }
    return offsets != nullptr ? offsets[row * offset_step] : slots - tokens;
  }
  // The range of positions that a token of this step sees, limited to the positions that the cache still has.
  std::pair<int, int> span(int row, int token) const {
    if (step) {
      long at = offset(row) + token;
      long end = ahead > 0 ? std::min<long>(at + 1 + ahead, tokens_of(row)) : at + 1;
      return {static_cast<int>(first_seen(at, options.window, seen_chunk)), static_cast<int>(end)};
    }
    if (options.mask == Mask::none || options.mask == Mask::array) {
      return {0, slots};
    }
    long at = offset(row), query = at + token, first = 0, last = query + 1;
    if (options.window > 0) {
      first = query + 1 - options.window;
    }
    if (options.layout == Layout::ring) {
      first = std::max(first, at + tokens - slots);
    } else if (options.layout == Layout::behind) {
      first = std::max(first, at + tokens - slots);
      last = std::min(last, at + tokens);
    } else {
      last = std::min<long>(last, slots);
    }
    first = std::max(first, 0L);
    return {static_cast<int>(first), static_cast<int>(std::max(first, last))};
  }
  // The rotation of slots: position p is in slot (p + turn) mod slots.
  long turn(int row) const {
    if (options.mask == Mask::positions && options.layout == Layout::behind) {
      long shift = (slots - tokens - offset(row)) % slots;
      return shift < 0 ? shift + slots : shift;
    }
    return 0;
  }
};

// Computes the attention. Runs on the stream's thread.
void run(const Plan& p);

// Some tokens of one row, with `heads` query heads that share a KV head.
struct Task {
  Attention a;
  std::vector<int> first, last;
  long begin, end; // the range of chunks
  const float* sinks;
  int64_t sink_step;
  char* y;
  long y_token, y_head; // strides in bytes

  Task(const Plan& p, int row, long head, long heads, int token, int tokens) : first(tokens * heads), last(first.size()) {
    long kv_head = head / p.group();
    int64_t batch = p.batch_of(row), place = p.first_token(row) + token;
    auto at = [&](const HeadRows& d, long head, long token) {
      return d.at + (batch * d.strides[0] + head * d.strides[1] + token * d.strides[2]) * d.size;
    };
    // Without pages, a row's own keys begin at its first token.
    long keys_from = p.step && !p.has_pages ? p.first_token(row) : 0;
    a = {};
    a.dim = p.dim;
    a.value_dim = p.value_dim;
    a.scale = p.options.scale;
    a.cap = p.options.cap;
    a.q = at(p.q, head, place);
    a.queries = tokens * heads;
    a.group = heads;
    a.q_token = static_cast<long>(p.q.strides[2]);
    a.q_head = static_cast<long>(p.q.strides[1]);
    a.k = at(p.k, kv_head, keys_from);
    a.v = at(p.v, kv_head, keys_from);
    a.k_step = static_cast<long>(p.k.strides[2]);
    a.v_step = static_cast<long>(p.v.strides[2]);
    a.slots = p.step && !p.has_pages ? p.tokens_of(row) : p.slots;
    a.turn = p.turn(row);
    a.packing = p.options.packing;
    if (p.has_pages) {
      a.table = p.step->table(row);
      a.table_size = p.step->table_size();
      a.table_step = p.step->table_step();
      a.k_page = static_cast<long>(p.k.strides[0]);
      a.v_page = static_cast<long>(p.v.strides[0]);
    }
    if (p.slopes != nullptr) {
      a.slopes = p.slopes + head * p.slope_step;
      a.slope_step = static_cast<long>(p.slope_step);
      a.at = p.offset(row) + token;
    }
    if (p.seen != nullptr || p.added != nullptr) {
      int64_t from = batch * p.mask_strides[0] + head * p.mask_strides[1] + place * p.mask_strides[2];
      a.seen = p.seen != nullptr ? p.seen + from : nullptr;
      a.added = p.added != nullptr ? p.added + from : nullptr;
      a.mask_head = p.mask_strides[1];
      a.mask_token = p.mask_strides[2];
      a.mask_slot = p.mask_strides[3];
    }
    int least = p.span(row, token).first, most = 0;
    for (int t = 0; t < tokens; t++) {
      auto [begin, end] = p.span(row, token + t);
      std::fill_n(first.begin() + t * heads, heads, begin);
      std::fill_n(last.begin() + t * heads, heads, end);
      least = std::min(least, begin);
      most = std::max(most, end);
    }
    begin = least / chunk;
    end = std::max(begin, (most + chunk - 1) / chunk);
    sinks = p.sinks != nullptr ? p.sinks + head * p.sink_step : nullptr;
    sink_step = p.sink_step;
    y_head = p.value_dim * p.size;
    y_token = p.heads * y_head;
    y = p.y + (batch * p.tokens + place) * y_token + head * y_head;
  }

  // Points `a` to this task's vectors. Their addresses change when the task is moved.
  const Attention& attention() {
    a.first = first.data();
    a.last = last.data();
    return a;
  }
  long padded() const {
    return (a.queries + 15) / 16 * 16;
  }
  long partial_size() const {
    return padded() * (a.value_dim + 2);
  }
  Partial partial(float* at) const {
    return {at, at + padded(), at + 2 * padded()};
  }
};

} // namespace mlxrs::ops
