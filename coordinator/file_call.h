// What the calls have in common that work on disks, those of FileService and CheckpointService, and
// JobService.VerifyCheckpoint: whose turn it is. So a call ends at once when its caller leaves or
// the coordinator shuts down, also while the disk that it works on hangs; what the disk says later
// is dropped.
//
// A call is at each moment
//   ours    no read or write of gRPC is under way: it waits for the strand, a disk, or its end
//   peers   a read or write is under way, which ends with the call; then the turn is ours again
//   header  the same, for the first read of an upload, which has a deadline
//   over    its status is given; nothing more may be begun
// A turn changes by one atomic exchange, so whoever gives the status is the only one.
//
// FileCalls owns a call until gRPC is done with it; a piece of work on a disk, and a timer that
// runs, do so longer. So the destructor may run on any thread, and leaves to a thread of the disk
// what has to be closed or removed there.
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

// Thread-safe where nothing else is said.
class FileCall : public std::enable_shared_from_this<FileCall> {
 public:
  FileCall(FileCalls& calls, grpc::CallbackServerContext* context)
      : calls_(calls), context_(context) {}
  virtual ~FileCall();
  FileCall(const FileCall&) = delete;
  FileCall& operator=(const FileCall&) = delete;

  // It begins; once, by FileCalls.
  virtual void Begin() = 0;
  // Its status is given.
  bool over() const { return turn_ == Turn::kOver; }
  // Ours or header to over: whoever gets true calls GiveStatus.
  bool TakeOver();
  virtual void GiveStatus(const grpc::Status& status) = 0;

 protected:
  friend class FileCalls;
  enum class Turn { kOurs, kPeers, kHeader, kOver };

  // Gives the status, unless the call is over or the turn is the peer's.
  void End(const absl::Status& status);
  // Ours to peers (or header). False: it is over. Before a read or write is begun.
  bool GiveAway(Turn to = Turn::kPeers);
  // Peers or header to ours, after it. False: it is over, or the caller has left: nothing is to be
  // done any more.
  bool TakeBack();
  // The header has not come: over with `status`.
  void EndHeader(const absl::Status& status);

  // On the strand, once, before OnDisk: one of the calls of this kind that work on `folder` at once;
  // that may be the folder of a job, or the root of a disk. False: there are too many, and the call is
  // ended with that. `in_order`: pieces of work of all these calls come one after the other, on one
  // thread; more than FileThreads::kMaxWaiting that wait end their calls.
  bool Admit(const char* kind, const std::string& folder, bool in_order = false);
  // On the strand, after Admit and before OnDisk: from now on the call ends with UNAVAILABLE and the
  // folder's name where a piece of work has neither said Answered nor begun another one by OnDisk
  // within FileCalls::kPatience.
  void WantAnswers();
  // Before a read or write of gRPC is begun.
  void Answered() { asked_at_ns_ = kNotAsked; }
  // Runs `work` on a thread of the folder, unless the call is over by then. At a turn of ours; so one
  // at a time.
  void OnDisk(std::function<void()> work);
  // FileCalls::Take, until the call is gone and what it held is closed.
  bool Take(const std::string& path);
  // Is dropped on a thread of the folder when the call is gone. At a turn of ours, after Admit.
  void Hold(std::shared_ptr<void> file) { held_ = std::move(file); }

  void OnCallCancelled();
  void OnCallDone();

  FileCalls& calls_;
  grpc::CallbackServerContext* const context_;  // until OnCallDone

 private:
  static constexpr int64_t kNotAsked = -1;

  // On the strand: looks at `when` whether the disk has answered, and so on until the call is over.
  void WatchDisk(absl::Duration when);

  int64_t id_ = 0;  // FileCalls sets it
  std::atomic<Turn> turn_{Turn::kOurs};
  std::atomic<bool> cancelled_{false};
  std::atomic<int64_t> asked_at_ns_{kNotAsked};  // when the piece of work under way was begun
  std::string folder_, key_;                     // empty: not admitted
  bool in_order_ = false;
  std::string taken_;  // a path that FileCalls keeps for this call
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

// The calls of one service, and what they have of disks. A disk that hangs keeps of each kind of
// call kThreads threads (in order: one) and `max_calls` calls, which are over for their callers.
// Thread-safe.
class FileCalls {
 public:
  static constexpr size_t kThreads = 8;
  // With a disk, for each answer. Less than our callers have, who so hear which folder it is.
  static constexpr absl::Duration kPatience = absl::Seconds(4);

  // Borrows the coordinator. `max_calls`: of one kind on one folder at once, those among them whose
  // caller has left and whose disk has not answered.
  FileCalls(Coordinator& coordinator, size_t max_calls);

  // Keeps the call until gRPC is done with it, and begins it.
  template <typename Call>
  Call* Enter(std::shared_ptr<Call> call) ABSL_LOCKS_EXCLUDED(mu_) {
    Begin(call);
    return call.get();
  }
  // Ends all calls under way, and those that come: they are to be tried again elsewhere. Waits for no
  // disk.
  void Drain() ABSL_LOCKS_EXCLUDED(mu_);
  // Once the last call has ended. What FileThreads::Stop says.
  bool Stop(absl::Duration patience);

 private:
  friend class FileCall;

  void Begin(const std::shared_ptr<FileCall>& call) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(int64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // False: max_calls of the key.
  bool Admit(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_);
  // One call that writes a file at a time, until its file is closed; the one under way is broken off
  // for the next try.
  bool Take(const std::string& path, int64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // The call is gone: drops `held` on a thread of the disk, then gives back what it had.
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

  // Keys are "<kind>/<folder>". Both use all of the above: last.
  FileThreads disks_;
  FileThreads in_order_;  // a line behind the other
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_FILE_CALL_H_
