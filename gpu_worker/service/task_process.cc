#include "gpu_worker/service/task_process.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

namespace capstan::gpu_worker {

absl::StatusOr<std::unique_ptr<TaskProcess>> TaskProcess::Start(
    services::ProcessSpawner& spawner, services::Strand& strand, const std::string& binary,
    TaskProcessOptions options, const node::v1::StartTask& start, Callbacks callbacks) {
  absl::StatusOr<SocketPair> pair = MakeSocketPair();
  if (!pair.ok()) return pair.status();
  std::unique_ptr<TaskProcess> task(new TaskProcess(strand, std::move(callbacks)));
  TaskProcess* self = task.get();
  options.fd = 3;
  services::ProcessOptions process;
  process.binary = binary;
  process.args = TaskArguments(options);
  process.pass_fd = pair->theirs;
  process.on_line = [self, alive = task->alive_, &strand](services::OutputStream,
                                                          absl::string_view line) {
    strand.Post([self, alive, text = std::string(line)] {
      if (*alive) self->callbacks_.on_line(text);
    });
  };
  process.on_exit = [self, alive = task->alive_, &strand](const services::ExitStatus& status) {
    strand.Post([self, alive, status] {
      if (!*alive) return;
      self->exited_ = true;
      self->exit_ = status;
      self->EndWhenAllIsTold();
    });
  };
  auto spawned = spawner.Spawn(std::move(process));
  close(pair->theirs);
  if (!spawned.ok()) {
    close(pair->ours);
    return spawned.status();
  }
  task->process_ = *std::move(spawned);
  task->link_ = std::make_unique<TaskLink>(
      pair->ours,
      [self](LinkKind kind, absl::string_view body) {
        if (kind == LinkKind::kTaskState) {
          node::v1::TaskState state;
          if (!state.ParseFromArray(body.data(), static_cast<int>(body.size()))) return;
          self->Post([self, state] { self->callbacks_.on_state(state); });
        } else if (kind == LinkKind::kCounters) {
          absl::StatusOr<TaskCounters> counters = DecodeCounters(body);
          if (!counters.ok()) return;
          self->Post([self, counters = *counters] { self->callbacks_.on_counters(counters); });
        }
      },
      [self] {
        self->Post([self] {
          self->link_closed_ = true;
          self->EndWhenAllIsTold();
        });
      });
  // The child reads this first. If the child is gone already, its exit tells us.
  task->link_->Send(LinkKind::kStartTask, start.SerializeAsString()).IgnoreError();
  return task;
}

TaskProcess::~TaskProcess() {
  *alive_ = false;
  process_.reset();
  link_.reset();
}

void TaskProcess::Post(std::function<void()> function) {
  strand_.Post([alive = alive_, function = std::move(function)] {
    if (*alive) function();
  });
}

pid_t TaskProcess::pid() const { return process_->pid(); }

void TaskProcess::ChangeView(const node::v1::ViewChange& change) {
  link_->Send(LinkKind::kViewChange, change.SerializeAsString()).IgnoreError();
}

void TaskProcess::FilesTaken(const node::v1::FilesTaken& taken) {
  link_->Send(LinkKind::kFilesTaken, taken.SerializeAsString()).IgnoreError();
}

void TaskProcess::GiveOrders(const node::v1::GiveOrders& orders) {
  link_->Send(LinkKind::kGiveOrders, orders.SerializeAsString()).IgnoreError();
}

void TaskProcess::SetCoordinatorUp(bool up) {
  link_->Send(LinkKind::kCoordinator, std::string(1, up ? '\1' : '\0')).IgnoreError();
}

void TaskProcess::Stop(absl::Duration grace) {
  process_->Kill(SIGTERM);
  strand_.PostAfter(grace, [this, alive = alive_] {
    if (!*alive || exited_) return;
    killed_ = true;
    process_->Kill(SIGKILL);
  });
}

// The link ends with the process, so neither waits long for the other.
void TaskProcess::EndWhenAllIsTold() {
  if (!exited_ || !link_closed_) return;
  const auto on_end = callbacks_.on_end;  // a copy: it may destroy this object
  on_end(exit_, killed_);
}

}  // namespace capstan::gpu_worker
