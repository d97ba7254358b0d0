// The data sets that `capstan data get` knows: where they come from, and how to verify them.
//
// Threads: immutable data; VerifyFile reads a file.
#ifndef CAPSTAN_GPU_WORKER_DATA_CATALOG_H_
#define CAPSTAN_GPU_WORKER_DATA_CATALOG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace capstan::data {

struct CatalogFile {
  absl::string_view name;  // below base_url, and in the folder
  int64_t size_bytes;
  absl::string_view md5;     // as the authors publish it
  absl::string_view sha256;  // what VerifyFile compares
};

// A file inside an archive.
struct CatalogMember {
  absl::string_view name;  // in the archive below `archive_folder`, and in the folder
  int64_t size_bytes;
};

struct CatalogEntry {
  absl::string_view name;         // "fashion-mnist"
  absl::string_view description;  // one line
  absl::string_view license;
  absl::string_view base_url;  // ends in a slash
  absl::Span<const CatalogFile> files;
  // If there are any, `files` is one tar.gz that contains them, and only they are kept (archive.h).
  absl::string_view archive_folder = "";
  absl::Span<const CatalogMember> members = {};
};

absl::Span<const CatalogEntry> Catalog();

// nullptr if there is no such data set.
const CatalogEntry* FindInCatalog(absl::string_view name);

// Compares `<folder>/<file.name>` with its size and SHA-256. NotFound, PermissionDenied,
// FailedPrecondition: absent or unreadable; DataLoss: another size or hash, with both in the
// message. All carry the reason DataMissing (failure.h).
absl::Status VerifyFile(const std::string& folder, const CatalogFile& file);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_CATALOG_H_
