// Answers what a job would train on, on a thread that nobody waits for.
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

// Answers probes on a thread of its own, one at a time and in their order: a network file system
// that hangs keeps that thread and the probes behind it, and holds nobody else up. Thread-safe.
class ProbeQueue {
 public:
  using Answer = std::function<node::v1::ProbeResult(const node::v1::Probe&)>;
  using OnResult = std::function<void(node::v1::ProbeResult)>;

  // `answer` may outlive the queue, and must own what it uses; `on_result` is called with no lock
  // held.
  ProbeQueue(Answer answer, OnResult on_result);
  // Waits for an on_result under way, never for an answer; no on_result is called afterwards.
  ~ProbeQueue();
  ProbeQueue(const ProbeQueue&) = delete;
  ProbeQueue& operator=(const ProbeQueue&) = delete;

  // Drops what is being answered or waits already, by its id, and what is one too many: the
  // coordinator asks again until it knows.
  void Add(const node::v1::Probe& probe);

 private:
  static constexpr size_t kMost = 64;
  struct State;
  static void Run(State& state);
  const std::shared_ptr<State> state_;  // the thread's too: whoever ends later frees it
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_SERVICE_PROBE_H_
