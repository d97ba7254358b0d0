// JobService.Diagnose: one look at the whole cluster for `capstan doctor`.
#ifndef CAPSTAN_COORDINATOR_DIAGNOSIS_H_
#define CAPSTAN_COORDINATOR_DIAGNOSIS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"
#include "coordinator/coordinator.h"
#include "services/folders/folder_check.h"

namespace capstan::coordinator {

// What the operator gave the coordinator; absolute paths.
struct ClusterFolders {
  std::string state;                     // its own; jobs that name no folder save beneath it
  std::vector<std::string> checkpoints;  // --checkpoint-root
  std::vector<std::string> data;         // --data-root
};

// Asks every node that is connected what it sees, and answers when all have, or after kTime. A node
// that left by itself is not looked for. Of the strand alone; lives until it has answered.
class Diagnosis final : public JobListener,
                        public DiagnosisListener,
                        public std::enable_shared_from_this<Diagnosis> {
 public:
  static constexpr absl::Duration kTime = absl::Seconds(3);
  static constexpr int64_t kBytesPerPeer = int64_t{8} << 20;

  using Done = std::function<void(const absl::Status&, const job::v1::DiagnoseResponse&)>;
  // ResourceExhausted: another one is under way; Unavailable: the coordinator shuts down.
  static void Begin(Coordinator& coordinator, const ClusterFolders& folders, Done done);

  void OnResult(core::SessionId session, const node::v1::DiagnosisResult& result) override;
  void OnShutdown() override;

 private:
  struct Asked {
    job::v1::NodeDiagnosis diagnosis;
    absl::Time sent_at;  // wall clock of the coordinator
    bool waiting = false;
  };

  Diagnosis(Coordinator& coordinator, const ClusterFolders& folders, Done done);
  void AskAll(const ClusterFolders& folders);
  void FinishWhenComplete();
  void Finish(const absl::Status& status);

  Coordinator& coordinator_;
  Done done_;  // null: it was called
  const absl::Duration deadline_;
  const absl::Time asked_at_;
  const int64_t id_;
  std::map<std::string, Asked> nodes_;
  std::map<core::SessionId, std::string> sessions_;  // names of those that were asked
  services::FolderCheck own_folders_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_DIAGNOSIS_H_
