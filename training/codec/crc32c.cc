#include "training/codec/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace capstan::training {
namespace {

// crc32_iscsi takes its length as an int.
constexpr size_t kMaxBlockBytes = size_t{1} << 30;

}  // namespace

uint32_t Crc32c(const void* data, size_t size_bytes) { return ExtendCrc32c(0, data, size_bytes); }

uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size_bytes) {
  // isa-l works on the bare register: it inverts neither the initial nor the final value.
  uint32_t state = ~crc;
  const auto* next = static_cast<const unsigned char*>(data);
  while (size_bytes > 0) {
    const size_t block_bytes = std::min(size_bytes, kMaxBlockBytes);
    // The parameter is not declared const, but the function only reads the buffer.
    state = crc32_iscsi(const_cast<unsigned char*>(next), static_cast<int>(block_bytes), state);
    next += block_bytes;
    size_bytes -= block_bytes;
  }
  return ~state;
}

}  // namespace capstan::training
