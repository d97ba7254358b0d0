// CRC32C (Castagnoli), the checksum of every chunk on the wire.
//
// Polynomial 0x1EDC6F41, reflected, initial value and final inversion 0xFFFFFFFF: RFC 3720
// section 12.1. Threads: pure functions.
#ifndef CAPSTAN_TRAINING_CODEC_CRC32C_H_
#define CAPSTAN_TRAINING_CODEC_CRC32C_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace capstan::training {

// The CRC32C of `size_bytes` bytes. 0 for no bytes.
uint32_t Crc32c(const void* data, size_t size_bytes);
inline uint32_t Crc32c(absl::string_view bytes) { return Crc32c(bytes.data(), bytes.size()); }

// The CRC32C of A followed by the given bytes, where `crc` is the CRC32C of A.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size_bytes);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_CODEC_CRC32C_H_
