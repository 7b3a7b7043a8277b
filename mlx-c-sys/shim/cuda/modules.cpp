// Which kernels there are for a device, and how they are loaded.
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "core/settings.h"
#include "driver.h"
#include "embedded.h"
#include "launch.h"

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

// The modules and kernels of a device. A module is loaded when one of its kernels is first launched.
struct Loaded {
  std::unordered_map<std::string, CUmodule> modules;
  std::unordered_map<std::string, CUfunction> kernels;
  // The answers of has_kernel.
  std::unordered_map<std::string, bool> has;

  CUmodule module(const char* name) {
    auto& loaded = modules[name];
    if (loaded == nullptr) {
      check(Driver::get().load_module(&loaded, find_embedded(name).begin), name);
    }
    return loaded;
  }
};

// Those of all devices, for the caller alone while it holds the lock.
struct Devices {
  std::mutex guard;
  std::unordered_map<int, Loaded> all;

  static Devices& get() {
    static auto* devices = new Devices;
    return *devices;
  }
};

} // namespace

CUfunction Launch::find(const char* module, const std::string& kernel, unsigned shared) {
  auto& devices = Devices::get();
  std::lock_guard lock(devices.guard);
  auto& loaded = devices.all[stream_.device.index];
  auto& kernels = loaded.kernels;
  auto found = kernels.find(kernel);
  if (found != kernels.end()) {
    return found->second;
  }
  const auto& driver = Driver::get();
  CUfunction function = nullptr;
  check(driver.get_function(&function, loaded.module(module), kernel.c_str()), kernel.c_str());
  if (shared > small_shared) {
    // All launches of a kernel use the same amount.
    auto most = static_cast<int>(shared);
    check(driver.set_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most), kernel.c_str());
  }
  kernels.emplace(kernel, function);
  return function;
}

bool has_kernel(mx::Stream s, const char* module, const char* kernel) {
  auto& devices = Devices::get();
  std::lock_guard lock(devices.guard);
  auto& loaded = devices.all[s.device.index];
  auto [has, is_new] = loaded.has.try_emplace(kernel);
  if (is_new) {
    CUfunction function = nullptr;
    has->second = Driver::get().get_function(&function, loaded.module(module), kernel) == CUDA_SUCCESS;
  }
  return has->second;
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
