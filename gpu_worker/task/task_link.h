// The messages between a worker service and its task (a child process) over a socket pair.
//
//   message = [length of the rest, 4 bytes little-endian] [kind, 1 byte] [serialized body]
//
// The service sends StartTask once, then ViewChanges, orders, taken files and whether it reaches
// the coordinator, then Stop. The task sends a complete TaskState on each change and every second,
// and complete TaskCounters every second. Log lines go through the task's standard error.
//
// Thread-safe.
#ifndef CAPSTAN_GPU_WORKER_TASK_TASK_LINK_H_
#define CAPSTAN_GPU_WORKER_TASK_TASK_LINK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/sync/mutex.h"

namespace capstan::gpu_worker {

enum class LinkKind : uint8_t {
  kStartTask = 1,    // node.v1.StartTask
  kViewChange = 2,   // node.v1.ViewChange
  kStop = 3,         // empty
  kTaskState = 4,    // node.v1.TaskState
  kCounters = 5,     // counters.h
  kFilesTaken = 6,   // node.v1.FilesTaken
  kGiveOrders = 7,   // node.v1.GiveOrders
  kCoordinator = 8,  // one byte: 1 if the service reaches the coordinator, else 0
};

inline constexpr uint32_t kMaxLinkBytes = uint32_t{64} << 20;  // of one message

struct SocketPair {
  int ours = -1;
  int theirs = -1;
};
// Both ends are close-on-exec.
absl::StatusOr<SocketPair> MakeSocketPair();

class TaskLink {
 public:
  using Handler = std::function<void(LinkKind kind, absl::string_view body)>;

  // Owns `fd`. Starts a thread that calls `on_message` for each message and at the end, once,
  // on_closed when the peer is gone or sends something that is not a message.
  TaskLink(int fd, Handler on_message, std::function<void()> on_closed,
           absl::Duration patience = absl::Seconds(10));
  // Ends the thread without calling on_closed.
  ~TaskLink();
  TaskLink(const TaskLink&) = delete;
  TaskLink& operator=(const TaskLink&) = delete;

  // Waits for room in the socket, at most `patience` without progress. Unavailable: the peer is
  // gone or stuck. The link has then ended for both sides.
  absl::Status Send(LinkKind kind, absl::string_view body) ABSL_LOCKS_EXCLUDED(mu_);
  // For messages that will be repeated. Like Send, but if the socket is full it returns
  // ResourceExhausted, sends nothing, and the link stays usable.
  absl::Status Offer(LinkKind kind, absl::string_view body) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status Write(LinkKind kind, absl::string_view body, bool may_drop) ABSL_LOCKS_EXCLUDED(mu_);
  void Read();
  bool ReadBytes(char* to, size_t size);

  const int fd_;
  const Handler on_message_;
  const std::function<void()> on_closed_;
  std::atomic<bool> closing_{false};
  Mutex mu_;  // one message at a time
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  std::thread reader_;  // last: it uses all of the above
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_TASK_LINK_H_
