// Updates a KV cache in place while steps are pipelined. MLX updates a buffer in place only if nothing else holds it.
// The queued readers of the previous step hold the buffer until they have run, so MLX would copy the whole KV cache in
// every step. The order of tasks on a stream makes an update in place safe, so this primitive does it in spite of the
// readers.
#include <algorithm>
#include <memory>
#include <new>
#include <unordered_map>

#include "mlx/primitives.h"
#include "mlx/stream.h"

#include "donate.h"
#include "guard.h"
#include "runtime/outcomes.h"

namespace {

using namespace mlxrs;
using Data = mx::array::Data;

// Buffers that are updated in place, and the streams that update them. Readers on this thread look here.
struct Written {
  std::weak_ptr<Data> data; // prevents reuse of the address, and does not hold the buffer
  std::vector<mx::Stream> streams;
};
thread_local std::unordered_map<const Data*, Written> written;
thread_local size_t purge_at = 64;
thread_local int readers = 0;

} // namespace

namespace mlxrs {

void note_written(const mx::array& a, mx::Stream stream) {
#ifdef __linux__
  note_in_place();
#endif
  const auto& data = a.data_shared_ptr();
  if (written.size() >= purge_at) {
    std::erase_if(written, [](const auto& entry) { return entry.second.data.expired(); });
    purge_at = std::max<size_t>(64, 2 * written.size());
  }
  auto& entry = written[data.get()];
  entry.data = data;
  if (std::find(entry.streams.begin(), entry.streams.end(), stream) == entry.streams.end()) {
    entry.streams.push_back(stream);
  }
}

bool is_updated(const mx::array& a) {
  if (written.empty()) {
    return false;
  }
  const auto& data = a.data_shared_ptr();
  auto entry = written.find(data.get());
  return entry != written.end() && entry->second.data.lock() == data;
}

bool may_overwrite(const std::vector<mx::array>& in, size_t index) {
  if (readers > 0) {
    return false; // a caller reads memory, possibly of this buffer
  }
  const mx::array& source = in[index];
  const auto& data = source.data_shared_ptr();
  if (data == nullptr || !data->is_owned() || source.offset() != 0 || !source.flags().row_contiguous) {
    return false;
  }
  for (size_t i = 0; i < in.size(); i++) {
    if (i != index && in[i].data_shared_ptr() == data) {
      return false; // another input of the update is in the same buffer
    }
  }
  return true;
}

} // namespace mlxrs

