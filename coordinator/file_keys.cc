#include "coordinator/file_keys.h"

#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/files/files.h"
#include "services/logging/log.h"
#include "training/codec/sha256.h"

namespace capstan::coordinator {
namespace {

constexpr size_t kSecretBytes = 32;
constexpr int64_t kMaxSecretFileBytes = 4096;
constexpr size_t kSignatureBytes = 32;
constexpr size_t kHmacBlockBytes = 64;  // of SHA-256

std::string Sha256Of(absl::string_view first, absl::string_view second) {
  training::Sha256 sha;
  sha.Update(first);
  sha.Update(second);
  const auto digest = sha.Finish();
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

// RFC 2104. `key` is at most one block long.
std::string HmacSha256(absl::string_view key, absl::string_view message) {
  std::string inner(kHmacBlockBytes, '\x36'), outer(kHmacBlockBytes, '\x5c');
  for (size_t i = 0; i < key.size(); ++i) {
    inner[i] = static_cast<char>(inner[i] ^ key[i]);
    outer[i] = static_cast<char>(outer[i] ^ key[i]);
  }
  return Sha256Of(outer, Sha256Of(inner, message));
}

// Takes the same time wherever they differ.
bool SameBytes(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

absl::Status Unusable(const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrCat("the secret for the files of jobs, in --state-dir: ", status.message()));
}

}  // namespace

absl::StatusOr<FileKeys> FileKeys::Open(const std::string& state_dir) {
  const std::string path = absl::StrCat(state_dir, "/files.key");
  // The folder is 0700. The file's mode is not checked, because volumes of containers change it.
  absl::StatusOr<std::string> secret = services::ReadWholeFile(path, kMaxSecretFileBytes);
  if (secret.ok() && secret->size() == kSecretBytes) return FileKeys(*std::move(secret));
  if (!secret.ok() && !absl::IsNotFound(secret.status())) return Unusable(secret.status());
  if (secret.ok()) {
    services::Log(services::kWarning, "files_key_replaced")
        .Kv("path", path)
        .Kv("bytes", static_cast<int64_t>(secret->size()));
  }
  std::random_device device;  // the kernel's random numbers
  std::string fresh;
  while (fresh.size() < kSecretBytes) fresh.push_back(static_cast<char>(device()));
  FileKeys keys(std::move(fresh));
  keys.unsaved_path_ = path;
  const absl::Status status = keys.Save();
  if (status.ok()) {
    keys.unsaved_path_.clear();
  } else if (!absl::IsResourceExhausted(status)) {
    return Unusable(status);
  } else {
    services::Log(services::kWarning, "files_key_not_durable")
        .Kv("status", status)
        .Kv("meaning", "a restart before there is room invalidates the keys of running processes");
  }
  return keys;
}

absl::Status FileKeys::Save() const {
  return services::WriteFileAtomically(unsaved_path_, secret_,
                                       {.replace = true, .mode = 0600, .sync = true});
}

std::string FileKeys::Sign(absl::string_view job_id, absl::string_view holder) const {
  return HmacSha256(secret_, absl::StrCat("files/", job_id, "/", holder));
}

std::string FileKeys::Make(absl::string_view job_id, const core::FileHolder& holder) const {
  const std::string text =
      absl::StrCat(holder.shard ? "shard" : "task", "/", holder.index, "/", holder.incarnation);
  return absl::StrCat(Sign(job_id, text), text);
}

absl::StatusOr<core::FileHolder> FileKeys::Check(absl::string_view job_id,
                                                 absl::string_view key) const {
  const auto no = absl::UnauthenticatedError("the key is not of this job");
  if (key.size() <= kSignatureBytes) return no;
  const absl::string_view text = key.substr(kSignatureBytes);
  if (!SameBytes(key.substr(0, kSignatureBytes), Sign(job_id, text))) return no;
  const std::vector<absl::string_view> words = absl::StrSplit(text, '/');
  core::FileHolder holder;
  if (words.size() != 3 || !absl::SimpleAtoi(words[1], &holder.index) ||
      !absl::SimpleAtoi(words[2], &holder.incarnation)) {
    return no;
  }
  holder.shard = words[0] == "shard";
  return holder;
}

}  // namespace capstan::coordinator
