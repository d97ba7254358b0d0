#include "coordinator/core/gang_filler.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/scheduling.h"
#include "coordinator/scheduler/gang.h"

namespace capstan::coordinator::core {

void GangFiller::FillGang(Job& job) {
  std::optional<NodesShown> shown;
  FillGang(job, &shown);
}

void GangFiller::FillGang(Job& job, std::optional<NodesShown>* shown) {
  const int want = job.LackingWorkers();
  if (want == 0) return;
  scheduler::GangRequest request = RequestOf(job.resolved()->spec());
  request.num_workers = want;
  request.one_per_node = ctx_.options().expected_nodes > 0;
  request.device = job.members().on_gpus() ? "gpu" : "cpu";
  request.version = VersionOf(job, ctx_.nodes());
  for (const Task& task : job.tasks()) {
    if (!task.gone) request.exclude.insert(task.node);
  }
  const std::set<std::string> excluded = job.vacancies().Excluded(ctx_.now());
  request.exclude.insert(excluded.begin(), excluded.end());
  std::vector<scheduler::Gang::Worker> workers;
  if (!job.vacancies().WasInVain(request, ctx_.freed())) {
    if (!shown->has_value()) *shown = NodesShown{NodesOf(ctx_.nodes()), StraysOf(ctx_.nodes())};
    job.vacancies().NoteTried(request, ctx_.freed());
    const std::set<std::string>& strays = (*shown)->strays[job.id()];
    request.exclude.insert(strays.begin(), strays.end());
    workers = scheduler::FreeWorkers((*shown)->nodes, request);
  }
  if (!workers.empty()) {
    job.vacancies().NoteFound();
    shown->reset();
  }
  for (const scheduler::Gang::Worker& worker : workers) {
    Task& task = job.members().AddTask(*ctx_.nodes().Find(worker.node), worker.devices, job.id());
    task.dealt = false;
    task.deal_at = ctx_.now();
    job.AddEvent(ctx_.wall(), "WorkerJoins", NameOf(task));
    ctx_.Changed(job);
    ctx_.jobs().Activate(job);
  }
  job.members().ForgetLostTasks();
  sender_.SendProbes(job);
}

}  // namespace capstan::coordinator::core
