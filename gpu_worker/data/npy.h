// Arrays of numpy: the .npy format 1.0, 2.0 and 3.0, little-endian and in C order.
//
//   magic "\x93NUMPY", version (2 bytes), length of the header (2 bytes, from 2.0 on 4), the header
//   as the literal of a Python dict with descr, fortran_order and shape, then the numbers
//
// The header is parsed as data. Nothing is evaluated, and arrays of Python objects (pickle) are
// refused by name. Errors name the source and carry a reason (failure.h).
// Source: numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
// Threads: functions that use only the source.
#ifndef CAPSTAN_GPU_WORKER_DATA_NPY_H_
#define CAPSTAN_GPU_WORKER_DATA_NPY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/data/byte_source.h"

namespace capstan::data {

enum class NpyKind { kUnsigned, kSigned, kFloat };

struct NpyHeader {
  NpyKind kind = NpyKind::kUnsigned;
  int64_t item_bytes = 0;      // 1, 2, 4 or 8; of kFloat 4 or 8
  std::string descr;           // as the file has it: "<f4"
  std::vector<int64_t> shape;  // at most kNpyMaxDimensions
  int64_t count = 0;           // elements: the product of the shape
  int64_t header_bytes = 0;    // before the first number

  bool is_bytes() const { return kind == NpyKind::kUnsigned && item_bytes == 1; }
};

inline constexpr int64_t kNpyMaxDimensions = 8;
inline constexpr int64_t kNpyMaxHeaderBytes = 10000;  // as numpy's own limit

// Reads the header. The source is then at the first number. DataLoss, DataMissing: not .npy, or a
// shape that differs from the size of the source, which is max_bytes(). InvalidArgument,
// InvalidSpec: Fortran order, big-endian, objects, or a type that is no number.
absl::StatusOr<NpyHeader> ReadNpyHeader(ByteSource& source);

// "60000 x 28 x 28".
std::string ShapeText(const std::vector<int64_t>& shape);

// Converts numbers of the file to float32, with the nearest value. Returns the index of the first
// one that is not finite as float32; `count` if all are. kFloat only.
int64_t NpyToFloats(const NpyHeader& header, const uint8_t* bytes, int64_t count, float* out);

// The whole numbers of an array as int64; a larger uint64 becomes the largest one. Not kFloat.
void NpyToIntegers(const NpyHeader& header, const uint8_t* bytes, int64_t count, int64_t* out);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_NPY_H_
