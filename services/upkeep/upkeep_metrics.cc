#include "services/upkeep/upkeep_metrics.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "services/files/files.h"
#include "services/security/certificates.h"
#include "services/security/role.h"
#include "services/security/secret_file.h"
#include "services/security/tokens.h"

namespace capstan::services {
namespace {

std::string UseName(job::v1::FolderUse use) {
  switch (use) {
    case job::v1::FOLDER_USE_STATE:
      return "state";
    case job::v1::FOLDER_USE_CHECKPOINTS:
      return "checkpoints";
    default:
      return "data";
  }
}

// Empty if there is no such file, or if no certificate can be read from it.
std::vector<absl::Time> EndsIn(const std::string& path) {
  if (path.empty()) return {};
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxSecretBytes);
  if (!text.ok()) return {};
  return EndsOf(*text).value_or(std::vector<absl::Time>());
}

double UnixTime(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

}  // namespace

struct UpkeepMetrics::Papers {
  explicit Papers(Security files) : security(std::move(files)) {}
  void Read();

  const Security security;
  Mutex mu;
  // By the label `certificate`. A certificate without a file, or with an unreadable file, has no
  // entry.
  std::map<std::string, absl::Time> certificates ABSL_GUARDED_BY(mu);
  std::map<prometheus::Labels, absl::Time> tokens ABSL_GUARDED_BY(mu);
};

void UpkeepMetrics::Papers::Read() {
  std::map<std::string, absl::Time> ends;
  if (!security.insecure) {
    // The first certificate is the service's own; a chain follows. One authority is enough, because
    // two overlap during a change.
    const std::vector<absl::Time> own = EndsIn(security.tls_cert);
    if (!own.empty()) ends["own"] = own.front();
    const std::vector<absl::Time> authorities = EndsIn(security.tls_ca);
    if (!authorities.empty()) {
      ends["authority"] = *std::max_element(authorities.begin(), authorities.end());
    }
  }
  std::map<prometheus::Labels, absl::Time> newest;
  if (!security.tokens.empty()) {
    const absl::StatusOr<std::string> text = ReadSecretFile(security.tokens);
    const auto entries = text.ok() ? ParseTokens(security.tokens, *text) : text.status();
    for (const TokenEntry& entry : entries.value_or(std::vector<TokenEntry>())) {
      // Only nodes: people notice an expiry themselves. A cluster has as many node names as
      // certificates.
      const Role role = entry.identity.role;
      if (role != Role::kWorker && role != Role::kParamStore) continue;
      absl::Time& end =
          newest
              .try_emplace({{"role", std::string(RoleName(role))}, {"name", entry.identity.name}},
                           absl::InfinitePast())
              .first->second;
      end = std::max(end, entry.expires);
    }
  }
  MutexLock lock(mu);
  certificates.swap(ends);
  tokens.swap(newest);
}

UpkeepMetrics::UpkeepMetrics(MetricsRegistry& registry, FolderReports folders,
                             const Security& security)
    : registry_(registry),
      folders_(std::move(folders)),
      free_(registry.Gauge("capstan_folder_free_bytes",
                           "Room for this service on the file system of the folder.",
                           {"folder", "use"})),
      size_(registry.Gauge("capstan_folder_size_bytes", "Size of the file system of the folder.",
                           {"folder", "use"})),
      certificates_(registry.Gauge(
          "capstan_certificate_expiry_timestamp_seconds",
          "Unix time at which the certificate of this service, or the last of its authorities, "
          "ends.",
          {"certificate"})),
      tokens_(registry.Gauge(
          "capstan_token_expiry_timestamp_seconds",
          "Unix time at which the newest token of a worker or parameter store in tokens.json ends.",
          {"role", "name"})),
      papers_(std::make_shared<Papers>(security)),
      look_([kept = papers_] { kept->Read(); }) {}

UpkeepMetrics::~UpkeepMetrics() = default;

void UpkeepMetrics::Refresh() {
  const FolderCheck check(folders_);
  (void)look_.Refresh();  // false: the values of the last look are still used
  const FolderReports reports = check.Wait(kPatience);
  std::map<std::string, absl::Time> ends;
  std::map<prometheus::Labels, absl::Time> tokens;
  {
    MutexLock lock(papers_->mu);
    ends = papers_->certificates;
    tokens = papers_->tokens;
  }
  MutexLock lock(mu_);
  for (const job::v1::FolderReport& report : reports) {
    const prometheus::Labels labels = {{"folder", report.path()}, {"use", UseName(report.use())}};
    if (report.total_bytes() > 0) {
      free_.With(labels).Set(static_cast<double>(report.free_bytes()));
      size_.With(labels).Set(static_cast<double>(report.total_bytes()));
    } else {
      free_.Drop(labels);
      size_.Drop(labels);
    }
  }
  for (const char* name : {"own", "authority"}) {
    const auto end = ends.find(name);
    if (end == ends.end()) {
      certificates_.Drop({{"certificate", name}});
    } else {
      certificates_.With({{"certificate", name}}).Set(UnixTime(end->second));
    }
  }
  for (const prometheus::Labels& labels : token_series_) {
    if (tokens.count(labels) == 0) tokens_.Drop(labels);
  }
  token_series_.clear();
  for (const auto& [labels, end] : tokens) {
    tokens_.With(labels).Set(UnixTime(end));
    token_series_.insert(labels);
  }
}

std::function<std::string()> UpkeepMetrics::Scraper() {
  return [this] {
    Refresh();
    return registry_.Scrape();
  };
}

}  // namespace capstan::services
