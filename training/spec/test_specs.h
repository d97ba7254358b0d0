// A job of the LeNet of Dive into Deep Learning, for tests.
#ifndef CAPSTAN_TRAINING_SPEC_TEST_SPECS_H_
#define CAPSTAN_TRAINING_SPEC_TEST_SPECS_H_

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "training/spec/job_file.h"
#include "training/spec/resolve.h"

namespace capstan::training::spec {

// `overrides`: keys and values, as --set gives them.
inline job::v1::JobSpec Spec(
    const std::vector<std::pair<std::string, std::string>>& overrides = {}) {
  JobFile file = ParseJobFile(R"(version: 1
name: lenet-fmnist
resources: {num_workers: 2, num_shards: 2}
model: {name: lenet_d2l}
data: {uri: file:///data/fashion-mnist, format: idx}
training:
  epochs: 10
  global_batch_size: 256
  optimizer: {name: sgd, learning_rate: 0.2}
)",
                              overrides);
  EXPECT_TRUE(file.errors.empty()) << FormatErrors("job.yaml", file.errors);
  return file.spec;
}

inline common::v1::DatasetInfo FashionMnist() {
  common::v1::DatasetInfo info;
  info.set_train_samples(60000);
  info.set_test_samples(10000);
  info.set_channels(1);
  info.set_height(28);
  info.set_width(28);
  info.set_num_classes(10);
  return info;
}

inline const ResolveOptions kOptions{.job_id = "lenet-fmnist-x3n9", .storage_path = "/out"};

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_TEST_SPECS_H_
