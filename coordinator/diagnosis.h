// AdminService.Diagnose: examines the whole cluster once, for `capstan doctor`.
#ifndef CAPSTAN_COORDINATOR_DIAGNOSIS_H_
#define CAPSTAN_COORDINATOR_DIAGNOSIS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "capstan/job/v1/admin_service.pb.h"
#include "coordinator/coordinator.h"
#include "services/folders/folder_check.h"

namespace capstan::coordinator {

// Folders from the operator's flags, as absolute paths.
struct ClusterFolders {
  std::string state;                     // its own; jobs without a folder save below it
  std::vector<std::string> checkpoints;  // --checkpoint-root
  std::vector<std::string> data;         // --data-root
};

// Asks every connected node for its view, and answers when all have answered or after kTime. Does
// not ask nodes that left by themselves. Strand only. Lives until it has answered.
class Diagnosis final : public JobListener,
                        public DiagnosisListener,
                        public std::enable_shared_from_this<Diagnosis> {
 public:
  static constexpr absl::Duration kTime = absl::Seconds(3);
  static constexpr int64_t kBytesPerPeer = int64_t{8} << 20;

  using Done = std::function<void(const absl::Status&, const job::v1::DiagnoseResponse&)>;
  // ResourceExhausted: another diagnosis is in progress. Unavailable: the coordinator shuts down.
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
  std::map<core::SessionId, std::string> sessions_;  // names of the nodes that were asked
  services::FolderCheck own_folders_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_DIAGNOSIS_H_
