// BackupService on gRPC's callback API. It sends a copy of the journal while the coordinator works.
//
// The copy is made on the strand, because only the strand may touch the journal. Each piece has
// kPagesAtOnce pages, and commits continue between the pieces. The finished copy is a file without
// a name, and a separate thread reads it. So a slow caller delays nobody, and the file vanishes
// with the call.
//
// Thread-safe.
#ifndef CAPSTAN_COORDINATOR_BACKUP_SERVICE_H_
#define CAPSTAN_COORDINATOR_BACKUP_SERVICE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "capstan/job/v1/backup_service.grpc.pb.h"
#include "coordinator/coordinator.h"
#include "coordinator/file_call.h"
#include "coordinator/journal/journal_copy.h"
#include "coordinator/journal/sqlite_journal.h"

namespace capstan::coordinator {

class BackupServiceImpl final : public job::v1::BackupService::CallbackService {
 public:
  static constexpr int kPagesAtOnce = 256;  // 1 MiB, a few milliseconds

  // Borrows both. The journal is used only on the coordinator's strand.
  BackupServiceImpl(Coordinator& coordinator, SqliteJournal& journal)
      : coordinator_(coordinator), journal_(journal), calls_(coordinator, kMaxCalls) {}

  grpc::ServerWriteReactor<job::v1::BackupResponse>* Backup(
      grpc::CallbackServerContext* context, const job::v1::BackupRequest* request) override;

  // See FileCalls.
  void Drain() { calls_.Drain(); }
  bool Stop(absl::Duration patience) { return calls_.Stop(patience); }

 private:
  friend class BackupCall;
  static constexpr size_t kMaxCalls = 4;  // calls that send; one copy is made at a time

  Coordinator& coordinator_;
  SqliteJournal& journal_;
  std::unique_ptr<JournalCopy> copy_;  // the copy being made; strand only
  FileCalls calls_;                    // last: the calls use all of the above
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_BACKUP_SERVICE_H_
