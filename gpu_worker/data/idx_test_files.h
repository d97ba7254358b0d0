// IDX bytes for tests, written from the definition of the format and independent of the reader.
#ifndef CAPSTAN_GPU_WORKER_DATA_IDX_TEST_FILES_H_
#define CAPSTAN_GPU_WORKER_DATA_IDX_TEST_FILES_H_

#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace capstan::data {

inline std::string BigEndian32(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

inline std::string IdxImages(uint32_t count, uint32_t rows, uint32_t columns,
                             const std::string& pixels) {
  return BigEndian32(0x803) + BigEndian32(count) + BigEndian32(rows) + BigEndian32(columns) +
         pixels;
}

inline std::string IdxLabels(uint32_t count, const std::string& labels) {
  return BigEndian32(0x801) + BigEndian32(count) + labels;
}

inline std::string Gzip(const std::string& bytes) {
  z_stream stream = {};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// A new folder, removed by the destructor.
class TempFolder {
 public:
  TempFolder() {
    std::string name = std::filesystem::temp_directory_path() / "capstan-data-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  std::string path_;
};

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_IDX_TEST_FILES_H_
