// Copies of arrays that kernels can read: dense, in memory of the device, with aligned heads.
#include <algorithm>
#include <memory>
#include <unordered_map>

#include "launch.h"

namespace mlxrs::cuda {

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
  constexpr size_t many = 64;
  thread_local std::unordered_map<const mx::array::Data*, Copy> all;
  auto* buffer = static_cast<const mx::cu::CudaBuffer*>(a.buffer().ptr());
  if (buffer->device >= 0) {
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
  if (args.ndim > 8 || (a.itemsize() != 1 && a.itemsize() != 2 && a.itemsize() != 4)) {
    throw std::runtime_error("a strided input of a CUDA kernel has more than 8 axes, or elements of another size than 1, 2 or 4 bytes");
  }
  for (int i = 0; i < args.ndim; i++) {
    args.shape[i] = a.shape(i);
    args.strides[i] = a.strides(i);
  }
  launch.run("gated/gated", "copy_" + std::to_string(8 * a.itemsize()), blocks_of(args.size, 1024), 256, args);
}

void fill_with_zeros(mx::array& a, mx::Stream s) {
  Launch launch(s);
  CopyArgs args{};
  args.to = launch.write(a);
  // Buffers are aligned to 16 bytes, and their sizes are multiples of 16 bytes.
  args.size = static_cast<int64_t>((a.nbytes() + 15) / 16);
  launch.run("gated/gated", "zeros", std::min(blocks_of(args.size, 1024), 4096u), 256, args);
}

} // namespace mlxrs::cuda
