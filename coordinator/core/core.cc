#include "coordinator/core/core.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/core/durable_job.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "services/check/check.h"
#include "services/check/mutant.h"

namespace capstan::coordinator::core {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
constexpr absl::Duration kSaveClock = absl::Minutes(1);
constexpr size_t kMaxQueueTexts = 100;  // jobs that are told their place in the queue
// A queue that is longer is not gone through more often than this, however much changes.
constexpr absl::Duration kLongQueuePace = absl::Milliseconds(100);

// Equal specs give equal bytes, whatever the order of their labels.
std::string DeterministicBytes(const job::v1::JobSpec& spec) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    spec.SerializeToCodedStream(&coded);
  }
  return bytes;
}

absl::Status CheckRequestId(const std::string& id) {
  const bool good = !id.empty() && id.size() <= kMaxRequestIdBytes &&
                    std::all_of(id.begin(), id.end(), [](unsigned char c) {
                      return absl::ascii_isalnum(c) || c == '-' || c == '_';
                    });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("request_id: want 1 to ", kMaxRequestIdBytes,
                                                 " of [A-Za-z0-9_-], got ", id.size(), " bytes"));
}

}  // namespace

std::string CheckpointFolder(const std::string& storage_path, int64_t lineage, int64_t step) {
  return absl::StrCat(storage_path, "/", lineage, "-", step);
}

CoordinatorCore::CoordinatorCore(CoreOptions options)
    : options_(std::move(options)), random_(options_.seed) {
  CAPSTAN_CHECK(options_.validate != nullptr && options_.resolve != nullptr);
}

Effects CoordinatorCore::Step(const Event& event, absl::Duration now) {
  // A coordinator that was stopped, or starved, has not listened: its own silence is not held
  // against the nodes. Their messages are in the queue behind this event.
  if (stepped_ && now - now_ > options_.lease / 2 && !CAPSTAN_MUTANT("own_silence_counts")) {
    for (auto& entry : nodes_.all()) entry.second.last_heard += now - now_;
  }
  stepped_ = true;
  now_ = now;
  wall_ = event.wall;
  effects_.clear();
  changed_.clear();
  log_marks_.clear();
  for (const auto& entry : active_) log_marks_[entry.second->id] = entry.second->logs.next();

  std::visit([this](const auto& what) { Handle(what); }, event.what);
  if (schedule_) {
    // Who came meanwhile waits behind those who have not been looked at yet.
    if (pending_.size() <= kMaxQueueTexts || now_ >= scheduled_at_ + kLongQueuePace) Schedule();
  } else if (submitted_ != nullptr) {
    TryJob(*submitted_, &queue_);  // nothing else has changed: the others still wait for the same
  }
  submitted_ = nullptr;
  ForgetExpiredJobs();
  ForgetOldJobs();

  SaveJobs();
  SaveHistories();
  std::stable_partition(effects_.begin(), effects_.end(), [](const Effect& effect) {
    return std::holds_alternative<Persist>(effect);
  });
  for (const std::string& id : changed_) {
    JobRecord* job = FindJob(id);
    if (job == nullptr) continue;
    Emit(JobChanged{id, job->state != job->told_state,
                    job->view.generation() != job->told_generation});
    job->told_state = job->state;
    job->told_generation = job->view.generation();
  }
  for (const auto& entry : log_marks_) {
    const JobRecord* job = FindJob(entry.first);
    if (job != nullptr && job->logs.next() != entry.second) Emit(LogsAppended{job->id});
  }
  return std::move(effects_);
}

absl::Duration CoordinatorCore::NextDeadline() const {
  const absl::Duration tick = now_ + std::min(options_.resend, options_.lease / 4);
  // Heartbeats only put leases off: all nodes are looked at again when one may end before the tick.
  if (first_lease_end_ < tick) {
    first_lease_end_ = absl::InfiniteDuration();
    for (const auto& [name, node] : nodes_.all()) {
      const bool forgettable = node.lost && node.session == 0 && node.jobs.empty();
      if (node.lost && !forgettable) continue;
      first_lease_end_ =
          std::min(first_lease_end_,
                   node.last_heard + (forgettable ? options_.lost_node_kept : options_.lease));
    }
  }
  absl::Duration next = first_lease_end_;
  for (const auto& entry : active_) {
    const JobRecord& job = *entry.second;
    next = std::min(next, job.takeover_at);
    // Once it is past it waits for a node, not for a time.
    if (job.recover && job.recover_at > now_) next = std::min(next, job.recover_at);
  }
  next = std::min({next, queue_.next_retry, expiry_at_});
  if (schedule_) next = std::min(next, scheduled_at_ + kLongQueuePace);
  if (first_lease_end_ < absl::InfiniteDuration() || !active_.empty()) {
    next = std::min(next, tick);
  }
  return std::max(next, now_);
}

