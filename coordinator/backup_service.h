// BackupService on gRPC's callback API: a copy of the journal goes out while the coordinator works.
//
// The copy is taken on the strand, which alone may touch the journal, kPagesAtOnce at a time: between
// these commits go on. It is a file without a name by the time it is sent, and it is read on a thread
// of its own; so a caller who is slow holds up nothing, and what is left behind is gone with the call.
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
  static constexpr int kPagesAtOnce = 256;  // 1 MiB: a few milliseconds

  // Borrows both; the journal is used on the coordinator's strand alone.
  BackupServiceImpl(Coordinator& coordinator, SqliteJournal& journal)
      : coordinator_(coordinator), journal_(journal), calls_(coordinator, kMaxCalls) {}

  grpc::ServerWriteReactor<job::v1::BackupResponse>* Backup(
      grpc::CallbackServerContext* context, const job::v1::BackupRequest* request) override;

  // What FileCalls says.
  void Drain() { calls_.Drain(); }
  bool Stop(absl::Duration patience) { return calls_.Stop(patience); }

 private:
  friend class BackupCall;
  static constexpr size_t kMaxCalls = 4;  // that are sent; one is taken at a time

  Coordinator& coordinator_;
  SqliteJournal& journal_;
  std::unique_ptr<JournalCopy> copy_;  // the one that is taken; of the strand
  FileCalls calls_;                    // they use all of the above: last
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_BACKUP_SERVICE_H_
