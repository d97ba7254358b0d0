#include "gpu_worker/task/local_exchange.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gpu_worker/task/test_job.h"
#include "gtest/gtest.h"
#include "param_store/checkpoint/shard_file.h"
#include "services/files/files.h"
#include "services/logging/log.h"
#include "training/codec/manifest.h"
#include "training/codec/safetensors.h"
#include "training/fold/add.h"
#include "training/init/init.h"
#include "training/norm/norm_tree.h"
#include "training/optim/trust_rule.h"

namespace capstan::gpu_worker {
namespace {

// Posted functions run when the test says so.
class TestStrand final : public services::Strand {
 public:
  void Post(Function function) override { ready_.push_back(std::move(function)); }
  void PostAfter(absl::Duration, Function) override {}
  absl::Duration Now() const override { return now_; }
  void Pass(absl::Duration time) { now_ += time; }
  void Run() {
    while (!ready_.empty()) {
      const Function next = std::move(ready_.front());
      ready_.pop_front();
      next();
    }
  }

 private:
  std::deque<Function> ready_;
  absl::Duration now_ = absl::Seconds(1);
};

constexpr int32_t kTestLanes = 4;
constexpr int64_t kTestSteps = 12;
constexpr int64_t kSaved = 7;      // the version
constexpr int64_t kNotFinite = 4;  // the step that is skipped
// Sums of four lanes have a norm of about 53, those of two lanes one of about 37.
constexpr double kClipNorm = 45;

// Two chunks of weights, two of statistics (rule R3).
training::FlatLayout LayoutWithStatistics() {
  training::TensorSpec weight{.name = "conv.weight", .shape = {700}, .fan_in = 1, .fan_out = 1};
  training::TensorSpec mean{.name = "bn.running_mean",
                            .shape = {600},
                            .kind = training::TensorKind::kStat,
                            .init = training::TensorInit::kZeros,
                            .momentum = 0.1};
  training::TensorSpec variance = mean;
  variance.name = "bn.running_var";
  variance.init = training::TensorInit::kOnes;
  variance.momentum = 0.3;
  return *training::FlatLayout::Create({weight, mean, variance}, /*chunk_floats=*/512);
}

class LocalExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = *services::MakePrivateDir("local-exchange-test");
    TestJob test;
    test.momentum = 0.9;
    Make(test);
  }
  void Make(TestJob test) {
    test.storage_path = folder_;
    test.steps = kTestSteps;
    test.batch = kTestLanes;
    test.train = 22;  // 6 steps per epoch; in the last one only lanes 0 and 1 have samples
    if (test.checkpoint_seconds == 0) test.checkpoint_every = kSaved;
    const node::v1::StartTask start = test.Start();
    Job job = **MakeJob(start.resolved_spec(), start.spec_digest());
    job.layout = LayoutWithStatistics();
    job.evaluation = *training::EvalPlan::Create(0, kTestLanes);
    job_ = std::make_shared<const Job>(std::move(job));
  }
  void TearDown() override { EXPECT_TRUE(services::RemoveTree("/tmp", folder_).ok()); }

  // The sum that the lanes of `block` send in a step; empty if they have no samples.
  std::vector<float> Sum(int64_t step, const training::LaneBlock& block) const {
    const training::LaneTree tree = job_->samples.StepTree(step);
    if (!tree.HasLanes(block)) return {};
    if (block.lane_count > 1) {
      std::vector<float> left = Sum(step, training::LaneTree::Left(block));
      const std::vector<float> right = Sum(step, training::LaneTree::Right(block));
      for (size_t i = 0; i < right.size(); ++i) left[i] = left[i] + right[i];
      return left;
    }
    std::mt19937 random(static_cast<uint32_t>(step * kTestLanes + block.first_lane));
    std::normal_distribution<float> normal;
    std::vector<float> values(job_->layout.total_floats());
    for (const training::TensorSlot& slot : job_->layout.slots()) {
      for (int64_t i = slot.offset; i < slot.range().end(); ++i) values[i] = normal(random);
    }
    if (step == kNotFinite && block.first_lane == 1) {
      values[job_->layout.Find("bn.running_var")->offset] = std::numeric_limits<float>::infinity();
    }
    return values;
  }

