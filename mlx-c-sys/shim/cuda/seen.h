// Which keys a query sees, for kernels and for tests on the CPU. The masks and layouts are mlxrs_mask and mlxrs_slots of mlxrs_fast.h.
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

struct Seen {
  static constexpr int none = 0, causal = 1, positions = 3; // masks
  static constexpr int straight = 0, ring = 1, behind = 2;  // layouts

  static constexpr int nowhere = -0x7fffffff - 1;

  int mask, layout, window, offset, tokens, slots;

  // The position of a slot's key.
  MLXRS_DEVICE int position(int slot) const {
    if (mask == positions && layout == ring) {
      int last = offset + tokens - 1, back = (last - slot) % slots;
      return last - (back < 0 ? back + slots : back);
    }
    return mask == positions && layout == behind ? offset - (slots - tokens) + slot : slot;
  }
  // The same of a slot that may be outside of the buffer.
  MLXRS_DEVICE int key(int slot) const {
    return slot >= slots ? nowhere : mask == none ? 0 : position(slot);
  }
  // Whether a query at a position, or at `nowhere`, sees the key at a position.
  MLXRS_DEVICE bool sees(int query, int key) const {
    if (query == nowhere || key < 0) {
      return false;
    }
    return mask == none || (key <= query && (window <= 0 || key > query - window));
  }
  // Whether a token of this step sees the key in a slot.
  MLXRS_DEVICE bool operator()(int token, int slot) const {
    return sees(offset + token, key(slot));
  }
  // Slots outside of this are seen by none of the tokens `from` to `to`.
  MLXRS_DEVICE Range range(int from, int to) const {
    if (mask == none) {
      return {0, slots};
    }
    int first = window > 0 ? offset + from - window + 1 : 0, end = offset + to + 1;
    first = first > 0 ? first : 0;
    if (mask == positions && layout == ring) {
      // Positions that have not come round yet are in their own slots.
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
