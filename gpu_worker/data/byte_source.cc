#include "gpu_worker/data/byte_source.h"

#include <fcntl.h>
#include <lzma.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"

namespace capstan::data {
namespace {

class FromDescriptor final : public ByteSource {
 public:
  FromDescriptor(absl::string_view file, int descriptor, const struct stat& info)
      : ByteSource(std::string(file), info.st_size),
        descriptor_(descriptor),
        changed_(info.st_mtim) {}
  ~FromDescriptor() override { ::close(descriptor_); }

  absl::StatusOr<size_t> Read(uint8_t* to, size_t size) override {
    size_t done = 0;
    while (done < size) {
      const ssize_t got = ::read(descriptor_, to + done, size - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        return Damaged(file(), absl::StrCat("reading at offset ", offset_, ": ", strerror(errno)));
      }
      if (got == 0) break;
      done += static_cast<size_t>(got);
      offset_ += got;
    }
    return done;
  }

  absl::Status ReadAt(int64_t offset, uint8_t* to, size_t size) const override {
    for (size_t done = 0; done < size;) {
      const int64_t at = offset + static_cast<int64_t>(done);
      const ssize_t got = ::pread(descriptor_, to + done, size - done, at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        return Damaged(file(), absl::StrCat("reading at offset ", at, ": ", strerror(errno)));
      }
      if (got == 0) {
        return Damaged(file(), absl::StrCat("ends at offset ", at, ", had ", stored_bytes(),
                                            " bytes when it was opened"));
      }
      done += static_cast<size_t>(got);
    }
    // Check after reading, so that writes before it are noticed.
    struct stat now;
    if (::fstat(descriptor_, &now) != 0) return Damaged(file(), strerror(errno));
    if (now.st_size != stored_bytes() || now.st_mtim.tv_sec != changed_.tv_sec ||
        now.st_mtim.tv_nsec != changed_.tv_nsec) {
      return Damaged(file(), "has changed since it was opened");
    }
    return absl::OkStatus();
  }

 private:
  const int descriptor_;
  const struct timespec changed_;  // when it was opened
  int64_t offset_ = 0;
};

// Deflate cannot do better than 1032 to 1 (zlib's technical notes, "maximum compression factor").
constexpr int64_t kMaxRatio = 1032;

class FromGzip final : public ByteSource {
 public:
  explicit FromGzip(std::unique_ptr<ByteSource> packed)
      : ByteSource(packed->file(), packed->stored_bytes()), packed_(std::move(packed)) {
    std::memset(&stream_, 0, sizeof(stream_));
    // 15 bits of window. 16 more request gzip's header and trailer, which zlib then checks.
    ready_ = inflateInit2(&stream_, 15 + 16) == Z_OK;
  }
  ~FromGzip() override {
    if (ready_) inflateEnd(&stream_);
  }

  bool compressed() const override { return true; }

  int64_t max_bytes() const override {
    return stored_bytes() > std::numeric_limits<int64_t>::max() / kMaxRatio
               ? std::numeric_limits<int64_t>::max()
               : stored_bytes() * kMaxRatio;
  }

  absl::StatusOr<size_t> Read(uint8_t* to, size_t size) override {
    if (!ready_) return absl::ResourceExhaustedError(absl::StrCat(file(), ": no memory to unpack"));
    size_t done = 0;
    while (done < size && !ended_) {
      if (stream_.avail_in == 0) {
        absl::Status status = Refill();
        if (!status.ok()) return status;
      }
      // avail_out is 32 bits wide.
      const size_t room = std::min(size - done, size_t{1} << 30);
      stream_.next_out = to + done;
      stream_.avail_out = static_cast<uInt>(room);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      const size_t made = room - stream_.avail_out;
      done += made;
      unpacked_ += static_cast<int64_t>(made);
      if (result == Z_STREAM_END) {
        ended_ = true;
        absl::Status status = CheckNothingFollows();
        if (!status.ok()) return status;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return Damaged(
            file(), absl::StrCat("gzip damaged at offset ", Offset(), " (unpacked ", unpacked_,
                                 "): ", stream_.msg == nullptr ? "no reason given" : stream_.msg));
      }
    }
    return done;
  }

 private:
  int64_t Offset() const { return taken_ - static_cast<int64_t>(stream_.avail_in); }

  absl::Status Refill() {
    absl::StatusOr<size_t> got = packed_->Read(input_.data(), input_.size());
    if (!got.ok()) return got.status();
    if (*got == 0) {
      return Damaged(
          file(), absl::StrCat("gzip truncated at offset ", taken_, " (unpacked ", unpacked_, ")"));
    }
    taken_ += static_cast<int64_t>(*got);
    stream_.next_in = input_.data();
    stream_.avail_in = static_cast<uInt>(*got);
    return absl::OkStatus();
  }

