#include "gpu_worker/data/pixels.h"

namespace capstan::data {

// Built with -O3 (CMakeLists.txt), so that the compiler vectorises this loop. It divides, because a
// product with 1/255 differs in the last bit.
void BytesToFloats(const uint8_t* __restrict bytes, size_t size, float* __restrict out) {
  for (size_t i = 0; i < size; ++i) out[i] = static_cast<float>(bytes[i]) / 255.0f;
}

}  // namespace capstan::data
