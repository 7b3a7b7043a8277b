#include "ragged.h"

#include "core/donate.h"
#include "ops/border.h"

#ifdef MLXRS_CUDA
#include "cuda/launch.h"
#endif

namespace mlxrs::ops {

Ragged Ragged::of(const mlxrs_ragged& given) {
  bool has_pool = given.pool.ctx != nullptr;
  return {mlx_array_get_(given.starts), optional(given.pool), optional(given.from), optional(given.to),
          {given.longest, has_pool, has_pool && given.each, has_pool && given.in_place}};
}

Ragged Ragged::of(const Arrays& in, const RaggedSettings& settings) {
  auto at = in.end() - static_cast<long>(inputs(settings));
  if (!settings.has_pool) {
    return {at[0], std::nullopt, std::nullopt, std::nullopt, settings};
  }
  return {at[0], at[1], at[2], at[3], settings};
}

void Ragged::append(Arrays& in) const {
  in.push_back(starts);
  if (settings.has_pool) {
    in.insert(in.end(), {*pool, *from, *to});
  }
}

RowReader::RowReader(const char* what, const Ragged& rows, long tokens)
    : what_(what), starts_(rows.starts), count_(rows.count()), tokens_(tokens),
      slots_(rows.pool ? rows.pool->shape(0) : 0), settings_(rows.settings) {
  if (settings_.has_pool) {
    from_ = RowMajor(*rows.from);
    to_ = RowMajor(*rows.to);
  }
}

Rows32 RowReader::get(std::vector<char> (&copies)[3]) const {
  auto numbers = [](const RowMajor& of, std::vector<char>& copy) {
    return reinterpret_cast<const int32_t*>(of.get(copy));
  };
  Rows32 rows{numbers(starts_, copies[0]), nullptr, nullptr, count_, settings_.each};
  if (settings_.has_pool) {
    rows.from = numbers(from_, copies[1]);
    rows.to = numbers(to_, copies[2]);
  }
  check(rows);
  return rows;
}

void RowReader::check(const Rows32& rows) const {
  auto refuse = [&](const std::string& why) { throw std::out_of_range(std::string(what_) + ": " + why); };
  auto text = [](long n) { return std::to_string(n); };
  if (rows.starts[0] != 0) {
    refuse("starts[0] is " + text(rows.starts[0]) + ", expected 0");
  }
  for (long row = 0; row < count_; row++) {
    long end = rows.starts[row + 1], tokens = end - rows.starts[row];
    if (tokens < 0 || end > tokens_) {
      refuse("starts ends row " + text(row) + " at token " + text(end) + ", expected " + text(rows.starts[row]) + " ..= " + text(tokens_));
    }
    if (tokens > settings_.longest) {
      refuse("row " + text(row) + " has " + text(tokens) + " tokens, more than `longest`, which is " + text(settings_.longest));
    }
  }
  if (!settings_.has_pool) {
    return;
  }
  auto inside = [&](const char* name, long at, long slot) {
    if (slot < -1 || slot >= slots_) {
      refuse(std::string(name) + "[" + text(at) + "] is slot " + text(slot) + ", expected -1 or a slot below " + text(slots_));
    }
  };
  // The row that reads each slot; -2 if several do. Then whether a token has written it.
  constexpr int32_t nobody = -1, several = -2, written = -3;
  std::vector<int32_t> users(slots_, nobody);
  for (long row = 0; row < count_; row++) {
    long slot = rows.from[row];
    inside("from", row, slot);
    if (slot >= 0) {
      users[slot] = users[slot] == nobody ? static_cast<int32_t>(row) : several;
    }
  }
  for (long row = 0; row < count_; row++) {
    for (long token = rows.first_after(row); token < rows.starts[row + 1]; token++) {
      long slot = rows.after(row, token);
      inside("to", settings_.each ? token : row, slot);
      if (slot < 0) {
        continue;
      }
      if (users[slot] != nobody && users[slot] != row) {
        refuse("slot " + text(slot) + " is to be written by row " + text(row) + " and is used by another row or token");
      }
      users[slot] = written;
    }
  }
}

void begin_pool(const Arrays& in, const RaggedSettings& settings, mx::array& pool, mx::Stream s) {
  size_t at = in.size() - Ragged::inputs(settings) + 1;
  if (settings.in_place && may_overwrite(in, at)) {
    note_written(in[at], s);
    pool.copy_shared_buffer(in[at]);
    return;
  }
#ifdef MLXRS_CUDA
  if (s.device == mx::Device::gpu) {
    return cuda::copy(in[at], pool, s);
  }
#endif
  pool.set_data(mx::allocator::malloc(pool.nbytes()));
  auto vectors = static_cast<uint32_t>(pool.size() / pool.shape(-1));
  mx::cpu::get_command_encoder(s).dispatch(
      [vectors, work = static_cast<double>(pool.size()), from = Vectors(in[at]), to = pool.data<char>()] {
        share(vectors, work, [&](uint32_t i) { from.copy(i, to + i * from.nbytes()); });
      });
}

Arrays Ragged::stored(Arrays out, mx::Stream s) const {
  if (settings.has_pool && settings.in_place && !pool->is_tracer() && !out.at(1).is_tracer()) {
    // Every reader of the pool comes before its new states, and y, which others read, after them.
    auto slots = mx::arange(0, pool->shape(0), mx::int32, s);
    out[1] = update_in_place(mx::scatter(*pool, slots, mx::expand_dims(out[1], 1, s), 0, s), *pool);
    out[0] = mx::depends({out[0]}, {out[1]})[0];
  }
  return out;
}

TokenRows token_rows(const Ragged& rows, int tokens, mx::Stream s) {
  int count = rows.count();
  auto token = mx::arange(0, tokens, mx::int32, s);
  auto ends = mx::slice(rows.starts, {1}, {count + 1}, s);
  auto passed = mx::less_equal(mx::reshape(ends, {count, 1}, s), token, s);
  auto row = mx::sum(mx::astype(passed, mx::int32, s), 0, false, s);
  auto real = mx::less(row, mx::array(count, mx::int32), s);
  row = mx::minimum(row, mx::array(count - 1, mx::int32), s);
  return {row, mx::subtract(token, mx::take(rows.starts, row, 0, s), s), real};
}

mx::array slots_of_tokens(const Ragged& rows, const TokenRows& of, mx::Stream s) {
  auto none = mx::array(-1, mx::int32);
  if (rows.settings.each) {
    return mx::where(of.real, *rows.to, none, s);
  }
  auto ends = mx::slice(rows.starts, {1}, {rows.count() + 1}, s);
  auto next = mx::arange(1, of.row.shape(0) + 1, mx::int32, s);
  auto is_last = mx::equal(next, mx::take(ends, of.row, 0, s), s);
  return mx::where(mx::logical_and(of.real, is_last, s), mx::take(*rows.to, of.row, 0, s), none, s);
}

mx::array states_of(const mx::array& pool, const mx::array& slots, mx::Stream s) {
  auto zero = mx::array(0, mx::int32);
  auto inside = mx::clip(slots, zero, mx::array(pool.shape(0) - 1, mx::int32), s);
  mx::Shape shape(pool.ndim(), 1);
  shape[0] = slots.shape(0);
  auto has_state = mx::reshape(mx::greater_equal(slots, zero, s), shape, s);
  return mx::where(has_state, mx::take(pool, inside, 0, s), mx::array(0.0f, pool.dtype()), s);
}

mx::array with_states(const mx::array& pool, const mx::array& slots, const mx::array& states, mx::Stream s) {
  // States without a slot go to a spare slot at the end, which is cut off.
  auto spare = pool.shape();
  spare[0] = 1;
  auto all = mx::concatenate({pool, mx::zeros(spare, pool.dtype(), s)}, 0, s);
  auto count = mx::array(pool.shape(0), mx::int32);
  auto is_inside = mx::logical_and(mx::greater_equal(slots, mx::array(0, mx::int32), s), mx::less(slots, count, s), s);
  auto places = mx::where(is_inside, slots, count, s);
  auto stored = mx::scatter(all, places, mx::expand_dims(states, 1, s), 0, s);
  return mx::slice(stored, mx::Shape(pool.ndim(), 0), pool.shape(), s);
}

} // namespace mlxrs::ops
