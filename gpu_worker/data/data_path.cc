#include "gpu_worker/data/data_path.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gpu_worker/data/failure.h"

namespace capstan::data {
namespace {

// A FIFO would make open wait for a writer; what is no regular file is refused after opening.
constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

// "s3" of "s3://bucket/x"; empty for a path.
absl::string_view Scheme(absl::string_view uri) {
  const size_t colon = uri.find("://");
  if (colon == absl::string_view::npos) return "";
  const absl::string_view scheme = uri.substr(0, colon);
  for (const char c : scheme) {
    if (!absl::ascii_isalnum(c) && c != '+' && c != '-' && c != '.') return "";
  }
  return scheme;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = absl::ascii_tolower(c);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

bool Unescape(absl::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return false;
    const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return false;
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return true;
}

// The path in its root, or "" where it is not lexically inside.
std::string Below(absl::string_view path, absl::string_view root) {
  while (root.size() > 1 && absl::EndsWith(root, "/")) root.remove_suffix(1);
  if (root != "/") {
    if (!absl::ConsumePrefix(&path, root) || (!path.empty() && path[0] != '/')) return "";
  }
  while (absl::ConsumePrefix(&path, "/")) {
  }
  return std::string(path);
}

absl::Status Escapes(absl::string_view path) {
  return InvalidSpec(absl::StrCat(path, ": dataset path escapes the data root"));
}

// A descriptor, or -1 with errno; EXDEV where the path leaves the root.
int OpenBeneath(const std::string& root, const std::string& below) {
  const int folder = ::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return -1;
  open_how how;
  std::memset(&how, 0, sizeof(how));
  how.flags = kOpenFlags;
  how.resolve = RESOLVE_BENEATH;
  // EAGAIN: something was renamed meanwhile and the kernel could not tell; it asks to be called
  // again.
  int file = -1;
  for (int attempt = 0; attempt < 16; ++attempt) {
    file = static_cast<int>(::syscall(SYS_openat2, folder, below.c_str(), &how, sizeof(how)));
    if (file >= 0 || errno != EAGAIN) break;
  }
  const int error = errno;
  ::close(folder);
  errno = error;
  return file;
}

// Opens an absolute or relative path within the rules of the header. NotFound is for the caller.
absl::StatusOr<int> OpenPath(const std::string& path, const std::vector<std::string>& roots) {
  int file = -1;
  if (roots.empty()) {
    file = ::open(path.c_str(), kOpenFlags);
  } else {
    for (const absl::string_view part : absl::StrSplit(path, '/')) {
      if (part == "..") return Escapes(path);
    }
    bool inside = false;
    for (const std::string& root : roots) {
      const std::string below = Below(path, root);
      if (below.empty()) continue;
      inside = true;
      file = OpenBeneath(root, below);
      if (file >= 0) break;
      if (errno == EXDEV) return Escapes(path);
    }
    if (!inside) return Escapes(path);
  }
  if (file >= 0) return file;
  const int error = errno;
  absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
  if (error == ENOENT || error == ENOTDIR) code = absl::StatusCode::kNotFound;
  if (error == EACCES || error == EPERM) code = absl::StatusCode::kPermissionDenied;
  return DataMissing(code, absl::StrCat(path, ": ", strerror(error)));
}

}  // namespace

absl::StatusOr<std::string> ParseDataUri(absl::string_view uri) {
  const absl::string_view scheme = Scheme(uri);
  std::string path;
  if (scheme.empty()) {
    path = std::string(uri);
  } else if (scheme == "file") {
    absl::string_view rest = absl::StripPrefix(uri, "file://");
    absl::ConsumePrefix(&rest, "localhost");
    if (!absl::StartsWith(rest, "/")) {
      return InvalidSpec(absl::StrCat(uri, ": a file URI has three slashes, or names localhost"));
    }
    if (!Unescape(rest, path)) {
      return InvalidSpec(absl::StrCat(uri, ": '%' without two hexadecimal digits"));
    }
  } else {
    return InvalidSpec(absl::StrCat(uri, ": scheme '", scheme, "' is not supported, want file://"));
  }
  if (path.empty()) return InvalidSpec("data.uri is empty, want a folder or a file:// URI");
  if (path.find('\0') != std::string::npos) return InvalidSpec("data.uri holds a zero byte");
  return path;
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenDataFile(const std::string& folder,
                                                         absl::string_view name,
                                                         const std::vector<std::string>& roots) {
  const std::string path = absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
  absl::StatusOr<int> plain = OpenPath(path, roots);
  if (plain.ok()) return FileSource(path, *plain);
  if (!absl::IsNotFound(plain.status())) return plain.status();

  const std::string packed_path = path + ".gz";
  absl::StatusOr<int> packed = OpenPath(packed_path, roots);
  if (absl::IsNotFound(packed.status())) {
    return DataMissing(absl::StatusCode::kNotFound,
                       absl::StrCat(path, ": no such file, nor with .gz"));
  }
  if (!packed.ok()) return packed.status();
  absl::StatusOr<std::unique_ptr<ByteSource>> source = FileSource(packed_path, *packed);
  if (!source.ok()) return source.status();
  return GzipSource(*std::move(source));
}

}  // namespace capstan::data
