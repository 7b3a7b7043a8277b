#include "launch.h"

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "driver.h"
#include "embedded.h"
#include "settings.h"

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

// The modules of a device, loaded when a kernel of theirs is first asked for.
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
  if (shared > 0) {
    // The same for each launch of a kernel.
    auto most = static_cast<int>(shared);
    check(driver.set_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most), kernel.c_str());
  }
  kernels.emplace(kernel, function);
  return function;
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
    std::weak_ptr<mx::array::Data> of; // Keeps the address from being reused; does not keep the memory.
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
  all.insert_or_assign(data.get(), Copy{data, a.offset(), s.index, to});
  return to;
}

void copy(const mx::array& a, mx::array& to, mx::Stream s) {
  // More than MLX keeps in memory of the host.
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
  // Buffers are whole words of 16 bytes, at addresses that are.
  args.size = static_cast<int64_t>((a.nbytes() + 15) / 16);
  launch.run("gated/gated", "zeros", std::min(blocks_of(args.size, 1024), 4096u), 256, args);
}

bool is_usable(mx::Stream s) {
  static const bool wanted = [] {
    std::string text = setting("MLX_CUDA_KERNELS");
    if (!text.empty() && text != "on" && text != "off") {
      throw std::invalid_argument("MLX_CUDA_KERNELS must be on or off, given \"" + text + "\"");
    }
    return text != "off";
  }();
  // What the oldest of the embedded binaries needs.
  return wanted && embedded_count > 0 && s.device == mx::Device::gpu && mx::cu::device(s.device).compute_capability_major() >= 8;
}

} // namespace mlxrs::cuda
