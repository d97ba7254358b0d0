#include "coordinator/core/waiting_text.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/lane_owners.h"
#include "coordinator/core/reasons.h"
#include "training/lanes/eval_plan.h"

namespace capstan::coordinator::core {
namespace {

std::string Seen(const Job& job, const NodeTable& nodes, const Task& task, absl::Duration now) {
  return absl::StrCat(NameOf(task), ", ", LastSeenText(nodes, task.node, task.incarnation, now));
}

std::string Seen(const Job& job, const NodeTable& nodes, const Shard& shard, absl::Duration now) {
  return absl::StrCat(NameOf(shard), ", ", LastSeenText(nodes, shard.node, shard.incarnation, now));
}

// Shards that lack only the lead's decision of a step. Until they know it, they send no chunks of the next
// version, so members that wait for later steps wait for them. Empty: there are none.
std::string UndecidedText(const Job& job, const NodeTable& nodes, int64_t step,
                          absl::Duration now) {
  std::vector<std::string> whom;
  for (const Shard& shard : job.shards()) {
    if (!shard.present || !shard.state.ready() || shard.state.lineage() != job.view().lineage() ||
        shard.state.has_waiting() || shard.state.version() >= std::min(step, job.lead().step())) {
      continue;
    }
    whom.push_back(absl::StrCat("step ", shard.state.version(), ": the lead's decision at ",
                                Seen(job, nodes, shard, now)));
  }
  return absl::StrJoin(whom, "; ");
}

// "2 blocks of the evaluation of worker w1 on host b, last seen 14 s ago".
std::string EvaluationText(const Job& job, const NodeTable& nodes, const std::set<int32_t>& blocks,
                           absl::Duration now) {
  const auto plan =
      training::EvalPlan::Create(job.resolved()->dataset().test_samples(), job.resolved()->lanes());
  std::map<int32_t, size_t> blocks_of;  // by rank
  for (const int32_t block : blocks) {
    if (!plan.ok() || block < 0 || block >= plan->block_count()) continue;
    const int32_t lane = plan->OwnerLane(block);
    if (lane < job.view().lane_owners_size()) ++blocks_of[job.view().lane_owners(lane)];
  }
  std::vector<std::string> whom;
  for (const auto& [rank, count] : blocks_of) {
    if (rank < 0 || rank >= static_cast<int32_t>(job.tasks().size())) continue;
    whom.push_back(absl::StrCat(count, count == 1 ? " block" : " blocks", " of the evaluation of ",
                                Seen(job, nodes, job.tasks()[rank], now)));
  }
  if (whom.empty()) return "blocks of the evaluation that nobody is to compute";
  return absl::StrJoin(whom, "; ");
}

// What the shards say they lack in the oldest step that any of them waits for. Empty: nothing.
std::string StepText(const Job& job, const NodeTable& nodes, absl::Duration now) {
  int64_t step = INT64_MAX;
  for (const Shard& shard : job.shards()) {
    if (shard.state.has_waiting()) step = std::min(step, shard.state.waiting().step());
  }
  std::string undecided = UndecidedText(job, nodes, step, now);
  if (!undecided.empty()) return undecided;
  if (step == INT64_MAX) return "";
  std::set<int32_t> lanes;
  std::set<int32_t> parts;
  int64_t missing_chunks = 0;
  int64_t chunks = 0;
  std::vector<std::string> where;  // chunks are missing
  std::set<int32_t> blocks;
  for (const Shard& shard : job.shards()) {
    if (!shard.state.has_waiting() || shard.state.waiting().step() != step) continue;
    const node::v1::Waiting& waiting = shard.state.waiting();
    lanes.insert(waiting.lanes().begin(), waiting.lanes().end());
    parts.insert(waiting.parts().begin(), waiting.parts().end());
    missing_chunks += waiting.missing_chunks();
    chunks += waiting.chunks();
    if (waiting.missing_chunks() > 0) where.push_back(Seen(job, nodes, shard, now));
    blocks.insert(waiting.evaluation_blocks().begin(), waiting.evaluation_blocks().end());
  }
  std::map<int32_t, std::vector<int32_t>> lanes_of;
  for (const int32_t lane : lanes) {
    if (lane >= 0 && lane < job.view().lane_owners_size()) {
      lanes_of[job.view().lane_owners(lane)].push_back(lane);
    }
  }
  std::vector<std::string> whom;
  for (const auto& entry : lanes_of) {
    if (entry.first < 0 || entry.first >= static_cast<int32_t>(job.tasks().size())) continue;
    whom.push_back(absl::StrCat(entry.second.size() == 1 ? "lane " : "lanes ",
                                NumbersText(entry.second), " of ",
                                Seen(job, nodes, job.tasks()[entry.first], now)));
  }
  std::string text = absl::StrJoin(whom, "; ");
  if (missing_chunks > 0) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", missing_chunks, " of ", chunks,
                    " chunks missing");
    // If all shards lack some, the workers are late. Otherwise the way to these shards may be cut.
    if (where.size() < job.shards().size()) {
      absl::StrAppend(&text, " at ", absl::StrJoin(where, "; "));
    }
  }
  // A part is missing wherever a lane is. It is news only if no lane is to blame.
  if (lanes_of.empty()) {
    for (const int32_t part : parts) {
      if (part < 0 || part >= static_cast<int32_t>(job.shards().size())) continue;
      absl::StrAppend(&text, text.empty() ? "" : "; ", "the part of ",
                      Seen(job, nodes, job.shards()[part], now));
    }
  }
  if (!blocks.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", EvaluationText(job, nodes, blocks, now));
  }
  if (text.empty()) return "";
  return absl::StrCat("step ", step, ": ", text);
}

