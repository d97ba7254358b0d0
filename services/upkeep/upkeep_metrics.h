// What an operator has to see to in time: room in the folders of a service, and when its
// certificates and tokens end. Families of docs/metrics.md, read anew for each scrape.
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

  // `folders`: path and use of each (FolderFor). `security`: its certificate and authority where it
  // has them, and its tokens.json.
  UpkeepMetrics(MetricsRegistry& registry, FolderReports folders, const Security& security);
  ~UpkeepMetrics();
  UpkeepMetrics(const UpkeepMetrics&) = delete;
  UpkeepMetrics& operator=(const UpkeepMetrics&) = delete;

  // Looks at folders and files. What cannot be read has no series: an old figure would say that all
  // is well.
  void Refresh();
  // For the route /metrics: looks, then scrapes.
  std::function<std::string()> Scraper();

 private:
  struct Papers;  // when certificates and tokens end, as last read

  MetricsRegistry& registry_;
  const FolderReports folders_;
  const GaugeFamily free_;
  const GaugeFamily size_;
  const GaugeFamily certificates_;
  const GaugeFamily tokens_;
  const std::shared_ptr<Papers> papers_;  // and that of a look which hangs
  FileLook look_;
  // Around a series and its use: another scrape may end it.
  Mutex mu_;
  std::set<prometheus::Labels> token_series_ ABSL_GUARDED_BY(mu_);
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_UPKEEP_UPKEEP_METRICS_H_
