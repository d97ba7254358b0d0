// `capstan data get`: downloads a data set whose files and checksums are known.
#include <httplib.h>

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands.h"
#include "gpu_worker/data/catalog.h"
#include "services/files/files.h"

namespace capstan::client {
namespace {

struct Url {
  std::string origin;  // http://host:port
  std::string path;    // ends in a slash
};

absl::StatusOr<Url> ParseUrl(absl::string_view text) {
  if (!absl::StartsWith(text, "http://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--url must begin with http://, found '", text, "'"));
  }
  const size_t slash = text.find('/', 7);
  Url url{std::string(text.substr(0, slash)),
          slash == absl::string_view::npos ? "/" : std::string(text.substr(slash))};
  if (url.path.back() != '/') url.path += '/';
  return url;
}

// Downloads one file to its temporary name and checks it before it gets its own.
absl::Status Download(httplib::Client& http, const Url& url, const data::CatalogFile& file,
                      const std::string& folder) {
  const std::string name(file.name);
  const std::string partial = name + ".part";
  services::AtomicWriteOptions write;
  absl::StatusOr<std::unique_ptr<services::AtomicFile>> out =
      services::AtomicFile::Create(absl::StrCat(folder, "/", partial), write);
  if (!out.ok()) return out.status();
  absl::Status status;
  const auto result = http.Get((url.path + name).c_str(), [&](const char* bytes, size_t size) {
    // More than the file has: stop here, whatever the server goes on to send.
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
  if (!result)
    return absl::UnavailableError(absl::StrCat(from, ": ", httplib::to_string(result.error())));
  if (result->status != 200)
    return absl::UnavailableError(absl::StrCat(from, ": HTTP status ", result->status));
  if (status = (*out)->Commit(); !status.ok()) return status;

  // The checksum is compared under the temporary name, so the real one never names a wrong file.
  data::CatalogFile downloaded = file;
  downloaded.name = partial;
  status = data::VerifyFile(folder, downloaded);
  const std::string partial_path = absl::StrCat(folder, "/", partial);
  if (!status.ok()) {
    (void)std::remove(partial_path.c_str());
    return status;
  }
  const std::string path = absl::StrCat(folder, "/", name);
  if (std::rename(partial_path.c_str(), path.c_str()) != 0)
    return services::ErrnoStatus(errno, "rename", path);
  return services::SyncDir(folder);
}

struct DataGetOptions {
  std::string name;
  std::string folder;    // default: data/<name> below the working directory
  std::string base_url;  // http://host[:port]/path; default: the data set's own
  int timeout_seconds = 300;
};

// Files that are there with the right checksum are kept; others are downloaded to a temporary name,
// checked and then named. A file that is too long, too short or different is refused, and nothing
// of it stays. Plain http is enough: the checksums are in the program.
ExitCode DataGet(const DataGetOptions& options, const Console& console) {
  const data::CatalogEntry* entry = data::FindInCatalog(options.name);
  if (entry == nullptr) {
    std::vector<absl::string_view> names;
    for (const data::CatalogEntry& known : data::Catalog()) names.push_back(known.name);
    console.Err(absl::StrCat("capstan: no data set '", options.name,
                             "'; there are: ", absl::StrJoin(names, ", "), "\n"));
    return kExitUsage;
  }
  const std::string folder =
      options.folder.empty() ? absl::StrCat("data/", options.name) : options.folder;
  const absl::StatusOr<Url> url =
      ParseUrl(options.base_url.empty() ? entry->base_url : options.base_url);
  if (!url.ok()) {
    console.Err(absl::StrCat("capstan: ", url.status().message(), "\n"));
    return kExitUsage;
  }
  if (absl::Status status = services::EnsureDir(folder); !status.ok()) {
    console.Err(absl::StrCat("capstan: ", status.message(), "\n"));
    return kExitInternal;
  }
  httplib::Client http(url->origin.c_str());
  http.set_connection_timeout(10);
  http.set_read_timeout(options.timeout_seconds);
  http.set_follow_location(false);  // the checksums are known, another host is not needed
  for (const data::CatalogFile& file : entry->files) {
    if (data::VerifyFile(folder, file).ok()) {
      console.Note(absl::StrCat(folder, "/", file.name, ": there already\n"));
      continue;
    }
    console.Note(absl::StrCat(folder, "/", file.name, ": ", file.size_bytes, " bytes from ",
                              url->origin, "\n"));
    if (absl::Status status = Download(http, *url, file, folder); !status.ok()) {
      console.Err(absl::StrCat("capstan: ", status.message(), "\n"));
      return absl::IsUnavailable(status) ? kExitUnreachable : kExitInternal;
    }
  }
  console.Out(folder + "\n");
  return kExitDone;
}

}  // namespace

void AddData(Command parent, Action& slot) {
  const auto options = std::make_shared<DataGetOptions>();
  Command data = parent.Sub("data", "data sets");
  data.NeedsSub();
  Command get = data.Sub("get", "download a data set and check it");
  get.Add("NAME", options->name, "fashion-mnist").Required();
  get.Add("--out", options->folder, "folder for the files (default: ./data/NAME)");
  get.Add("--url", options->base_url, "another place that has the same files")
      .OrVariable("CAPSTAN_DATA_URL");
  get.Add("--timeout", options->timeout_seconds, "seconds for each file, default 300")
      .Between(1, 86400);
  CarryOut(get, slot, {Output::kTable},
           [options](const Context& context) { return DataGet(*options, context.console); });
}

}  // namespace capstan::client
