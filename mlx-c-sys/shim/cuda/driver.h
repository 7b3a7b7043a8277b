// The functions of the NVIDIA driver that the shim calls. They are looked up at run time, so that programs start on
// machines without a driver.
#pragma once

#include <cuda.h>

namespace mlxrs::cuda {

struct Driver {
  CUresult (*error_string)(CUresult, const char**);
  CUresult (*load_module)(CUmodule*, const void*);
  CUresult (*get_function)(CUfunction*, CUmodule, const char*);
  CUresult (*get_pool)(CUmemoryPool*, CUdevice);
  CUresult (*set_pool_attribute)(CUmemoryPool, CUmemPool_attribute, void*);
  CUresult (*get_pool_attribute)(CUmemoryPool, CUmemPool_attribute, void*);
  CUresult (*set_attribute)(CUfunction, CUfunction_attribute, int);
  CUresult (*launch)(const CUlaunchConfig*, CUfunction, void**, void**);
  CUresult (*begin_capture)(CUstream, CUstreamCaptureMode);
  CUresult (*end_capture)(CUstream, CUgraph*);
  CUresult (*get_nodes)(CUgraph, CUgraphNode*, size_t*);
  CUresult (*get_type)(CUgraphNode, CUgraphNodeType*);
  CUresult (*get_allocation)(CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS*);
  CUresult (*instantiate)(CUgraphExec*, CUgraph, unsigned long long);
  CUresult (*launch_graph)(CUgraphExec, CUstream);
  CUresult (*destroy_graph)(CUgraph);
  CUresult (*destroy_exec)(CUgraphExec);
  CUresult (*create_stream)(CUstream*, unsigned);
  CUresult (*wait_for_stream)(CUstream);
  CUresult (*allocate)(CUdeviceptr*, size_t, CUstream);
  CUresult (*copy_to_device)(CUdeviceptr, const void*, size_t, CUstream);
  CUresult (*allocate_shared)(CUdeviceptr*, size_t);
  CUresult (*fill)(CUdeviceptr, unsigned char, size_t);
  CUresult (*get_handle)(CUipcMemHandle*, CUdeviceptr);
  CUresult (*open_handle)(CUdeviceptr*, CUipcMemHandle, unsigned);
  CUresult (*allocate_host)(void**, size_t, unsigned);
  CUresult (*describe_tiles)(
      CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
      CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

  // Throws if there is no driver.
  static const Driver& get();
};

// Throws the driver's error text if `result` is an error. `what` says what failed.
void check(CUresult result, const char* what);

} // namespace mlxrs::cuda
