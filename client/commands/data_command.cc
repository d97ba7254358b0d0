// `capstan data get`: downloads a data set of the catalog, which has the checksums.
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/commands.h"
#include "client/data_get.h"
#include "gpu_worker/data/catalog.h"

namespace capstan::client {
namespace {

struct DataGetOptions {
  std::string name;
  std::string folder;  // default: data/<name> below the working directory
  DataSource source;   // default: the data set's own
};

ExitCode DataGet(const DataGetOptions& options, const Context& context) {
  const Console& console = context.console;
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
  DataSource source = options.source;
  if (source.base_url.empty()) source.base_url = std::string(entry->base_url);
  if (context.connect.timeout.has_value()) {
    const auto timeout = ReadDuration("--timeout", *context.connect.timeout);
    if (!timeout.ok()) return Report(timeout.status(), console);
    if (*timeout < absl::Seconds(1) || *timeout > absl::Hours(24)) {
      console.Err(absl::StrCat("capstan: --timeout: got ", *context.connect.timeout,
                               ", want 1s to 24h without a byte\n"));
      return kExitUsage;
    }
    source.timeout_seconds = static_cast<int>(absl::ToInt64Seconds(*timeout));
  }
  if (absl::Status status = CheckDataSource(source); !status.ok()) {
    console.Err(absl::StrCat("capstan: ", status.message(), "\n"));
    return kExitUsage;
  }
  const absl::Status status = GetData(*entry, source, folder, [&console](absl::string_view line) {
    console.Note(std::string(line));
  });
  if (!status.ok()) {
    console.Err(absl::StrCat("capstan: ", status.message(), "\n"));
    return absl::IsUnavailable(status) ? kExitUnreachable : kExitInternal;
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
  get.Add("NAME", options->name, "fashion-mnist, mnist, cifar10 or tinyshakespeare").Required();
  get.Add("--out", options->folder, "folder for the files (default: ./data/NAME)");
  get.Add("--url", options->source.base_url, "another place with the same files")
      .OrVariable("CAPSTAN_DATA_URL");
  CarryOut(get, slot, {Output::kTable},
           [options](const Context& context) { return DataGet(*options, context); },
           {.coordinator = false});
}

}  // namespace capstan::client
