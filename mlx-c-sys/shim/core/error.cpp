// Replaces mlx-c's error.cpp. That file uses the message as a printf format, has one unsynchronised handler for the
// process, and by default prints to stdout and exits. Here each thread keeps the first message.
#include <exception>
#include <string>

#include "mlxrs.h"

namespace {

struct Slot {
  bool set = false;
  std::string text;
};

thread_local Slot slot;

} // namespace

extern "C" void mlxrs_error_clear(void) {
  slot.set = false;
}

extern "C" const char* mlxrs_error_get(void) {
  return slot.set ? slot.text.c_str() : nullptr;
}

extern "C" void mlxrs_error_set(const char* msg) {
  if (slot.set || msg == nullptr) {
    return;
  }
  try {
    slot.text = msg;
  } catch (const std::exception&) {
    slot.text.clear(); // no memory for the text
  }
  slot.set = true;
}

// mlx-c always passes one string, the text of the exception. The variable arguments are never read.
extern "C" void _mlx_error(const char*, const int, const char* fmt, ...) {
  mlxrs_error_set(fmt);
}

extern "C" void mlx_set_error_handler(
    mlx_error_handler_func,
    void* data,
    void (*dtor)(void*)) {
  if (dtor != nullptr) {
    dtor(data);
  }
}