JobRecord* CoordinatorCore::FindJob(absl::string_view job_id) {
  const auto it = jobs_.find(std::string(job_id));
  return it == jobs_.end() ? nullptr : it->second.get();
}

const JobRecord* CoordinatorCore::FindJob(absl::string_view job_id) const {
  const auto it = jobs_.find(std::string(job_id));
  return it == jobs_.end() ? nullptr : it->second.get();
}

absl::StatusOr<job::v1::Job> CoordinatorCore::GetJob(absl::string_view job_id) const {
  const JobRecord* job = FindJob(job_id);
  if (job == nullptr) return absl::NotFoundError(absl::StrCat("no job ", job_id));
  return job->ToProto(/*with_history=*/true);
}

std::vector<job::v1::Job> CoordinatorCore::ListJobs(int limit, const JobFilter& filter,
                                                    int64_t before) const {
  const auto wanted = [&filter](const JobRecord& job) {
    if (!filter.states.empty() && filter.states.count(job.state) == 0) return false;
    if (!filter.owner.empty() && job.owner != filter.owner) return false;
    const auto& has = job.spec.labels();
    return std::all_of(filter.labels.begin(), filter.labels.end(), [&has](const auto& label) {
      const auto it = has.find(label.first);
      return it != has.end() && it->second == label.second;
    });
  };
  std::vector<job::v1::Job> out;
  const auto first = std::make_reverse_iterator(by_sequence_.lower_bound(before));
  for (auto it = first; it != by_sequence_.rend(); ++it) {
    if (static_cast<int>(out.size()) >= limit) break;
    if (wanted(*it->second)) out.push_back(it->second->ToProto(/*with_history=*/false));
  }
  return out;
}

void CoordinatorCore::ForEachJob(const std::function<void(const JobRecord&)>& visit) const {
  for (const auto& entry : by_sequence_) visit(*entry.second);
}

const LogBuffer* CoordinatorCore::Logs(absl::string_view job_id) const {
  const JobRecord* job = FindJob(job_id);
  return job == nullptr ? nullptr : &job->logs;
}

bool CoordinatorCore::HasEnded(absl::string_view job_id) const {
  const JobRecord* job = FindJob(job_id);
  return job != nullptr && job->ended();
}

void CoordinatorCore::Handle(const Tick&) {
  ExpireLeases();
  std::vector<JobRecord*> active;
  for (const auto& entry : active_) active.push_back(entry.second);
  for (JobRecord* job : active) Advance(*job);
  for (const auto& entry : pending_) {
    if (entry.second->unread) SayUnread(*entry.second);
  }
  if (queue_.next_retry <= now_) {
    queue_.next_retry = absl::InfiniteDuration();
    schedule_ = true;
  }
}

std::string CoordinatorCore::NewJobId(const std::string& name) {
  if (!options_.only_job.empty()) return options_.only_job;
  static constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  // So many that no id comes again: the folder of a job that we forgot is still somebody's result.
  constexpr int kRandomLetters = 6;
  for (;;) {
    // Begins with a letter: no folder of a job looks like a checkpoint, `<lineage>-<step>`.
    std::string id = absl::StrCat(absl::ascii_islower(name[0]) ? "" : "job-", name, "-");
    for (int i = 0; i < kRandomLetters; ++i) id.push_back(kLetters[random_() % 36]);
    if (jobs_.count(id) == 0) return id;
  }
}