  // Updates the weights as one range, or tensor by tensor if they have trust ratios.
  void Update(std::vector<float>& weights, const std::vector<float>& gradient,
              std::vector<float>& state, training::RuleStep step) const {
    const training::TrustRule* const rule = job_->optimizer->trust_rule();
    const auto apply = [&](int64_t offset, int64_t size) {
      job_->optimizer->Apply(&weights[offset], &weights[offset], &gradient[offset],
                             state.data() + offset * job_->optimizer->state_floats_per_weight(),
                             static_cast<size_t>(size), step);
    };
    if (rule == nullptr) return apply(0, job_->layout.statistics_begin());
    ASSERT_GT(job_->layout.chunk_count(), 1);
    const training::TensorPieces pieces(job_->layout);
    for (const training::TensorSlot& slot : job_->layout.slots()) {
      if (slot.spec.kind == training::TensorKind::kStat) continue;
      training::TensorNorms squares;
      for (const training::TensorPiece& piece : pieces.Of({0, job_->layout.chunk_count()})) {
        if (piece.tensor != job_->layout.Find(slot.spec.name) - job_->layout.slots().data()) {
          continue;
        }
        const int64_t at = piece.range.offset;
        const auto size = static_cast<size_t>(piece.range.size);
        squares.weights += training::SquareSum({&weights[at], size});
        squares.direction += rule->DirectionSquares(
            &weights[at], &gradient[at],
            state.data() + at * job_->optimizer->state_floats_per_weight(), size, step);
      }
      step.trust_ratio =
          rule->Ratio({std::sqrt(squares.weights), std::sqrt(squares.direction)}, true);
      apply(slot.offset, slot.size);
    }
  }

  // Version kTestSteps, by the definition.
  std::vector<float> Expected() {
    const training::FlatLayout& layout = job_->layout;
    std::vector<float> weights(layout.total_floats());
    std::vector<float> state(weights.size() * job_->optimizer->state_floats_per_weight());
    int64_t updates = 0;  // the skipped step does not count
    clipped_steps_ = 0;
    const double clip_norm = job_->spec.spec().training().gradient_clip_norm();
    training::InitRange(layout, {}, job_->spec.spec().training().seed(), 0,
                        absl::MakeSpan(weights));
    for (int64_t step = 0; step < kTestSteps; ++step) {
      const std::vector<float> root = Sum(step, job_->samples.StepTree(step).root());
      if (!training::AllFinite(root)) continue;
      std::vector<float> gradient = root;
      const absl::Span<const float> all = root;
      const double norm = std::sqrt(training::SquareSum(all.subspan(0, 512)) +
                                    training::SquareSum(all.subspan(512, 700 - 512)));
      if (clip_norm > 0 && norm > clip_norm) {
        const auto factor = static_cast<float>(clip_norm / norm);
        for (float& value : gradient) value *= factor;
        ++clipped_steps_;
      }
      Update(weights, gradient, state, {job_->schedule.LearningRate(step), ++updates});
      for (const char* const name : {"bn.running_mean", "bn.running_var"}) {
        const training::TensorSlot& slot = *layout.Find(name);
        for (int64_t i = slot.offset; i < slot.range().end(); ++i) {
          const float way = root[i] - weights[i];
          const float part = static_cast<float>(slot.spec.momentum) * way;
          weights[i] = weights[i] + part;
        }
      }
    }
    return weights;
  }

