// Bytes of a file from its start to its end: from a descriptor, from memory, or unpacked from gzip or xz.
//
// Threads: one at a time per source, except in ReadAt.
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

// Ends a message about a packed file that is too large for the memory.
inline constexpr char kUnpackIt[] =
    "; images of a file that is not packed are read as they are wanted";

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Reads up to `size` bytes and returns how many: fewer only at the end. Statuses carry a reason
  // (failure.h) and name file and offset.
  virtual absl::StatusOr<size_t> Read(uint8_t* to, size_t size) = 0;

  // Reads the `size` bytes from `offset` on of a file that lies as it is, wherever Read stands.
  // Thread-safe. DataLoss, DataMissing: they cannot be read, or the file has another length or time
  // of change than when it was opened. FailedPrecondition: no such file.
  virtual absl::Status ReadAt(int64_t offset, uint8_t* to, size_t size) const;

  const std::string& file() const { return file_; }
  // Bytes of the file as it is stored.
  int64_t stored_bytes() const { return stored_bytes_; }
  // Bytes that Read may give in all: the stored ones, or the most that so much gzip or xz
  // can unpack to.
  virtual int64_t max_bytes() const { return stored_bytes_; }
  virtual bool compressed() const { return false; }

 protected:
  ByteSource(std::string file, int64_t stored_bytes)
      : file_(std::move(file)), stored_bytes_(stored_bytes) {}

 private:
  const std::string file_;
  const int64_t stored_bytes_;
};

// Borrows `bytes`.
std::unique_ptr<ByteSource> MemorySource(absl::string_view file, absl::string_view bytes);

// Takes the descriptor and closes it. NotFound, PermissionDenied or DataLoss with reason
// DataMissing: it is no regular file, or cannot be read.
absl::StatusOr<std::unique_ptr<ByteSource>> FileSource(absl::string_view file, int descriptor);

// Unpacks one gzip member (RFC 1952). DataLoss: no gzip, damaged, truncated, or a wrong checksum,
// which is seen when Read reaches the end; bytes that follow the member. Holds 64 KiB and zlib's
// window.
std::unique_ptr<ByteSource> GzipSource(std::unique_ptr<ByteSource> packed);

// The same for one xz stream (tukaani.org/xz/xz-file-format.txt). ResourceExhausted: it wants more
// than 256 MiB to unpack, which `xz -9` does not.
std::unique_ptr<ByteSource> XzSource(std::unique_ptr<ByteSource> packed);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_BYTE_SOURCE_H_
