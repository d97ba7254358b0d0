// Compares the first steps of training with a recorded run of PyTorch in double precision. Part of
// the device contract; link it beside device_contract.cc.
//
// CAPSTAN_DATA names the folder of Fashion-MNIST and CAPSTAN_GOLDEN the record. The defaults are in
// ../shared beside the checkout. If the record is absent and nobody named it, the test is skipped.
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/contract/device_cases.h"
#include "tests/contract/device_contract.h"
#include "tests/contract/idx_gz.h"
#include "training/fold/add.h"
#include "training/graph/models.h"

namespace capstan::testing {
namespace {

constexpr int64_t kSteps = 20;
constexpr int64_t kBatch = 128;
constexpr int64_t kPixels = 28 * 28;
// In the step before this one, two numbers of the run are equal except for rounding.
constexpr int64_t kNearTie = 8;
// The record has norms of these in this order.
constexpr const char* kTensors[] = {"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
                                    "fc1.weight",   "fc1.bias",   "fc2.weight",   "fc2.bias",
                                    "fc3.weight",   "fc3.bias"};

std::string FromEnvironment(const char* name, const char* fallback) {
  const char* const value = std::getenv(name);
  return value != nullptr && value[0] != 0 ? value : fallback;
}

// The generator of the record: splitmix64 from state 42, one stream over the weights in forward
// order.
class Splitmix {
 public:
  double Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    return static_cast<double>(z >> 40) * 0x1p-24;
  }