namespace {

// Moves the ownership of a buffer to a stand-in array with a single reference, and back at the end, also if the
// evaluation throws. A buffer is owned by its Data object, and an array must own its buffer to be donatable.
class Loan {
 public:
  explicit Loan(const mx::array& source)
      : lender_(source.data_shared_ptr()), stand_in_(source.shape(), source.dtype(), nullptr, {}) {
    stand_in_.set_data(Data(std::move(*lender_)), source.data_size(), source.strides(), source.flags());
    borrowed_ = stand_in_.data_shared_ptr().get();
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  ~Loan() {
    // The Data object owns nothing after the move. It has no move assignment, so it is constructed again in place.
    lender_->~Data();
    new (lender_.get()) Data(std::move(*borrowed_));
  }

  // The stand-in. The caller moves it to a place where it is the only reference.
  mx::array take() {
    return std::move(stand_in_);
  }
  bool is_buffer_of(const mx::array& a) const {
    return a.data_shared_ptr().get() == borrowed_;
  }

 private:
  std::shared_ptr<Data> lender_;
  mx::array stand_in_;
  Data* borrowed_;
};

class ForceDonate : public mx::Primitive {
 public:
  ForceDonate(std::shared_ptr<mx::Primitive> inner, size_t index)
      : mx::Primitive(inner->stream()), inner_(std::move(inner)), index_(index) {}

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    run(in, out, [this](const auto& i, auto& o) { inner_->eval_cpu(i, o); });
  }
  void eval_gpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    run(in, out, [this](const auto& i, auto& o) { inner_->eval_gpu(i, o); });
  }
  std::vector<mx::array> jvp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& tangents,
      const std::vector<int>& argnums) override {
    return inner_->jvp(primals, tangents, argnums);
  }
  std::vector<mx::array> vjp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& cotangents,
      const std::vector<int>& argnums,
      const std::vector<mx::array>& outputs) override {
    return inner_->vjp(primals, cotangents, argnums, outputs);
  }
  std::pair<std::vector<mx::array>, std::vector<int>> vmap(
      const std::vector<mx::array>& inputs,
      const std::vector<int>& axes) override {
    return inner_->vmap(inputs, axes);
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return inner_->output_shapes(inputs);
  }
  const char* name() const override {
    return "ForceDonate";
  }
  std::pair<const mx::Primitive*, size_t> updates() const {
    return {inner_.get(), index_};
  }

 private:
  template <typename Eval>
  void run(const std::vector<mx::array>& in, std::vector<mx::array>& out, Eval eval) {
    const mx::array& source = in[index_];
    if (!may_overwrite(in, index_)) {
      eval(in, out);
      return;
    }
    note_written(source, stream());
    bool reused;
    {
      // Reserved in full, so that the stand-in keeps its single reference. It is declared before the loan, so that the
      // borrowed Data outlives the loan.
      std::vector<mx::array> lent;
      lent.reserve(in.size());
      Loan loan(source);
      for (size_t i = 0; i < in.size(); i++) {
        lent.push_back(i == index_ ? loan.take() : in[i]);
      }
      eval(lent, out);
      reused = loan.is_buffer_of(out[0]);
    }
    if (reused) {
      // The output refers to the stand-in's Data, which owns nothing now. It must refer to the owner.
      out[0].copy_shared_buffer(source, out[0].strides(), out[0].flags(), out[0].data_size());
    }
  }

  std::shared_ptr<mx::Primitive> inner_;
  size_t index_;
};

} // namespace

mx::array mlxrs::update_in_place(mx::array head, const mx::array& source) {
  bool update = head.has_primitive() && head.status() == mx::array::Status::unscheduled && head.siblings().empty() &&
      head.shape() == source.shape() && head.dtype() == source.dtype();
  if (update) {
    for (size_t i = 0; i < head.inputs().size(); i++) {
      if (head.inputs()[i].id() == source.id()) {
        auto primitive = std::make_shared<ForceDonate>(head.primitive_ptr(), i);
        return mx::array(head.shape(), head.dtype(), std::move(primitive), head.inputs());
      }
    }
  }
  return head;
}

std::pair<const mx::Primitive*, size_t> mlxrs::updates_in_place(const mx::Primitive& primitive) {
  auto* update = dynamic_cast<const ForceDonate*>(&primitive);
  return update != nullptr ? update->updates() : std::pair<const mx::Primitive*, size_t>{nullptr, 0};
}

extern "C" int mlxrs_update_in_place(mlx_array* res, mlx_array lazy, mlx_array source) {
  return guarded([&] { mlx_array_set_(*res, update_in_place(mlx_array_get_(lazy), mlx_array_get_(source))); });
}

extern "C" int mlxrs_wait_for_updates(bool* updated, mlx_array a) {
  return guarded([&] {
    *updated = false;
    auto& array = mlx_array_get_(a);
    auto data = array.data_shared_ptr();
    auto entry = written.find(data.get());
    if (data == nullptr || entry == written.end() || entry->second.data.lock() != data) {
      return;
    }
    *updated = true;
    for (auto stream : std::vector<mx::Stream>(entry->second.streams)) {
      mx::synchronize(stream);
    }
  });
}

extern "C" void mlxrs_count_reader(bool begin) {
  readers += begin ? 1 : -1;
}

extern "C" int mlxrs_array_pin(mlx_array a) {
  return guarded([&] {
    auto data = mlx_array_get_(a).data_shared_ptr();
    if (data == nullptr || !data->is_owned()) {
      return;
    }
    // The ownership moves to an object that no operation looks at, so that the buffer is never donated. The buffer's
    // address stays the same.
    auto owner = std::make_shared<Data>(std::move(*data));
    data->~Data();
    new (data.get()) Data(owner->buffer(), [owner](mx::allocator::Buffer) {});
  });
}
