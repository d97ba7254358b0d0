// A task as its worker service sees it: a child process and a link to it.
//
// Threads: call all methods on the owner's strand. Callbacks are posted to it.
#ifndef CAPSTAN_GPU_WORKER_SERVICE_TASK_PROCESS_H_
#define CAPSTAN_GPU_WORKER_SERVICE_TASK_PROCESS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "capstan/node/v1/node.pb.h"
#include "gpu_worker/task/counters.h"
#include "gpu_worker/task/task_link.h"
#include "gpu_worker/task/task_main.h"
#include "services/process/process.h"
#include "services/strand/strand.h"

namespace capstan::gpu_worker {

class TaskProcess {
 public:
  struct Callbacks {
    std::function<void(const node::v1::TaskState&)> on_state;
    std::function<void(const TaskCounters&)> on_counters;
    std::function<void(const std::string& line)> on_line;  // from its standard output and error
    // Called once, last: the process has ended, and everything that it sent has been delivered.
    std::function<void(const services::ExitStatus&, bool killed_by_us)> on_end;
  };

  // Starts `binary` and sends it `start`. Borrows the spawner and the strand. Returns the errors of
  // Spawn.
  static absl::StatusOr<std::unique_ptr<TaskProcess>> Start(
      services::ProcessSpawner& spawner, services::Strand& strand, const std::string& binary,
      TaskProcessOptions options, const node::v1::StartTask& start, Callbacks callbacks);
  // Kills the process if it still runs. No callback runs afterwards.
  ~TaskProcess();

  pid_t pid() const;
  void ChangeView(const node::v1::ViewChange& change);
  void FilesTaken(const node::v1::FilesTaken& taken);
  void GiveOrders(const node::v1::GiveOrders& orders);
  void SetCoordinatorUp(bool up);
  // SIGTERM now, SIGKILL after `grace`. A second call may shorten it.
  void Stop(absl::Duration grace);

 private:
  TaskProcess(services::Strand& strand, Callbacks callbacks)
      : strand_(strand), callbacks_(std::move(callbacks)) {}
  void Post(std::function<void()> function);
  void EndWhenAllIsTold();

  services::Strand& strand_;
  const Callbacks callbacks_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool killed_ = false;
  bool link_closed_ = false;
  bool exited_ = false;
  services::ExitStatus exit_;
  std::unique_ptr<services::Process> process_;
  std::unique_ptr<TaskLink> link_;
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_SERVICE_TASK_PROCESS_H_
