#include "client/certs.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "services/files/files.h"
#include "services/security/certificates.h"
#include "services/security/secret_file.h"
#include "services/security/tokens.h"

namespace capstan::client {
namespace {

using services::ErrnoStatus;
using services::Identity;
using services::KeyPair;
using services::Role;
using services::TokenEntry;

constexpr char kCertificateHead[] = "-----BEGIN CERTIFICATE-----";

std::string In(const std::string& folder, absl::string_view name) {
  return absl::StrCat(folder, "/", name);
}

absl::Status MakeFolder(const std::string& folder, std::optional<uid_t> uid) {
  struct stat info;
  if (stat(folder.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return absl::OkStatus();  // keeps the owner's mode
    return absl::FailedPreconditionError(absl::StrCat(folder, ": is not a folder"));
  }
  if (absl::Status status = services::EnsureDir(folder, 0700); !status.ok()) return status;
  if (uid.has_value() && chown(folder.c_str(), *uid, static_cast<gid_t>(-1)) != 0) {
    return ErrnoStatus(errno, "chown", folder);
  }
  return absl::OkStatus();
}

struct NewFile {
  std::string path;
  std::string bytes;
  mode_t mode;
};

absl::Status CheckNoneIsThere(const std::vector<NewFile>& files) {
  for (const NewFile& file : files) {
    struct stat info;
    if (lstat(file.path.c_str(), &info) == 0) {
      return absl::AlreadyExistsError(
          absl::StrCat(file.path, ": exists already; --force replaces it"));
    }
  }
  return absl::OkStatus();
}

absl::Status Write(const std::vector<NewFile>& files, bool force, std::optional<uid_t> uid) {
  for (const NewFile& file : files) {
    absl::Status status =
        services::WriteFileAtomically(file.path, file.bytes, {.replace = force, .mode = file.mode});
    if (!status.ok()) return status;
    // Set the mode again, because the umask may have narrowed it. Public files must be readable by
    // all.
    if (chmod(file.path.c_str(), file.mode) != 0) return ErrnoStatus(errno, "chmod", file.path);
    if (uid.has_value() && chown(file.path.c_str(), *uid, static_cast<gid_t>(-1)) != 0) {
      return ErrnoStatus(errno, "chown", file.path);
    }
  }
  return absl::OkStatus();
}

// Holds the lock of an authority's folder during one call. The lock is on the folder, because its
// files are replaced when they change.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder) {
    const std::string tokens_path = In(folder, "tokens.json");
    struct stat info;
    if (stat(tokens_path.c_str(), &info) != 0) {
      status_ = absl::NotFoundError(absl::StrCat(
          tokens_path, ": does not exist; `capstan certs init ", folder, "` makes an authority"));
      return;
    }
    fd_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd_ < 0) {
      status_ = ErrnoStatus(errno, "open", folder);
    } else if (flock(fd_, LOCK_EX) != 0) {
      status_ = ErrnoStatus(errno, "flock", folder);
    }
  }
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // NotFound: there is no authority. Other errors are the system's.
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
  int fd_ = -1;
};

// The first host in lower case, if it is a valid name, else the role.
std::string DefaultName(const CertsIssueOptions& options) {
  if (!options.hosts.empty()) {
    const std::string name = absl::AsciiStrToLower(options.hosts[0]);
    if (services::CheckIdentityName(name).ok()) return name;
  }
  return std::string(services::RoleName(options.role));
}

}  // namespace

absl::Status InitCerts(const CertsInitOptions& options, absl::Time now) {
  const absl::StatusOr<KeyPair> authority =
      services::MakeAuthority("Capstan cluster", now, options.days * absl::Hours(24));
  if (!authority.ok()) return authority.status();
  const std::vector<NewFile> files = {
      {In(options.folder, "ca.key"), authority->key, 0600},
      {In(options.folder, "ca.crt"), authority->certificate, 0644},
      {In(options.folder, "tokens.json"), services::FormatTokens({}), 0600}};
  if (absl::Status status = MakeFolder(options.folder, std::nullopt); !status.ok()) return status;
  if (!options.force) {
    if (absl::Status status = CheckNoneIsThere(files); !status.ok()) return status;
  }
  return Write(files, options.force, std::nullopt);
}

