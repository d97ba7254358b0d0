// Conversion of bytes to the numbers that a network reads.
#ifndef CAPSTAN_GPU_WORKER_DATA_PIXELS_H_
#define CAPSTAN_GPU_WORKER_DATA_PIXELS_H_

#include <cstddef>
#include <cstdint>

namespace capstan::data {

inline constexpr size_t kByteValues = 256;  // values that a byte can have

// out[i] = float32(bytes[i]) / 255, the correctly rounded quotient. The ranges must not overlap.
void BytesToFloats(const uint8_t* bytes, size_t size, float* out);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_PIXELS_H_
