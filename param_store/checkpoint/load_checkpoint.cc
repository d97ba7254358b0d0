#include "param_store/checkpoint/load_checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/check/check.h"
#include "services/files/files.h"
#include "training/codec/manifest.h"
#include "training/codec/safetensors.h"
#include "training/codec/sha256.h"
#include "training/spec/lead_messages.h"

namespace capstan::param_store {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{16} << 20;
constexpr int64_t kBlockBytes = int64_t{1} << 20;
// What a header of ours has for each tensor is below 200 bytes.
constexpr int64_t kHeaderBaseBytes = int64_t{1} << 16;
constexpr int64_t kHeaderBytesPerChunk = 512;

absl::Status Corrupt(absl::string_view file, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(file, ": ", what));
}

BaseWeightsError ErrorOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return {};
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
      return {"DataMissing", status};
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInvalidArgument:     // no regular file, or too large
    case absl::StatusCode::kFailedPrecondition:  // a folder, a link
      return {"CheckpointCorrupt", status};
    default:
      return {"InternalError", status};
  }
}

// Bytes of a file that go to memory.
struct Piece {
  int64_t begin = 0;  // in the file
  int64_t end = 0;
  char* to = nullptr;
};

class Reader {
 public:
  Reader(const CheckpointRequest& request, absl::Span<float> weights, absl::Span<float> momentum)
      : request_(request),
        first_float_(training::RangeOf(*request.layout, request.run).offset),
        weights_(weights),
        momentum_(momentum),
        weights_here_(request.run.chunk_count, false),
        momentum_here_(request.momentum ? request.run.chunk_count : 0, false) {}

  absl::Status Read(LoadedCheckpoint* loaded) {
    const std::string path = absl::StrCat(request_.folder, "/manifest.json");
    absl::StatusOr<std::string> text = services::ReadWholeFile(path, kMaxManifestBytes);
    if (!text.ok()) return text.status();
    absl::StatusOr<training::Manifest> manifest = training::ParseManifest(path, *text);
    if (!manifest.ok()) return manifest.status();
    manifest_ = *std::move(manifest);
    if (absl::Status status = CheckManifest(path); !status.ok()) return status;
    absl::StatusOr<training::LeadSnapshot> snapshot =
        training::spec::DecodeSnapshot(manifest_.lead_snapshot);
    if (!snapshot.ok()) return Corrupt(path, snapshot.status().message());
    std::vector<const training::ManifestFile*> unused;
    for (const training::ManifestFile& file : manifest_.files) {
      if (!absl::StartsWith(file.name, "shard-"))
        continue;  // weights.safetensors has all of it again
      absl::StatusOr<bool> used = ReadFile(file, /*whole=*/false);
      if (!used.ok()) return used.status();
      if (!*used) unused.push_back(&file);
    }
    if (absl::Status status = CheckAllHere(path); !status.ok()) {
      // A damaged header may have hidden them: then the file is to blame.
      for (const training::ManifestFile* file : unused) {
        if (auto read = ReadFile(*file, /*whole=*/true); !read.ok()) return read.status();
      }
      return status;
    }
    loaded->version = manifest_.step;
    loaded->snapshot = *std::move(snapshot);
    return absl::OkStatus();
  }

 private:
  absl::Status CheckManifest(const std::string& path) const {
    const auto differs = [&path](absl::string_view field, absl::string_view got,
                                 absl::string_view want) {
      return Corrupt(path, absl::StrCat("'", field, "' is ", got, ", want ", want));
    };
    if (manifest_.job_id != request_.job_id) {
      return differs("job_id", manifest_.job_id, request_.job_id);
    }
    const std::string digest = absl::BytesToHexString(request_.training_digest);
    if (manifest_.training_digest != digest) {
      return differs("training_digest", manifest_.training_digest, digest);
    }
    const std::string name = request_.folder.substr(request_.folder.rfind('/') + 1);
    const std::string own = absl::StrCat(manifest_.lineage, "-", manifest_.step);
    if (name != own) return differs("lineage and step", own, name);
    return absl::OkStatus();
  }

  absl::Status CheckAllHere(const std::string& path) const {
    const auto check = [&](const std::vector<bool>& here, absl::string_view name) {
      for (size_t i = 0; i < here.size(); ++i) {
        if (here[i]) continue;
        return Corrupt(path, absl::StrCat("no file of it holds ", name, ".",
                                          request_.run.first_chunk + static_cast<int32_t>(i)));
      }
      return absl::OkStatus();
    };
    const absl::Status status = check(weights_here_, "chunks");
    return status.ok() ? check(momentum_here_, "momentum") : status;
  }

  // Where the tensors of the file go that are wanted. DataLoss: one has another shape, or is here
  // already.
  absl::StatusOr<std::vector<Piece>> Plan(const std::string& path,
                                          const training::SafetensorsHeader& header) {
    const std::pair<absl::string_view, std::string> metadata[] = {
        {"job_id", manifest_.job_id},
        {"lineage", absl::StrCat(manifest_.lineage)},
        {"step", absl::StrCat(manifest_.step)}};
    for (const auto& [key, want] : metadata) {
      const auto found = header.metadata.find(std::string(key));
      if (found == header.metadata.end() || found->second != want) {
        return Corrupt(path, absl::StrCat("metadata '", key, "' is not ", want));
      }
    }
    std::vector<Piece> pieces;
    for (const training::SafetensorsTensor& tensor : header.tensors) {
      absl::string_view index = tensor.name;
      const bool state = !absl::ConsumePrefix(&index, "chunks.");
      if (state && !absl::ConsumePrefix(&index, "momentum.")) continue;
      std::vector<bool>& here = state ? momentum_here_ : weights_here_;
      int32_t chunk = 0;
      if (here.empty() || !absl::SimpleAtoi(index, &chunk) || chunk < request_.run.first_chunk ||
          chunk >= request_.run.end()) {
        continue;
      }
      const training::FlatRange range = request_.layout->ChunkRange(chunk);
      if (tensor.dtype != training::SafetensorsDtype::kF32 || tensor.shape.size() != 1 ||
          tensor.shape[0] != range.size) {
        return Corrupt(path,
                       absl::StrCat(tensor.name, " at offset ", header.data_start + tensor.begin,
                                    " is not F32 [", range.size, "]"));
      }
      const int32_t i = chunk - request_.run.first_chunk;
      if (here[i]) return Corrupt(path, absl::StrCat(tensor.name, " is in another file too"));
      here[i] = true;
      float* const to = (state ? momentum_ : weights_).data() + (range.offset - first_float_);
      pieces.push_back({header.data_start + tensor.begin, header.data_start + tensor.end,
                        reinterpret_cast<char*>(to)});
    }
    return pieces;
  }

