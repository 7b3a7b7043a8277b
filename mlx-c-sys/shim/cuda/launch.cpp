// How kernels are launched, and what is known about the previous kernel.
#include "launch.h"

#include <algorithm>
#include <cstdlib>

#include "core/settings.h"
#include "driver.h"

namespace mlxrs::cuda {
namespace {

// Kernels are launched directly unless the user selects MLX's graphs; all kernels of a stream must be launched in the
// same way. MLX captures its graphs in objects whose destructors throw, which ends the process if several threads
// compute.
constexpr const char* graphs = "MLX_USE_CUDA_GRAPHS";

__attribute__((constructor)) void launch_directly() {
  setenv(graphs, "0", 0);
}

// MLX's count of kernels since its last commit. A commit frees arrays, so our kernels are counted too. The member is
// private; the explicit instantiation below gives access.
template <auto Member>
struct CountOf {
  friend int& count_of(mx::cu::CommandEncoder& encoder) {
    return encoder.*Member;
  }
};
template struct CountOf<&mx::cu::CommandEncoder::node_count_>;
int& count_of(mx::cu::CommandEncoder& encoder);

// Our last kernel: its encoder, MLX's count after it, the buffers that it reads, and the buffers that it writes or that
// a kernel still running beside it writes.
struct Last {
  const void* encoder = nullptr;
  int count = 0;
  bool is_beside = false;
  Appended appended;
  std::vector<const void*> read, written;
};
thread_local Last last;
// The arrays that captured kernels use, or null while nothing is captured.
thread_local std::vector<mx::array>* kept_for_capture = nullptr;

} // namespace

bool launches_directly() {
  static const bool directly = setting(graphs) == "0";
  return directly;
}

Capturing::Capturing(std::vector<mx::array>& kept) {
  last = {};
  kept_for_capture = &kept;
}
Capturing::~Capturing() {
  // The next kernel does not follow a captured one.
  last = {};
  kept_for_capture = nullptr;
}
bool Capturing::now() {
  return kept_for_capture != nullptr;
}
void Capturing::keep(const mx::array& a) {
  if (now()) {
    kept_for_capture->push_back(a);
  }
}

bool Launch::follows_ours() const {
  return launches_directly() && last.encoder == &encoder_ && last.count == count_of(encoder_);
}

bool Launch::is_unsettled(const mx::array& a) const {
  // After a kernel of MLX it is not known which buffers are still being written.
  return launches_directly() &&
      (!follows_ours() || std::find(last.written.begin(), last.written.end(), a.buffer().ptr()) != last.written.end());
}

bool Launch::is_old(const void* address) const {
  return address == nullptr || std::any_of(inputs_.begin(), inputs_.end(), [&](const mx::array& a) {
           return mx::gpu_ptr<void>(a) == address && !is_unsettled(a);
         });
}

bool Launch::follows_append(const int32_t* offsets, int tokens) const {
  return follows_ours() && !last.is_beside && offsets != nullptr && last.appended == Appended{offsets, tokens};
}

bool Launch::is_independent() {
  if (!follows_ours() || last.is_beside) {
    return false;
  }
  auto is_of = [](const std::vector<const void*>& buffers) {
    return [&](const mx::array& a) { return std::find(buffers.begin(), buffers.end(), a.buffer().ptr()) != buffers.end(); };
  };
  is_beside_ = std::none_of(inputs_.begin(), inputs_.end(), is_of(last.written)) &&
      std::none_of(outputs_.begin(), outputs_.end(), is_of(last.written)) &&
      std::none_of(outputs_.begin(), outputs_.end(), is_of(last.read));
  return is_beside_;
}

void Launch::start(CUfunction kernel, dim3 blocks, unsigned threads, unsigned shared, void** args) {
  for (const auto& a : kept_) {
    encoder_.add_temporary(a);
  }
  if (!launches_directly()) {
    // The encoder assigns these arrays to the next kernel that it adds. They are passed here and not in read(), because
    // an input may have needed a copy kernel first.
    for (const auto& a : inputs_) {
      encoder_.set_input_array(a);
    }
    for (const auto& a : outputs_) {
      encoder_.set_output_array(a);
    }
    auto cluster = cluster_ > 0 ? dim3(1, cluster_, 1) : dim3(0, 0, 0);
    encoder_.add_kernel_node_raw(kernel, blocks, dim3(threads, 1, 1), cluster, shared, args);
    return;
  }
  CUlaunchConfig config{};
  config.gridDimX = blocks.x, config.gridDimY = blocks.y, config.gridDimZ = blocks.z;
  config.blockDimX = threads, config.blockDimY = 1, config.blockDimZ = 1;
  config.sharedMemBytes = shared;
  config.hStream = static_cast<cudaStream_t>(encoder_.stream());
  CUlaunchAttribute attributes[2]{};
  config.attrs = attributes;
  if (generation() >= 9) {
    auto& early = attributes[config.numAttrs++];
    early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    early.value.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster_ > 0) {
    auto& cluster = attributes[config.numAttrs++];
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim.x = 1, cluster.value.clusterDim.y = cluster_, cluster.value.clusterDim.z = 1;
  }
  check(Driver::get().launch(&config, kernel, args, nullptr), "a kernel does not start");
  last.encoder = &encoder_;
  last.count = ++count_of(encoder_) + (is_counted_twice_ ? 1 : 0);
  if (!is_beside_) {
    last.written.clear();
  }
  last.read.clear();
  for (const auto& a : outputs_) {
    last.written.push_back(a.buffer().ptr());
  }
  for (const auto& a : inputs_) {
    last.read.push_back(a.buffer().ptr());
  }
  last.is_beside = is_beside_;
  last.appended = appended_;
}

} // namespace mlxrs::cuda
