// The text format of LIBSVM and SVMlight: one sample a line, `label index:value index:value ...`.
//
// Indices begin at 1 and rise within a line; features that are left out are 0. A `#` begins a
// comment. Blank lines may follow the last sample. A label is a whole number. Which class it means
// depends on both files of a set (LibsvmRule), so each is read twice: ScanLibsvm, then FillLibsvm.
// Where targets are numbers, a label is any number, which becomes a float32.
//
// Errors name the file, the line (from 1) and the byte in it (from 1), and carry a reason
// (failure.h). Text that is not in this format is DataLoss, DataMissing; what does not fit the job
// is InvalidArgument, InvalidSpec.
// Source: the README of LIBSVM, csie.ntu.edu.tw/~cjlin/libsvm, "svm-train usage".
// Threads: functions that use only the source.
#ifndef CAPSTAN_GPU_WORKER_DATA_LIBSVM_H_
#define CAPSTAN_GPU_WORKER_DATA_LIBSVM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/data/byte_source.h"
#include "gpu_worker/data/float_rows.h"

namespace capstan::data {

// A label and where it is: "<file>: line 3".
struct LibsvmLabel {
  int64_t label = 0;
  std::string place;
};

// What one file contains.
struct LibsvmScan {
  int64_t count = 0;            // samples, at least 1
  int64_t highest_index = 0;    // 0: no feature
  LibsvmLabel lowest, highest;  // not set if targets are numbers, as has_zero
  bool has_zero = false;
};

// Checks every line. InvalidSpec: no sample, an index above `max_features`, which `limit_name`
// names, or labels that need more than memory_limit_bytes. `numbers`: targets are numbers. Throws
// bad_alloc.
absl::StatusOr<LibsvmScan> ScanLibsvm(ByteSource& source, int64_t max_features,
                                      int64_t memory_limit_bytes, bool numbers = false);

// How labels become classes: the first of these that is true of both files together.
enum class LibsvmRule {
  kSigned,    // a label is negative: all are -1 or +1, and become 0 and 1
  kFromZero,  // a label is 0: labels are classes
  kFromOne,   // otherwise: labels are classes counted from 1, so the class is label - 1
  kNumbers,   // the file's numbers are the targets; RuleOfLabels never gives this
};

// InvalidSpec: a label that the rule does not have, or a class that is not below `num_classes`.
absl::StatusOr<LibsvmRule> RuleOfLabels(const LibsvmScan& train, const LibsvmScan& test,
                                        int64_t num_classes);

struct LibsvmTable {
  std::vector<int32_t> labels;  // [count], classes; nothing with kNumbers
  std::vector<float> targets;   // [count] with kNumbers
  FloatRows rows;               // [count, features]
};

// Reads the samples of a file that `scan` describes, with `features` >= scan.highest_index. The
// caller has checked that memory suffices for count * (features + 1) * 4 bytes. DataLoss,
// DataMissing: it differs from the scan. Throws bad_alloc.
absl::StatusOr<LibsvmTable> FillLibsvm(ByteSource& source, const LibsvmScan& scan, LibsvmRule rule,
                                       int64_t features);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_LIBSVM_H_