absl::Status CoordinatorCore::Admit(const Submit& submit, job::v1::SubmitJobResponse* response) {
  absl::Status status = CheckRequestId(submit.request_id);
  if (!status.ok()) return status;
  const int64_t size = static_cast<int64_t>(submit.spec.ByteSizeLong());
  if (size > options_.max_spec_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec: ", size, " bytes, at most ", options_.max_spec_bytes));
  }
  std::string bytes = DeterministicBytes(submit.spec);
  const auto known = requests_.find(submit.request_id);
  if (known != requests_.end()) {
    if (FindJob(known->second)->owner != submit.caller.name) {
      return absl::AlreadyExistsError(
          absl::StrCat("request_id ", submit.request_id, ": used by somebody else"));
    }
    if (FindJob(known->second)->spec_bytes != bytes) {
      return absl::AlreadyExistsError(absl::StrCat("request_id ", submit.request_id, ": job ",
                                                   known->second, " has another spec"));
    }
    response->set_job_id(known->second);
    response->set_existed(true);
    return absl::OkStatus();
  }
  if (!options_.only_job.empty() && !jobs_.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this coordinator takes job ", options_.only_job, " alone"));
  }
  status = options_.validate(submit.spec);
  if (!status.ok()) return status;
  // It becomes part of a path, and an argument of commands.
  if (!IsName(submit.spec.name()) || submit.spec.name()[0] == '-') {
    return absl::InvalidArgumentError("name: want [a-z0-9][a-z0-9-]{0,62}");
  }
  if (const std::string& path = submit.spec.checkpoint().storage_path(); !path.empty()) {
    const std::string whose = JobWhoseFolderHolds(StorageRoot(submit.spec));
    if (!whose.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("checkpoint.storage_path: ", path,
                                                     " lies in the folder of job ", whose,
                                                     "; choose another one"));
    }
  }
  status = CheckInitialWeights(submit);
  if (!status.ok()) return status;
  const size_t queued = jobs_.size() - ended_.size();
  if (queued >= static_cast<size_t>(options_.max_queued_jobs)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.max_queued_jobs, " queued jobs is the limit"));
  }

  auto owned = std::make_unique<JobRecord>(options_);
  JobRecord& job = *owned;
  job.id = NewJobId(submit.spec.name());
  job.sequence = ++last_sequence_;
  job.request_id = submit.request_id;
  job.owner = submit.caller.name;
  job.spec = submit.spec;
  job.spec_bytes = std::move(bytes);
  job.submitted_at = wall_;
  job.logs.CountIn(&log_bytes_);
  job.reason = "WaitingForSlots";
  requests_[job.request_id] = job.id;
  by_sequence_[job.sequence] = &job;
  pending_[job.sequence] = &job;
  response->set_job_id(job.id);
  jobs_[job.id] = std::move(owned);
  job.AddEvent(wall_, "Submitted", "");
  log_marks_[job.id] = 0;
  Changed(job);
  submitted_ = &job;
  return absl::OkStatus();
}

void CoordinatorCore::Handle(const Submit& submit) {
  job::v1::SubmitJobResponse response;
  const absl::Status status = Admit(submit, &response);
  Reply reply{submit.call, status, {}};
  if (status.ok()) reply.response = std::move(response);
  Emit(std::move(reply));
}

void CoordinatorCore::Handle(const Cancel& cancel) {
  JobRecord* job = FindJob(cancel.job_id);
  if (job == nullptr) {
    Emit(Reply{cancel.call, absl::NotFoundError(absl::StrCat("no job ", cancel.job_id)), {}});
    return;
  }
  if (absl::Status status = CheckOwner(*job, cancel.caller); !status.ok()) {
    Emit(Reply{cancel.call, std::move(status), {}});
    return;
  }
  if (!job->ended() && !job->cancel_asked) {
    job->cancel_asked = true;
    job->cancel_since = now_;
    job->AddEvent(wall_, "CancelRequested", "");
    job->waiting.clear();
    if (log_marks_.count(job->id) == 0) log_marks_[job->id] = 0;
    Changed(*job);
    Advance(*job);
  }
  job::v1::CancelJobResponse response;
  response.set_state(job->state);
  Emit(Reply{cancel.call, absl::OkStatus(), std::move(response)});
}

// First come, first served. A job that the registered nodes could carry, were they free, holds up
// those behind it, or large jobs would wait for ever; one that they could not carry holds up
// nobody.
void CoordinatorCore::Schedule() {
  schedule_ = false;
  scheduled_at_ = now_;
  // What runs already is helped first.
  for (const auto& entry : active_) {
    if (!entry.second->unread) FillRanks(*entry.second);
  }
  queue_ = Queue();
  std::vector<JobRecord*> jobs;
  for (const auto& entry : pending_) jobs.push_back(entry.second);
  for (JobRecord* job : jobs) TryJob(*job, &queue_);
}

