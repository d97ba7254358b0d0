#include "gpu_worker/task/device_runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu_worker/engine/device/open.h"
#include "gpu_worker/job_data/job_data.h"
#include "gpu_worker/task/test_job.h"
#include "gtest/gtest.h"
#include "training/ops/dropout/dropout.h"

namespace capstan::gpu_worker {
namespace {

constexpr auto kRunnerWait = std::chrono::seconds(60);  // a step takes milliseconds

// The mlp of the test job with a Dropout after its first Relu. The places of parameters stay the
// same.
std::shared_ptr<const Job> DroppingJob(const node::v1::StartTask& start) {
  const auto plain = MakeJob(start.resolved_spec(), start.spec_digest());
  CAPSTAN_CHECK(plain.ok());
  std::vector<training::GraphNode> blocks;
  for (const training::GraphNode& block : (*plain)->graph.nodes()) {
    training::GraphNode next = block;
    next.inputs = {static_cast<int>(blocks.size())};
    blocks.push_back(next);
    if (block.name == "fc1_relu") {
      blocks.push_back({"drop", training::Dropout{0.5}, {static_cast<int>(blocks.size())}});
    }
  }
  CAPSTAN_CHECK(blocks.size() == (*plain)->graph.nodes().size() + 1);
  auto graph = training::Graph::Build("mlp", (*plain)->graph.input_shape(), std::move(blocks));
  CAPSTAN_CHECK(graph.ok());
  auto job = std::make_shared<Job>(**plain);
  job->graph = *std::move(graph);
  return job;
}

std::shared_ptr<FloatBuffer> DrawnWeights(const Job& job) {
  auto weights = std::make_shared<FloatBuffer>(job.layout.total_floats());
  for (int64_t i = 0; i < weights->size(); ++i) {
    weights->data()[i] = 0.001f * static_cast<float>(i % 101 - 50);
  }
  return weights;
}

// The lanes of a step, computed by a runner: the sums of the largest blocks that they make.
std::vector<std::vector<float>> BlocksByRunner(const std::shared_ptr<const Job>& job,
                                               const data::Dataset& train,
                                               const std::shared_ptr<const FloatBuffer>& weights,
                                               int64_t step, const std::vector<int32_t>& lanes,
                                               int64_t lanes_at_once,
                                               std::vector<training::SealSums>& seals) {
  std::promise<absl::Status> ready, done;
  DeviceRunner::Callbacks callbacks;
  callbacks.on_ready = [&ready](const std::string&, int64_t) { ready.set_value(absl::OkStatus()); };
  std::vector<int32_t> seen;
  callbacks.on_lane = [&](int64_t, int32_t lane, const training::SealSums& sums,
                          const ComputeTimes&) {
    seen.push_back(lane);
    seals.push_back(sums);
    if (seen.size() == lanes.size()) done.set_value(absl::OkStatus());
  };
  callbacks.on_block = [](const BlockCommand&, const training::SealSums&) {};
  callbacks.on_failed = [&done](const absl::Status& status) { done.set_value(status); };
  std::future<absl::Status> is_ready = ready.get_future(), is_done = done.get_future();

  auto schedule = std::make_shared<LaneSchedule>();
  schedule->job = job;
  schedule->permutations = std::make_shared<EpochPermutations>(job);
  schedule->lane_owners.assign(job->samples.lanes(), 0);
  BufferPool gradients(job->layout.total_floats());
  const training::LaneTree tree = job->samples.StepTree(step);
  const auto fold = std::make_shared<LaneFold>(tree);
  LaneCommand command;
  command.lineage = 1;
  command.step = step;
  command.lanes = lanes;
  command.weights = weights;
  command.gradients = &gradients;
  command.fold = fold;
  command.schedule = std::move(schedule);

  DeviceRunner::Options options;
  options.device = "cpu";
  options.lanes_at_once = lanes_at_once;
  DeviceRunner runner(options, job, train, /*test=*/nullptr, std::move(callbacks));
  EXPECT_EQ(is_ready.wait_for(kRunnerWait), std::future_status::ready);
  runner.Compute(std::move(command));
  EXPECT_EQ(is_done.wait_for(kRunnerWait), std::future_status::ready);
  const absl::Status status = is_done.get();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(seen, lanes);
  std::vector<std::vector<float>> blocks;
  for (const training::LaneBlock& block : tree.LargestBlocks(lanes)) {
    const std::shared_ptr<FloatBuffer> value = fold->Value(block);
    CAPSTAN_CHECK(value != nullptr);
    blocks.emplace_back(value->data(), value->data() + value->size());
  }
  return blocks;
}

// The same for one lane.
std::vector<float> ByRunner(const std::shared_ptr<const Job>& job, const data::Dataset& train,
                            const std::shared_ptr<const FloatBuffer>& weights, int64_t step,
                            int32_t lane) {
  std::vector<training::SealSums> seals;
  return BlocksByRunner(job, train, weights, step, {lane}, /*lanes_at_once=*/1, seals)[0];
}

// The same by a plan, with the samples from SamplePlan, the job's seed and this epoch.
std::vector<float> ByPlan(const Job& job, const data::Dataset& train, const FloatBuffer& weights,
                          int64_t step, int32_t lane, int64_t epoch, uint64_t seed) {
  const training::EpochPermutation permutation =
      job.samples.MakeEpochPermutation(job.samples.EpochOf(step));
  const std::vector<int64_t> ids =
      job.samples.LaneSamples(permutation, job.samples.StepInEpoch(step), lane);
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

// Rule R4: draws depend on the job's seed, the epoch of the step, and the sample's place in the
// data set.
TEST(DeviceRunnerTest, DrawsAreThoseOfSeedEpochAndSample) {
  const TestJob small{.batch = 64, .train = 640};
  const node::v1::StartTask start = small.Start();
  const std::shared_ptr<const Job> job = DroppingJob(start);
  const auto train =
      data::OpenDataset(MakeDatasetOptions(job->spec.spec(), {}), data::Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  const auto weights = DrawnWeights(*job);
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

// One optimizer step written out: SGD with momentum, after clipping by value and by norm.
struct PlainStep {
  double clip_norm = 0, clip_value = 0;
  std::vector<float> velocity = {};

  void Apply(std::vector<float> gradient, std::vector<float>& weights) {
    velocity.resize(weights.size());
    double squares = 0;
    for (const float g : gradient) squares += double{g} * g;
    const double norm = std::sqrt(squares);
    for (size_t i = 0; i < weights.size(); ++i) {
      float g = gradient[i];
      if (clip_norm > 0 && norm > clip_norm) g = static_cast<float>(g * clip_norm / norm);
      if (clip_value > 0) g = static_cast<float>(std::clamp<double>(g, -clip_value, clip_value));
      velocity[i] = 0.9f * velocity[i] + g;
      weights[i] -= 0.1f * velocity[i];
    }
  }
};

// The parts of a lane differ by one sample at most, and momentum begins anew in each round.
TEST(DeviceRunnerTest, ALaneMakesStepsOfItsOwn) {
  for (const bool draws : {false, true}) {
    const TestJob test{.lanes = 2,
                       .batch = 21,
                       .local_steps = 4,
                       .train = 84 + 62,
                       .momentum = 0.9,
                       .clip_value = 0.01,
                       .clip_norm = draws ? 0.05 : 0};
    const node::v1::StartTask start = test.Start();
    const auto plain = MakeJob(start.resolved_spec(), start.spec_digest());
    ASSERT_TRUE(plain.ok()) << plain.status();
    const std::shared_ptr<const Job> job = draws ? DroppingJob(start) : *plain;
    EXPECT_EQ(job->MaxBatch(), 50);  // of evaluation
    EXPECT_EQ(job->MaxLane(), 11);
    const auto train =
        data::OpenDataset(MakeDatasetOptions(job->spec.spec(), {}), data::Split::kTrain);
    ASSERT_TRUE(train.ok()) << train.status();
    const auto weights = DrawnWeights(*job);
    auto device = engine::OpenDevice("cpu");
    ASSERT_TRUE(device.ok());
    const auto plan =
        (*device)->Compile(job->graph, job->layout, engine::PlanOptions{.max_batch = 11});
    ASSERT_TRUE(plan.ok());
    // The second step is the last of its epoch, and a lane makes the fewest steps that do.
    const std::vector<std::vector<size_t>> parts = {{10, 11, 10, 11}, {10, 10, 11}};
    for (int64_t step = 0; step < 2; ++step) {
      const training::EpochPermutation permutation = job->samples.MakeEpochPermutation(0);
      const std::vector<int64_t> ids = job->samples.LaneSamples(permutation, step, /*lane=*/1);
      std::vector<float> own(weights->data(), weights->data() + weights->size());
      PlainStep rule{job->lane_clip_norm, test.clip_value};
      double loss = 0;
      size_t first = 0;
      for (const size_t count : parts[step]) {
        ASSERT_LE(first + count, ids.size());
        const std::vector<int64_t> part(&ids[first], &ids[first] + count);
        first += count;
        std::vector<float> images(count * (*train)->info().image_size());
        std::vector<int32_t> labels(count);
        ASSERT_TRUE((*train)->Read(part, 0, images.data(), labels.data()).ok());
        engine::SampleBatch batch;
        batch.images = images.data();
        batch.labels = labels.data();
        batch.count = static_cast<int64_t>(count);
        batch.ids = part.data();
        batch.seed = 7;  // the test job's
        std::vector<float> gradient(own.size());
        ASSERT_TRUE((*plan)->LoadWeights(own.data()).ok());
        const auto result =
            (*plan)->ComputeLane(batch, 1.0 / static_cast<double>(count), gradient.data());
        ASSERT_TRUE(result.ok());
        loss += result->loss_sum;
        rule.Apply(gradient, own);
      }
      EXPECT_EQ(first, ids.size());
      std::vector<training::SealSums> seals;
      const std::vector<float> got =
          BlocksByRunner(job, **train, weights, step, {1}, /*lanes_at_once=*/1, seals)[0];
      EXPECT_EQ(seals[0].samples, ids.size());
      EXPECT_NEAR(seals[0].loss_sum, loss, 1e-4 * loss);
      double largest = 0, moved = 0;
      for (size_t i = 0; i < own.size(); ++i) {
        const double want = (weights->data()[i] - own[i]) / 2.0;  // half of the round's samples
        largest = std::max(largest, std::fabs(got[i] - want));
        moved = std::max(moved, std::fabs(want));
      }
      EXPECT_GT(moved, 1e-3);
      EXPECT_LT(largest, 1e-6) << "step " << step << ", moved " << moved;
    }
  }
}

TEST(DeviceRunnerTest, ARoundThatIsNotFiniteIsNaN) {
  const TestJob test{.lanes = 2, .batch = 20, .local_steps = 4, .train = 80, .clip_value = 0.01};
  const node::v1::StartTask start = test.Start();
  const auto job = MakeJob(start.resolved_spec(), start.spec_digest());
  ASSERT_TRUE(job.ok()) << job.status();
  const auto train =
      data::OpenDataset(MakeDatasetOptions((*job)->spec.spec(), {}), data::Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  const auto weights = DrawnWeights(**job);
  // Gradients have products of weights that are infinite in float32, which clipping would hide.
  for (int64_t i = 0; i < weights->size(); ++i) weights->data()[i] = i % 2 == 0 ? 1e20f : -1e20f;
  std::vector<training::SealSums> seals;
  const std::vector<float> got =
      BlocksByRunner(*job, **train, weights, /*step=*/0, {1}, /*lanes_at_once=*/1, seals)[0];
  EXPECT_EQ(seals[0].samples, 40);
  EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](float x) { return std::isnan(x); }));
}

// A lane that has fewer samples than local_steps makes a step of each.
TEST(JobTest, OwnSteps) {
  const TestJob test{.lanes = 32, .batch = 33, .local_steps = 8, .train = 33 * 8 + 40};
  const node::v1::StartTask start = test.Start();
  const auto made = MakeJob(start.resolved_spec(), start.spec_digest());
  ASSERT_TRUE(made.ok()) << made.status();
  const Job& job = **made;
  const int64_t most = job.samples.MaxLaneSampleCount(0);
  ASSERT_EQ(most, 9);
  EXPECT_EQ(job.MaxPart(0), 2);
  EXPECT_EQ(job.OwnSteps(0, most), 8);
  EXPECT_EQ(job.OwnSteps(0, 2), 1);
  EXPECT_EQ(job.OwnSteps(0, 3), 2);
  const int32_t other = 31;
  ASSERT_EQ(job.samples.MaxLaneSampleCount(other), 8);
  EXPECT_EQ(job.OwnSteps(other, 8), 8);
  EXPECT_EQ(job.OwnSteps(other, 7), 7);
}

// A set that only gives bytes.
class BytesAlone final : public data::Dataset {
 public:
  explicit BytesAlone(const data::Dataset& set) : set_(set) {}
  const data::DatasetInfo& info() const override { return set_.info(); }
  bool varies() const override { return true; }  // so the images are not kept
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
  const auto weights = DrawnWeights(**job);
  const BytesAlone bytes(**train);
  const std::vector<float> got = ByRunner(*job, bytes, weights, /*step=*/3, /*lane=*/1);
  EXPECT_TRUE(got ==
              ByPlan(**job, **train, *weights, /*step=*/3, /*lane=*/1, /*epoch=*/0, /*seed=*/7));
}

// Nodes and seals do not depend on the number of lanes in a pass, even if lanes of the block are
// empty or the lanes make no block.
TEST(DeviceRunnerTest, LanesAtOnceMakeTheSameNodes) {
  const TestJob small{.lanes = 13, .batch = 64, .train = 70};  // the second step has 6 samples
  const node::v1::StartTask start = small.Start();
  const auto job = MakeJob(start.resolved_spec(), start.spec_digest());
  ASSERT_TRUE(job.ok()) << job.status();
  const auto train =
      data::OpenDataset(MakeDatasetOptions((*job)->spec.spec(), {}), data::Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  const auto weights = DrawnWeights(**job);
  std::vector<int32_t> present;
  for (int32_t lane = 0; lane < 13; ++lane) {
    if ((*job)->samples.StepTree(1).HasLane(lane)) present.push_back(lane);
  }
  ASSERT_EQ(present.size(), 6);
  const std::vector<int32_t> some = {1, 4, 5, 6, 7, 8, 9, 10, 12};
  for (const auto& [step, lanes] : {std::pair(0, some), {1, present}}) {
    std::vector<training::SealSums> want_seals;
    const auto want = BlocksByRunner(*job, **train, weights, step, lanes, 1, want_seals);
    for (const int64_t at_once : {2, 4, 16}) {
      std::vector<training::SealSums> seals;
      EXPECT_EQ(BlocksByRunner(*job, **train, weights, step, lanes, at_once, seals), want)
          << "step " << step << ", " << at_once << " at once";
      ASSERT_EQ(seals.size(), want_seals.size());
      for (size_t i = 0; i < seals.size(); ++i) {
        EXPECT_EQ(seals[i].samples, want_seals[i].samples);
        EXPECT_EQ(seals[i].loss_sum, want_seals[i].loss_sum);
        EXPECT_EQ(seals[i].correct, want_seals[i].correct);
      }
    }
  }
}

// A pass has at most 256 samples, or one lane if an operator couples samples.
TEST(JobTest, LanesAtOnce) {
  const auto of = [](const TestJob& test, int64_t lanes) {
    const node::v1::StartTask start = test.Start();
    const auto job = MakeJob(start.resolved_spec(), start.spec_digest());
    CAPSTAN_CHECK(job.ok());
    return (*job)->LanesAtOnce(lanes);
  };
  const TestJob small{.lanes = 8, .batch = 256};
  EXPECT_EQ(of(small, 8), 8);
  EXPECT_EQ(of(small, 7), 4);
  EXPECT_EQ(of(small, 1), 1);
  EXPECT_EQ(of(small, 0), 1);
  EXPECT_EQ(of({.lanes = 8, .batch = 640}, 8), 2);
  EXPECT_EQ(of({.lanes = 1, .batch = 640}, 1), 1);
  EXPECT_EQ(of({.lanes = 8, .batch = 256, .model = "resnet18_v1"}, 8), 1);
}

}  // namespace
}  // namespace capstan::gpu_worker
