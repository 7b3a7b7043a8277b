// Conversions of arrays to the operands of the kernels in matmul/.
#pragma once

#include <cstring>
#include <memory>

#include "matmul/matmul.h"
#include "linear.h"

namespace mlxrs::ops {

inline matmul::Float float_of(mx::Dtype dtype) {
  return dtype == mx::float32 ? matmul::Float::f32 : dtype == mx::float16 ? matmul::Float::f16 : matmul::Float::bf16;
}

// The coding and packing of a node's matrix.
struct Coded {
  matmul::Coding coding;
  Packing packing;

  bool operator==(const Coded&) const = default;
};

// The elements of an evaluated array in row-major order: its own memory, or a copy. The object is small, because the
// stream's thread reads it from another core's cache.
class RowMajor {
 public:
  // An array without elements.
  RowMajor() = default;
  explicit RowMajor(const mx::array& a) : data_(a.data<char>()) {
    if (!a.flags().row_contiguous && a.size() > 0) {
      view_ = std::make_shared<const View>(a);
    }
  }

  // The address of the elements. If they are copied, `copy` holds them and must live as long as they are read.
  const char* get(std::vector<char>& copy) const {
    if (view_ == nullptr) {
      return data_;
    }
    const auto& [size, width, n, rows] = *view_;
    copy.resize(n * width * size);
    char* to = copy.data();
    for (int64_t i = 0; i < n; i++) {
      const char* row = data_ + rows(static_cast<uint32_t>(i)) * size;
      if (rows.step() == 1) {
        std::memcpy(to, row, width * size);
        to += width * size;
        continue;
      }
      for (int64_t j = 0; j < width; j++, to += size) {
        std::memcpy(to, row + j * rows.step() * size, size);
      }
    }
    return copy.data();
  }

 private:
  // Strides of elements that are not in row-major order.
  struct View {
    int64_t size, width, n;
    Rows rows;

    explicit View(const mx::array& a)
        : size(static_cast<int64_t>(a.itemsize())), width(a.shape(-1)), n(static_cast<int64_t>(a.size()) / width), rows(a) {}
  };

  const char* data_ = nullptr;
  std::shared_ptr<const View> view_;
};

// The addresses of `n` adjacent rows of `bytes` bytes each.
template <typename T, typename Byte>
std::vector<T*> rows_of(Byte* at, long n, long bytes) {
  std::vector<T*> rows(n);
  for (long i = 0; i < n; i++) {
    rows[i] = at + i * bytes;
  }
  return rows;
}

inline std::optional<matmul::Coding> coding_of(const std::string& mode) {
  return mode == "affine" ? std::make_optional(matmul::Coding::affine)
      : mode == "mxfp4"   ? std::make_optional(matmul::Coding::mxfp4)
      : mode == "nvfp4"   ? std::make_optional(matmul::Coding::nvfp4)
      : mode == "mxfp8"   ? std::make_optional(matmul::Coding::mxfp8)
                          : std::nullopt;
}

// Whether the parts (codes, scales, biases) of one or several quantised matrices fit each other, have rows of k
// elements, and can be multiplied with x of dtype `type`.
inline bool packs(int64_t k, mx::Dtype type, const Parts& w) {
  const auto& [packed, scales, biases, packing] = w;
  bool affine = packing.mode == "affine";
  if (packed.dtype() != mx::uint32 || packed.ndim() != scales->ndim() || affine != biases.has_value() ||
      packing.bits < 1 || packing.bits > 8) {
    return false;
  }
  // The group sizes that kernels are compiled for.
  const auto& mode = packing.mode;
  bool known = affine ? packing.group == 32 || packing.group == 64 || packing.group == 128
                      : packing.bits == (mode == "mxfp8" ? 8 : 4) && packing.group == (mode == "nvfp4" ? 16 : 32);
  if (!known) {
    return false;
  }
  auto groups = packed.shape();
  groups.back() = static_cast<int>(k / packing.group);
  if (k % packing.group != 0 || packed.shape(-1) * 32L != k * packing.bits || scales->shape() != groups) {
    return false;
  }
  if (!affine) {
    return scales->dtype() == mx::uint8;
  }
  return is_float(scales->dtype()) && biases->dtype() == scales->dtype() && biases->shape() == groups &&
      (type == mx::float32 || type == scales->dtype());
}

} // namespace mlxrs::ops
