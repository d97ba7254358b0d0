// Brings a data set of the catalog into a folder and checks it.
#ifndef CAPSTAN_CLIENT_DATA_GET_H_
#define CAPSTAN_CLIENT_DATA_GET_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/data/catalog.h"

namespace capstan::client {

struct DataSource {
  std::string base_url;       // http:// or https://host[:port]/path; the certificate must be right
  int timeout_seconds = 300;  // without a byte
};

// InvalidArgument: base_url is none.
absl::Status CheckDataSource(const DataSource& source);

// Files that are there with the right checksum are kept; others are downloaded to a temporary name,
// checked and then named. Of an archive the members stay, and not the archive. A file that is too
// long, too short or different is refused, and nothing of it stays. Plain http is enough: the
// checksums are in the program. `note` is told a line for each file. Makes the folder.
// Unavailable: the server, or its answer; DataLoss: other bytes than the catalog's.
absl::Status GetData(const data::CatalogEntry& entry, const DataSource& source,
                     const std::string& folder,
                     const std::function<void(absl::string_view line)>& note);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_DATA_GET_H_
