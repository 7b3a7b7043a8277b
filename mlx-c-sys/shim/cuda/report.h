// Errors that kernels report. A kernel cannot raise an error, so it writes an index out of range to pinned host memory
// and goes on with a valid index. The host reads that memory after it has waited for the results of an evaluation, so
// reports add no synchronisation.
//
// Each node that may report has a slot of its stream, so that of several nodes which the host waits
// for together only those fail that have reported. A stream has Findings::slots of them. They are
// used in turn: if that many nodes are queued before the host waits, two of them share a slot, and
// fail together. The kernels of a captured graph keep their arguments, so they all share one slot,
// and the launches of captured graphs that the host waits for together fail together.
#pragma once

#include <optional>
#include <string>

#include "args.h"
#include "launch.h"

namespace mlxrs::cuda {

// What an index selects. This decides the words of the error (checked.h).
enum class Indexed { axis, rows, experts };

// The slot of captured kernels.
constexpr int captured_slot = 0;

// Where kernels of stream `s` report an index for the node that is being queued. `what` names the
// operation in the error. prepare_reports must have been called for the stream before a capture.
Report report_of(Indexed of, const std::string& what, mx::Stream s);
void prepare_reports(mx::Stream s);

// An error that a kernel of this thread's streams has reported, if any.
std::optional<std::string> finding();
// Waits for this thread's streams, fails the nodes whose kernels have reported, then clears the
// reports.
void forget_findings();

} // namespace mlxrs::cuda