// The next of the queue. What has been tried in vain is not tried again for each job that asks for
// the same: thousands may wait.
void CoordinatorCore::TryJob(JobRecord& job, Queue* queue) {
  if (job.retry_at > now_) {  // holds nobody up while it backs off
    queue->next_retry = std::min(queue->next_retry, job.retry_at);
    return;
  }
  if (job.unread) return SayUnread(job);  // nor who waits for its own disk
  const auto tell = [this, &job](std::string reason, std::string text) {
    if (job.reason == "GangLost") reason = job.reason;  // until it has another one
    if (job.reason == reason && job.message == text) return;
    job.reason = reason;
    job.message = std::move(text);
    Changed(job);
  };
  if (active_.count(job.sequence) > 0) {
    tell(job.reason, "its tasks of before are still being ended");
    return;
  }
  std::string text;
  if (queue->blocked_by.empty()) {
    GangRequest request = RequestOf(job.resolved.has_value() ? job.resolved->spec() : job.spec);
    request.one_per_node = options_.expected_nodes > 0;
    if (job.resolved.has_value()) ExcludeStrays(job, request);
    auto lacks = queue->lacks.find(request);
    if (lacks == queue->lacks.end()) {
      const std::optional<Gang> gang = FindGang(nodes_, request);
      if (gang.has_value()) {
        StartGang(job, *gang, KindText(nodes_, request, gang->on_gpus));
        queue->lacks.clear();  // fewer slots are free
        return;
      }
      lacks = queue->lacks.emplace(request, MissingText(nodes_, request)).first;
      if (CouldFit(nodes_, request)) {
        queue->blocked_by = job.id;
      } else if (request.exclude.empty() && AllExpectedAreThere()) {
        Fail(job, "InvalidSpec", absl::StrCat(lacks->second, ", and no other service will come"));
        Advance(job);
        return;
      }
    }
    text = lacks->second;
  } else {
    text = absl::StrCat("behind job ", queue->blocked_by);
  }
  if (++queue->places > kMaxQueueTexts) {
    text = absl::StrCat("more than ", kMaxQueueTexts, " jobs are before it in the queue");
  } else if (queue->places > 1) {
    absl::StrAppend(&text, " (place ", queue->places, " in the queue)");
  }
  tell("WaitingForSlots", std::move(text));
}

bool CoordinatorCore::AllExpectedAreThere() const {
  const auto there = std::count_if(nodes_.all().begin(), nodes_.all().end(),
                                   [](const auto& entry) { return entry.second.usable(); });
  return options_.expected_nodes > 0 && there >= options_.expected_nodes;
}

// `kind`: what it computes on, for people.
void CoordinatorCore::StartGang(JobRecord& job, const Gang& gang, const std::string& kind) {
  job.ranks.clear();
  job.shards.clear();
  for (const Gang::Worker& worker : gang.workers) {
    Node& node = *nodes_.Find(worker.node);
    Rank rank;
    rank.index = static_cast<int32_t>(job.ranks.size());
    rank.node = node.name();
    rank.host = node.host();
    rank.incarnation = node.incarnation;
    rank.devices = worker.devices;
    for (const int device : worker.devices) node.slots[device] = job.id;
    node.jobs.insert(job.id);
    job.ranks.push_back(std::move(rank));
  }
  for (const std::string& name : gang.shards) {
    Node& node = *nodes_.Find(name);
    Shard shard;
    shard.index = static_cast<int32_t>(job.shards.size());
    shard.node = node.name();
    shard.host = node.host();
    shard.incarnation = node.incarnation;
    shard.address = node.reg.data_address();
    node.jobs.insert(job.id);
    job.shards.push_back(std::move(shard));
  }
  pending_.erase(job.sequence);
  active_[job.sequence] = &job;
  if (log_marks_.count(job.id) == 0) log_marks_[job.id] = job.logs.next();
  job.RunClock(now_);
  if (job.started_at == absl::InfinitePast()) job.started_at = wall_;
  job.probe_id = ++last_probe_;
  job.probing = true;
  job.wound_down = false;
  job.on_gpus = gang.on_gpus;
  job.progress_mark.clear();  // with the next look at it its clock begins anew
  SetState(job, common::v1::JOB_STATE_STARTING, "", "");
  job.AddEvent(wall_, "Admitted",
               absl::StrCat("gang ready: ", WorkersText(gang.num_workers, job.ranks.size()), ", ",
                            job.shards.size(), job.shards.size() == 1 ? " shard" : " shards",
                            ", on ", kind));
  Advance(job);
}

