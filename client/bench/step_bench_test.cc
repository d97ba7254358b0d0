#include "client/bench/step_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "gpu_worker/engine/device/open.h"
#include "training/graph/models.h"
#include "training/ops/add/add.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/mat_mul/mat_mul.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/relu/relu.h"
#include "training/ops/reshape/reshape.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"
#include "training/optim/sgd.h"

namespace capstan::client {
namespace {

using ::testing::HasSubstr;

// 12 numbers to 7, with a value that has two readers.
training::Graph Small() {
  return training::Graph::Build("small", {3, 2, 2},
                                {{"flat", training::Flatten(), {0}},
                                 {"in", training::Gemm{7}, {1}},
                                 {"relu", training::Relu(), {2}},
                                 {"sum", training::Add(), {2, 3}},
                                 {"drop", training::Dropout(), {4}},
                                 {"head", training::Gemm{5}, {5}},
                                 {"loss", training::SoftmaxCrossEntropyLoss(), {6}}})
      .value();
}

// Counted by hand, for 10 samples: floats times 4 bytes.
TEST(KernelWorkTest, CountsOperationsAndBytes) {
  const training::Graph graph = Small();
  const auto forward = [&](int first, int last) { return ForwardWork(graph, first, last, 10); };
  const auto backward = [&](int first, int last) { return BackwardWork(graph, first, last, 10); };
  EXPECT_EQ(forward(-1, -1).bytes, 4 * (10 * 12 + 10 * 12));
  EXPECT_EQ(backward(-1, -1).bytes, 0);
  // The first dense layer: 12 inputs that need no gradient, 12 * 7 weights and 7 biases, 7 outputs.
  EXPECT_EQ(forward(1, 1).flops, 10 * 2 * 12 * 7);
  EXPECT_EQ(backward(1, 1).flops, 10 * 2 * 12 * 7);
  EXPECT_EQ(forward(1, 1).bytes, 4 * (10 * 12 + 91 + 10 * 7));
  EXPECT_EQ(backward(1, 1).bytes, 4 * (10 * 7 + 10 * 12 + 91));
  // With the Relu, and the sum that reads the layer's output again: only the sum's is written.
  EXPECT_EQ(forward(1, 3).flops, 10 * 2 * 12 * 7);
  EXPECT_EQ(forward(1, 3).bytes, 4 * (10 * 12 + 91 + 10 * 7));
  // A sum alone: two inputs of 7.
  EXPECT_EQ(forward(3, 3).flops, 0);
  EXPECT_EQ(forward(3, 3).bytes, 4 * 10 * (7 + 7 + 7));
  EXPECT_EQ(backward(3, 3).bytes, 4 * 10 * (7 + 7 + 7));
  // The last dense layer: the gradient by its 7 inputs is wanted; 7 * 5 weights and 5 biases.
  EXPECT_EQ(backward(5, 5).flops, 2 * 10 * 2 * 7 * 5);
  EXPECT_EQ(backward(5, 5).bytes, 4 * (10 * 5 + 10 * 7 + 10 * 7 + 2 * 40));
  EXPECT_EQ(forward(6, 6).bytes, 4 * 10 * (5 + 5));
  EXPECT_EQ(forward(6, 6).flops, 0);
  EXPECT_EQ(backward(6, 6).bytes, 0);
}

// 3 numbers times a trained 3 x 5, which is the same for all 10 samples.
TEST(KernelWorkTest, AParameterIsReadOnceForAllSamples) {
  const training::Graph graph =
      training::Graph::Build("product", {3},
                             {{"row", training::Reshape{{1, 3}}, {0}},
                              {"weight", training::ParameterNode{{3, 5}, "initializer"}, {}},
                              {"product", training::MatMul(), {1, 2}},
                              {"flatten", training::Flatten(), {3}},
                              {"loss", training::SoftmaxCrossEntropyLoss(), {4}}})
          .value();
  EXPECT_EQ(ForwardWork(graph, 2, 2, 10).bytes, 4 * (10 * 3 + 15 + 10 * 5));
  EXPECT_EQ(ForwardWork(graph, 2, 2, 10).flops, 10 * 2 * 15);
  EXPECT_EQ(BackwardWork(graph, 2, 2, 10).bytes, 4 * (10 * 5 + 10 * 3 + 15));
  EXPECT_EQ(BackwardWork(graph, 2, 2, 10).flops, 10 * 2 * 15) << "images need no gradient";
  EXPECT_EQ(graph.training_flops(), 2 * 2 * 15);
}

TEST(KernelWorkTest, SumsToTheOperationsOfTheGraph) {
  for (const char* const name : {"lenet", "resnet18_v1"}) {
    const training::Graph graph = training::MakeModel(name, 10, {1, 32, 32}).value();
    double flops = 0;
    for (int node = 0; node < graph.node_count(); ++node) {
      flops += ForwardWork(graph, node, node, 3).flops + BackwardWork(graph, node, node, 3).flops;
    }
    EXPECT_EQ(flops, 3.0 * static_cast<double>(graph.training_flops())) << name;
  }
}

TEST(MedianTest, OfOddAndEvenNumbers) {
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({9, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 9, 2}), 3);
}

class MeasureStepTest : public ::testing::Test {
 protected:
  absl::StatusOr<StepReport> Measure(const training::Graph& graph, int64_t batch, int threads = 2) {
    StepBench bench;
    bench.batch = batch;
    bench.threads = threads;
    bench.length = absl::Milliseconds(20);
    bench.optimizer_name = "sgd";
    return MeasureStep(*device_, graph, sgd_, bench);
  }