  absl::Status CheckNothingFollows() {
    const int64_t end = Offset();
    uint8_t next = 0;
    absl::StatusOr<size_t> more = size_t{stream_.avail_in};
    if (*more == 0) more = packed_->Read(&next, 1);
    if (!more.ok()) return more.status();
    if (*more == 0) return absl::OkStatus();
    return Damaged(file(), absl::StrCat("bytes follow the end of the gzip data at offset ", end));
  }

  const std::unique_ptr<ByteSource> packed_;
  z_stream stream_;
  bool ready_ = false;
  bool ended_ = false;
  int64_t taken_ = 0;     // packed bytes given to zlib
  int64_t unpacked_ = 0;  // bytes produced
  std::array<uint8_t, 64 << 10> input_;
};

class FromXz final : public ByteSource {
 public:
  explicit FromXz(std::unique_ptr<ByteSource> packed)
      : ByteSource(packed->file(), packed->stored_bytes()), packed_(std::move(packed)) {
    ready_ = lzma_stream_decoder(&stream_, kMaxXzMemory, LZMA_TELL_UNSUPPORTED_CHECK) == LZMA_OK;
  }
  ~FromXz() override { lzma_end(&stream_); }

  bool compressed() const override { return true; }
  // The format has no useful limit, so readers allocate memory as bytes arrive.
  int64_t max_bytes() const override { return std::numeric_limits<int64_t>::max(); }

  absl::StatusOr<size_t> Read(uint8_t* to, size_t size) override {
    if (!ready_) return absl::ResourceExhaustedError(absl::StrCat(file(), ": no memory to unpack"));
    stream_.next_out = to;
    stream_.avail_out = size;
    while (stream_.avail_out > 0 && !ended_) {
      if (stream_.avail_in == 0 && !all_taken_) {
        absl::StatusOr<size_t> got = packed_->Read(input_.data(), input_.size());
        if (!got.ok()) return got.status();
        all_taken_ = *got < input_.size();
        stream_.next_in = input_.data();
        stream_.avail_in = *got;
      }
      const lzma_ret result = lzma_code(&stream_, all_taken_ ? LZMA_FINISH : LZMA_RUN);
      if (result == LZMA_STREAM_END) {
        ended_ = true;
        absl::Status status = CheckNothingFollows();
        if (!status.ok()) return status;
      } else if (result != LZMA_OK) {
        return Failure(result);
      }
    }
    return size - stream_.avail_out;
  }

 private:
  absl::Status Failure(lzma_ret result) const {
    if (result == LZMA_MEM_ERROR || result == LZMA_MEMLIMIT_ERROR) {
      return absl::ResourceExhaustedError(absl::StrCat(file(), ": unpacking needs ",
                                                       lzma_memusage(&stream_),
                                                       " bytes of memory, limit ", kMaxXzMemory));
    }
    const char* what = result == LZMA_BUF_ERROR      ? "truncated"
                       : result == LZMA_FORMAT_ERROR ? "expected, not found"
                       : result == LZMA_OPTIONS_ERROR || result == LZMA_UNSUPPORTED_CHECK
                           ? "with options that are not supported"
                           : "damaged";
    return Damaged(file(), absl::StrCat("xz ", what, " at offset ", stream_.total_in, " (unpacked ",
                                        stream_.total_out, ")"));
  }

  absl::Status CheckNothingFollows() {
    uint8_t next = 0;
    absl::StatusOr<size_t> more = stream_.avail_in;
    if (*more == 0) more = packed_->Read(&next, 1);
    if (!more.ok()) return more.status();
    if (*more == 0) return absl::OkStatus();
    return Damaged(
        file(), absl::StrCat("bytes follow the end of the xz data at offset ", stream_.total_in));
  }

  static constexpr uint64_t kMaxXzMemory = uint64_t{256} << 20;

  const std::unique_ptr<ByteSource> packed_;
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool ready_ = false;
  bool all_taken_ = false;  // the packed bytes have ended
  bool ended_ = false;
  std::array<uint8_t, 64 << 10> input_;
};

}  // namespace

absl::Status ByteSource::ReadAt(int64_t, uint8_t*, size_t) const {
  return absl::FailedPreconditionError(absl::StrCat(file_, ": can be read only from its start"));
}

absl::StatusOr<std::unique_ptr<ByteSource>> FileSource(absl::string_view file, int descriptor) {
  struct stat info;
  if (::fstat(descriptor, &info) != 0) {
    const int error = errno;
    ::close(descriptor);
    return Damaged(file, strerror(error));
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(descriptor);
    return DataMissing(absl::StatusCode::kFailedPrecondition,
                       absl::StrCat(file, ": not a regular file"));
  }
  return std::make_unique<FromDescriptor>(file, descriptor, info);
}

std::unique_ptr<ByteSource> GzipSource(std::unique_ptr<ByteSource> packed) {
  return std::make_unique<FromGzip>(std::move(packed));
}

std::unique_ptr<ByteSource> XzSource(std::unique_ptr<ByteSource> packed) {
  return std::make_unique<FromXz>(std::move(packed));
}

}  // namespace capstan::data
