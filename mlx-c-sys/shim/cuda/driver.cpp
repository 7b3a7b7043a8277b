#include "driver.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace mlxrs::cuda {

const Driver& Driver::get() {
  static const Driver driver = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw std::runtime_error(std::string("the NVIDIA driver is missing: ") + dlerror());
    }
    Driver d{};
    auto find = [&](auto& function, const char* name) {
      void* address = dlsym(library, name);
      if (address == nullptr) {
        throw std::runtime_error(std::string("the NVIDIA driver has no ") + name);
      }
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    find(d.error_string, "cuGetErrorString");
    find(d.load_module, "cuModuleLoadData");
    find(d.get_function, "cuModuleGetFunction");
    find(d.get_pool, "cuDeviceGetDefaultMemPool");
    find(d.set_pool_attribute, "cuMemPoolSetAttribute");
    find(d.get_pool_attribute, "cuMemPoolGetAttribute");
    find(d.set_attribute, "cuFuncSetAttribute");
    find(d.launch, "cuLaunchKernelEx");
    find(d.begin_capture, "cuStreamBeginCapture_v2");
    find(d.end_capture, "cuStreamEndCapture");
    find(d.get_nodes, "cuGraphGetNodes");
    find(d.get_type, "cuGraphNodeGetType");
    find(d.get_allocation, "cuGraphMemAllocNodeGetParams");
    find(d.instantiate, "cuGraphInstantiateWithFlags");
    find(d.launch_graph, "cuGraphLaunch");
    find(d.destroy_graph, "cuGraphDestroy");
    find(d.destroy_exec, "cuGraphExecDestroy");
    find(d.create_stream, "cuStreamCreate");
    find(d.wait_for_stream, "cuStreamSynchronize");
    find(d.allocate, "cuMemAllocAsync");
    find(d.copy_to_device, "cuMemcpyHtoDAsync_v2");
    find(d.allocate_shared, "cuMemAlloc_v2");
    find(d.fill, "cuMemsetD8_v2");
    find(d.get_handle, "cuIpcGetMemHandle");
    find(d.open_handle, "cuIpcOpenMemHandle_v2");
    find(d.allocate_host, "cuMemHostAlloc");
    find(d.describe_tiles, "cuTensorMapEncodeTiled");
    return d;
  }();
  return driver;
}

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    const char* text = nullptr;
    Driver::get().error_string(result, &text);
    throw std::runtime_error(std::string(what) + ": " + (text != nullptr ? text : "an unknown error of CUDA"));
  }
}

} // namespace mlxrs::cuda