 private:
  uint64_t state_ = 42;
};

double Norm(const float* values, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  return std::sqrt(sum);
}

double NormOf(const training::FlatLayout& layout, const char* name,
              const std::vector<float>& values) {
  const training::TensorSlot* const slot = layout.Find(name);
  return Norm(values.data() + slot->offset, slot->range().size);
}

// `lanes` must be a power of two.
void CompareWithGoldenRun(engine::Device& device, int lanes, double tolerance) {
  const std::string golden_path =
      FromEnvironment("CAPSTAN_GOLDEN", "../shared/data/golden/lenet-fashion-mnist.json");
  const std::string data = FromEnvironment("CAPSTAN_DATA", "../shared/data/fashion-mnist");
  std::ifstream file(golden_path);
  if (!file && std::getenv("CAPSTAN_GOLDEN") == nullptr) {
    GTEST_SKIP() << "no " << golden_path << ": set CAPSTAN_GOLDEN and CAPSTAN_DATA";
  }
  ASSERT_TRUE(file) << "CAPSTAN_GOLDEN: no " << golden_path;
  const nlohmann::json golden = nlohmann::json::parse(file);
  const std::vector<uint8_t> pixels =
      ReadGzip(data + "/train-images-idx3-ubyte.gz", 16, kSteps * kBatch * kPixels);
  const std::vector<uint8_t> classes =
      ReadGzip(data + "/train-labels-idx1-ubyte.gz", 8, kSteps * kBatch);
  ASSERT_FALSE(pixels.empty() || classes.empty()) << "no Fashion-MNIST under " << data;
  std::vector<float> images(pixels.size());
  for (size_t i = 0; i < pixels.size(); ++i) images[i] = static_cast<float>(pixels[i]) / 255.0f;
  const std::vector<int32_t> labels(classes.begin(), classes.end());

  const absl::StatusOr<training::Graph> graph = training::MakeModel("lenet", 10, {1, 28, 28});
  ASSERT_TRUE(graph.ok()) << graph.status();
  const training::FlatLayout layout = LayoutOf(*graph);
  ASSERT_EQ(graph->parameters().size(), std::size(kTensors));
  for (const char* const name : kTensors) ASSERT_NE(layout.Find(name), nullptr) << name;
  std::vector<float> weights(layout.total_floats(), 0.0f);
  Splitmix stream;
  for (const training::Parameter& parameter : graph->parameters()) {
    if (parameter.bias_like) continue;
    const double bound = std::sqrt(6.0 / static_cast<double>(parameter.fan_in + parameter.fan_out));
    float* const tensor = weights.data() + layout.Find(parameter.name)->offset;
    for (int64_t i = 0; i < parameter.elements; ++i) {
      tensor[i] = static_cast<float>((2 * stream.Next() - 1) * bound);
    }
  }
  ASSERT_NEAR(weights[layout.Find("conv1.weight")->offset], double(golden["first_weights"][0]),
              1e-9);

  engine::PlanOptions options;
  options.max_batch = kBatch;
  options.threads = 2;
  absl::StatusOr<std::unique_ptr<engine::Plan>> plan = device.Compile(*graph, layout, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const float learning_rate = golden["lr"];
  std::vector<std::vector<float>> lane_gradients(lanes, std::vector<float>(weights.size()));
  for (int64_t step = 0; step < kSteps; ++step) {
    ASSERT_TRUE((*plan)->LoadWeights(weights.data()).ok());
    const engine::SampleBatch batch = {images.data() + step * kBatch * kPixels,
                                       labels.data() + step * kBatch, kBatch};
    if (step == 0) {
      std::vector<float> logits(kBatch * 10);
      ASSERT_TRUE((*plan)->Predict(batch, logits.data()).ok());
      for (int k = 0; k < 10; ++k) {
        EXPECT_NEAR(logits[k], double(golden["step0_logits_row0_float64"][k]), 1e-6);
      }
    }
    double loss_sum = 0;
    for (int lane = 0; lane < lanes; ++lane) {
      const int64_t count = kBatch / lanes, first = lane * count;
      const absl::StatusOr<engine::LaneResult> result =
          (*plan)->ComputeLane({batch.images + first * kPixels, batch.labels + first, count},
                               1.0 / kBatch, lane_gradients[lane].data());
      ASSERT_TRUE(result.ok()) << result.status();
      loss_sum += result->loss_sum;
    }
    // The tree over the lanes (rule R1).
    for (int width = 1; width < lanes; width *= 2) {
      for (int lane = 0; lane < lanes; lane += 2 * width) {
        training::AddInto(lane_gradients[lane].data(), lane_gradients[lane + width].data(),
                          weights.size());
      }
    }
    const std::vector<float>& gradient = lane_gradients[0];
    EXPECT_NEAR(loss_sum / kBatch, double(golden["loss_float64"][step]),
                step < kNearTie ? 1e-5 : tolerance)
        << "step " << step;
    for (size_t p = 0; step == 0 && p < std::size(kTensors); ++p) {
      const double want = golden["step0_grad_norms_float64"][p];
      EXPECT_NEAR(NormOf(layout, kTensors[p], gradient), want, 1e-5 * want) << kTensors[p];
    }
    for (size_t i = 0; i < weights.size(); ++i) weights[i] -= learning_rate * gradient[i];
  }
  for (size_t p = 0; p < std::size(kTensors); ++p) {
    EXPECT_NEAR(NormOf(layout, kTensors[p], weights),
                double(golden["param_norms_after_float64"][p]), 20 * tolerance)
        << kTensors[p];
  }
}

// 1e-5 is far more than the difference between the record's own two precisions. But a Relu whose
// input is 0 except for rounding, or two inputs of a maximum that differ in the last bit, may send
// a gradient another way. The run has one such place in step 7, and the other way makes losses
// differ by 1.4e-4 from step 8 on. The way depends on the order of additions, that is, on the
// device and the number of lanes. In 27 runs with each initial weight moved by at most its last
// bit, the CPU took the other way 5 times, and oneDNN's kernels 4 times.
// engine/cpu/blocked/lane_math.h gives the CPU's order of additions.
TEST_P(DeviceContractTest, FirstStepsOfLenetAreThoseOfTheGoldenRun) {
  for (const int lanes : {1, 2, 8}) {
    SCOPED_TRACE(std::to_string(lanes) + " lanes");
    CompareWithGoldenRun(*device_, lanes, GetParam().golden_tolerance);
  }
}

}  // namespace
}  // namespace capstan::testing
