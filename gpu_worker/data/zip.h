// The members of a zip archive, found by its central directory.
//
// Members may be stored or deflated, also with zip64's sizes. Everything that the directory claims
// is checked against the file before any allocation, and a member is never unpacked beyond its
// claimed size. The directory must end where its end record begins, so nothing can hide between
// them. Errors name the file, or "<file>: <member>", and carry a reason (failure.h).
// Source: PKWARE APPNOTE.TXT 6.3.9, sections 4.3 and 4.5.3.
// Threads: one at a time.
#ifndef CAPSTAN_GPU_WORKER_DATA_ZIP_H_
#define CAPSTAN_GPU_WORKER_DATA_ZIP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/data/byte_source.h"

namespace capstan::data {

struct ZipMember {
  std::string name;
  uint16_t flags = 0;
  uint16_t method = 0;  // kZipStored, kZipDeflated, or one that cannot be read
  uint32_t crc = 0;     // of the unpacked bytes
  int64_t packed_bytes = 0;
  int64_t bytes = 0;          // unpacked
  int64_t header_offset = 0;  // of the local header, which lies before the data
};

inline constexpr uint16_t kZipStored = 0;
inline constexpr uint16_t kZipDeflated = 8;
inline constexpr int64_t kZipMaxDirectoryBytes = 1 << 20;

class ZipArchive {
 public:
  // Reads the central directory. `file` must support ReadAt. DataLoss, DataMissing: not a zip,
  // truncated, in several parts, two members of one name, or sizes and offsets that do not fit the
  // file. InvalidArgument, InvalidSpec: a directory of more than kZipMaxDirectoryBytes.
  static absl::StatusOr<ZipArchive> Open(std::unique_ptr<ByteSource> file);

  const std::string& file() const { return file_->file(); }
  const std::vector<ZipMember>& members() const { return members_; }
  const ZipMember* Find(absl::string_view name) const;  // null if there is none

  // Checks the local header of a member and returns the offset of its first packed byte. DataLoss,
  // DataMissing: encrypted, neither stored nor deflated, a claim of more bytes than deflate can
  // pack, or a local header that contradicts the directory.
  absl::StatusOr<int64_t> DataOffset(const ZipMember& member) const;

  // The unpacked bytes of a member. The archive must outlive the source. Read checks size and CRC
  // as soon as it returns the last byte. Uses 64 KiB and zlib's window. Errors as DataOffset.
  absl::StatusOr<std::unique_ptr<ByteSource>> OpenMember(const ZipMember& member) const;

  // Gives the file away, for images that stay in it. Nothing else may be called afterwards.
  std::unique_ptr<ByteSource> TakeFile() { return std::move(file_); }

 private:
  explicit ZipArchive(std::unique_ptr<ByteSource> file) : file_(std::move(file)) {}
  absl::Status ReadDirectory();
  absl::Status AddMembers(const std::vector<uint8_t>& directory, int64_t count);

  std::unique_ptr<ByteSource> file_;
  std::vector<ZipMember> members_;
  int64_t directory_offset_ = 0;
};

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_ZIP_H_
