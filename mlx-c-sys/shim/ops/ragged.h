// Ragged rows: rows of several lengths whose tokens are one axis, and the pool of slots with their recurrent states. The
// rules are at mlxrs_ragged (mlxrs_recurrent.h).
#pragma once

#include "mlxrs.h"
#include "ops/linear/operands.h"
#include "ops/node.h"

namespace mlxrs::ops {

struct RaggedSettings {
  int longest;
  // Whether states are kept. Then the node has the inputs `pool`, `from` and `to` and returns the pool.
  bool has_pool, each, in_place;

  bool operator==(const RaggedSettings&) const = default;
};

struct Ragged {
  mx::array starts;
  std::optional<mx::array> pool, from, to;
  RaggedSettings settings;

  static Ragged of(const mlxrs_ragged& given);
  // The rows whose arrays are the last inputs of a node, as `append` puts them there.
  static Ragged of(const Arrays& in, const RaggedSettings& settings);
  void append(Arrays& in) const;
  // The number of inputs that `append` adds.
  static size_t inputs(const RaggedSettings& settings) {
    return settings.has_pool ? 4 : 1;
  }
  int count() const {
    return starts.shape(0) - 1;
  }
  // The outputs of the plain form, y and the new states, of which the states are written to the pool if it is written in
  // place. So a captured step writes what the next one reads, whichever form an operation has.
  Arrays stored(Arrays out, mx::Stream s) const;
};

// A node over ragged rows. Its last inputs are those of Ragged, its outputs are y and the pool, if there is one.
template <class Settings>
class RaggedNode : public Node {
 public:
  RaggedNode(mx::Stream s, Settings settings, RaggedSettings rows) : Node(s), settings_(settings), rows_(rows) {}

  // Two nodes that write in place must not be merged into one.
  bool is_equivalent(const mx::Primitive& other) const override {
    return !(rows_.has_pool && rows_.in_place) && repeats(other);
  }
  bool repeats(const mx::Primitive& other) const override {
    const auto& that = static_cast<const RaggedNode&>(other);
    return settings_ == that.settings_ && rows_ == that.rows_;
  }

 protected:
  Settings settings_;
  RaggedSettings rows_;
};

// The rows of a node as its CPU task reads them. A slot of -1 is none.
struct Rows32 {
  const int32_t *starts, *from, *to;
  long count;
  bool each;

  long first(long row) const {
    return starts[row];
  }
  long tokens(long row) const {
    return starts[row + 1] - starts[row];
  }
  // The tokens of all rows.
  long used() const {
    return starts[count];
  }
  // The slot with the state before the row's tokens.
  long before(long row) const {
    return from == nullptr ? -1 : from[row];
  }
  // The slot that gets the state after a token of the row.
  long after(long row, long token) const {
    if (to == nullptr) {
      return -1;
    }
    return each ? to[token] : token + 1 == starts[row + 1] ? to[row] : -1;
  }
  // The first token of the row that may have a slot.
  long first_after(long row) const {
    return each || tokens(row) == 0 ? first(row) : starts[row + 1] - 1;
  }
};

// Reads the rows of a node on the stream's thread. Throws if they break a rule of mlxrs_ragged.
class RowReader {
 public:
  RowReader(const char* what, const Ragged& rows, long tokens);
  // The rows. They point into the inputs, or into `copies`, which must live as long.
  Rows32 get(std::vector<char> (&copies)[3]) const;

 private:
  void check(const Rows32& rows) const;

  const char* what_;
  RowMajor starts_, from_, to_;
  long count_, tokens_, slots_;
  RaggedSettings settings_;
};

// Gives `pool`, an output, its memory: that of the input, if it is written in place, or a copy that the stream makes.
void begin_pool(const Arrays& in, const RaggedSettings& settings, mx::array& pool, mx::Stream s);

// The plain form of rows. For each token of the axis [T]: its row, its place in the row, and whether a row has it. If
// not, `row` is the last row.
struct TokenRows {
  mx::array row, place, real;
};
TokenRows token_rows(const Ragged& rows, int tokens, mx::Stream s);
// The slot that gets the state after each token: I32 [T], -1 for none.
mx::array slots_of_tokens(const Ragged& rows, const TokenRows& of, mx::Stream s);
// The states of slots I32 [n]: [n, ..], zeros for a slot of -1.
mx::array states_of(const mx::array& pool, const mx::array& slots, mx::Stream s);
// The pool with states [n, ..] in slots I32 [n]. A state whose slot is -1 is not stored.
mx::array with_states(const mx::array& pool, const mx::array& slots, const mx::array& states, mx::Stream s);

} // namespace mlxrs::ops
