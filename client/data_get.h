// Downloads a data set of the catalog into a folder and verifies it.
#ifndef CAPSTAN_CLIENT_DATA_GET_H_
#define CAPSTAN_CLIENT_DATA_GET_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/data/catalog.h"

namespace capstan::client {

struct DataSource {
  std::string base_url;       // http:// or https://host[:port]/path; a TLS certificate must verify
  int timeout_seconds = 300;  // without receiving a byte
};

// InvalidArgument: base_url is not a valid URL.
absl::Status CheckDataSource(const DataSource& source);

// Keeps files that exist with the right checksum. Downloads the others under a temporary name,
// verifies them and renames them. An archive's members are kept, the archive itself is not. A file
// that is too long, too short or different is refused and removed. Plain http is enough, because
// the checksums are compiled into the program. `note` is called with a line for each file. Makes
// the folder. Unavailable: the server does not answer, or with an error. DataLoss: the bytes differ
// from the catalog's.
absl::Status GetData(const data::CatalogEntry& entry, const DataSource& source,
                     const std::string& folder,
                     const std::function<void(absl::string_view line)>& note);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_DATA_GET_H_
