// Errors of kernels. A kernel cannot fail, so it writes an index outside of its axis to memory of the host, and goes on with another
// index. An evaluation reads that memory after it has waited for its results: no synchronisation is added.
#pragma once

#include <optional>
#include <string>

#include "args.h"
#include "launch.h"

namespace mlxrs::cuda {

// What an index is of, and so which words its error has (checked.h).
enum class Indexed { axis, rows, experts };

// Where a kernel of this stream reports indices. `what` names the operation. Before a capture the place must be prepared.
Report report_of(Indexed of, const std::string& what, mx::Stream s);
void prepare_reports(mx::Stream s);

// The error of a kernel of this thread's streams, if one has reported an index.
std::optional<std::string> finding();
// Waits for this thread's streams, and forgets what their kernels have reported.
void forget_findings();

} // namespace mlxrs::cuda