absl::Status RotateCerts(const CertsRotateOptions& options, absl::Time now) {
  const FolderLock lock(options.folder);
  if (!lock.status().ok()) return lock.status();
  const std::string certificate_path = In(options.folder, "ca.crt");
  const absl::StatusOr<std::string> old =
      services::ReadWholeFile(certificate_path, services::kMaxSecretBytes);
  if (!old.ok()) return old.status();
  const absl::StatusOr<std::vector<absl::Time>> ends = services::EndsOf(*old);
  if (!ends.ok()) return ends.status();
  if (options.finish) {
    if (ends->size() < 2) {
      return absl::FailedPreconditionError(
          absl::StrCat(certificate_path, ": holds one authority; `capstan certs rotate ",
                       options.folder, "` begins a rotation"));
    }
    const size_t second = old->find(kCertificateHead, old->find(kCertificateHead) + 1);
    return Write({{certificate_path, old->substr(0, second), 0644}}, /*force=*/true, std::nullopt);
  }
  if (ends->size() > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        certificate_path, ": holds ", ends->size(), " authorities; `capstan certs rotate ",
        options.folder, " --finish` ends the rotation before"));
  }
  const absl::StatusOr<KeyPair> fresh =
      services::MakeAuthority("Capstan cluster", now, options.days * absl::Hours(24));
  if (!fresh.ok()) return fresh.status();
  // The key first: if the second write fails, calling again makes both anew.
  return Write({{In(options.folder, "ca.key"), fresh->key, 0600},
                {certificate_path, absl::StrCat(fresh->certificate, *old), 0644}},
               /*force=*/true, std::nullopt);
}

absl::StatusOr<Identity> IssueCerts(const CertsIssueOptions& options, absl::Time now) {
  const std::string& from = options.authority.empty() ? options.out : options.authority;
  const bool is_server = options.role != Role::kClient && options.role != Role::kAdmin;
  if (is_server && options.hosts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--host: a ", services::RoleName(options.role),
                     " needs the names and addresses by which others reach it"));
  }
  const Identity identity = {options.role,
                             options.name.empty() ? DefaultName(options) : options.name};
  const FolderLock lock(from);
  if (!lock.status().ok()) return lock.status();
  const std::string tokens_path = In(from, "tokens.json");
  const absl::StatusOr<std::string> tokens_text = services::ReadSecretFile(tokens_path);
  if (!tokens_text.ok()) return tokens_text.status();
  absl::StatusOr<std::vector<TokenEntry>> tokens = services::ParseTokens(tokens_path, *tokens_text);
  if (!tokens.ok()) return tokens.status();
  const absl::StatusOr<std::string> key = services::ReadSecretFile(In(from, "ca.key"));
  if (!key.ok()) return key.status();
  const absl::StatusOr<std::string> certificate =
      services::ReadWholeFile(In(from, "ca.crt"), services::kMaxSecretBytes);
  if (!certificate.ok()) return certificate.status();
  const absl::Duration lifetime = options.days * absl::Hours(24);
  const absl::StatusOr<KeyPair> leaf = services::IssueCertificate(
      {*certificate, *key},
      {.identity = identity, .hosts = options.hosts, .now = now, .lifetime = lifetime});
  if (!leaf.ok()) return leaf.status();

  const std::string stem = In(options.out, services::RoleName(options.role));
  const std::string token = services::MakeToken();
  const std::vector<NewFile> files = {{stem + ".key", leaf->key, 0600},
                                      {stem + ".crt", leaf->certificate, 0644},
                                      {stem + ".token", token + "\n", 0600}};
  if (absl::Status status = MakeFolder(options.out, options.uid); !status.ok()) return status;
  if (!options.force) {
    if (absl::Status status = CheckNoneIsThere(files); !status.ok()) return status;
  }
  std::string withdrawn;
  if (const auto old = services::ReadSecretFile(stem + ".token"); old.ok()) {
    withdrawn = services::HashToken(absl::StripAsciiWhitespace(*old));
  }
  if (options.overlap_days > 0) {
    for (TokenEntry& entry : *tokens) {
      if (entry.sha256 != withdrawn) continue;
      entry.expires = std::min(entry.expires, now + options.overlap_days * absl::Hours(24));
    }
    withdrawn.clear();
  }
  tokens->erase(std::remove_if(tokens->begin(), tokens->end(),
                               [&](const TokenEntry& entry) {
                                 return entry.expires <= now || entry.sha256 == withdrawn;
                               }),
                tokens->end());
  tokens->push_back({services::HashToken(token), identity, now + lifetime});
  // Write the table first. A token without files harms nobody; files without a known token are
  // useless.
  absl::Status status = Write({{tokens_path, services::FormatTokens(*tokens), 0600}},
                              /*force=*/true, std::nullopt);
  if (!status.ok()) return status;
  if (status = Write(files, options.force, options.uid); !status.ok()) return status;
  const std::string root = In(options.out, "ca.crt");
  struct stat info;
  if (stat(root.c_str(), &info) != 0 || options.force) {
    status = Write({{root, *certificate, 0644}}, /*force=*/true,
                   from == options.out ? std::nullopt : options.uid);
    if (!status.ok()) return status;
  }
  return identity;
}

}  // namespace capstan::client