std::string StartText(const Job& job, const NodeTable& nodes, absl::Duration now) {
  std::vector<std::string> whom;
  if (job.members().probing()) {
    for (const Task& task : job.tasks()) {
      if (!task.probed) whom.push_back(absl::StrCat("the data of ", Seen(job, nodes, task, now)));
    }
  } else if (!job.AllShardsReady()) {
    for (const Shard& shard : job.shards()) {
      if (shard.present && shard.state.ready() && shard.state.lineage() == job.view().lineage())
        continue;
      whom.push_back(absl::StrCat("the weights of ", Seen(job, nodes, shard, now)));
    }
  } else {
    for (const Task& task : job.tasks()) {
      if (task.lost || (task.present && task.state.lineage() == job.view().lineage() &&
                        task.state.phase() == node::v1::TASK_PHASE_RUNNING)) {
        continue;
      }
      whom.push_back(absl::StrCat("the task of ", Seen(job, nodes, task, now)));
    }
  }
  return whom.empty() ? ""
                      : absl::StrCat(job.state() == common::v1::JOB_STATE_STARTING ? "starting: "
                                                                                   : "recovering: ",
                                     absl::StrJoin(whom, "; "));
}

// A node that could help, were it of the version of the others; where none of the job is left, two
// that could together. Empty: there are none.
std::string OtherVersionText(const Job& job, const NodeTable& nodes, bool worker) {
  const std::optional<std::string> version = VersionOf(job, nodes);
  const auto said = [](const std::string& text) { return text.empty() ? "none" : text; };
  const Node* store = nullptr;  // the first; without a version the others are compared with it
  for (const auto& [name, node] : nodes.all()) {
    if (store == nullptr && node.takes_work() && !node.is_worker()) store = &node;
  }
  for (const auto& [name, node] : nodes.all()) {
    if (!node.takes_work()) continue;
    if (!version.has_value()) {
      if (store != nullptr && node.reg().version() != store->reg().version()) {
        return absl::StrCat(" (param_store ", store->name(), " is of version ",
                            said(store->reg().version()), ", ",
                            node.is_worker() ? "worker " : "param_store ", name, " is of ",
                            said(node.reg().version()), ": all of a job must have one version)");
      }
      continue;
    }
    if (node.is_worker() != worker || node.reg().version() == *version) continue;
    return absl::StrCat(" (", worker ? "worker " : "param_store ", name, " is of version ",
                        said(node.reg().version()), ", the job's others are of ", said(*version),
                        ")");
  }
  return "";
}

// The member that a job lacks; the job goes on as soon as it is there.
std::string RecoveringText(const Job& job, const NodeTable& nodes, absl::Duration now) {
  std::vector<std::string> whom;
  for (const Shard& shard : job.shards()) {
    if (shard.lost)
      whom.push_back(absl::StrCat("a param_store for ", Seen(job, nodes, shard, now)));
  }
  if (whom.empty() && job.members().living() == 0) {
    for (const Task& task : job.tasks()) {
      // Only the last few of many.
      if (task.index + 4 < static_cast<int32_t>(job.tasks().size())) continue;
      whom.push_back(Seen(job, nodes, task, now));
    }
    return absl::StrCat("recovering: a worker, any, after ", absl::StrJoin(whom, "; "),
                        OtherVersionText(job, nodes, /*worker=*/true));
  }
  if (whom.empty()) return StartText(job, nodes, now);
  return absl::StrCat("recovering: ", absl::StrJoin(whom, "; "),
                      OtherVersionText(job, nodes, /*worker=*/false));
}

std::string EndText(const Job& job, const NodeTable& nodes, absl::Duration now) {
  if (job.link().phase() != ManifestLink::Phase::kNone)
    return "the manifest of the last checkpoint";
  std::vector<std::string> whom;
  for (const Shard& shard : job.shards()) {
    if (job.written().Of(shard.index, job.resolved()->total_steps()) == nullptr) {
      whom.push_back(absl::StrCat("the files of ", Seen(job, nodes, shard, now)));
    }
  }
  if (job.written().weights().files_size() == 0 && !job.view().lane_owners().empty()) {
    whom.push_back(absl::StrCat("weights.safetensors of ",
                                Seen(job, nodes, job.tasks()[job.view().lane_owners(0)], now)));
  }
  return whom.empty() ? "" : absl::StrCat("ending: ", absl::StrJoin(whom, "; "));
}

