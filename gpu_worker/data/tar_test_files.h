// A tar archive for tests, written from the definition of ustar (POSIX.1-1988) and independent of
// the reader.
#ifndef CAPSTAN_GPU_WORKER_DATA_TAR_TEST_FILES_H_
#define CAPSTAN_GPU_WORKER_DATA_TAR_TEST_FILES_H_

#include <cstdio>
#include <string>

namespace capstan::data {

inline std::string TarMember(const std::string& name, const std::string& content, char type = '0',
                             const std::string& prefix = "") {
  std::string header(512, '\0');
  const auto put = [&header](size_t at, const std::string& text) {
    header.replace(at, text.size(), text);
  };
  char size[13];
  std::snprintf(size, sizeof(size), "%011zo", content.size());
  put(0, name);
  put(100, "0000644");
  put(124, size);
  put(148, "        ");
  header[156] = type;
  put(257, "ustar");
  put(263, "00");
  put(345, prefix);
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  char digits[8];
  std::snprintf(digits, sizeof(digits), "%06o", sum);
  put(148, std::string(digits, 7));
  std::string padded = content;
  padded.resize((content.size() + 511) / 512 * 512);
  return header + padded;
}

inline std::string TarEnd() { return std::string(1024, '\0'); }

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_TAR_TEST_FILES_H_
