// Arrays of numbers in .npy and .npz files, read whole and written: the inputs and outputs of a
// network.
//
// Files are read under the rules of npy.h and zip.h. They are written in the .npy format 1.0 as
// float32 ("<f4"), and stored, not deflated, in a zip archive, as numpy.savez does.
// Errors name the file and the array and carry a reason (failure.h).
// Threads: functions without state.
#ifndef CAPSTAN_GPU_WORKER_DATA_ARRAYS_H_
#define CAPSTAN_GPU_WORKER_DATA_ARRAYS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace capstan::data {

struct Array {
  std::string name;            // in an archive, without ".npy"; empty for a .npy file
  std::vector<int64_t> shape;  // row-major
  std::vector<float> numbers;
};

// Whether the name of a file ends with .npy, and not with .npz.
bool IsNpyName(absl::string_view path);

// The array of a .npy file, or all arrays of a .npz file, in the order of its directory. float64
// becomes the nearest float32, and whole numbers of 32 or 64 bits become equal ones. NotFound,
// PermissionDenied, DataLoss; DataMissing: the file cannot be read, or is damaged. InvalidArgument,
// InvalidSpec: the name ends with neither, or an array has numbers of other types, one that is not
// finite, or a whole one beyond 2^24. ResourceExhausted: there is no memory for them.
absl::StatusOr<std::vector<Array>> ReadArrays(const std::string& path);

using WriteBytes = std::function<absl::Status(absl::string_view bytes)>;

// Calls `write` with the bytes of the file, piece by piece, and returns its first error.
absl::Status WriteNpy(const Array& array, const WriteBytes& write);

// As WriteNpy for an archive. InvalidArgument: two names are equal, or a name is empty or is not
// UTF-8 without control characters. ResourceExhausted: more than the 4 GiB or the 65535 members of a
// zip archive without zip64.
absl::Status WriteNpz(absl::Span<const Array> arrays, const WriteBytes& write);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_ARRAYS_H_
