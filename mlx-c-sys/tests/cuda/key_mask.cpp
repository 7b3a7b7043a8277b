// The keys that a query sees (shim/cuda/key_mask.h), compared with a cache that is written one
// position at a time.
#include "cuda/key_mask.h"

#include <vector>

#include "check.h"

using mlxrs::cuda::KeyMask;

namespace {

constexpr int empty = -1;

// The position in each slot after those of the last query have been written.
std::vector<int> written(int layout, int offset, int tokens, int slots) {
  std::vector<int> positions(slots, empty);
  for (int p = 0; p < offset + tokens; p++) {
    int slot = p;
    if (layout == KeyMask::ring) {
      slot = p % slots;
    } else if (layout == KeyMask::behind) {
      slot = p - offset + slots - tokens;
    }
    if (slot >= 0 && slot < slots) {
      positions[slot] = p;
    }
  }
  return positions;
}

void compare(const KeyMask& seen, const std::vector<int>& positions) {
  int queries = seen.tokens;
  auto sees = [&](int token, int slot) {
    int key = positions[slot], query = seen.offset + token;
    if (seen.mask == KeyMask::none) {
      return true;
    }
    bool is_near = seen.window <= 0 || query - key < seen.window;
    return key != empty && key <= query && is_near && (seen.chunk <= 0 || key / seen.chunk == query / seen.chunk);
  };
  for (int token = 0; token < queries; token++) {
    for (int slot = 0; slot < seen.slots; slot++) {
      check(
          seen.sees(seen.offset + token, seen.key(slot)) == sees(token, slot), "mask %d layout %d window %d chunk %d offset %d of %d tokens, %d slots: token %d, slot %d",
          seen.mask, seen.layout, seen.window, seen.chunk, seen.offset, queries, seen.slots, token, slot);
    }
    check(!seen.sees(seen.offset + token, seen.key(seen.slots)), "a slot behind the last is seen");
    check(!seen.sees(KeyMask::nowhere, seen.key(0)), "a query that is not there sees a key");
  }
  for (int from = 0; from < queries; from++) {
    for (int to = from; to < queries; to++) {
      auto range = seen.range(from, to);
      bool is_inside = range.first >= 0 && range.first < range.end && range.end <= seen.slots;
      for (int token = from; token <= to; token++) {
        for (int slot = 0; slot < seen.slots; slot++) {
          is_inside = is_inside && (!sees(token, slot) || (range.first <= slot && slot < range.end));
        }
      }
      check(
          is_inside, "range %d..%d of tokens %d..%d: mask %d layout %d window %d chunk %d offset %d of %d tokens, %d slots", range.first,
          range.end, from, to, seen.mask, seen.layout, seen.window, seen.chunk, seen.offset, queries, seen.slots);
    }
  }
}

} // namespace

int main() {
  for (int slots = 1; slots <= 9; slots++) {
    for (int tokens = 1; tokens <= slots && tokens <= 4; tokens++) {
      for (int window = 0; window <= slots + 1; window++) {
        // The queries are at the end of all keys.
        int end = slots - tokens;
        auto straight = written(KeyMask::straight, end, tokens, slots);
        compare({KeyMask::none, KeyMask::straight, window, end, tokens, slots}, straight);
        for (int chunk = 0; chunk <= slots + 1; chunk++) {
          compare({KeyMask::causal, KeyMask::straight, window, end, tokens, slots, chunk}, straight);
        }
        for (int offset = 0; offset <= 3 * slots; offset++) {
          for (int layout : {KeyMask::straight, KeyMask::ring, KeyMask::behind}) {
            // Without a ring a cache has a slot for each position.
            if (layout == KeyMask::straight && offset + tokens > slots) {
              continue;
            }
            // A ring keeps the window of its first query in addition to the slots that the later
            // queries overwrite.
            if (layout == KeyMask::ring && (window == 0 || window + tokens - 1 > slots) && offset + tokens > slots) {
              continue;
            }
            compare({KeyMask::positions, layout, window, offset, tokens, slots}, written(layout, offset, tokens, slots));
          }
        }
      }
    }
  }
  return verdict();
}
