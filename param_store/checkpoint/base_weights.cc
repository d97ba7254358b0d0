#include "param_store/checkpoint/base_weights.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/check/check.h"
#include "services/files/files.h"
#include "training/codec/local_uri.h"
#include "training/codec/safetensors.h"

namespace capstan::param_store {
namespace {

absl::Status ReadAt(int fd, const std::string& path, int64_t offset, void* out, int64_t size) {
  char* to = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t n = pread(fd, to, size, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return services::ErrnoStatus(errno, "read", path);
    if (n == 0) return absl::DataLossError(absl::StrCat(path, ": ends early"));
    to += n;
    offset += n;
    size -= n;
  }
  return absl::OkStatus();
}

// Every tensor of the layout is in the file with its shape and as F32, and nothing else is.
absl::Status CheckTensors(const training::FlatLayout& layout, const std::string& path,
                          const training::SafetensorsHeader& header) {
  for (const training::TensorSlot& slot : layout.slots()) {
    const training::SafetensorsTensor* const tensor = header.Find(slot.spec.name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("initial_weights: ", path, " has no tensor ", slot.spec.name));
    }
    if (tensor->dtype != training::SafetensorsDtype::kF32 || tensor->shape != slot.spec.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          "initial_weights: ", path, ": ", slot.spec.name, " is ",
          training::SafetensorsDtypeName(tensor->dtype), " [", absl::StrJoin(tensor->shape, ", "),
          "], want F32 [", absl::StrJoin(slot.spec.shape, ", "), "]"));
    }
  }
  for (const training::SafetensorsTensor& tensor : header.tensors) {
    if (layout.Find(tensor.name) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("initial_weights: ", path, " has ",
                                                     tensor.name, ", which the model has not"));
    }
  }
  return absl::OkStatus();
}

BaseWeightsError Fill(const training::FlatLayout& layout, const std::string& path,
                      const training::FlatRange& range, absl::Span<float> out) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {"DataMissing", services::ErrnoStatus(errno, "open", path)};
  const auto close_file = absl::MakeCleanup([fd] { close(fd); });
  struct stat st;
  if (fstat(fd, &st) != 0) return {"DataMissing", services::ErrnoStatus(errno, "stat", path)};
  if (!S_ISREG(st.st_mode)) {
    return {"DataMissing", absl::InvalidArgumentError(absl::StrCat(path, ": no regular file"))};
  }

  std::string head(std::min<int64_t>(st.st_size, training::kSafetensorsPrefixBytes), '\0');
  absl::Status status = ReadAt(fd, path, 0, head.data(), static_cast<int64_t>(head.size()));
  if (!status.ok()) return {"DataMissing", status};
  const auto end = training::SafetensorsHeaderEnd(path, head, st.st_size);
  if (!end.ok()) return {"DataMissing", end.status()};
  head.resize(*end);
  status = ReadAt(fd, path, 0, head.data(), *end);
  if (!status.ok()) return {"DataMissing", status};
  const auto header = training::ParseSafetensorsHeader(path, head, st.st_size);
  if (!header.ok()) return {"DataMissing", header.status()};
  status = CheckTensors(layout, path, *header);
  if (!status.ok()) return {"InvalidSpec", status};

  std::fill(out.begin(), out.end(), 0.0f);  // what lies between tensors is padding
  for (const training::TensorSlot& slot : layout.slots()) {
    const int64_t from = std::max(slot.offset, range.offset);
    const int64_t to = std::min(slot.offset + slot.size, range.end());
    if (from >= to) continue;
    const int64_t at = header->data_start + header->Find(slot.spec.name)->begin +
                       (from - slot.offset) * static_cast<int64_t>(sizeof(float));
    status = ReadAt(fd, path, at, out.data() + (from - range.offset),
                    (to - from) * static_cast<int64_t>(sizeof(float)));
    if (!status.ok()) return {"DataMissing", status};
  }
  return {};
}

}  // namespace

BaseWeightsError FillBaseWeights(const training::FlatLayout& layout,
                                 const BaseWeightsOptions& options,
                                 const training::FlatRange& range, absl::Span<float> out) {
  CAPSTAN_CHECK(static_cast<int64_t>(out.size()) == range.size);
  if (options.initial_weights.empty()) {
    training::InitRange(layout, options.init, options.seed, range.offset, out);
    return {};
  }
  const absl::StatusOr<std::string> path = training::LocalPath(options.initial_weights);
  if (!path.ok()) {
    return {"InvalidSpec",
            absl::InvalidArgumentError(absl::StrCat("initial_weights ", path.status().message()))};
  }
  return Fill(layout, *path, range, out);
}

}  // namespace capstan::param_store
