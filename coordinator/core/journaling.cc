#include "coordinator/core/journaling.h"

#include <string>
#include <utility>

#include "coordinator/core/durable_job.h"
#include "services/check/mutant.h"

namespace capstan::coordinator::core {
namespace {

constexpr absl::Duration kSaveClock = absl::Minutes(1);

}  // namespace

void Journaling::SaveJobs() {
  for (const std::string& id : ctx_.TouchedJobs()) {
    Job* job = ctx_.jobs().Find(id);
    if (job == nullptr) continue;
    std::string facts = FactsOf(*job).SerializeAsString();
    const bool told_too_early = CAPSTAN_MUTANT("announced_before_durable") && !job->ended() &&
                                job->view().generation() > job->view().lineage();
    // The clock of a deadline goes on where it was, give or take a minute.
    const bool clock = job->Deadline() < absl::InfiniteDuration() && job->clock().runs() &&
                       job->clock().UnsavedFor(ctx_.now()) >= kSaveClock;
    if ((facts != job->saved() || clock) && !told_too_early) {
      job->clock().NoteSaved(ctx_.now());
      job->set_saved(std::move(facts));
      ctx_.Emit(Persist{JobSaved{id, ToDurable(*job, ctx_.now()).SerializeAsString()}});
    }
    JobEvents::Unsaved unsaved = job->events().TakeUnsaved();
    for (JobEvents::Numbered& event : unsaved.added) {
      ctx_.Emit(Persist{EventAdded{id, event.number, std::move(event.event)}});
    }
    if (job->resting()) SaveHistory(*job);
    for (const int64_t number : unsaved.dropped) ctx_.Emit(Persist{EventDropped{id, number}});
  }
}

void Journaling::SaveHistory(Job& job) {
  for (auto& [number, page] : job.history().metrics().TakeChangedPages()) {
    ctx_.Emit(Persist{HistoryPage{job.id(), number, std::move(page)}});
  }
}

void Journaling::SaveHistories() {
  if (!ctx_.Due(histories_saved_, ctx_.options().history_save)) return;
  histories_saved_ = ctx_.now();
  for (Job* job : ctx_.jobs().TakeUnsavedHistories()) SaveHistory(*job);
}

}  // namespace capstan::coordinator::core
