// Puts the load of many clients, or of many nodes, on a running coordinator.
//
//   capstan_coordinator_load submit --address A --clients 1 --count 1000
//     Each client has its own connection and makes one durable SubmitJob after the other.
//   capstan_coordinator_load nodes --address A --count 1000 --seconds 30
//     Each node has its own connection and reports once a second, spread over the second.
//
// The submitted job wants 1000 workers, so it waits for ever. A heartbeat is answered only if there
// is something to say. So most of these are empty and not answered, like those of an idle node.
// Every tenth heartbeat of a node names a task that no coordinator knows, and the coordinator
// orders its end. Its time runs from the moment at which it was due (so late ones are not omitted)
// to that order. TLS is as in interface.md: --tls-cert, --tls-key, --tls-ca and --token-file of a
// client or of a worker, or --insecure. A Unix socket needs neither. Prints lines of JSON.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "capstan/job/v1/job_service.grpc.pb.h"
#include "capstan/node/v1/node.grpc.pb.h"
#include "grpcpp/channel.h"
#include "services/channel/channel.h"
#include "services/check/check.h"
#include "services/endpoint/endpoint.h"
#include "services/sync/mutex.h"
#include "services/tuning/tuning.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

constexpr int kAnswered = 10;  // one heartbeat in this many gets an answer

struct Flags {
  std::string address;
  services::Security security;
  int clients = 1;
  int count = 1000;
  int seconds = 30;
  int timeout_seconds = 30;  // of a submit
};

// Ends the process if the files of `flags` are invalid.
std::shared_ptr<grpc::Channel> Dial(const Flags& flags) {
  services::ChannelOptions options;
  const absl::StatusOr<services::Endpoint> peer = services::ParseEndpoint(flags.address);
  absl::Status status = peer.status();
  if (status.ok()) {
    options.peer = *peer;
    options.security = flags.security;
    options.own_connection = true;
    auto channel = services::MakeChannel(options);
    if (channel.ok()) return *std::move(channel);
    status = channel.status();
  }
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(2);
}

// `values` must be sorted.
double Quantile(const std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(q * static_cast<double>(values.size())))];
}