  // The last version, starting from version 0 or from a manifest. The `blocks` of a step are its
  // root or its halves.
  std::vector<float> Train(int32_t lanes_a_block, int64_t lineage = 1,
                           const std::string& manifest = "") {
    TestStrand strand;
    exchange::CompleteWeights newest;
    LocalExchange::Callbacks callbacks;
    callbacks.on_weights = [&](const exchange::CompleteWeights& w) {
      newest = w;
      scales_.insert(w.loss_scale);
      if (w.skipped) skipped_.insert(w.version);
    };
    callbacks.on_failed = [](const absl::Status& status) { ADD_FAILURE() << status; };
    LocalExchange::LocalCallbacks local;
    local.on_lead = [] {};
    local.on_checkpoint = [this](const LocalExchange::Snapshot& snapshot) {
      saved_.push_back(snapshot);
    };
    LocalExchange exchange(job_, strand, callbacks, local, {.manifest = manifest});
    const absl::Status opened = exchange.Open({.lineage = lineage});
    EXPECT_TRUE(opened.ok()) << opened;
    strand.Run();
    const int64_t first = newest.version;
    EXPECT_EQ(first, manifest.empty() ? 0 : kSaved);
    for (int64_t step = first; step < kTestSteps; ++step) {
      const training::LaneTree tree = job_->samples.StepTree(step);
      strand.Pass(step_time_);
      exchange.SendSeal(step, tree.root(), {job_->samples.StepSampleCount(step), 1.0, 0});
      for (int32_t lane = 0; lane < kTestLanes; lane += lanes_a_block) {
        std::vector<float> sum = Sum(step, {lane, lanes_a_block});
        if (sum.empty()) continue;
        for (float& value : sum) value *= static_cast<float>(newest.loss_scale);
        auto buffer = std::make_shared<FloatBuffer>(job_->layout.total_floats());
        std::copy(sum.begin(), sum.end(), buffer->data());
        exchange.Push(step, {lane, lanes_a_block}, std::move(buffer));
      }
      strand.Run();
      EXPECT_EQ(newest.version, step + 1);
    }
    return {newest.weights->span().begin(), newest.weights->span().end()};
  }

  // Writes a checkpoint as the task and the coordinator do. Returns its folder.
  std::string Commit(const LocalExchange::Snapshot& snapshot) const {
    const std::string folder = absl::StrCat(folder_, "/", snapshot.lineage, "-", snapshot.step);
    const auto file = param_store::WriteShardFile({.folder = folder,
                                                   .job_id = job_->id(),
                                                   .spec_digest = job_->digest,
                                                   .lineage = snapshot.lineage,
                                                   .step = snapshot.step},
                                                  {.layout = &job_->layout,
                                                   .run = {0, job_->layout.chunk_count()},
                                                   .weights = snapshot.weights->span(),
                                                   .state = snapshot.state->span()});
    EXPECT_TRUE(file.ok()) << file.status();
    training::Manifest manifest;
    manifest.files = {{file->name(), file->size_bytes(), absl::BytesToHexString(file->sha256())}};
    manifest.job_id = job_->id();
    manifest.lineage = snapshot.lineage;
    manifest.step = snapshot.step;
    manifest.spec_digest = absl::BytesToHexString(job_->digest);
    manifest.training_digest = absl::BytesToHexString(job_->spec.training_digest());
    manifest.optimizer = "sgd";
    manifest.lead_snapshot = snapshot.lead;
    manifest.created_by = "test";
    const auto text = training::EncodeManifest(manifest);
    EXPECT_TRUE(text.ok()) << text.status();
    EXPECT_TRUE(services::WriteFileAtomically(folder + "/manifest.json", *text).ok());
    return folder;
  }

  static void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& want) {
    ASSERT_EQ(got.size(), want.size());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0);
  }

  std::string folder_;
  std::shared_ptr<const Job> job_;
  std::vector<LocalExchange::Snapshot> saved_;
  std::set<double> scales_;    // of all complete versions
  std::set<int64_t> skipped_;  // versions after a step that was skipped
  int clipped_steps_ = 0;      // of the last Expected()
  absl::Duration step_time_;   // that passes before a step's sums are there
};

