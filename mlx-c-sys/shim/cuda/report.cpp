#include "report.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "core/checked.h"
#include "mlx/backend/cuda/event.h"
#include "runtime/outcomes.h"

// CudaEventError (runtime/worker.h).
static_assert(offsetof(mlx::core::cu::EventImpl, error) == 0);

namespace mlxrs::cuda {
namespace {

// The memory for a stream's reports. It is never freed, because captured kernels keep its addresses.
struct Stream {
  mx::Stream stream;
  volatile Findings* findings;
  mx::array claimed;
  int next = captured_slot + 1;
};
thread_local std::vector<Stream*> own;

Stream& stream_of(mx::Stream s) {
  for (auto* stream : own) {
    if (stream->stream == s) {
      return *stream;
    }
  }
  if (Capturing::now()) {
    throw std::logic_error("a captured kernel has no place for its reports");
  }
  static auto* kept = new std::vector<mx::allocator::Data>;
  static std::mutex guard;
  auto memory = host_memory(sizeof(Findings));
  auto* findings = static_cast<Findings*>(static_cast<const mx::cu::CudaBuffer*>(memory.buffer().ptr())->data);
  *findings = {};
  findings->round = 1;
  {
    std::lock_guard lock(guard);
    kept->push_back(std::move(memory));
  }
  auto claimed = scratch(sizeof(uint32_t) * Findings::slots, s);
  fill_with_zeros(claimed, s);
  mx::cu::get_command_encoder(s).commit();
  own.push_back(new Stream{s, findings, std::move(claimed)});
  return *own.back();
}

// The checked operations. A report refers to an operation by its place in `all`.
struct Operations {
  std::mutex guard;
  std::vector<std::pair<Indexed, std::string>> all;

  static Operations& get() {
    static auto* operations = new Operations;
    return *operations;
  }
};

std::string error_of(const volatile Finding& found) {
  auto& [guard, all] = Operations::get();
  std::lock_guard lock(guard);
  const auto& [of, what] = all.at(found.operation);
  return of == Indexed::axis ? index_error(what, found.index, found.size, found.window)
      : of == Indexed::rows  ? row_error(found.index, found.size)
                             : expert_error(found.index, found.size);
}

// Calls `f` with each slot of the stream that has a report.
template <typename F>
void each_found(const Stream& stream, F f) {
  if (stream.findings->any == 0) {
    return;
  }
  for (int slot = 0; slot < Findings::slots; slot++) {
    if (stream.findings->of[slot].is_set != 0) {
      f(slot, stream.findings->of[slot]);
    }
  }
}

// The slot for kernels that are launched now.
int next_slot(Stream& stream) {
  if (Capturing::now()) {
    return captured_slot;
  }
  int slot = note_report(stream.next);
  if (slot == stream.next) {
    stream.next = slot + 1 < Findings::slots ? slot + 1 : captured_slot + 1;
  }
  return slot;
}

} // namespace

Report report_of(Indexed of, const std::string& what, mx::Stream s) {
  auto& [guard, all] = Operations::get();
  auto& stream = stream_of(s);
  auto slot = static_cast<uint32_t>(next_slot(stream));
  std::lock_guard lock(guard);
  auto found = std::find(all.begin(), all.end(), std::pair(of, what));
  if (found == all.end()) {
    found = all.emplace(all.end(), of, what);
  }
  auto claimed = stream.claimed;
  auto operation = static_cast<uint32_t>(found - all.begin());
  return {const_cast<Findings*>(stream.findings), mx::gpu_ptr<uint32_t>(claimed), operation, slot};
}

void prepare_reports(mx::Stream s) {
  stream_of(s);
}

std::optional<std::string> finding() {
  std::optional<std::string> error;
  for (const auto* stream : own) {
    each_found(*stream, [&](int, const volatile Finding& found) {
      if (!error) {
        error = error_of(found);
      }
    });
  }
  return error;
}

void forget_findings() {
  for (auto* stream : own) {
    try {
      mx::synchronize(stream->stream);
    } catch (const std::exception&) {
      // The next evaluation on the stream raises the same error.
    }
  }
  for (auto* stream : own) {
    auto* findings = stream->findings;
    if (findings->any == 0) {
      continue;
    }
    each_found(*stream, [&](int slot, const volatile Finding& found) {
      fail_reporting(stream->stream, slot, error_of(found));
      findings->of[slot].is_set = 0;
    });
    findings->any = 0;
    findings->round = findings->round + 1;
  }
}

} // namespace mlxrs::cuda
