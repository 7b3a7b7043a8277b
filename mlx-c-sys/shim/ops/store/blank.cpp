// Arrays of zeros that take memory only for the pages that are touched.
#include <cstring>

#include "store.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace mlxrs::ops {
namespace {

// Below this size, writing zeros takes less time than the system call.
constexpr size_t least_bytes = 1 << 20;

#ifdef __linux__
// Returns the whole pages of a block to the system, which provides zeroed pages at the next access. Returns the range
// of these pages, or an empty range if the system refused, as it does for locked or shared pages.
std::pair<char*, char*> release_pages(char* begin, char* end) {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto address = reinterpret_cast<uintptr_t>(begin);
  char *first = begin + (page - address % page) % page, *last = end - reinterpret_cast<uintptr_t>(end) % page;
  if (first >= last) {
    return {begin, begin};
  }
  auto* sign = reinterpret_cast<volatile char*>(first);
  *sign = 1;
  bool gone = madvise(first, static_cast<size_t>(last - first), MADV_DONTNEED) == 0 && *sign == 0;
  return gone ? std::pair(first, last) : std::pair(begin, begin);
}
#else
std::pair<char*, char*> release_pages(char* begin, char*) {
  return {begin, begin};
}
#endif

class Blank : public Node {
 public:
  Blank(mx::Stream s, mx::Shape shape, mx::Dtype dtype) : Node(s), shape_(std::move(shape)), dtype_(dtype) {}

  void encode(const Arrays&, Arrays& out) override {
    auto& y = out[0];
    mx::cpu::get_command_encoder(stream()).dispatch(
        [begin = y.data<char>(), size = y.nbytes()] { fill_with_zeros(begin, size); });
  }

  mx::array plain(const Arrays&) override {
    return mx::zeros(shape_, dtype_, stream());
  }

  const char* name() const override {
    return "Blank";
  }
  // Two buffers that are written in place must not be merged into one.
  bool is_equivalent(const mx::Primitive&) const override {
    return false;
  }
  std::vector<mx::Shape> output_shapes(const Arrays&) override {
    return {shape_};
  }

 private:
  mx::Shape shape_;
  mx::Dtype dtype_;
};

} // namespace

void fill_with_zeros(char* begin, size_t size) {
  char* end = begin + size;
  auto [first, last] = size >= least_bytes ? release_pages(begin, end) : std::pair(begin, begin);
  std::memset(begin, 0, static_cast<size_t>(first - begin));
  std::memset(last, 0, static_cast<size_t>(end - last));
}

mx::array blank(const mx::Shape& shape, mx::Dtype dtype, mx::Stream s) {
  return mx::array(shape, dtype, std::make_shared<Blank>(s, shape, dtype), {});
}

} // namespace mlxrs::ops