// As shards do (param_store/shard_storage_test.cc), with empty lanes and a skipped step.
TEST_F(LocalExchangeTest, StatisticsAreAveragedWhileWeightsAreTrained) {
  const std::vector<float> want = Expected();
  ExpectSameBits(Train(/*lanes_a_block=*/4), want);
  EXPECT_EQ(skipped_, std::set<int64_t>{kNotFinite + 1});
  ExpectSameBits(Train(/*lanes_a_block=*/2), want);
  ExpectSameBits(Train(/*lanes_a_block=*/1), want);
}

// The scale is in everything that a lane sends, including statistics. The skipped step halves it. A
// power of two leaves no trace in the bits.
TEST_F(LocalExchangeTest, TheLossScaleIsTakenOutOfWeightsAndStatistics) {
  const std::vector<float> want = Expected();
  TestJob test;
  test.momentum = 0.9;
  test.precision = "fp16";
  Make(test);
  ExpectSameBits(Train(/*lanes_a_block=*/4), want);
  EXPECT_EQ(scales_, (std::set<double>{65536, 32768}));
  ExpectSameBits(Train(/*lanes_a_block=*/1), want);
}

TEST_F(LocalExchangeTest, ACheckpointBringsStatisticsBack) {
  Train(/*lanes_a_block=*/4);
  ASSERT_GE(saved_.size(), 1u);
  ASSERT_EQ(saved_[0].step, kSaved);
  const std::string folder = Commit(saved_[0]);
  ExpectSameBits(Train(/*lanes_a_block=*/4, /*lineage=*/2, folder), Expected());
}

// The default of a job is every 30 s. A step takes 4 s here.
TEST_F(LocalExchangeTest, AJobIsSavedAsOftenAsItsSpecSays) {
  TestJob test;
  test.checkpoint_seconds = 10;
  Make(test);
  step_time_ = absl::Seconds(4);
  (void)Train(1);
  std::vector<int64_t> versions;
  for (const LocalExchange::Snapshot& snapshot : saved_) versions.push_back(snapshot.step);
  EXPECT_THAT(versions,
              ::testing::ElementsAre(3, kTestSteps));  // nobody takes the files of version 3
}

// Running statistics are neither counted nor clipped.
TEST_F(LocalExchangeTest, GradientsAreClippedByTheirNorm) {
  TestJob test;
  test.clip_norm = kClipNorm;
  Make(test);
  const std::vector<float> want = Expected();
  ExpectSameBits(Train(/*lanes_a_block=*/4), want);
  EXPECT_EQ(clipped_steps_, 9);  // two steps have two lanes, and one is skipped
  Make(TestJob());
  EXPECT_NE(Expected(), want);
}

// The step skipped before the checkpoint does not count as an update afterwards.
TEST_F(LocalExchangeTest, AdamAndLambGoOnFromACheckpoint) {
  for (const char* optimizer : {"adam", "lamb"}) {
    SCOPED_TRACE(optimizer);
    saved_.clear();
    TestJob test;
    test.optimizer = optimizer;
    Make(test);
    const std::vector<float> want = Expected();
    ExpectSameBits(Train(/*lanes_a_block=*/4), want);
    ASSERT_GE(saved_.size(), 1u);
    ASSERT_EQ(saved_[0].step, kSaved);
    EXPECT_EQ(saved_[0].state->size(), 2 * saved_[0].weights->size());
    const std::string folder = Commit(saved_[0]);
    ExpectSameBits(Train(/*lanes_a_block=*/4, /*lineage=*/2, folder), want);
  }
}

