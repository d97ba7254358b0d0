#include "client/data_get.h"

#include <httplib.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/data/archive.h"
#include "services/files/files.h"

namespace capstan::client {
namespace {

struct Url {
  std::string origin;  // http://host:port
  std::string path;    // ends in a slash
};

absl::StatusOr<Url> ParseUrl(absl::string_view text) {
  if (!absl::StartsWith(text, "http://") && !absl::StartsWith(text, "https://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--url must begin with http:// or https://, found '", text, "'"));
  }
  const size_t slash = text.find('/', text.find("//") + 2);
  Url url{std::string(text.substr(0, slash)),
          slash == absl::string_view::npos ? "/" : std::string(text.substr(slash))};
  if (url.path.back() != '/') url.path += '/';
  return url;
}

// Tells the person what to do if the host does not answer at all.
absl::Status NoConnection(const Url& url, const data::CatalogEntry& entry,
                          const std::string& folder) {
  constexpr absl::string_view kWords[] = {"no",   "one", "two",   "three", "four",
                                          "five", "six", "seven", "eight", "nine"};
  const size_t count = entry.members.empty() ? entry.files.size() : entry.members.size();
  return absl::UnavailableError(absl::StrCat(
      "cannot connect to ", url.origin.substr(url.origin.find("//") + 2),
      "; try --url, or copy the ", count < 10 ? std::string(kWords[count]) : absl::StrCat(count),
      count == 1 ? " file" : " files", " to ", folder));
}

// Downloads one file to `<folder>/<partial>`. On an error no such file is left.
absl::Status Download(httplib::Client& http, const Url& url, const data::CatalogEntry& entry,
                      const data::CatalogFile& file, const std::string& folder,
                      const std::string& partial) {
  const std::string name(file.name);
  services::AtomicWriteOptions write;
  absl::StatusOr<std::unique_ptr<services::AtomicFile>> out =
      services::AtomicFile::Create(absl::StrCat(folder, "/", partial), write);
  if (!out.ok()) return out.status();
  absl::Status status;
  const auto result = http.Get((url.path + name).c_str(), [&](const char* bytes, size_t size) {
    // The answer is longer than the file: stop here, whatever else the server sends.
    if ((*out)->size_bytes() + static_cast<int64_t>(size) > file.size_bytes) {
      status = absl::DataLossError(
          absl::StrCat(name, ": more than the ", file.size_bytes, " bytes it should have"));
      return false;
    }
    status = (*out)->Append({bytes, size});
    return status.ok();
  });
  const std::string from = absl::StrCat(url.origin, url.path, name);
  if (!status.ok()) return status;
  if (result.error() == httplib::Error::Connection ||
      result.error() == httplib::Error::ConnectionTimeout) {
    return NoConnection(url, entry, folder);
  }
  if (!result)
    return absl::UnavailableError(absl::StrCat(from, ": ", httplib::to_string(result.error())));
  if (result->status != 200)
    return absl::UnavailableError(absl::StrCat(from, ": HTTP status ", result->status));
  if (status = (*out)->Commit(); !status.ok()) return status;

  // Verify under the temporary name, so that the real name never shows a wrong file.
  data::CatalogFile downloaded = file;
  downloaded.name = partial;
  status = data::VerifyFile(folder, downloaded);
  if (!status.ok()) (void)std::remove(absl::StrCat(folder, "/", partial).c_str());
  return status;
}

absl::Status GetArchive(httplib::Client& http, const Url& url, const data::CatalogEntry& entry,
                        const std::string& folder,
                        const std::function<void(absl::string_view line)>& note) {
  if (data::VerifyMembers(folder, entry).ok()) {
    note(absl::StrCat(folder, ": exists already\n"));
    return absl::OkStatus();
  }
  const data::CatalogFile& file = entry.files[0];
  const std::string partial = absl::StrCat(file.name, ".part");
  note(absl::StrCat(folder, "/", file.name, ": ", file.size_bytes, " bytes from ", url.origin,
                    "\n"));
  absl::Status status = Download(http, url, entry, file, folder, partial);
  if (!status.ok()) return status;
  const std::string path = absl::StrCat(folder, "/", partial);
  const absl::Cleanup remove = [&path] { (void)std::remove(path.c_str()); };
  note(absl::StrCat(folder, ": unpacking ", entry.members.size(), " files\n"));
  return data::UnpackMembers(path, entry, folder);
}

}  // namespace

absl::Status CheckDataSource(const DataSource& source) {
  return ParseUrl(source.base_url).status();
}

absl::Status GetData(const data::CatalogEntry& entry, const DataSource& source,
                     const std::string& folder,
                     const std::function<void(absl::string_view line)>& note) {
  const absl::StatusOr<Url> url = ParseUrl(source.base_url);
  if (!url.ok()) return url.status();
  if (absl::Status status = services::EnsureDir(folder); !status.ok()) return status;
  httplib::Client http(url->origin.c_str());
  http.set_connection_timeout(10);
  http.set_read_timeout(source.timeout_seconds);
  http.set_follow_location(false);  // the checksums are known, so no other host is needed
  http.set_decompress(false);       // a server may report the file's own packing as its encoding
  if (!entry.members.empty()) return GetArchive(http, *url, entry, folder, note);
  for (const data::CatalogFile& file : entry.files) {
    if (data::VerifyFile(folder, file).ok()) {
      note(absl::StrCat(folder, "/", file.name, ": exists already\n"));
      continue;
    }
    note(absl::StrCat(folder, "/", file.name, ": ", file.size_bytes, " bytes from ", url->origin,
                      "\n"));
    const std::string partial = absl::StrCat(file.name, ".part");
    if (absl::Status status = Download(http, *url, entry, file, folder, partial); !status.ok()) {
      return status;
    }
    const std::string path = absl::StrCat(folder, "/", file.name);
    if (std::rename(absl::StrCat(folder, "/", partial).c_str(), path.c_str()) != 0)
      return services::ErrnoStatus(errno, "rename", path);
    if (absl::Status status = services::SyncDir(folder); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace capstan::client
