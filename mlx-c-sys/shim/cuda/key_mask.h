// The attention mask: which keys a query sees. Used by the kernels and by tests on the CPU. The values of masks and
// layouts are those of mlxrs_mask and mlxrs_slots in mlxrs_fast.h.
#pragma once

#ifdef __CUDACC__
#define MLXRS_DEVICE __device__ inline
#else
#define MLXRS_DEVICE inline
#endif

namespace mlxrs::cuda {

struct Range {
  int first, end;
};

struct KeyMask {
  static constexpr int none = 0, causal = 1, positions = 3; // masks
  static constexpr int straight = 0, ring = 1, behind = 2;  // layouts

  static constexpr int nowhere = -0x7fffffff - 1;

  int mask, layout, window, offset, tokens, slots;
  int chunk = 0; // of a flat step: a query sees its own chunk of so many positions only; 0: all

  // The position of a slot's key.
  MLXRS_DEVICE int position(int slot) const {
    if (mask == positions && layout == ring) {
      int last = offset + tokens - 1, back = (last - slot) % slots;
      return last - (back < 0 ? back + slots : back);
    }
    return mask == positions && layout == behind ? offset - (slots - tokens) + slot : slot;
  }
  // The position of the key in a slot, or `nowhere` for a slot outside of the buffer.
  MLXRS_DEVICE int key(int slot) const {
    return slot >= slots ? nowhere : mask == none ? 0 : position(slot);
  }
  // Whether a query at position `query` sees a key at position `key`. Either may be `nowhere`.
  MLXRS_DEVICE bool sees(int query, int key) const {
    if (query == nowhere || key < 0) {
      return false;
    }
    return mask == none ||
        (key <= query && (window <= 0 || key > query - window) && (chunk <= 0 || key >= query / chunk * chunk));
  }
  // Whether token `token` of this step sees the key in slot `slot`.
  MLXRS_DEVICE bool operator()(int token, int slot) const {
    return sees(offset + token, key(slot));
  }
  // Whether tokens `from` to `to` see all keys in slots `first` to `last`. It may say no though they do.
  MLXRS_DEVICE bool sees_all(int from, int to, int first, int last) const {
    if (last >= slots || mask == none) {
      return last < slots;
    }
    bool is_straight = mask != positions || layout == straight;
    return is_straight && last <= offset + from && (window <= 0 || first > offset + to - window) &&
        (chunk <= 0 || first >= (offset + to) / chunk * chunk);
  }
  // The range of slots that tokens `from` to `to` can see. It may include slots that are masked, but it leaves out none
  // that is seen.
  MLXRS_DEVICE Range range(int from, int to) const {
    if (mask == none) {
      return {0, slots};
    }
    int first = window > 0 ? offset + from - window + 1 : 0, end = offset + to + 1;
    first = first > 0 ? first : 0;
    if (chunk > 0 && first < (offset + from) / chunk * chunk) {
      first = (offset + from) / chunk * chunk;
    }
    if (mask == positions && layout == ring) {
      // While the ring is not full, each position p is in slot p.
      if (offset + tokens > slots) {
        return {0, slots};
      }
    } else if (mask == positions && layout == behind) {
      int shift = slots - tokens - offset;
      first += shift, end += shift;
      first = first > 0 ? first : 0;
    }
    first = first < slots ? first : slots - 1;
    end = end < slots ? end : slots;
    return {first, end > first ? end : first + 1};
  }
};

} // namespace mlxrs::cuda
