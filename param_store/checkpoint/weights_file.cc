#include "param_store/checkpoint/weights_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "param_store/checkpoint/checkpoint_reader.h"
#include "services/files/files.h"
#include "training/codec/safetensors.h"
#include "training/codec/sha256.h"

namespace capstan::param_store {
namespace {

constexpr int64_t kHashBlockBytes = int64_t{1} << 20;
constexpr int64_t kFloatBytes = sizeof(float);

// A file written at any offset, under a temporary name. Removed unless it is committed.
class PlacedFile {
 public:
  static absl::StatusOr<std::unique_ptr<PlacedFile>> Create(const std::string& path) {
    std::unique_ptr<PlacedFile> file(
        new PlacedFile(path, absl::StrCat(path, ".", ::getpid(), ".tmp")));
    (void)::unlink(file->temporary_.c_str());  // of a process with the same number that died
    file->fd_ = ::open(file->temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file->fd_ < 0) return services::ErrnoStatus(errno, "create", file->temporary_);
    return file;
  }
  ~PlacedFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    (void)::unlink(temporary_.c_str());
  }
  absl::Status WriteAt(int64_t at, absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), at);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return services::ErrnoStatus(errno, "write", temporary_);
      bytes.remove_prefix(static_cast<size_t>(written));
      at += written;
    }
    return absl::OkStatus();
  }
  // Hashes the bytes from `at` to the file's end.
  absl::StatusOr<std::string> Hash(int64_t at) {
    std::string block(kHashBlockBytes, '\0');
    training::Sha256 sha;
    for (;;) {
      const ssize_t got = ::pread(fd_, block.data(), block.size(), at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return services::ErrnoStatus(errno, "read", temporary_);
      if (got == 0) return sha.FinishHex();
      sha.Update(block.data(), static_cast<size_t>(got));
      at += got;
    }
  }
  absl::Status Commit() {
    if (::fsync(fd_) != 0) return services::ErrnoStatus(errno, "fsync", temporary_);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      return services::ErrnoStatus(errno, "rename", path_);
    }
    ::close(fd_);
    fd_ = -1;
    const size_t slash = path_.rfind('/');
    return services::SyncDir(slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path_.substr(0, slash));
  }

 private:
  PlacedFile(std::string path, std::string temporary)
      : path_(std::move(path)), temporary_(std::move(temporary)) {}

  const std::string path_, temporary_;
  int fd_ = -1;
};

// The places of the tensors in the flat vector and in the file.
class TensorPlaces {
 public:
  // `at`: offset of the first tensor in the file.
  TensorPlaces(const training::FlatLayout& layout, int64_t at) : layout_(layout), begin_(at) {
    for (const training::TensorSlot* slot : layout.forward_order()) {
      in_file_[slot->offset] = at;
      at += slot->size * kFloatBytes;
    }
    end_ = at;
  }
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }

  // Writes bytes of the flat vector that begin at `from`, without the padding.
  absl::Status Write(int64_t from, absl::string_view bytes, PlacedFile& file) const {
    const int64_t to = from + static_cast<int64_t>(bytes.size());
    const std::vector<training::TensorSlot>& slots = layout_.slots();
    auto slot = std::upper_bound(
        slots.begin(), slots.end(), from,
        [](int64_t at, const training::TensorSlot& s) { return at < s.offset * kFloatBytes; });
    if (slot != slots.begin()) --slot;
    for (; slot != slots.end() && slot->offset * kFloatBytes < to; ++slot) {
      const int64_t begin = slot->offset * kFloatBytes;
      const int64_t first = std::max(begin, from);
      const int64_t last = std::min(begin + slot->size * kFloatBytes, to);
      if (first >= last) continue;
      const absl::string_view part =
          bytes.substr(static_cast<size_t>(first - from), static_cast<size_t>(last - first));
      const int64_t place = in_file_.at(slot->offset) + (first - begin);
      if (absl::Status status = file.WriteAt(place, part); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  const training::FlatLayout& layout_;
  const int64_t begin_;
  std::map<int64_t, int64_t> in_file_;  // by offset of the slot
  int64_t end_ = 0;
};

}  // namespace

absl::StatusOr<std::string> WeightsFileHeader(const training::FlatLayout& layout,
                                              const WeightsFileId& id) {
  std::vector<training::SafetensorsTensor> tensors;
  for (const training::TensorSlot* slot : layout.forward_order()) {
    training::SafetensorsTensor tensor;
    tensor.name = slot->spec.name;
    tensor.shape = slot->spec.shape;
    tensors.push_back(std::move(tensor));
  }
  return training::EncodeSafetensorsHeader(
      tensors, {{"job_id", id.job_id},
                {"lineage", absl::StrCat(id.lineage)},
                {"step", absl::StrCat(id.step)},
                {"digest", id.spec_digest_hex},
                {"format", "pt"}});  // as PyTorch's own writer marks row-major tensors
}

BaseWeightsError ExportWeights(const ExportRequest& request, const std::string& path,
                               ExportedWeights* exported) {
  const auto failed = [](const absl::Status& status) {
    return BaseWeightsError{"OutputFailed", status};
  };
  const training::FlatLayout& layout = *request.layout;
  // Begun with the first bytes. By then the manifest is read, from which the header is made.
  std::unique_ptr<PlacedFile> file;
  std::unique_ptr<TensorPlaces> places;
  training::Manifest manifest;
  absl::Status own;  // an error of the file being written
  const auto begin = [&] {
    const auto header = WeightsFileHeader(
        layout, {manifest.job_id, manifest.lineage, manifest.step, manifest.spec_digest});
    if (!header.ok()) return header.status();
    auto created = PlacedFile::Create(path);
    if (!created.ok()) return created.status();
    file = *std::move(created);
    places = std::make_unique<TensorPlaces>(layout, static_cast<int64_t>(header->size()));
    return file->WriteAt(0, *header);
  };
  CheckpointPass pass;
  pass.folder = request.folder;
  pass.job_id = request.job_id;
  pass.training_digest = request.training_digest;
  pass.layout = &layout;
  pass.run = {0, layout.chunk_count()};
  pass.open = request.open;
  pass.take = [&](CheckpointPart, int64_t at, absl::string_view bytes) {
    if (file == nullptr) own = begin();
    if (own.ok()) own = places->Write(at, bytes, *file);
    return own;
  };
  const BaseWeightsError error = ReadCheckpoint(pass, &manifest);
  if (!own.ok()) return failed(own);
  if (!error.reason.empty()) return error;
  const absl::StatusOr<std::string> hash = file->Hash(places->begin());
  if (!hash.ok()) return failed(hash.status());
  if (!manifest.weights_sha256.empty() && *hash != manifest.weights_sha256) {
    return {"CheckpointCorrupt",
            absl::DataLossError(absl::StrCat(request.folder, ": weights_sha256 is ", *hash,
                                             ", the manifest says ", manifest.weights_sha256))};
  }
  if (absl::Status status = file->Commit(); !status.ok()) return failed(status);
  exported->size_bytes = places->end();
  exported->step = manifest.step;
  exported->weights_sha256 = *hash;
  return {};
}

}  // namespace capstan::param_store
