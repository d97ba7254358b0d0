// Reads the payload of a gzip-compressed IDX file, for tests of the engine that must not need the
// data readers.
#ifndef CAPSTAN_TESTS_CONTRACT_IDX_GZ_H_
#define CAPSTAN_TESTS_CONTRACT_IDX_GZ_H_

#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

namespace capstan::testing {

// `count` bytes after a header of `header_bytes`. Empty if the file does not have them.
inline std::vector<uint8_t> ReadGzip(const std::string& path, int64_t header_bytes, int64_t count) {
  std::vector<uint8_t> bytes(header_bytes + count);
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return {};
  const int got = gzread(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  if (got != static_cast<int>(bytes.size())) return {};
  bytes.erase(bytes.begin(), bytes.begin() + header_bytes);
  return bytes;
}

}  // namespace capstan::testing

#endif  // CAPSTAN_TESTS_CONTRACT_IDX_GZ_H_