  absl::StatusOr<training::SafetensorsHeader> ReadHeader(int fd, const std::string& path,
                                                         int64_t size) {
    std::string head(std::min<int64_t>(size, training::kSafetensorsPrefixBytes), '\0');
    absl::Status status = ReadAt(fd, path, 0, head.data(), static_cast<int64_t>(head.size()));
    if (!status.ok()) return status;
    const absl::StatusOr<int64_t> end = training::SafetensorsHeaderEnd(path, head, size);
    if (!end.ok()) return end.status();
    const int64_t limit =
        kHeaderBaseBytes + kHeaderBytesPerChunk * int64_t{request_.layout->chunk_count()};
    if (*end > limit) {
      return Corrupt(path, absl::StrCat("a header of ", *end, " bytes, limit ", limit));
    }
    head.resize(*end);
    status = ReadAt(fd, path, 0, head.data(), *end);
    if (!status.ok()) return status;
    return training::ParseSafetensorsHeader(path, head, size);
  }

  // Whether something of it was wanted; only then, or with `whole`, it is read to its end.
  absl::StatusOr<bool> ReadFile(const training::ManifestFile& file, bool whole) {
    const std::string path = absl::StrCat(request_.folder, "/", file.name);
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return services::ErrnoStatus(errno, "open", path);
    const auto close_file = absl::MakeCleanup([fd] { close(fd); });
    struct stat st;
    if (fstat(fd, &st) != 0) return services::ErrnoStatus(errno, "stat", path);
    if (!S_ISREG(st.st_mode)) return Corrupt(path, "no regular file");
    if (st.st_size != file.size_bytes) {
      return Corrupt(path, absl::StrCat("ends at offset ", st.st_size, ", the manifest says ",
                                        file.size_bytes, " bytes"));
    }
    std::vector<Piece> pieces;
    if (!whole) {
      absl::StatusOr<training::SafetensorsHeader> header = ReadHeader(fd, path, st.st_size);
      if (!header.ok()) return header.status();
      absl::StatusOr<std::vector<Piece>> plan = Plan(path, *header);
      if (!plan.ok()) return plan.status();
      pieces = *std::move(plan);
      if (pieces.empty()) return false;
    }
    training::Sha256 hash;
    std::string block;
    size_t next = 0;  // pieces lie in the order of the file
    for (int64_t at = 0; at < st.st_size; at += static_cast<int64_t>(block.size())) {
      block.resize(std::min(kBlockBytes, st.st_size - at));
      const int64_t end = at + static_cast<int64_t>(block.size());
      absl::Status status = ReadAt(fd, path, at, block.data(), end - at);
      if (!status.ok()) return status;
      hash.Update(block);
      while (next < pieces.size() && pieces[next].begin < end) {
        const Piece& piece = pieces[next];
        const int64_t from = std::max(piece.begin, at);
        const int64_t to = std::min(piece.end, end);
        std::memcpy(piece.to + (from - piece.begin), block.data() + (from - at), to - from);
        if (piece.end > end) break;  // goes on in the next block
        ++next;
      }
    }
    const auto digest = hash.Finish();
    const std::string hex = absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
    if (hex != file.sha256) {
      return Corrupt(path, absl::StrCat("sha256 is ", hex, ", the manifest says ", file.sha256));
    }
    return true;
  }

  static absl::Status ReadAt(int fd, const std::string& path, int64_t offset, char* out,
                             int64_t size) {
    while (size > 0) {
      const ssize_t n = pread(fd, out, size, offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        const absl::Status status = services::ErrnoStatus(errno, "read", path);
        return absl::Status(status.code(), absl::StrCat(status.message(), " at offset ", offset));
      }
      if (n == 0) return Corrupt(path, absl::StrCat("ends at offset ", offset));
      out += n;
      offset += n;
      size -= n;
    }
    return absl::OkStatus();
  }

  const CheckpointRequest& request_;
  const int64_t first_float_;
  const absl::Span<float> weights_, momentum_;
  std::vector<bool> weights_here_, momentum_here_;  // by chunk of the run
  training::Manifest manifest_;
};

}  // namespace

BaseWeightsError LoadCheckpoint(const CheckpointRequest& request, absl::Span<float> weights,
                                absl::Span<float> momentum, LoadedCheckpoint* loaded) {
  const int64_t size = training::RangeOf(*request.layout, request.run).size;
  CAPSTAN_CHECK(static_cast<int64_t>(weights.size()) == size);
  CAPSTAN_CHECK(!request.momentum || static_cast<int64_t>(momentum.size()) == size);
  return ErrorOf(Reader(request, weights, momentum).Read(loaded));
}

}  // namespace capstan::param_store