// Not 0: a call failed. Prints the first failure.
int Submit(const Flags& flags) {
  const int clients = flags.clients;
  const int jobs = flags.count;
  job::v1::SubmitJobRequest request;
  job::v1::JobSpec& spec = *request.mutable_spec();
  spec.set_version(1);
  spec.set_name("load");
  spec.mutable_resources()->set_num_workers(1000);
  spec.mutable_resources()->set_num_shards(1);
  spec.mutable_model()->set_name("lenet");
  spec.mutable_data()->set_format("synthetic_digits");
  spec.mutable_kvstore()->set_type("dist_sync");
  spec.mutable_training()->set_epochs(1);
  spec.mutable_training()->set_global_batch_size(64000);
  spec.mutable_training()->mutable_optimizer()->set_name("sgd");
  spec.mutable_training()->mutable_optimizer()->set_learning_rate(0.01);
  const std::string run = absl::StrCat(absl::ToUnixNanos(absl::Now()));
  std::atomic<int> next = 0;
  std::atomic<bool> failed = false;
  std::vector<std::vector<double>> seconds(static_cast<size_t>(clients));
  std::vector<std::thread> threads;
  const auto begin = Clock::now();
  for (int c = 0; c < clients; ++c) {
    threads.emplace_back([&, c, channel = Dial(flags)] {
      const auto stub = job::v1::JobService::NewStub(channel);
      job::v1::SubmitJobRequest mine = request;
      for (int i = next++; i < jobs && !failed; i = next++) {
        mine.set_request_id(absl::StrCat(run, "-", i));
        job::v1::SubmitJobResponse response;
        const auto context = services::NewContext(absl::Seconds(flags.timeout_seconds));
        const auto at = Clock::now();
        const grpc::Status status = stub->SubmitJob(context.get(), mine, &response);
        seconds[c].push_back(Seconds(Clock::now() - at));
        if (status.ok()) continue;
        // Not exit, because the other threads are inside calls and would use what it destroys.
        if (!failed.exchange(true)) {
          std::fprintf(stderr, "submit: %s\n", status.error_message().c_str());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failed) return 1;
  const double total = Seconds(Clock::now() - begin);
  std::vector<double> all;
  for (const auto& part : seconds) all.insert(all.end(), part.begin(), part.end());
  std::sort(all.begin(), all.end());
  std::printf(
      "{\"clients\": %d, \"submits\": %d, \"per_second\": %.0f, \"p50_ms\": %.2f, "
      "\"p99_ms\": %.2f}\n",
      clients, jobs, jobs / total, 1e3 * Quantile(all, 0.5), 1e3 * Quantile(all, 0.99));
  return 0;
}

// One node. The main thread sends its heartbeats, and its answers arrive in gRPC's threads.
class Node final
    : public grpc::ClientBidiReactor<node::v1::ConnectRequest, node::v1::ConnectResponse> {
 public:
  Node(const Flags& flags, int index)
      : stub_(node::v1::NodeService::NewStub(Dial(flags))), beats_(index) {
    node::v1::Register& reg = *request_.mutable_register_();
    reg.set_name(absl::StrCat("load-", index));
    reg.set_role(common::v1::ROLE_WORKER);
    reg.add_devices()->set_name("cpu");
    stub_->async()->Connect(&context_, this);
    AddHold();  // main writes
    StartWrite(&request_);
    StartRead(&response_);
    StartCall();
  }
  bool registered() {
    MutexLock lock(mu_);
    return registered_;
  }
  // `due`: when the heartbeat should leave.
  void Beat(Clock::time_point due) {
    MutexLock lock(mu_);
    if (writing_ || over_) {
      ++late_;
      return;
    }
    due_ = due;
    writing_ = true;
    request_.mutable_heartbeat()->Clear();
    if (beats_++ % kAnswered == 0) {
      ++asked_;
      node::v1::TaskState& task = *request_.mutable_heartbeat()->add_tasks();
      task.set_job_id("nobody-knows");
      task.set_phase(node::v1::TASK_PHASE_RUNNING);
    }
    StartWrite(&request_);
  }
  void End() {
    context_.TryCancel();
    RemoveHold();
    MutexLock lock(mu_);
    while (!done_) changed_.Wait(mu_);
  }
  // Call it after End.
  const std::vector<double>& seconds() const { return seconds_; }
  int asked() const { return asked_; }
  int late() const { return late_; }  // not sent, because the one before was still being written

  void OnWriteDone(bool ok) override {
    MutexLock lock(mu_);
    writing_ = false;
    if (!ok) over_ = true;
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      MutexLock lock(mu_);
      if (response_.has_registered()) registered_ = true;
      if (response_.has_stop_task()) seconds_.push_back(Seconds(Clock::now() - due_));
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status&) override {
    MutexLock lock(mu_);
    done_ = true;
    changed_.NotifyAll();
  }

 private:
  const std::unique_ptr<node::v1::NodeService::Stub> stub_;
  grpc::ClientContext context_;
  node::v1::ConnectRequest request_;
  node::v1::ConnectResponse response_;
  Mutex mu_;
  CondVar changed_;
  bool writing_ = true;
  bool over_ = false;
  bool registered_ = false;
  bool done_ = false;
  int late_ = 0;
  int beats_;  // begins with the node's number, so at any time one node in ten asks
  int asked_ = 0;
  Clock::time_point due_;
  std::vector<double> seconds_;
};

void Nodes(const Flags& flags) {
  const int count = flags.count;
  const auto connect = Clock::now();
  std::vector<std::unique_ptr<Node>> nodes;
  // Not all at once: TLS handshakes that run at the same time all end late, some too late.
  constexpr size_t kConnecting = 64;
  for (size_t i = 0; i < static_cast<size_t>(count) + kConnecting; ++i) {
    if (i < static_cast<size_t>(count)) {
      nodes.push_back(std::make_unique<Node>(flags, static_cast<int>(i)));
    }
    if (i < kConnecting || i - kConnecting >= nodes.size()) continue;
    for (int tries = 0; !nodes[i - kConnecting]->registered(); ++tries) {
      CAPSTAN_CHECK(tries < 12000);
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  const auto begin = Clock::now();
  // A measurement of the coordinator's CPU begins here and ends with the next line.
  std::printf("{\"registered\": %d, \"seconds\": %.2f}\n", count, Seconds(begin - connect));
  std::fflush(stdout);
  const auto gap = std::chrono::nanoseconds(1000000000 / count);
  for (int64_t beat = 0; beat < int64_t{count} * flags.seconds; ++beat) {
    const auto due = begin + beat * gap;
    std::this_thread::sleep_until(due);
    nodes[static_cast<size_t>(beat % count)]->Beat(due);
  }
  absl::SleepFor(absl::Seconds(1));
  std::printf("{\"over\": true}\n");  // after this a thousand connections end
  std::fflush(stdout);
  std::vector<double> all;
  int late = 0;
  int asked = 0;
  for (const auto& node : nodes) {
    node->End();
    all.insert(all.end(), node->seconds().begin(), node->seconds().end());
    late += node->late();
    asked += node->asked();
  }
  std::sort(all.begin(), all.end());
  std::printf(
      "{\"nodes\": %d, \"seconds\": %d, \"asked\": %d, \"answered\": %zu, \"late\": %d, "
      "\"p50_ms\": %.2f, "
      "\"p99_ms\": %.2f, \"max_ms\": %.2f}\n",
      count, flags.seconds, asked, all.size(), late, 1e3 * Quantile(all, 0.5),
      1e3 * Quantile(all, 0.99), 1e3 * Quantile(all, 1));
}

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  capstan::services::TuneProcess();
  capstan::Flags flags;
  CLI::App app("Load for a coordinator.");
  app.require_subcommand(1);
  CLI::App* const submit = app.add_subcommand("submit", "durable submits, one client or many");
  CLI::App* const nodes = app.add_subcommand("nodes", "registered nodes with 1 Hz heartbeats");
  for (CLI::App* const command : {submit, nodes}) {
    command->add_option("--address", flags.address, "unix:PATH or HOST:PORT")->required();
    command->add_flag("--insecure", flags.security.insecure);
    command->add_option("--tls-cert", flags.security.tls_cert);
    command->add_option("--tls-key", flags.security.tls_key);
    command->add_option("--tls-ca", flags.security.tls_ca);
    command->add_option("--token-file", flags.security.token_file);
    command->add_option("--count", flags.count, "jobs or nodes")->check(CLI::Range(1, 1000000));
  }
  submit->add_option("--clients", flags.clients)->check(CLI::Range(1, 1000));
  submit->add_option("--timeout", flags.timeout_seconds, "of a call, in seconds")
      ->check(CLI::Range(1, 600));
  nodes->add_option("--seconds", flags.seconds)->check(CLI::Range(1, 3600));
  CLI11_PARSE(app, argc, argv);
  if (submit->parsed()) return capstan::Submit(flags);
  capstan::Nodes(flags);
  return 0;
}
