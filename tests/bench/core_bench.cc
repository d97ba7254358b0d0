// What one event costs the coordinator's core while many jobs run.
//
//   capstan_bench_core --jobs 10,100,1000 --rounds 20
//
// Each job has two workers and one shard, each on a node of its own. A round is one second of the
// core's time: each node sends one heartbeat, in which its job is ten steps further, and Ticks come
// when they are due. At the end of a round a person gives one job an order, and a node that nobody
// needs comes and goes. One more job waits for more workers than there are.
//
// Inside the clock: CoordinatorCore::Step and NextDeadline, CPU time of the thread, and reading that
// clock (about 0.3 us). Not in it: making the event, and what an adapter does with the effects. The
// first rounds are not counted. Prints lines of JSON: a kind of event, its mean time in a round, the
// median of these means and their p10 and p90.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/core/core.h"
#include "services/check/check.h"
#include "training/spec/resolve.h"

namespace capstan::coordinator::core {
namespace {

constexpr int kStepsPerRound = 10;
constexpr int kWarmUpRounds = 12;  // until the histories of metrics were saved once
constexpr int kWorkersPerJob = 2;

double CpuMicroseconds() {
  timespec time{};
  CAPSTAN_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

job::v1::JobSpec MakeSpec() {
  job::v1::JobSpec spec;
  spec.set_version(1);
  spec.set_name("bench");
  spec.mutable_resources()->set_num_shards(1);
  spec.mutable_model()->set_name("lenet");
  spec.mutable_data()->set_format("synthetic_digits");
  spec.mutable_kvstore()->set_type("dist_sync");
  spec.mutable_training()->set_max_steps(100000000);
  spec.mutable_training()->set_epochs(1000000);
  spec.mutable_training()->set_global_batch_size(64);
  spec.mutable_training()->mutable_optimizer()->set_name("sgd");
  spec.mutable_training()->mutable_optimizer()->set_learning_rate(0.01);
  return spec;
}

CoreOptions MakeOptions() {
  CoreOptions options;
  options.storage_root = "/bench";
  options.validate = [](const job::v1::JobSpec&) { return absl::OkStatus(); };
  options.resolve = [](const job::v1::JobSpec& spec, const common::v1::DatasetInfo& dataset,
                       const std::string& job_id, const std::string& root) {
    return training::spec::Resolve(spec, dataset, {.job_id = job_id, .storage_path = root});
  };
  return options;
}

struct Member {
  SessionId session = 0;
  node::v1::ConnectRequest beat;
};

struct RunningJob {
  std::string id;
  std::vector<Member> workers;
  Member store;
};

class Bench {
 public:
  explicit Bench(int jobs) : core_(MakeOptions()) {
    for (int i = 0; i < jobs; ++i) StartJob(i);
    Do(Submission(/*workers=*/1000000));
    for (const RunningJob& job : jobs_) {
      CAPSTAN_CHECK(core_.Peek(job.id)->state() == common::v1::JOB_STATE_RUNNING);
    }
  }

  void Round(bool counts) {
    step_ += kStepsPerRound;
    std::map<std::string, std::pair<double, int>> sums;  // by kind: CPU time, events
    const auto timed = [&](const std::string& kind, decltype(Event::what) what) {
      double spent = 0;
      Do(std::move(what), &spent);
      sums[kind].first += spent;
      ++sums[kind].second;
    };
    const auto pause = absl::Seconds(1) / static_cast<double>(jobs_.size() * (kWorkersPerJob + 1));
    for (RunningJob& job : jobs_) {
      for (Member& worker : job.workers) {
        node::v1::TaskState& task = *worker.beat.mutable_heartbeat()->mutable_tasks(0);
        task.set_step(step_);
        task.mutable_phases()->set_steps(step_);
        task.mutable_phases()->set_total(0.1 * static_cast<double>(step_));
        Pass(pause, timed);
        timed("heartbeat of a worker", NodeMessage{worker.session, worker.beat});
      }
      node::v1::ShardState& shard = *job.store.beat.mutable_heartbeat()->mutable_shards(0);
      shard.set_version(step_);
      shard.mutable_lead()->set_step(step_);
      shard.mutable_lead()->set_samples_used(64 * step_);
      for (node::v1::WorkerPace& pace : *shard.mutable_paces()) {
        pace.set_steps(step_);
        pace.set_lanes(4 * step_);
        pace.set_seconds(0.01 * static_cast<double>(step_));
      }
      Pass(pause, timed);
      timed("heartbeat of a shard", NodeMessage{job.store.session, job.store.beat});
    }
    Control update;
    update.call = ++calls_;
    update.caller.any_job = true;
    job::v1::UpdateJobRequest& request = update.request.emplace<job::v1::UpdateJobRequest>();
    request.set_job_id(jobs_[jobs_.size() / 2].id);
    request.set_max_restarts(static_cast<int>(calls_ % 10));
    timed("order of a person", update);
    NodeConnected guest = Registration(absl::StrCat("x", calls_), common::v1::ROLE_PARAM_STORE);
    const SessionId session = guest.session;
    timed("a node connects", std::move(guest));
    timed("a node says goodbye", NodeDisconnected{session, true});
    for (const RunningJob& job : jobs_) {
      CAPSTAN_CHECK(core_.Peek(job.id)->history().progress().step() == step_);
    }
    if (!counts) return;
    for (const auto& [kind, sum] : sums) means_[kind].push_back(sum.first / sum.second);
  }

  void Print() const {
    for (const auto& [kind, means] : means_) {
      std::vector<double> sorted = means;
      std::sort(sorted.begin(), sorted.end());
      const auto at = [&sorted](double part) {
        return sorted[static_cast<size_t>(part * static_cast<double>(sorted.size() - 1))];
      };
      std::printf(
          "{\"jobs\": %zu, \"event\": \"%s\", \"rounds\": %zu, \"p10_us\": %.2f, "
          "\"median_us\": %.2f, \"p90_us\": %.2f}\n",
          jobs_.size(), kind.c_str(), sorted.size(), at(0.1), at(0.5), at(0.9));
    }
    std::fflush(stdout);
  }

 private:
  Effects Do(decltype(Event::what) what, double* spent = nullptr) {
    const Event event{absl::FromUnixSeconds(1000) + now_, std::move(what)};
    const double begin = CpuMicroseconds();
    Effects effects = core_.Step(event, now_);
    const absl::Duration due = core_.NextDeadline();
    if (spent != nullptr) *spent = CpuMicroseconds() - begin;
    tick_at_ = std::min(tick_at_, due);
    return effects;
  }

  // As an adapter does it: a Tick that is set comes, unless an earlier one is set.
  template <typename Timed>
  void Pass(absl::Duration duration, const Timed& timed) {
    const absl::Duration end = now_ + duration;
    while (tick_at_ <= end) {
      now_ = std::max(now_, tick_at_);
      tick_at_ = absl::InfiniteDuration();
      timed("tick", Tick{});
    }
    now_ = std::max(now_, end);
  }

  NodeConnected Registration(const std::string& name, common::v1::Role role) {
    NodeConnected connected;
    connected.session = ++sessions_;
    connected.reg.set_name(name);
    connected.reg.set_role(role);
    connected.reg.set_host(absl::StrCat("host-", name));
    if (role == common::v1::ROLE_WORKER) {
      connected.reg.add_devices()->set_name("cpu");
    } else {
      connected.reg.set_data_address(absl::StrCat("unix:/", name));
    }
    return connected;
  }

  Member Connect(const std::string& name, common::v1::Role role) {
    NodeConnected connected = Registration(name, role);
    Member member;
    member.session = connected.session;
    Do(std::move(connected));
    return member;
  }

  Submit Submission(int workers) {
    Submit submit;
    submit.call = ++calls_;
    submit.request_id = absl::StrCat("r", calls_);
    submit.spec = MakeSpec();
    submit.spec.mutable_resources()->set_num_workers(workers);
    submit.caller.any_job = true;
    return submit;
  }

  // All that nodes would say until the job is RUNNING; the clock of the core stands still.
  void StartJob(int index) {
    RunningJob job;
    for (int rank = 0; rank < kWorkersPerJob; ++rank) {
      job.workers.push_back(Connect(absl::StrCat("w", index, "-", rank), common::v1::ROLE_WORKER));
    }
    job.store = Connect(absl::StrCat("s", index), common::v1::ROLE_PARAM_STORE);
    std::vector<std::pair<SessionId, node::v1::Probe>> probes;
    for (const Effect& effect : Do(Submission(kWorkersPerJob))) {
      const auto* const send = std::get_if<Send>(&effect);
      if (send == nullptr || !send->message.has_probe()) continue;
      probes.emplace_back(send->session, send->message.probe());
    }
    CAPSTAN_CHECK(probes.size() == static_cast<size_t>(kWorkersPerJob));
    for (const auto& [session, probe] : probes) {
      job.id = probe.job_id();
      node::v1::ConnectRequest answer;
      node::v1::ProbeResult& result = *answer.mutable_probe_result();
      result.set_probe_id(probe.probe_id());
      result.set_job_id(probe.job_id());
      common::v1::DatasetInfo& data = *result.mutable_dataset();
      data.set_train_samples(60000);
      data.set_test_samples(10000);
      data.set_channels(1);
      data.set_height(28);
      data.set_width(28);
      data.set_num_classes(10);
      Do(NodeMessage{session, answer});
    }
    node::v1::ShardState& shard = *job.store.beat.mutable_heartbeat()->add_shards();
    shard.set_job_id(job.id);
    shard.set_lineage(1);
    shard.set_generation(1);
    shard.set_ready(true);
    shard.mutable_waiting()->set_chunks(100);
    shard.mutable_lead()->set_lineage(1);
    shard.mutable_lead()->set_loss(0.5);
    shard.mutable_lead()->set_learning_rate(0.01);
    shard.mutable_lead()->set_samples_per_second(640);
    for (int rank = 0; rank < kWorkersPerJob; ++rank) shard.add_paces()->set_rank(rank);
    Do(NodeMessage{job.store.session, job.store.beat});
    for (int rank = 0; rank < kWorkersPerJob; ++rank) {
      Member& worker = job.workers[static_cast<size_t>(rank)];
      node::v1::TaskState& task = *worker.beat.mutable_heartbeat()->add_tasks();
      task.set_job_id(job.id);
      task.set_rank(rank);
      task.set_lineage(1);
      task.set_generation(1);
      task.set_phase(node::v1::TASK_PHASE_RUNNING);
      Do(NodeMessage{worker.session, worker.beat});
    }
    jobs_.push_back(std::move(job));
  }

  CoordinatorCore core_;
  std::vector<RunningJob> jobs_;
  absl::Duration now_ = absl::Seconds(50);
  absl::Duration tick_at_ = absl::InfiniteDuration();
  int64_t step_ = 0;
  SessionId sessions_ = 0;
  CallId calls_ = 0;
  std::map<std::string, std::vector<double>> means_;
};

int Main(int argc, char** argv) {
  CLI::App app("What one event costs the coordinator's core while many jobs run.");
  std::vector<int> jobs = {10, 100, 1000};
  int rounds = 20;
  app.add_option("--jobs", jobs, "Numbers of running jobs")->delimiter(',');
  app.add_option("--rounds", rounds, "Seconds of the core's time that are counted");
  CLI11_PARSE(app, argc, argv);
  for (const int count : jobs) {
    Bench bench(count);
    for (int round = 0; round < kWarmUpRounds + rounds; ++round) {
      bench.Round(round >= kWarmUpRounds);
    }
    bench.Print();
  }
  return 0;
}

}  // namespace
}  // namespace capstan::coordinator::core

int main(int argc, char** argv) { return capstan::coordinator::core::Main(argc, argv); }
