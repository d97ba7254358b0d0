// A node's part of `capstan doctor`: which shards it reaches and how fast, its folders, its devices.
//
// Each shard gets a connection of its own, as a task would open one, and Measure calls over it: one
// that says whether it is there (1.5 s), some empty ones for the round trip, then payloads for at
// most 200 ms and `bytes_per_peer` (at most 8 MiB), one shard after the other. Jobs go on meanwhile.
#ifndef CAPSTAN_PARAM_STORE_DIAGNOSER_DIAGNOSER_H_
#define CAPSTAN_PARAM_STORE_DIAGNOSER_DIAGNOSER_H_

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "capstan/node/v1/node.pb.h"
#include "services/endpoint/endpoint.h"
#include "services/folders/folder_check.h"
#include "services/sync/mutex.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace capstan::param_store {

struct DiagnoserOptions {
  services::Security security;      // towards shards
  services::FolderReports folders;  // path and use: those of this node beside those of the order
  // Devices that cannot be used. Optional. Called on the diagnoser's thread.
  std::function<std::vector<job::v1::DeviceReport>()> devices;
  // Takes the DiagnosisResult. Called on the diagnoser's thread.
  std::function<void(node::v1::ConnectRequest)> answer;
};

// Thread-safe.
class Diagnoser {
 public:
  explicit Diagnoser(DiagnoserOptions options) : options_(std::move(options)) {}
  ~Diagnoser();  // Stop
  Diagnoser(const Diagnoser&) = delete;
  Diagnoser& operator=(const Diagnoser&) = delete;

  // Begins to look, on a thread of its own; `answer` is called once, within the order's time. Does
  // nothing while another order is being carried out.
  void Start(const node::v1::Diagnose& order) ABSL_LOCKS_EXCLUDED(mu_);
  // Breaks off what is under way and waits for it; nothing is answered afterwards. Repeatable.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Way;  // to one shard

  void Run(const node::v1::Diagnose& order, absl::Time asked_at) ABSL_LOCKS_EXCLUDED(mu_);
  void ReachAll(std::vector<std::unique_ptr<Way>>& ways, absl::Duration limit)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Measure(Way& way, absl::Duration budget, absl::Duration until, int64_t max_bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  // One call with a payload; false: it did not go through. `took`: how long it was.
  bool Call(Way& way, int64_t payload_bytes, absl::Duration until, absl::Duration* took)
      ABSL_LOCKS_EXCLUDED(mu_);

  const DiagnoserOptions options_;
  std::unique_ptr<services::FolderCheck> folders_;  // the last; of the thread alone

  Mutex mu_;
  CondVar changed_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);  // under way
  std::thread thread_;  // of Start while it is not busy, then of Stop
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_DIAGNOSER_DIAGNOSER_H_
