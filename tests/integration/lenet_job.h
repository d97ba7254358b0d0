// The job of the integration tests: a small LeNet on synthetic digits.
#ifndef CAPSTAN_TESTS_INTEGRATION_LENET_JOB_H_
#define CAPSTAN_TESTS_INTEGRATION_LENET_JOB_H_

#include <gtest/gtest.h>

#include <cstdint>

#include "training/spec/job_file.h"

namespace capstan::tests {

inline constexpr int64_t kSteps = 60;
inline constexpr int64_t kBatch = 64;

// 8 lanes, evaluated after 30 and 60 steps. `local` if `shards` is 0.
inline job::v1::JobSpec LeNetSpec(int workers, int shards) {
  training::spec::JobFile file = training::spec::ParseJobFile(R"(version: 1
name: lenet
resources: {lanes: 8}
model: {name: lenet}
data: {format: synthetic_digits, train_samples: 1920, test_samples: 300}
training:
  epochs: 2
  global_batch_size: 64
  seed: 5
  optimizer: {name: sgd, learning_rate: 0.04, momentum: 0.9}
)");
  EXPECT_TRUE(file.errors.empty()) << training::spec::FormatErrors("lenet", file.errors);
  file.spec.mutable_resources()->set_num_workers(workers);
  if (shards > 0) file.spec.mutable_resources()->set_num_shards(shards);
  file.spec.mutable_kvstore()->set_type(shards > 0 ? "dist_sync" : "local");
  return file.spec;
}

}  // namespace capstan::tests

#endif  // CAPSTAN_TESTS_INTEGRATION_LENET_JOB_H_
