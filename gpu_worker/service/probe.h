// Answers what a job would train on, on threads that nobody waits for.
#ifndef CAPSTAN_GPU_WORKER_SERVICE_PROBE_H_
#define CAPSTAN_GPU_WORKER_SERVICE_PROBE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "capstan/node/v1/node.pb.h"

namespace capstan::gpu_worker {

// Reads the headers and labels of the data set. A failure carries DataMissing, InvalidSpec or
// another reason; who asked knows the host. Blocks; thread-safe.
node::v1::ProbeResult AnswerProbe(const node::v1::Probe& probe,
                                  const std::vector<std::string>& data_roots);

// Answers probes on threads of its own: those of one data set one after the other, those of different
// ones at once, kMostSets at most. A network file system that hangs so keeps the probes of what lies
// on it, and holds nobody else up. Thread-safe.
class ProbeQueue {
 public:
  static constexpr size_t kMostSets = 64;   // that are being read
  static constexpr size_t kMostOfASet = 8;  // probes
  using Answer = std::function<node::v1::ProbeResult(const node::v1::Probe&)>;
  using OnResult = std::function<void(node::v1::ProbeResult)>;

  // `answer` may outlive the queue, and must own what it uses; `on_result` is called with no lock
  // held.
  ProbeQueue(Answer answer, OnResult on_result);
  // Waits for an on_result under way, never for an answer; no on_result is called afterwards.
  ~ProbeQueue();
  ProbeQueue(const ProbeQueue&) = delete;
  ProbeQueue& operator=(const ProbeQueue&) = delete;

  // Drops what is being answered or waits already, by its id, and what is one too many, of its data
  // set or with one too many data sets: the coordinator asks again until it knows.
  void Add(const node::v1::Probe& probe);

 private:
  struct State;
  static void Run(State& state, const std::string& set);
  const std::shared_ptr<State> state_;  // the threads' too: whoever ends last frees it
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_SERVICE_PROBE_H_