  const std::unique_ptr<engine::Device> device_ = engine::OpenDevice("cpu").value();
  const training::Sgd sgd_ = training::Sgd::Create({.momentum = 0.9}).value();
};

TEST_F(MeasureStepTest, ARowForEachKernelWithWork) {
  const training::Graph graph = training::MakeModel("lenet", 10, {1, 28, 28}).value();
  const absl::StatusOr<StepReport> report = Measure(graph, 48);
  ASSERT_TRUE(report.ok()) << report.status();
  std::vector<std::string> names;
  for (const StepRow& row : report->rows) {
    names.push_back(row.name);
    EXPECT_GT(row.seconds(), 0) << row.name;
    EXPECT_GT(row.bytes, 0) << row.name;
  }
  EXPECT_THAT(
      names, ::testing::ElementsAre("load weights", "input", "conv1 to pool1", "conv2 to pool2",
                                    "fc1 to fc1_relu", "fc2 to fc2_relu", "fc3", "loss", "update"));
  EXPECT_GE(report->steps, 5);
  EXPECT_LE(report->step_p10_seconds, report->step_seconds);
  EXPECT_LE(report->step_seconds, report->step_p90_seconds);
  const StepTotal total = TotalOf(*report);
  EXPECT_EQ(total.flops, 48.0 * static_cast<double>(graph.training_flops()));
  // Medians need not sum to the median of the sums, least of all beside other work.
  EXPECT_GT(total.seconds(), 0.2 * report->step_seconds);
  EXPECT_LT(total.seconds(), 1.5 * report->step_p90_seconds);
  // Images are read and written, and the gradient is set to zero.
  EXPECT_GE(report->rows[1].bytes, 4.0 * (2 * 48 * 784 + 60170));
  EXPECT_LT(report->rows[1].bytes, 4.1 * (2 * 48 * 784 + 60170));
  // Momentum: weights, gradient and state are read, weights and state written.
  const StepRow& update = report->rows.back();
  EXPECT_GE(update.bytes, 5 * 4.0 * 60170);
  EXPECT_LT(update.bytes, 5 * 4.1 * 60170);
  EXPECT_EQ(report->input, graph.input_shape());
  EXPECT_EQ(report->num_classes, 10);
  EXPECT_EQ(report->batch, 48);
  EXPECT_GT(report->limits.flops_per_second, 0);
}

// Random numbers by sample need ids, and one sample is a batch.
TEST_F(MeasureStepTest, MeasuresGraphsThatDraw) {
  const absl::StatusOr<StepReport> report = Measure(Small(), 1, /*threads=*/1);
  ASSERT_TRUE(report.ok()) << report.status();
  std::set<std::string> names;
  for (const StepRow& row : report->rows) names.insert(row.name);
  EXPECT_EQ(names.count("drop"), 1u);
  EXPECT_EQ(names.count("flat"), 0u);  // the same numbers in the same places
}

TEST_F(MeasureStepTest, RefusesBatchesAboveTheLimits) {
  const training::Graph large =
      training::Graph::Build("large", {3, 300, 300},
                             {{"flat", training::Flatten(), {0}},
                              {"fc", training::Gemm{2}, {1}},
                              {"loss", training::SoftmaxCrossEntropyLoss(), {2}}})
          .value();
  EXPECT_THAT(Measure(large, 0).status().message(), HasSubstr("batch: 0, want 1 to 65536"));
  EXPECT_THAT(Measure(large, 65537).status().message(), HasSubstr("batch: 65537, want 1 to 65536"));
  const absl::Status status = Measure(large, 65536).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "batch: 65536 images of [3, 300, 300] have 65.9 GiB, want at most 4.0");
  EXPECT_THAT(Measure(large, 1, /*threads=*/0).status().message(), HasSubstr("threads: 0"));
}

}  // namespace
}  // namespace capstan::client
