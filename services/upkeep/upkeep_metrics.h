// Conditions that an operator must watch: room in the folders of a service, and the expiry of its
// certificates and tokens. Families of docs/metrics.md, updated for each scrape.
#ifndef CAPSTAN_SERVICES_UPKEEP_UPKEEP_METRICS_H_
#define CAPSTAN_SERVICES_UPKEEP_UPKEEP_METRICS_H_

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "services/endpoint/endpoint.h"
#include "services/folders/folder_check.h"
#include "services/metrics/registry.h"
#include "services/security/file_look.h"
#include "services/sync/mutex.h"

namespace capstan::services {

// Borrows the registry. Thread-safe.
class UpkeepMetrics {
 public:
  // How long a scrape waits for folders whose disk does not answer.
  static constexpr absl::Duration kPatience = absl::Milliseconds(200);

  // `folders`: path and use of each (FolderFor). `security`: its certificate and authority, if it
  // has them, and its tokens.json.
  UpkeepMetrics(MetricsRegistry& registry, FolderReports folders, const Security& security);
  ~UpkeepMetrics();
  UpkeepMetrics(const UpkeepMetrics&) = delete;
  UpkeepMetrics& operator=(const UpkeepMetrics&) = delete;

  // Looks at folders and files. A folder or file that cannot be read has no series, because an old
  // value would hide the problem.
  void Refresh();
  // For the route /metrics: calls Refresh, then scrapes.
  std::function<std::string()> Scraper();

 private:
  struct Papers;  // when certificates and tokens expire, as last read

  MetricsRegistry& registry_;
  const FolderReports folders_;
  const GaugeFamily free_;
  const GaugeFamily size_;
  const GaugeFamily certificates_;
  const GaugeFamily tokens_;
  const std::shared_ptr<Papers> papers_;  // shared with a look that hangs
  FileLook look_;
  // Held around a series and its use, because another scrape may end it.
  Mutex mu_;
  std::set<prometheus::Labels> token_series_ ABSL_GUARDED_BY(mu_);
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_UPKEEP_UPKEEP_METRICS_H_
