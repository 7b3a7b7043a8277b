// The functions on arrays of mlxrs.h.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <unordered_set>

#include "mlx/allocator.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"

#include "donate.h"
#include "guard.h"

#ifdef MLXRS_CUDA
#include "cuda/launch.h"
#include "runtime/outcomes.h"
#endif

namespace {

using namespace mlxrs;

// The CPU allocator stores the size of a buffer in one word before the data.
constexpr size_t kHeader = sizeof(size_t);

// Foreign memory needs an allocator whose buffers are plain host memory after a header. This allocates a buffer to find
// out, because GPU back ends would dereference a made-up one.
bool allocator_is_plain_memory() {
  static const bool plain = [] {
    mx::allocator::Data probe = mx::allocator::malloc(64);
    mx::allocator::Buffer buffer = probe.buffer();
    return buffer.raw_ptr() == static_cast<char*>(buffer.ptr()) + kHeader;
  }();
  return plain;
}

// Calls the caller's destructor once, on every path that releases the memory.
class Payload {
 public:
  Payload(void* payload, void (*dtor)(void*)) : payload_(payload), dtor_(dtor) {}
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;
  ~Payload() {
    if (dtor_ != nullptr) {
      dtor_(payload_);
    }
  }

 private:
  void* payload_;
  void (*dtor_)(void*);
};

// Memory that the host fills and the default device reads.
mx::allocator::Data memory_for(size_t bytes) {
#ifdef MLXRS_CUDA
  constexpr size_t small = 1 << 16;
  if (bytes > 0 && bytes <= small && mx::default_device() == mx::Device::gpu) {
    return cuda::host_memory(bytes);
  }
#endif
  return mx::allocator::malloc(bytes);
}

} // namespace

extern "C" const char* mlxrs_headers_version(void) {
#define MLXRS_TEXT_(x) #x
#define MLXRS_TEXT(x) MLXRS_TEXT_(x)
  return MLXRS_TEXT(MLX_VERSION_MAJOR) "." MLXRS_TEXT(MLX_VERSION_MINOR) "." MLXRS_TEXT(MLX_VERSION_PATCH);
}

extern "C" int mlxrs_array_from_foreign(
    mlx_array* res,
    const void* data,
    const int* shape,
    size_t ndim,
    mlx_dtype dtype,
    void* payload,
    void (*dtor)(void*)) {
  return guarded([&] {
    auto owner = std::make_shared<Payload>(payload, dtor);
    mx::Dtype type = dtype_of(dtype);
    size_t itemsize = mx::size_of(type);
    mx::Shape dims = shape_of(shape, ndim, itemsize);
    if (!allocator_is_plain_memory()) {
      throw std::runtime_error("foreign memory: only the CPU back end can use it without a copy");
    }
    bool empty = false;
    for (auto dim : dims) {
      empty |= dim == 0;
    }
    if (empty) {
      mlx_array_set_(*res, mx::array(mx::allocator::malloc(0), std::move(dims), type));
      return;
    }
    if (data == nullptr) {
      throw std::invalid_argument("foreign memory: the data pointer is null");
    }
    if (reinterpret_cast<uintptr_t>(data) % itemsize != 0) {
      throw std::invalid_argument(
          "foreign memory: the data is not aligned to its elements of " + std::to_string(itemsize) + " bytes");
    }
    mx::allocator::Buffer buffer(const_cast<char*>(static_cast<const char*>(data)) - kHeader);
    mx::allocator::Data lent(buffer, [owner](mx::allocator::Buffer) {});
    owner.reset();
    mlx_array_set_(*res, mx::array(std::move(lent), std::move(dims), type));
  });
}

namespace {

// The type, shape and bytes of an array that is made of the host's memory.
struct Dense {
  Dense(const int* shape, size_t ndim, mlx_dtype dtype)
      : type(dtype_of(dtype)), dims(shape_of(shape, ndim, mx::size_of(type))), bytes(mx::size_of(type)) {
    for (auto dim : dims) {
      bytes *= dim;
    }
  }
  mx::Dtype type;
  mx::Shape dims;
  size_t bytes;
};

void set_copy(mlx_array* res, const void* data, Dense of) {
  auto memory = memory_for(of.bytes);
  std::memcpy(memory.buffer().raw_ptr(), data, of.bytes);
  mlx_array_set_(*res, mx::array(std::move(memory), std::move(of.dims), of.type));
}

} // namespace

extern "C" int mlxrs_array_copy_of(mlx_array* res, const void* data, const int* shape, size_t ndim, mlx_dtype dtype) {
  return guarded([&] { set_copy(res, data, Dense(shape, ndim, dtype)); });
}

extern "C" int mlxrs_array_of_weights(mlx_array* res, const void* data, const int* shape, size_t ndim, mlx_dtype dtype) {
  return guarded([&] {
    Dense of(shape, ndim, dtype);
#ifdef MLXRS_CUDA
    if (of.bytes > 0 && mx::default_device() == mx::Device::gpu) {
      mlx_array_set_(*res, mx::array(cuda::copy_to_device(data, of.bytes), std::move(of.dims), of.type));
      return;
    }
#endif
    set_copy(res, data, std::move(of));
  });
}

