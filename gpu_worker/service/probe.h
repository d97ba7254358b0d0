// Answers probes of a job's data set, on threads that nothing waits for.
#ifndef CAPSTAN_GPU_WORKER_SERVICE_PROBE_H_
#define CAPSTAN_GPU_WORKER_SERVICE_PROBE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "capstan/node/v1/node.pb.h"

namespace capstan::gpu_worker {

// Reads the headers and labels of the data set. A failure carries DataMissing, InvalidSpec or
// another reason, but not the host, which the caller knows. Blocks; thread-safe.
node::v1::ProbeResult AnswerProbe(const node::v1::Probe& probe,
                                  const std::vector<std::string>& data_roots);

// Answers probes on its own threads: those of one data set one after the other, those of different
// ones at the same time, at most kMostSets. A hung network file system blocks only the probes of
// data stored on it. Thread-safe.
class ProbeQueue {
 public:
  static constexpr size_t kMostSets = 64;   // being read at a time
  static constexpr size_t kMostOfASet = 8;  // probes
  using Answer = std::function<node::v1::ProbeResult(const node::v1::Probe&)>;
  using OnResult = std::function<void(node::v1::ProbeResult)>;

  // `answer` may outlive the queue, so it must own what it uses. `on_result` is called with no lock
  // held.
  ProbeQueue(Answer answer, OnResult on_result);
  // Waits for a running on_result, never for an answer. No on_result is called afterwards.
  ~ProbeQueue();
  ProbeQueue(const ProbeQueue&) = delete;
  ProbeQueue& operator=(const ProbeQueue&) = delete;

  // Drops a probe whose id is already being answered or waiting, and a probe beyond kMostOfASet or
  // kMostSets. The coordinator asks again until it has an answer.
  void Add(const node::v1::Probe& probe);

 private:
  struct State;
  static void Run(State& state, const std::string& set);
  const std::shared_ptr<State> state_;  // shared with the threads; the last owner frees it
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_SERVICE_PROBE_H_
