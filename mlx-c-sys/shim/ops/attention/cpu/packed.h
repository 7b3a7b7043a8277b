// CPU attention with packed keys and values. Each chunk is unpacked to f32 (for AMX to bf16) and then processed like a
// chunk that is not packed. One buffer serves all chunks.
#pragma once

#include "attention.h"
#include "ops/store/cpu/packed_row.h"

namespace mlxrs::ops {
namespace {

template <class T, class To>
void unpack(const uint32_t* words, const RowPacking& packing, long n, To* to) {
  if (packing.bits == 8) {
    unpack<T, 8>(words, packing.group, n, to);
  } else {
    unpack<T, 4>(words, packing.group, n, to);
  }
}

template <class To>
INLINE long expanded_size(const Attention& a) {
  return chunk * (a.dim + a.value_dim) * static_cast<long>(sizeof(To)) / 4;
}
template <class To, long (*size)(const Attention&)>
long packed_work_size(const Attention& a) {
  return expanded_size<To>(a) + size(a);
}

// Scales and biases have type T. `attend` reads keys and values of type To.
template <class T, class To, void (*attend)(const Attention&, const float*, long, float*, const Partial&)>
void packed_chunk(const Attention& a, const float* q, long c, float* work, const Partial& to) {
  long begin = chunk, end = 0;
  for (long i = 0; i < a.queries; i++) {
    Span span(a, c, i);
    if (!span.is_empty()) {
      begin = least(begin, span.begin);
      end = most(end, span.end);
    }
  }
  Attention expanded = a;
  To *k = reinterpret_cast<To*>(work), *v = k + chunk * a.dim;
  expanded.k = k;
  expanded.v = v;
  expanded.k_step = a.dim;
  expanded.v_step = a.value_dim;
  expanded.slots = chunk;
  expanded.turn = 0;
  expanded.table = nullptr;
  Keys<uint32_t> packed(a, c, begin, end);
  // Whole blocks of 32 keys, because AMX tiles read 32. Keys that no query sees may hold anything, so they become zeros.
  for (long i = begin / 32 * 32; i < (end + 31) / 32 * 32; i++) {
    if (i < begin || i >= end) {
      memset(k + i * a.dim, 0, a.dim * sizeof(To));
      memset(v + i * a.value_dim, 0, a.value_dim * sizeof(To));
      continue;
    }
    auto place = packed.at(i);
    unpack<T>(place.k, a.packing, a.dim, k + i * a.dim);
    unpack<T>(place.v, a.packing, a.value_dim, v + i * a.value_dim);
  }
  attend(expanded, q, c, work + expanded_size<To>(a), to);
}

template <class T>
constexpr AttentionKernels packed_attention_of() {
  return {
      loaded_size, packed_work_size<float, work_size>, load_queries<T>, packed_chunk<T, float, attend_chunk<float>>,
      finish_values<T>};
}

} // namespace
} // namespace mlxrs::ops