// Devices give back the weights that the host needs. The state, which may be twice as long, is read
// for a checkpoint alone.
TEST_F(LocalExchangeTest, DevicesGiveTheirStateToCheckpointsAlone) {
  TestJob test;
  test.optimizer = "adam";
  Make(test);
  Job job = *job_;
  job.evaluation = *training::EvalPlan::Create(8, kTestLanes);
  job_ = std::make_shared<const Job>(std::move(job));
  TestStrand strand;
  LocalExchange::Callbacks callbacks;
  LocalExchange::LocalCallbacks local;
  int64_t version = -1;
  std::vector<std::string> read;
  callbacks.on_weights = [&](const exchange::CompleteWeights& w) { version = w.version; };
  callbacks.on_failed = [](const absl::Status& status) { ADD_FAILURE() << status; };
  local.on_lead = [] {};
  local.on_checkpoint = [this](const LocalExchange::Snapshot& s) { saved_.push_back(s); };
  local.on_update = [&](LocalExchange::DeviceUpdate update) {
    if (update.weights == nullptr) return;
    read.push_back(absl::StrCat(update.version, update.state == nullptr ? "" : " with state"));
    strand.Post(update.done);
  };
  LocalExchange exchange(job_, strand, callbacks, local, {});
  ASSERT_TRUE(exchange.Open({.lineage = 1}).ok());
  strand.Run();
  ASSERT_NE(exchange.optimizer_state(), nullptr);
  for (int64_t step = 0; step < kTestSteps; ++step) {
    const training::LaneBlock root = job_->samples.StepTree(step).root();
    exchange.SendSeal(step, root, {job_->samples.StepSampleCount(step), 1.0, 0});
    exchange.PushKept(step, root, /*finite=*/true);
    strand.Run();
    ASSERT_EQ(version, step + 1);
    // Stale floats are of no use.
    EXPECT_EQ(exchange.optimizer_state() != nullptr, version == kSaved || version == kTestSteps);
    for (int64_t block = 0; block < job_->evaluation.block_count() && version % 6 == 0; ++block) {
      exchange.SendEvaluation(version, block, {job_->evaluation.Block(block).sample_count, 1.0, 0});
    }
  }
  EXPECT_THAT(read, ::testing::ElementsAre("6", "7 with state", "12 with state"));
  ASSERT_EQ(saved_.size(), 2u);
  EXPECT_EQ(saved_[0].state->size(), 2 * saved_[0].weights->size());
}

TEST_F(LocalExchangeTest, AFileWithoutStatisticsIsSaidInTheLog) {
  training::SafetensorsTensor weight;
  weight.name = "conv.weight";
  weight.shape = {700};
  std::string bytes = *training::EncodeSafetensorsHeader({&weight, 1});
  for (int i = 0; i < 700; ++i) {
    const auto value = static_cast<float>(i);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  const std::string path = folder_ + "/start.safetensors";
  ASSERT_TRUE(services::WriteFileAtomically(path, bytes).ok());
  Job job = *job_;
  job.spec.mutable_spec()->mutable_model()->set_initial_weights("file://" + path);

  std::vector<std::string> said;
  const int sink = services::AddLogSink([&said](const services::LogRecord& record) {
    if (record.level == services::kWarning) said.emplace_back(record.line);
  });
  TestStrand strand;
  exchange::CompleteWeights first;
  LocalExchange::Callbacks callbacks;
  callbacks.on_weights = [&](const exchange::CompleteWeights& w) { first = w; };
  LocalExchange exchange(std::make_shared<const Job>(job), strand, callbacks, {}, {});
  const absl::Status opened = exchange.Open({.lineage = 1});
  services::RemoveLogSink(sink);
  ASSERT_TRUE(opened.ok()) << opened;
  strand.Run();
  EXPECT_EQ(first.weights->data()[699], 699.0f);
  EXPECT_EQ(first.weights->data()[job.layout.Find("bn.running_mean")->offset], 0.0f);
  EXPECT_EQ(first.weights->data()[job.layout.Find("bn.running_var")->offset], 1.0f);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], ::testing::HasSubstr("event=statistics_begin_anew"));
  EXPECT_THAT(said[0], ::testing::HasSubstr(path));
}

}  // namespace
}  // namespace capstan::gpu_worker
