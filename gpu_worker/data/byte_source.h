// The bytes of a file from start to end, read from a descriptor or unpacked from gzip or xz.
//
// Threads: one at a time per source, except for ReadAt.
#ifndef CAPSTAN_GPU_WORKER_DATA_BYTE_SOURCE_H_
#define CAPSTAN_GPU_WORKER_DATA_BYTE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::data {

// Ends a message about a packed file that is too large for memory.
inline constexpr char kUnpackIt[] =
    "; images of a file that is not packed are read as they are wanted";

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Reads up to `size` bytes and returns how many; fewer only at the end. Statuses carry a reason
  // (failure.h) and name file and offset.
  virtual absl::StatusOr<size_t> Read(uint8_t* to, size_t size) = 0;

  // Reads `size` bytes at `offset` of an unpacked file, independent of the position of Read.
  // Thread-safe. DataLoss, DataMissing: the bytes cannot be read, or length or change time of the
  // file differ from when it was opened. FailedPrecondition: not a plain file.
  virtual absl::Status ReadAt(int64_t offset, uint8_t* to, size_t size) const;

  const std::string& file() const { return file_; }
  // Bytes of the stored file.
  int64_t stored_bytes() const { return stored_bytes_; }
  // The most bytes that Read may return in total: the stored ones, or the most that this much gzip
  // or xz can unpack to.
  virtual int64_t max_bytes() const { return stored_bytes_; }
  virtual bool compressed() const { return false; }

 protected:
  ByteSource(std::string file, int64_t stored_bytes)
      : file_(std::move(file)), stored_bytes_(stored_bytes) {}

 private:
  const std::string file_;
  const int64_t stored_bytes_;
};

// Owns the descriptor and closes it. NotFound, PermissionDenied or DataLoss with reason
// DataMissing: it is not a regular file, or cannot be read.
absl::StatusOr<std::unique_ptr<ByteSource>> FileSource(absl::string_view file, int descriptor);

// Unpacks one gzip member (RFC 1952). DataLoss: not gzip, damaged, truncated, bytes after the
// member, or a wrong checksum, which is found when Read reaches the end. Uses 64 KiB and zlib's
// window.
std::unique_ptr<ByteSource> GzipSource(std::unique_ptr<ByteSource> packed);

// The same for one xz stream (tukaani.org/xz/xz-file-format.txt). ResourceExhausted: it needs more
// than 256 MiB to unpack; `xz -9` needs less.
std::unique_ptr<ByteSource> XzSource(std::unique_ptr<ByteSource> packed);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_BYTE_SOURCE_H_