// A job is saved whole when a fact of it has changed. What its lead tells again is none, so the
// heartbeats of a running job write nothing.
void CoordinatorCore::SaveJobs() {
  std::set<std::string> touched = changed_;
  for (const auto& entry : log_marks_) {  // an event is a line of the log, too
    const JobRecord* job = FindJob(entry.first);
    if (job != nullptr && job->logs.next() != entry.second) touched.insert(job->id);
  }
  for (const std::string& id : touched) {
    JobRecord* job = FindJob(id);
    if (job == nullptr) continue;
    const v1::DurableJob durable = ToDurable(*job, now_);
    std::string facts = FactsOf(durable);
    const bool told_too_early = CAPSTAN_MUTANT("announced_before_durable") && !job->ended() &&
                                job->view.generation() > job->view.lineage();
    // The clock of a deadline goes on where it was, give or take a minute.
    const bool clock = DeadlineOf(*job) < absl::InfiniteDuration() && job->clock_runs &&
                       now_ - job->ran_saved_at >= kSaveClock;
    if ((facts != job->saved || clock) && !told_too_early) {
      job->ran_saved_at = now_;
      job->saved = std::move(facts);
      Emit(Persist{JobSaved{id, durable.SerializeAsString()}});
    }
    for (size_t i = job->events.size(); i > 0 && job->event_numbers[i - 1] > job->saved_event;
         --i) {
      Emit(Persist{EventAdded{id, job->event_numbers[i - 1], job->events[i - 1]}});
    }
    job->saved_event = job->last_event;
    if (job->resting()) SaveHistory(*job);
    for (const int64_t number : job->dropped_events) Emit(Persist{EventDropped{id, number}});
    job->dropped_events.clear();
  }
}

// One owner's thousands must not cost the others theirs.
size_t CoordinatorCore::OldestOfTheGreatest(
    const std::function<int64_t(const JobRecord&)>& share) const {
  struct Owned {
    int64_t sum = 0;
    size_t oldest = 0;
  };
  std::map<std::string, Owned> owners;
  size_t found = ended_.size();
  int64_t most = 0;
  for (size_t i = 0; i < ended_.size(); ++i) {
    const JobRecord& job = *FindJob(ended_[i]);
    const int64_t its = share(job);
    if (its <= 0) continue;
    const auto [owned, fresh] = owners.try_emplace(job.owner);
    if (fresh) owned->second.oldest = i;
    owned->second.sum += its;
  }
  for (const auto& entry : owners) {
    const Owned& owned = entry.second;
    if (owned.sum < most || (owned.sum == most && owned.oldest > found)) continue;
    most = owned.sum;
    found = owned.oldest;
  }
  return found;
}

// Logs are what is large: first those of ended jobs go, then the longest of all others becomes
// shorter.
void CoordinatorCore::BoundLogs() {
  while (log_bytes_ > options_.max_all_log_bytes) {
    const size_t ended = OldestOfTheGreatest([](const JobRecord& job) { return job.logs.bytes(); });
    if (ended < ended_.size()) {
      FindJob(ended_[ended])->logs.Clear();
      continue;
    }
    JobRecord* longest = nullptr;
    for (const auto& entry : by_sequence_) {
      JobRecord* const job = entry.second;
      if (longest == nullptr || job->logs.bytes() > longest->logs.bytes()) longest = job;
    }
    longest->logs.DropTo(longest->logs.bytes() / 2);
  }
}

void CoordinatorCore::ForgetOldJobs() {
  BoundLogs();
  const auto most = static_cast<size_t>(options_.max_ended_jobs);
  while (ended_.size() > most) {
    const size_t oldest = OldestOfTheGreatest([this](const JobRecord& job) -> int64_t {
      return active_.count(job.sequence) > 0 ? 0 : 1;  // 0: something of it may still run
    });
    if (oldest == ended_.size()) return;
    ForgetEnded(oldest);
  }
}

void CoordinatorCore::ForgetEnded(size_t index) {
  JobRecord& job = *FindJob(ended_[index]);
  Emit(Persist{JobForgotten{job.id}});
  changed_.erase(job.id);
  requests_.erase(job.request_id);
  by_sequence_.erase(job.sequence);
  ended_.erase(ended_.begin() + static_cast<std::ptrdiff_t>(index));
  jobs_.erase(std::string(job.id));
}

std::string CoordinatorCore::JobWhoseFolderHolds(const std::string& path) const {
  std::string above;
  for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    if (part == ".") continue;
    absl::StrAppend(&above, "/", part);
    const JobRecord* const job = FindJob(part);
    if (job == nullptr) continue;
    std::string folder;
    for (const absl::string_view its : absl::StrSplit(StoragePath(*job), '/', absl::SkipEmpty())) {
      if (its != ".") absl::StrAppend(&folder, "/", its);
    }
    if (folder == above) return job->id;
  }
  return "";
}

}  // namespace capstan::coordinator::core
