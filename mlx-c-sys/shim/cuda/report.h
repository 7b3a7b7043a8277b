// Errors that kernels report. A kernel cannot raise an error, so it writes an index out of range to pinned host memory
// and goes on with a valid index. The host reads that memory after it has waited for the results of an evaluation, so
// reports add no synchronisation.
#pragma once

#include <optional>
#include <string>

#include "args.h"
#include "launch.h"

namespace mlxrs::cuda {

// What an index selects. This decides the words of the error (checked.h).
enum class Indexed { axis, rows, experts };

// Where kernels of stream `s` report an index. `what` names the operation in the error. prepare_reports must have been
// called for the stream before a capture.
Report report_of(Indexed of, const std::string& what, mx::Stream s);
void prepare_reports(mx::Stream s);

// The error that a kernel of this thread's streams has reported, if any.
std::optional<std::string> finding();
// Waits for this thread's streams, then clears their reports.
void forget_findings();

} // namespace mlxrs::cuda