extern "C" int mlxrs_graph_size(size_t* res, mlx_vector_array outputs) {
  return guarded([&] {
    std::unordered_set<std::uintptr_t> seen;
    std::vector<mx::array> left = mlx_vector_array_get_(outputs);
    *res = 0;
    while (!left.empty()) {
      mx::array a = std::move(left.back());
      left.pop_back();
      if (!a.has_primitive() || a.status() != mx::array::Status::unscheduled || !seen.insert(a.id()).second) {
        continue;
      }
      (*res)++;
      for (const auto& sibling : a.siblings()) {
        seen.insert(sibling.id());
      }
      left.insert(left.end(), a.inputs().begin(), a.inputs().end());
    }
  });
}

#ifdef MLXRS_CUDA
// MLX 0.32.4 reads the addresses of a CPU node's inputs when it queues the node. If an input is in GPU memory, MLX
// copies it to the host at that time, even if the kernel that writes it has not run yet.
namespace {

bool is_on_gpu(const mx::array& a) {
  return a.status() == mx::array::Status::unscheduled
      ? a.has_primitive() && a.primitive().stream().device == mx::Device::gpu
      : a.event().valid() && a.event().stream().device == mx::Device::gpu;
}

// Evaluates the inputs of CPU nodes that a GPU computes.
void eval_gpu_inputs(const mx::array& a) {
  if (a.primitive().stream().device != mx::Device::cpu) {
    return;
  }
  std::vector<mx::array> inputs;
  std::copy_if(a.inputs().begin(), a.inputs().end(), std::back_inserter(inputs), is_on_gpu);
  if (!inputs.empty()) {
    mx::eval(inputs);
    // So that the node does not run if what the GPU has read had failed.
    inherit_failures();
  }
}

} // namespace
#endif

extern "C" int mlxrs_eval_for_cpu(mlx_vector_array outputs) {
  return guarded([&] {
#ifdef MLXRS_CUDA
    // A node comes after its inputs.
    struct Visit {
      mx::array node;
      size_t next;
    };
    std::unordered_set<std::uintptr_t> seen;
    std::vector<Visit> path;
    auto visit = [&](const mx::array& a) {
      if (a.has_primitive() && a.status() == mx::array::Status::unscheduled && seen.insert(a.id()).second) {
        path.push_back({a, 0});
      }
    };
    for (const auto& output : mlx_vector_array_get_(outputs)) {
      visit(output);
      while (!path.empty()) {
        auto& [node, next] = path.back();
        // An evaluated array has lost its inputs.
        if (node.status() == mx::array::Status::unscheduled && next < node.inputs().size()) {
          visit(mx::array(node.inputs()[next++]));
          continue;
        }
        if (node.status() == mx::array::Status::unscheduled) {
          eval_gpu_inputs(node);
        }
        path.pop_back();
      }
    }
#else
    (void)outputs;
#endif
  });
}

extern "C" int mlxrs_array_is_tracer(bool* res, mlx_array a) {
  return guarded([&] { *res = mlx_array_get_(a).is_tracer(); });
}

extern "C" int mlxrs_array_has_primitive(bool* res, mlx_array a) {
  return guarded([&] { *res = mlx_array_get_(a).has_primitive(); });
}

extern "C" int mlxrs_array_data_ptr(const void** res, mlx_array a) {
  return guarded([&] {
    auto& array = mlx_array_get_(a);
    if (!array.is_available() || array.data_shared_ptr() == nullptr) {
      throw std::runtime_error("the array has no data: it is not evaluated");
    }
    *res = array.data<void>();
  });
}

extern "C" bool mlxrs_array_read_scalar(void* out, size_t size, mlx_array a) {
  bool is_read = false;
  guarded([&] {
    auto& array = mlx_array_get_(a);
    if (array.status() != mx::array::Status::available || array.data_shared_ptr() == nullptr || array.size() != 1 ||
        array.itemsize() != size || is_updated(array)) {
      return;
    }
    std::memcpy(out, array.data<char>(), size);
    is_read = true;
  });
  return is_read;
}

extern "C" int mlxrs_array_strides(int64_t* out, size_t n, mlx_array a) {
  return guarded([&] {
    const auto& strides = mlx_array_get_(a).strides();
    if (strides.size() != n) {
      throw std::invalid_argument(
          "strides: room for " + std::to_string(n) + " axes, the array has " + std::to_string(strides.size()));
    }
    std::copy(strides.begin(), strides.end(), out);
  });
}

extern "C" int mlxrs_stream_index(int* res, mlx_stream s) {
  return guarded([&] { *res = mlx_stream_get_(s).index; });
}

extern "C" int mlxrs_memory_kept(size_t* res) {
  return mlxrs::guarded([&] {
    *res = 0;
#ifdef MLXRS_CUDA
    auto device = mlx::core::default_device();
    if (device == mlx::core::Device::gpu) {
      mlx::core::cu::device(device).make_current();
      *res = mlxrs::cuda::kept_memory(device.index);
    }
#endif
  });
}
