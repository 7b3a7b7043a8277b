#include "launch.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "core/settings.h"
#include "driver.h"
#include "embedded.h"

namespace mlxrs::cuda {
namespace {

const Embedded& find_embedded(const char* name) {
  for (size_t i = 0; i < embedded_count; i++) {
    if (std::strcmp(embedded[i].name, name) == 0) {
      return embedded[i];
    }
  }
  throw std::runtime_error(std::string("libmlxc has no kernels ") + name);
}

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

// The modules and kernels of a device. A module is loaded when one of its kernels is first launched.
struct Loaded {
  std::unordered_map<std::string, CUmodule> modules;
  std::unordered_map<std::string, CUfunction> kernels;
};

} // namespace

CUfunction Launch::find(const char* module, const std::string& kernel, unsigned shared) {
  static std::mutex guard;
  static auto* devices = new std::unordered_map<int, Loaded>;
  std::lock_guard lock(guard);
  auto& [modules, kernels] = (*devices)[stream_.device.index];
  auto found = kernels.find(kernel);
  if (found != kernels.end()) {
    return found->second;
  }
  const auto& driver = Driver::get();
  auto& loaded = modules[module];
  if (loaded == nullptr) {
    check(driver.load_module(&loaded, find_embedded(module).begin), module);
  }
  CUfunction function = nullptr;
  check(driver.get_function(&function, loaded, kernel.c_str()), kernel.c_str());
  if (shared > small_shared) {
    // All launches of a kernel use the same amount.
    auto most = static_cast<int>(shared);
    check(driver.set_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most), kernel.c_str());
  }
  kernels.emplace(kernel, function);
  return function;
}

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
  last.count = ++count_of(encoder_);
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

mx::array dense(const mx::array& a, mx::Stream s) {
  if (a.flags().row_contiguous) {
    return a;
  }
  mx::array to(a.shape(), a.dtype(), nullptr, {});
  copy(a, to, s);
  Launch(s).keep(to);
  return to;
}

mx::array resident(const mx::array& a, mx::Stream s) {
  struct Copy {
    std::weak_ptr<mx::array::Data> of; // prevents reuse of the address, and does not hold the memory
    int64_t offset;
    int stream;
    mx::array on_device;
  };
  constexpr size_t small = 1 << 16, many = 64;
  thread_local std::unordered_map<const mx::array::Data*, Copy> all;
  auto* buffer = static_cast<const mx::cu::CudaBuffer*>(a.buffer().ptr());
  if (buffer->device >= 0 || a.nbytes() > small) {
    return dense(a, s);
  }
  const auto& data = a.data_shared_ptr();
  auto found = all.find(data.get());
  if (found != all.end()) {
    const auto& [of, offset, stream, on_device] = found->second;
    if (of.lock() == data && offset == a.offset() && stream == s.index && on_device.shape() == a.shape()) {
      return on_device;
    }
  }
  if (all.size() >= many) {
    std::erase_if(all, [](const auto& entry) { return entry.second.of.expired(); });
  }
  mx::array to(a.shape(), a.dtype(), nullptr, {});
  copy(a, to, s);
  Launch(s).keep(to);
  if (!Capturing::now() && launches_directly()) {
    // A captured copy has not run yet, and never runs if the capture fails. A graph of MLX is dropped if an evaluation
    // fails.
    all.insert_or_assign(data.get(), Copy{data, a.offset(), s.index, to});
  }
  return to;
}

Heads heads_of(Launch& launch, const mx::array& a, mx::Stream s, int unit) {
  bool is_dense = a.strides(3) == 1 || a.shape(3) == 1;
  if (unit > 1) {
    is_dense = is_dense && a.offset() % 16 == 0;
    for (int axis = 0; axis < 3; axis++) {
      is_dense = is_dense && a.strides(axis) % unit == 0;
    }
  }
  auto at = a;
  if (!is_dense) {
    // Not `dense`, which returns a row-major array unchanged, also if it is not aligned.
    at = mx::array(a.shape(), a.dtype(), nullptr, {});
    copy(a, at, s);
  }
  launch.keep(at);
  return {launch.read(at), at.strides(0), at.strides(1), at.strides(2)};
}

void copy(const mx::array& a, mx::array& to, mx::Stream s) {
  // At least 16 bytes: MLX puts smaller arrays into host memory.
  allocate(to, std::max<size_t>(to.nbytes(), 16), s);
  Launch launch(s);
  CopyArgs args{};
  args.from = launch.read(a);
  args.to = launch.write(to);
  args.ndim = static_cast<int>(a.ndim());
  args.size = static_cast<int64_t>(a.size());
  if (args.ndim > 8 || (a.itemsize() != 2 && a.itemsize() != 4)) {
    throw std::runtime_error("a strided input of a CUDA kernel has more than 8 axes, or elements of another size than 2 or 4 bytes");
  }
  for (int i = 0; i < args.ndim; i++) {
    args.shape[i] = a.shape(i);
    args.strides[i] = a.strides(i);
  }
  launch.run("gated/gated", a.itemsize() == 2 ? "copy_16" : "copy_32", blocks_of(args.size, 1024), 256, args);
}

void fill_with_zeros(mx::array& a, mx::Stream s) {
  Launch launch(s);
  CopyArgs args{};
  args.to = launch.write(a);
  // Buffers are aligned to 16 bytes, and their sizes are multiples of 16 bytes.
  args.size = static_cast<int64_t>((a.nbytes() + 15) / 16);
  launch.run("gated/gated", "zeros", std::min(blocks_of(args.size, 1024), 4096u), 256, args);
}

bool runs_kernels(mx::Stream s) {
  // The oldest architecture with embedded kernels.
  return embedded_count > 0 && s.device == mx::Device::gpu && mx::cu::device(s.device).compute_capability_major() >= 8;
}

bool is_usable(mx::Stream s) {
  static const bool wanted = is_on("MLX_CUDA_KERNELS");
  return wanted && runs_kernels(s);
}

} // namespace mlxrs::cuda
