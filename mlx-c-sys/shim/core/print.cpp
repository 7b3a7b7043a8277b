// Arrays as text. MLX keeps the number of digits in one variable of the process, which nothing guards.
#include <mutex>
#include <sstream>

#include "mlx/c/private/string.h"
#include "mlx/utils.h"

#include "guard.h"

using namespace mlxrs;

extern "C" int mlxrs_array_text(mlx_string* res, mlx_array a, int precision) {
  return guarded([&] {
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    struct Precision {
      mx::PrintOptions before = mx::get_global_formatter().format_options;
      explicit Precision(int digits) {
        mx::set_printoptions({digits});
      }
      ~Precision() {
        mx::set_printoptions(before);
      }
    } digits(precision);
    std::ostringstream text;
    text << mlx_array_get_(a);
    mlx_string_set_(*res, text.str());
  });
}
