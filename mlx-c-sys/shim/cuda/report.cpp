#include "report.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "core/checked.h"
#include "runtime/outcomes.h"

namespace mlxrs::cuda {
namespace {

// The memory for a stream's report. It is never freed, because captured kernels keep its addresses.
struct Stream {
  mx::Stream stream;
  volatile Finding* finding;
  mx::array claimed;
};
thread_local std::vector<Stream*> own;

const Stream& stream_of(mx::Stream s) {
  for (const auto* stream : own) {
    if (stream->stream == s) {
      return *stream;
    }
  }
  if (Capturing::now()) {
    throw std::logic_error("a captured kernel has no place for its reports");
  }
  static auto* kept = new std::vector<mx::allocator::Data>;
  static std::mutex guard;
  auto memory = host_memory(sizeof(Finding));
  auto* finding = static_cast<volatile Finding*>(static_cast<const mx::cu::CudaBuffer*>(memory.buffer().ptr())->data);
  finding->is_set = 0;
  finding->round = 1;
  {
    std::lock_guard lock(guard);
    kept->push_back(std::move(memory));
  }
  auto claimed = scratch(16, s);
  fill_with_zeros(claimed, s);
  mx::cu::get_command_encoder(s).commit();
  own.push_back(new Stream{s, finding, std::move(claimed)});
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

} // namespace

Report report_of(Indexed of, const std::string& what, mx::Stream s) {
  note_report();
  auto& [guard, all] = Operations::get();
  const auto& stream = stream_of(s);
  std::lock_guard lock(guard);
  auto found = std::find(all.begin(), all.end(), std::pair(of, what));
  if (found == all.end()) {
    found = all.emplace(all.end(), of, what);
  }
  auto claimed = stream.claimed;
  return {const_cast<Finding*>(stream.finding), mx::gpu_ptr<uint32_t>(claimed), static_cast<uint32_t>(found - all.begin())};
}

void prepare_reports(mx::Stream s) {
  stream_of(s);
}

std::optional<std::string> finding() {
  for (const auto* stream : own) {
    const auto& found = *stream->finding;
    if (found.is_set == 0) {
      continue;
    }
    auto& [guard, all] = Operations::get();
    std::lock_guard lock(guard);
    const auto& [of, what] = all.at(found.operation);
    return of == Indexed::axis ? index_error(what, found.index, found.size, found.window)
        : of == Indexed::rows  ? row_error(found.index, found.size)
                               : expert_error(found.index, found.size);
  }
  return std::nullopt;
}

void forget_findings() {
  for (auto* stream : own) {
    try {
      mx::synchronize(stream->stream);
    } catch (const std::exception&) {
      // The next evaluation on the stream raises the same error.
    }
  }
  if (auto error = finding()) {
    fail_reporting(*error);
  }
  for (auto* stream : own) {
    if (stream->finding->is_set != 0) {
      stream->finding->is_set = 0;
      stream->finding->round = stream->finding->round + 1;
    }
  }
}

} // namespace mlxrs::cuda