// The version that a suspend, a hand-over or a move of shards waits for.
// The tasks that write files of the last version: the owner of lane 0, and if residuals are kept, all owners.
std::set<int32_t> Writers(const Job& job) {
  std::set<int32_t> writers;
  for (const int32_t owner : job.view().lane_owners()) {
    if (owner >= 0 && owner < static_cast<int32_t>(job.tasks().size())) writers.insert(owner);
    if (!job.LanesAreFixed()) break;
  }
  return writers;
}

std::string SavingText(const Job& job, const NodeTable& nodes, absl::Duration now) {
  const int64_t step = job.lead().step();
  if (job.link().phase() != ManifestLink::Phase::kNone)
    return absl::StrCat("the manifest of step ", step);
  std::vector<std::string> whom;
  for (const Shard& shard : job.shards()) {
    if (job.written().Of(shard.index, step) == nullptr) {
      whom.push_back(absl::StrCat("the files of ", Seen(job, nodes, shard, now)));
    }
  }
  if (job.LanesAreFixed() && !job.shards().empty()) {
    const auto found = job.written().versions().find(step);
    for (const int32_t owner : Writers(job)) {
      if (found == job.written().versions().end() || !found->second.residuals.contains(owner)) {
        const Task& task = job.tasks()[static_cast<size_t>(owner)];
        whom.push_back(absl::StrCat("the residuals of ", Seen(job, nodes, task, now)));
      }
    }
  }
  return whom.empty() ? "" : absl::StrCat("saving step ", step, ": ", absl::StrJoin(whom, "; "));
}

// "write /x: No space left on device" with what the system says in front: the rest may be cut off.
std::string CauseFirst(const std::string& error) {
  const size_t at = error.rfind(": ");
  if (at == std::string::npos) return error;
  return absl::StrCat(error.substr(at + 2), ": ", error.substr(0, at));
}

}  // namespace

std::string CannotSaveText(const Job& job) {
  if (job.resting() || !job.in_history() || !job.resolved().has_value()) return "";
  if (!job.lead().complete() && !job.lead().suspended()) return "";
  const int64_t step = job.lead().complete() ? job.resolved()->total_steps() : job.lead().step();
  std::vector<std::string> errors;
  const auto add = [&](const node::v1::WrittenFiles& files, const std::string& who) {
    if (files.lineage() != job.view().lineage() || files.step() != step) return;
    if (files.error().empty()) return;
    errors.push_back(absl::StrCat(CauseFirst(Sentence(files.error())), " (", who, ")"));
  };
  for (const Shard& shard : job.shards()) {
    if (!shard.lost && shard.present) add(shard.state.files(), NameOf(shard));
  }
  for (const int32_t owner : Writers(job)) {
    const Task& task = job.tasks()[static_cast<size_t>(owner)];
    if (!task.lost && task.present) add(task.state.files(), NameOf(task));
  }
  if (errors.empty() && !job.link().error().empty()) {
    errors.push_back(absl::StrCat(CauseFirst(job.link().error()), " (the coordinator)"));
  }
  if (errors.empty()) return "";
  const size_t more = errors.size() - 1;
  return absl::StrCat("cannot save step ", step, ": ", errors[0],
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

std::string LastSeenText(const NodeTable& nodes, const std::string& node, int64_t incarnation,
                         absl::Duration now) {
  const Node* found = nodes.FindIncarnation(node, incarnation);
  if (found == nullptr) return "not there any more";
  const int64_t seconds = absl::ToInt64Seconds(now - found->last_heard());
  return absl::StrCat("last seen ", seconds, " s ago");
}

std::string WaitingText(const Job& job, const NodeTable& nodes, absl::Duration now) {
  std::string text = CannotSaveText(job);
  if (!text.empty()) return text;
  if (job.state() == common::v1::JOB_STATE_STARTING) {
    text = StartText(job, nodes, now);
  } else if (job.state() == common::v1::JOB_STATE_RECOVERING) {
    text = RecoveringText(job, nodes, now);
  } else if (job.lead().complete()) {
    text = EndText(job, nodes, now);
  } else if (job.lead().suspended()) {
    text = SavingText(job, nodes, now);
  } else {
    text = StepText(job, nodes, now);
  }
  if (!text.empty()) return text;
  // No report says what is missing: all members that could be waited for.
  std::vector<std::string> whom;
  for (const Shard& shard : job.shards()) whom.push_back(Seen(job, nodes, shard, now));
  for (const Task& task : job.tasks()) {
    if (!task.lost) whom.push_back(Seen(job, nodes, task, now));
  }
  return absl::StrCat("step ", job.lead().step(), ": ", absl::StrJoin(whom, "; "));
}

}  // namespace capstan::coordinator::core
