// Which keys a query sees (shim/cuda/seen.h), against a cache that is written one position after the other.
#include "cuda/seen.h"

#include <vector>

#include "check.h"

using mlxrs::cuda::Seen;

namespace {

constexpr int empty = -1;

// The position in each slot after those of the last query have been written.
std::vector<int> written(int layout, int offset, int tokens, int slots) {
  std::vector<int> positions(slots, empty);
  for (int p = 0; p < offset + tokens; p++) {
    int slot = p;
    if (layout == Seen::ring) {
      slot = p % slots;
    } else if (layout == Seen::behind) {
      slot = p - offset + slots - tokens;
    }
    if (slot >= 0 && slot < slots) {
      positions[slot] = p;
    }
  }
  return positions;
}

void compare(const Seen& seen, const std::vector<int>& positions) {
  int queries = seen.tokens;
  auto sees = [&](int token, int slot) {
    int key = positions[slot], query = seen.offset + token;
    if (seen.mask == Seen::none) {
      return true;
    }
    return key != empty && key <= query && (seen.window <= 0 || query - key < seen.window);
  };
  for (int token = 0; token < queries; token++) {
    for (int slot = 0; slot < seen.slots; slot++) {
      check(
          seen.sees(seen.offset + token, seen.key(slot)) == sees(token, slot), "mask %d layout %d window %d offset %d of %d tokens, %d slots: token %d, slot %d",
          seen.mask, seen.layout, seen.window, seen.offset, queries, seen.slots, token, slot);
    }
    check(!seen.sees(seen.offset + token, seen.key(seen.slots)), "a slot behind the last is seen");
    check(!seen.sees(Seen::nowhere, seen.key(0)), "a query that is not there sees a key");
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
          is_inside, "range %d..%d of tokens %d..%d: mask %d layout %d window %d offset %d of %d tokens, %d slots", range.first,
          range.end, from, to, seen.mask, seen.layout, seen.window, seen.offset, queries, seen.slots);
    }
  }
}

} // namespace

int main() {
  for (int slots = 1; slots <= 9; slots++) {
    for (int tokens = 1; tokens <= slots && tokens <= 4; tokens++) {
      for (int window = 0; window <= slots + 1; window++) {
        // Queries at the end of all keys.
        int end = slots - tokens;
        auto straight = written(Seen::straight, end, tokens, slots);
        compare({Seen::none, Seen::straight, window, end, tokens, slots}, straight);
        compare({Seen::causal, Seen::straight, window, end, tokens, slots}, straight);
        for (int offset = 0; offset <= 3 * slots; offset++) {
          for (int layout : {Seen::straight, Seen::ring, Seen::behind}) {
            // Without a ring a cache has a slot for each position.
            if (layout == Seen::straight && offset + tokens > slots) {
              continue;
            }
            // A ring keeps the window of its first query beside what its other queries overwrite.
            if (layout == Seen::ring && (window == 0 || window + tokens - 1 > slots) && offset + tokens > slots) {
              continue;
            }
            compare({Seen::positions, layout, window, offset, tokens, slots}, written(layout, offset, tokens, slots));
          }
        }
      }
    }
  }
  return verdict();
}
