// Tables as text: numbers separated by commas, one sample a line.
//
// One column has the class, a whole number from 0, or with `numbers` the sample's target, any
// number, which becomes a float32. All others are float32 features, in their order.
// The first line is a header if one of its fields is neither empty nor a number. A field may stand
// in double quotes and between blanks. Lines end in LF or CR LF; blank lines may follow the last
// sample. Errors name the file, the line (from 1) and the column (from 0), and carry a reason
// (failure.h). Text that is no table is DataLoss, DataMissing; what does not fit the job is
// InvalidArgument, InvalidSpec.
// Source: RFC 4180, without line breaks inside quotes.
// Threads: functions that use only the source.
#ifndef CAPSTAN_GPU_WORKER_DATA_CSV_H_
#define CAPSTAN_GPU_WORKER_DATA_CSV_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/data/byte_source.h"
#include "gpu_worker/data/float_rows.h"

namespace capstan::data {

struct CsvOptions {
  std::string label_column = "0";  // an index from 0, -1 for the last one, or a name of the header
  int64_t num_classes = 10;
  bool numbers = false;  // targets are numbers; num_classes is not read
  bool keep = true;      // false: the features are checked but not kept
  // Of features and labels (4 bytes each), whether they are kept or not.
  int64_t memory_limit_bytes = int64_t{4} << 30;
};

struct CsvTable {
  std::vector<std::string> names;  // of the features, from the header; empty without one
  std::string label_name;          // likewise
  int64_t count = 0;               // samples
  int64_t features = 0;            // 1 .. kMaxSampleFeatures (sample_limits.h)
  std::vector<int32_t> labels;     // [count], or nothing if targets are numbers
  std::vector<float> targets;      // [count] if targets are numbers, or nothing
  FloatRows rows;                  // [count, features], or nothing
};

// Reads a whole table. InvalidSpec: no sample, no such column, only one column, a class that is not
// below num_classes, or more than memory_limit_bytes. Throws bad_alloc.
absl::StatusOr<CsvTable> ReadCsv(ByteSource& source, const CsvOptions& options);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_CSV_H_
