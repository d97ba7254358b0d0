// A model with running statistics, for the tests of this folder.
#ifndef CAPSTAN_GPU_WORKER_TASK_TEST_LAYOUT_H_
#define CAPSTAN_GPU_WORKER_TASK_TEST_LAYOUT_H_

#include <cstdint>
#include <utility>

#include "gtest/gtest.h"
#include "training/chunks/flat_layout.h"

namespace capstan::gpu_worker {

// One tensor of weights and one of running statistics, each in chunks of its own.
inline training::FlatLayout WithStatistics(int64_t weights, int64_t statistics,
                                           int64_t chunk_floats) {
  training::TensorSpec weight;
  weight.name = "fc.weight";
  weight.shape = {weights};
  weight.fan_in = weight.fan_out = 1;
  training::TensorSpec mean;
  mean.name = "bn.running_mean";
  mean.shape = {statistics};
  mean.kind = training::TensorKind::kStat;
  mean.fan_in = mean.fan_out = 1;
  mean.momentum = 0.1;
  auto layout = training::FlatLayout::Create({weight, mean}, chunk_floats);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *std::move(layout);
}

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_TEST_LAYOUT_H_
