#include "tests/sim/sim_files.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "training/codec/sha256.h"

namespace capstan::sim {
namespace {

class StringFile final : public param_store::InputFile {
 public:
  explicit StringFile(std::string bytes) : bytes_(std::move(bytes)) {}

  int64_t size_bytes() const override { return static_cast<int64_t>(bytes_.size()); }
  absl::Status ReadAt(int64_t offset, char* out, int64_t size_bytes) override {
    if (offset < 0 || size_bytes < 0 || offset + size_bytes > this->size_bytes())
      return absl::DataLossError("the file ends before that");
    std::memcpy(out, bytes_.data() + offset, static_cast<size_t>(size_bytes));
    return absl::OkStatus();
  }

 private:
  const std::string bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<param_store::InputFile>> SimFiles::OpenCheckpointFile(
    const std::string& folder, const std::string& name) {
  auto bytes = disk_.Read(absl::StrCat(folder, "/", name));
  if (!bytes.ok()) return bytes.status();
  return std::make_unique<StringFile>(*std::move(bytes));
}

absl::StatusOr<std::unique_ptr<param_store::InputFile>> SimFiles::OpenInitialWeights(
    const std::string& path, const std::string&) {
  return absl::NotFoundError(path);
}

absl::StatusOr<common::v1::FileInfo> SimFiles::Write(const std::string& folder,
                                                     const std::string& name,
                                                     absl::Span<const absl::string_view> parts) {
  std::string bytes;
  training::Sha256 sha256;
  for (const absl::string_view part : parts) {
    bytes.append(part.data(), part.size());
    sha256.Update(part);
  }
  const auto digest = sha256.Finish();
  common::v1::FileInfo info;
  info.set_name(name);
  info.set_size_bytes(static_cast<int64_t>(bytes.size()));
  info.set_sha256(digest.data(), digest.size());
  const std::string temporary = absl::StrCat(folder, "/.", name, ".", host_, ".t", ++temporaries_);
  absl::Status status = disk_.Write(host_, temporary, std::move(bytes));
  if (status.ok()) status = disk_.Sync(temporary);
  if (status.ok()) status = disk_.Rename(host_, temporary, absl::StrCat(folder, "/", name));
  if (!status.ok()) {
    disk_.Remove(temporary);
    return status;
  }
  disk_.SyncFolder(folder);
  return info;
}

}  // namespace capstan::sim
