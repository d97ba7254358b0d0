// A small job for the tests of a task: synthetic digits.
#ifndef CAPSTAN_GPU_WORKER_TASK_TEST_JOB_H_
#define CAPSTAN_GPU_WORKER_TASK_TEST_JOB_H_

#include <string>

#include "capstan/job/v1/job_spec.pb.h"
#include "capstan/node/v1/node.pb.h"
#include "services/check/check.h"
#include "training/spec/resolve.h"

namespace capstan::gpu_worker {

struct TestJob {
  int32_t lanes = 4;
  int32_t devices = 1;
  int64_t steps = 30;
  int64_t batch = 64;
  int32_t accumulate = 1;  // batches of a step; `lanes` are those of a batch
  int32_t local_steps = 1;
  int64_t train = 640;
  int64_t test = 100;
  double learning_rate = 0.1;
  double momentum = 0;
  std::string optimizer = "sgd";
  double weight_decay = 0;
  std::string decayed = "all";
  double clip_value = 0;  // 0: none
  double clip_norm = 0;   // likewise
  std::string precision = "fp32";
  std::string kvstore = "local";
  std::string compression;  // of gradients; empty: none
  std::string model = "mlp";
  bool deterministic = true;
  double stall_seconds = 300;
  int64_t checkpoint_every = 0;   // steps; 0: none
  double checkpoint_seconds = 0;  // likewise
  double orphan_timeout = 600;    // seconds
  std::string storage_path;

  job::v1::JobSpec Spec() const {
    job::v1::JobSpec spec;
    spec.set_version(1);
    spec.set_name("digits");
    spec.mutable_resources()->set_num_workers(1);
    spec.mutable_resources()->set_gpus_per_worker(devices);
    spec.mutable_resources()->set_lanes(lanes);
    spec.mutable_model()->set_name(model);
    spec.mutable_data()->set_format("synthetic_digits");
    spec.mutable_data()->set_train_samples(train);
    spec.mutable_data()->set_test_samples(test);
    spec.mutable_kvstore()->set_type(kvstore);
    spec.mutable_kvstore()->set_local_steps(local_steps);
    if (!compression.empty()) {
      spec.mutable_kvstore()->mutable_gradient_compression()->set_type(compression);
    }
    if (!deterministic) spec.mutable_resources()->set_device("gpu");
    spec.mutable_training()->set_deterministic(deterministic);
    spec.mutable_limits()->set_stall_timeout_seconds(stall_seconds);
    spec.mutable_training()->set_max_steps(steps);
    spec.mutable_training()->set_global_batch_size(batch);
    spec.mutable_training()->set_accumulate_steps(accumulate);
    spec.mutable_training()->mutable_optimizer()->set_name(optimizer);
    spec.mutable_training()->mutable_optimizer()->set_weight_decay(weight_decay);
    spec.mutable_training()->mutable_optimizer()->set_decayed(decayed);
    if (clip_value > 0) spec.mutable_training()->set_gradient_clip_value(clip_value);
    if (clip_norm > 0) spec.mutable_training()->set_gradient_clip_norm(clip_norm);
    spec.mutable_training()->mutable_optimizer()->set_learning_rate(learning_rate);
    spec.mutable_training()->mutable_optimizer()->set_momentum(momentum);
    spec.mutable_training()->set_seed(7);
    spec.mutable_training()->set_precision(precision);
    spec.mutable_limits()->set_orphan_timeout_seconds(orphan_timeout);
    if (checkpoint_every > 0) {
      spec.mutable_checkpoint()->mutable_every()->set_steps(checkpoint_every);
    }
    if (checkpoint_seconds > 0) spec.mutable_checkpoint()->set_every_seconds(checkpoint_seconds);
    return spec;
  }

  // For one worker, rank 0, which owns all lanes.
  node::v1::StartTask Start() const {
    common::v1::DatasetInfo dataset;
    dataset.set_train_samples(train);
    dataset.set_test_samples(test);
    dataset.set_channels(1);
    dataset.set_height(28);
    dataset.set_width(28);
    dataset.set_num_classes(10);
    auto resolved = training::spec::Resolve(Spec(), dataset, {"digits-ab12", storage_path});
    CAPSTAN_CHECK(resolved.ok());
    node::v1::StartTask start;
    start.set_job_id("digits-ab12");
    start.set_resolved_spec(resolved->SerializeAsString());
    start.set_spec_digest(training::spec::Digest(start.resolved_spec()));
    start.mutable_view()->set_job_id("digits-ab12");
    start.mutable_view()->set_lineage(1);
    start.mutable_view()->set_generation(1);
    for (int32_t i = 0; i < resolved->lanes(); ++i) start.mutable_view()->add_lane_owners(0);
    for (int32_t device = 0; device < devices; ++device) start.add_devices(device);
    return start;
  }
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_TEST_JOB_H_
