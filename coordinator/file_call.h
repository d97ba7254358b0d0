// The common part of calls that work on disks, which are those of FileService, CheckpointService
// and BackupService, and JobService.VerifyCheckpoint. A call ends at once if its caller leaves or
// the coordinator shuts down, even while its disk hangs. What the disk returns later is dropped.
//
// At each moment a call has one of these turns:
//   ours    no read or write of gRPC is in progress: it waits for the strand, a disk, or its end
//   peers   a read or write is in progress, which ends with the call; then the turn is ours again
//   header  like peers, for the first read of an upload, which has a deadline
//   over    its status is given; nothing more may be started
// The turn changes by one atomic exchange, so only one thread gives the status.
//
// FileCalls owns a call until gRPC is done with it. Work on a disk, and a timer, may own it longer.
// So the destructor may run on any thread; it lets a thread of the disk close or remove files.
#ifndef CAPSTAN_COORDINATOR_FILE_CALL_H_
#define CAPSTAN_COORDINATOR_FILE_CALL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/coordinator.h"
#include "coordinator/file_threads.h"
#include "grpcpp/grpcpp.h"
#include "services/sync/mutex.h"

namespace capstan::coordinator {

class FileCalls;

// Thread-safe, except where a method says otherwise.
class FileCall : public std::enable_shared_from_this<FileCall> {
 public:
  FileCall(FileCalls& calls, grpc::CallbackServerContext* context)
      : calls_(calls), context_(context) {}
  virtual ~FileCall();
  FileCall(const FileCall&) = delete;
  FileCall& operator=(const FileCall&) = delete;

  // Starts the call. FileCalls calls it once.
  virtual void Begin() = 0;
  // True once the status is given.
  bool over() const { return turn_ == Turn::kOver; }
  // From ours or header to over. The one caller that gets true must call GiveStatus.
  bool TakeOver();
  virtual void GiveStatus(const grpc::Status& status) = 0;

 protected:
  friend class FileCalls;
  enum class Turn { kOurs, kPeers, kHeader, kOver };

  // Gives the status, unless the call is over or the turn is the peer's.
  void End(const absl::Status& status);
  // From ours to peers (or header), before a read or write is started. False: the call is over.
  bool GiveAway(Turn to = Turn::kPeers);
  // From peers or header to ours, after the read or write. False: the call is over, or the caller
  // has left, so there is nothing more to do.
  bool TakeBack();
  // No header has arrived: ends the call with `status`.
  void EndHeader(const absl::Status& status);

  // Call it on the strand, once, before OnDisk. Limits the number of calls of one kind on `folder`,
  // which is a job's folder or the root of a disk. False: there are too many, and this call is
  // ended. `in_order`: work of all these calls runs one after the other, on one thread; a call ends
  // if FileThreads::kMaxWaiting pieces wait already.
  bool Admit(const char* kind, const std::string& folder, bool in_order = false);
  // Call it on the strand, after Admit and before OnDisk. From then on the call ends with
  // UNAVAILABLE and the folder's name if a piece of work neither calls Answered nor starts another
  // by OnDisk within FileCalls::kPatience.
  void WantAnswers();
  // Call it before a read or write of gRPC is started.
  void Answered() { asked_at_ns_ = kNotAsked; }
  // Runs `work` on a thread of the folder, unless the call is over by then. Only at our turn, so
  // one piece at a time.
  void OnDisk(std::function<void()> work);
  // Calls FileCalls::Take. It lasts until the call is gone and its file is closed.
  bool Take(const std::string& path);
  // Drops `file` on a thread of the folder when the call is gone. Only at our turn, after Admit.
  void Hold(std::shared_ptr<void> file) { held_ = std::move(file); }

  void OnCallCancelled();
  void OnCallDone();

  FileCalls& calls_;
  grpc::CallbackServerContext* const context_;  // valid until OnCallDone

 private:
  static constexpr int64_t kNotAsked = -1;

  // Strand only: checks at `when` whether the disk has answered, and repeats until the call is
  // over.
  void WatchDisk(absl::Duration when);

  int64_t id_ = 0;  // FileCalls sets it
  std::atomic<Turn> turn_{Turn::kOurs};
  std::atomic<bool> cancelled_{false};
  std::atomic<int64_t> asked_at_ns_{kNotAsked};  // start of the present piece of work
  std::string folder_, key_;                     // empty: not admitted
  bool in_order_ = false;
  std::string taken_;  // a path that FileCalls reserves for this call
  std::shared_ptr<void> held_;
};

template <typename Reactor>
class FileCallOn : public FileCall, public Reactor {
 public:
  using FileCall::FileCall;
  void GiveStatus(const grpc::Status& status) final { this->Finish(status); }
  void OnCancel() final { OnCallCancelled(); }
  void OnDone() final { OnCallDone(); }
};

// The calls of one service and their threads and files. For each kind of call, a hung disk blocks
// at most kThreads threads (in order: one) and `max_calls` calls, and the callers of these get an
// answer all the same. Thread-safe.
class FileCalls {
 public:
  static constexpr size_t kThreads = 8;
  // For each answer of a disk. Less than our callers' timeout, so they learn which folder it is.
  static constexpr absl::Duration kPatience = absl::Seconds(4);

  // Borrows the coordinator. `max_calls`: of one kind on one folder. Calls count until the disk has
  // answered, even if their caller has left.
  FileCalls(Coordinator& coordinator, size_t max_calls);

  // Keeps the call until gRPC is done with it, and starts it.
  template <typename Call>
  Call* Enter(std::shared_ptr<Call> call) ABSL_LOCKS_EXCLUDED(mu_) {
    Begin(call);
    return call.get();
  }
  // Ends all present and later calls, so that their callers try again elsewhere. Waits for no disk.
  void Drain() ABSL_LOCKS_EXCLUDED(mu_);
  // Call it after the last call has ended. See FileThreads::Stop.
  bool Stop(absl::Duration patience);

 private:
  friend class FileCall;

  void Begin(const std::shared_ptr<FileCall>& call) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(int64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // False: the key has max_calls calls.
  bool Admit(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Lets one call at a time write the file `path`, until the file is closed. If another call writes
  // it, cancels that call, so that the next try succeeds, and returns false.
  bool Take(const std::string& path, int64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // After the end of a call: drops `held` on a thread of the disk, then releases its place and its
  // path.
  void LetGo(const std::string& key, bool in_order, std::shared_ptr<void> held,
             const std::string& taken);
  void GiveBack(const std::string& key, const std::string& taken) ABSL_LOCKS_EXCLUDED(mu_);

  Coordinator& coordinator_;
  const size_t max_calls_;

  Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  int64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, std::shared_ptr<FileCall>> calls_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, size_t> admitted_ ABSL_GUARDED_BY(mu_);  // by key
  std::map<std::string, int64_t> taken_ ABSL_GUARDED_BY(mu_);    // calls by path

  FileThreads& Threads(bool in_order) { return in_order ? in_order_ : disks_; }

  // Keys are "<kind>/<folder>". Last, because both use all of the above.
  FileThreads disks_;
  FileThreads in_order_;  // one after the other
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_FILE_CALL_H_
