#include "gpu_worker/task/device_runner.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu_worker/engine/device/open.h"
#include "gpu_worker/task/test_job.h"
#include "gtest/gtest.h"
#include "training/ops/dropout/dropout.h"

namespace capstan::gpu_worker {
namespace {

constexpr auto kRunnerWait = std::chrono::seconds(60);  // a step takes milliseconds

// The mlp of the test job with a Dropout behind its first Relu: no parameter moves.
std::shared_ptr<const Job> DroppingJob(const node::v1::StartTask& start) {
  const auto plain = MakeJob(start.resolved_spec(), start.spec_digest());
  CAPSTAN_CHECK(plain.ok());
  std::vector<training::GraphNode> nodes;
  for (const training::GraphNode& node : (*plain)->graph.nodes()) {
    training::GraphNode next = node;
    next.inputs = {static_cast<int>(nodes.size())};
    nodes.push_back(next);
    if (node.name == "fc1_relu") {
      nodes.push_back({"drop", training::Dropout{0.5}, {static_cast<int>(nodes.size())}});
    }
  }
  CAPSTAN_CHECK(nodes.size() == (*plain)->graph.nodes().size() + 1);
  auto graph = training::Graph::Build("mlp", (*plain)->graph.input_shape(), std::move(nodes));
  CAPSTAN_CHECK(graph.ok());
  auto job = std::make_shared<Job>(**plain);
  job->graph = *std::move(graph);
  return job;
}

// One lane of a step, by a runner.
std::vector<float> ByRunner(const std::shared_ptr<const Job>& job, const data::Dataset& train,
                            const std::shared_ptr<const FloatBuffer>& weights, int64_t step,
                            int32_t lane) {
  std::promise<absl::Status> ready, done;
  DeviceRunner::Callbacks callbacks;
  callbacks.on_ready = [&ready](const std::string&, int64_t) { ready.set_value(absl::OkStatus()); };
  callbacks.on_lane = [&done](int64_t, int32_t, const training::SealSums&, const LaneTimes&) {
    done.set_value(absl::OkStatus());
  };
  callbacks.on_block = [](const BlockOrder&, const training::SealSums&) {};
  callbacks.on_failed = [&done](const absl::Status& status) { done.set_value(status); };
  std::future<absl::Status> is_ready = ready.get_future(), is_done = done.get_future();

  auto schedule = std::make_shared<LaneSchedule>();
  schedule->job = job;
  schedule->orders = std::make_shared<EpochOrders>(job);
  schedule->lane_owners.assign(job->samples.lanes(), 0);
  LaneOrder order;
  order.lineage = 1;
  order.step = step;
  order.lane = lane;
  order.weights = weights;
  const auto gradient = std::make_shared<FloatBuffer>(job->layout.total_floats());
  order.gradient = gradient;
  order.fold = std::make_shared<NodeFold>(job->samples.StepTree(step));
  order.schedule = std::move(schedule);

  DeviceRunner::Options options;
  options.device = "cpu";
  DeviceRunner runner(options, job, train, /*test=*/nullptr, std::move(callbacks));
  EXPECT_EQ(is_ready.wait_for(kRunnerWait), std::future_status::ready);
  runner.Compute(std::move(order));
  EXPECT_EQ(is_done.wait_for(kRunnerWait), std::future_status::ready);
  EXPECT_TRUE(is_done.get().ok());
  return {gradient->data(), gradient->data() + gradient->size()};
}

// The same, on a plan: the samples that the plan of samples names, by the job's seed and this epoch.
std::vector<float> ByPlan(const Job& job, const data::Dataset& train, const FloatBuffer& weights,
                          int64_t step, int32_t lane, int64_t epoch, uint64_t seed) {
  const training::EpochOrder order = job.samples.MakeEpochOrder(job.samples.EpochOf(step));
  const std::vector<int64_t> ids =
      job.samples.LaneSamples(order, job.samples.StepInEpoch(step), lane);
  std::vector<float> images(ids.size() * train.info().image_size());
  std::vector<int32_t> labels(ids.size());
  EXPECT_TRUE(train.Read(ids, /*epoch=*/0, images.data(), labels.data()).ok());
  auto device = engine::OpenDevice("cpu");
  CAPSTAN_CHECK(device.ok());
  engine::PlanOptions options;
  options.max_batch = job.MaxBatch();
  const auto plan = (*device)->Compile(job.graph, job.layout, options);
  CAPSTAN_CHECK(plan.ok());
  EXPECT_TRUE((*plan)->LoadWeights(weights.data()).ok());
  engine::SampleBatch batch;
  batch.images = images.data();
  batch.labels = labels.data();
  batch.count = static_cast<int64_t>(ids.size());
  batch.ids = ids.data();
  batch.seed = seed;
  batch.epoch = static_cast<uint32_t>(epoch);
  std::vector<float> gradient(job.layout.total_floats());
  const double scale = 1.0 / static_cast<double>(job.samples.StepSampleCount(step));
  EXPECT_TRUE((*plan)->ComputeLane(batch, scale, gradient.data()).ok());
  return gradient;
}

// Rule R4: draws are counted by the job's seed, the epoch of the step, and the sample's place in the data set.
TEST(DeviceRunnerTest, DrawsAreThoseOfSeedEpochAndSample) {
  const TestJob small{.batch = 64, .train = 640};
  const node::v1::StartTask start = small.Start();
  const std::shared_ptr<const Job> job = DroppingJob(start);
  const auto train =
      data::OpenDataset(MakeDatasetOptions(job->spec.spec(), {}), data::Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  const auto weights = std::make_shared<FloatBuffer>(job->layout.total_floats());
  for (int64_t i = 0; i < weights->size(); ++i) {
    weights->data()[i] = 0.001f * static_cast<float>(i % 101 - 50);
  }
  ASSERT_EQ(job->samples.steps_per_epoch(), 10);
  for (const int64_t step : {3, 23}) {
    const int64_t epoch = step / 10;
    const std::vector<float> got = ByRunner(job, **train, weights, step, /*lane=*/1);
    const auto by_plan = [&](int64_t of_epoch, uint64_t seed) {
      return ByPlan(*job, **train, *weights, step, /*lane=*/1, of_epoch, seed);
    };
    EXPECT_TRUE(got == by_plan(epoch, 7)) << "step " << step;  // 7: the test job's seed
    EXPECT_FALSE(got == by_plan(epoch + 1, 7)) << "step " << step;
    EXPECT_FALSE(got == by_plan(epoch, 8)) << "step " << step;
  }
}

// A set that gives bytes alone.
class BytesAlone final : public data::Dataset {
 public:
  explicit BytesAlone(const data::Dataset& set) : set_(set) {}
  const data::DatasetInfo& info() const override { return set_.info(); }
  bool varies() const override { return true; }  // nobody keeps the images
  absl::Status Read(absl::Span<const int64_t>, int64_t, float*, int32_t*) const override {
    return absl::InternalError("floats are wanted");
  }
  absl::Span<const float> byte_values() const override { return set_.byte_values(); }
  absl::Status ReadBytes(absl::Span<const int64_t> indices, int64_t epoch, uint8_t* images,
                         int32_t* labels) const override {
    return set_.ReadBytes(indices, epoch, images, labels);
  }

 private:
  const data::Dataset& set_;
};

TEST(DeviceRunnerTest, ImagesGoToACpuAsBytes) {
  const TestJob small{.batch = 64, .train = 640};
  const node::v1::StartTask start = small.Start();
  const auto job = MakeJob(start.resolved_spec(), start.spec_digest());
  ASSERT_TRUE(job.ok()) << job.status();
  const auto train =
      data::OpenDataset(MakeDatasetOptions((*job)->spec.spec(), {}), data::Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  const auto weights = std::make_shared<FloatBuffer>((*job)->layout.total_floats());
  for (int64_t i = 0; i < weights->size(); ++i) {
    weights->data()[i] = 0.001f * static_cast<float>(i % 101 - 50);
  }
  const BytesAlone bytes(**train);
  const std::vector<float> got = ByRunner(*job, bytes, weights, /*step=*/3, /*lane=*/1);
  EXPECT_TRUE(got ==
              ByPlan(**job, **train, *weights, /*step=*/3, /*lane=*/1, /*epoch=*/0, /*seed=*/7));
}

}  // namespace
}  // namespace capstan::gpu_worker
