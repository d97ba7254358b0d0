#include "param_store/shard_storage.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "param_store/checkpoint/base_weights.h"
#include "param_store/core/shard_core.h"
#include "services/files/files.h"
#include "training/codec/crc32c.h"
#include "training/codec/safetensors.h"
#include "training/optim/sgd.h"

namespace capstan::param_store {
namespace {

using ::testing::HasSubstr;
using training::Node;

// Two chunks of one and a half.
training::FlatLayout Layout() {
  training::TensorSpec weight;
  weight.name = "fc.weight";
  weight.shape = {6000};
  weight.fan_in = weight.fan_out = 1;
  return *training::FlatLayout::Create({weight});
}

training::SamplePlan Samples(int32_t lanes) {
  training::SamplePlanOptions options;
  options.dataset_size = 5 * lanes + 1;  // the last step of an epoch has one lane
  options.global_batch = lanes;
  options.lanes = lanes;
  return *training::SamplePlan::Create(options);
}

std::vector<float> Values(std::mt19937& random, size_t n) {
  std::vector<float> values(n);
  for (float& value : values) {
    value = std::ldexp(static_cast<float>(static_cast<int32_t>(random())),
                       static_cast<int>(random() % 40) - 50);
  }
  return values;
}

// The plain tree sum, by its definition: an absent child is left out.
std::optional<std::vector<float>> TreeSum(const std::vector<std::vector<float>>& lanes,
                                          const training::LaneTree& tree, Node node) {
  if (!tree.HasLanes(node)) return std::nullopt;
  if (node.lane_count == 1) return lanes[node.first_lane];
  auto left = TreeSum(lanes, tree, training::LaneTree::Left(node));
  const auto right = TreeSum(lanes, tree, training::LaneTree::Right(node));
  if (!left.has_value()) return right;
  if (!right.has_value()) return left;
  for (size_t i = 0; i < left->size(); ++i) (*left)[i] += (*right)[i];
  return left;
}

// Nodes in any order, repeated, overlapping, damaged, late, of two workers: the core and the
// storage together always give the bits of the plain tree sum.
TEST(ShardStorageTest, AnySequenceOfNodesGivesThePlainTreeSum) {
  const training::FlatLayout layout = Layout();
  const int64_t floats = layout.total_floats();
  training::SgdOptions sgd;
  sgd.momentum = 0.5;
  const training::Sgd optimizer = *training::Sgd::Create(sgd);
  for (const int32_t lanes : {1, 3, 5, 8, 16}) {
    SCOPED_TRACE(lanes);
    std::mt19937 random(static_cast<uint32_t>(lanes));
    const training::SamplePlan samples = Samples(lanes);
    training::ScheduleOptions schedule;
    schedule.learning_rate = 0.25;
    const int64_t total_steps = 8;
    core::ShardCore shard(core::ShardPlan{
        .job_id = "j",
        .total_steps = total_steps,
        .layout = layout,
        .samples = samples,
        .evaluation = *training::EvalPlan::Create(0, lanes),
        .schedule = *training::Schedule::Create(schedule, samples.steps_per_epoch(), total_steps)});
    ShardStorage storage(layout, samples, optimizer);
    const training::ChunkRun run{0, layout.chunk_count()};
    std::vector<float> weights = Values(random, floats), momentum(floats, 0.0f);
    absl::string_view payload;
    const auto step = [&](const core::Event& first) {
      std::vector<core::Event> events = {first};
      while (!events.empty()) {
        const core::Event event = events.back();
        events.pop_back();
        for (const core::Effect& effect : shard.Step(event, absl::ZeroDuration())) {
          if (const auto* fold = std::get_if<core::FoldFrame>(&effect)) {
            // Cut at an odd place.
            const absl::string_view pieces[] = {payload.substr(0, 4099), payload.substr(4099)};
            storage.Fold(*fold, pieces);
          } else if (std::get_if<core::CheckRoots>(&effect) != nullptr) {
            events.push_back(core::RootsChecked{1, shard.version(), storage.RootsFinite()});
          } else if (const auto* apply = std::get_if<core::ApplyStep>(&effect)) {
            storage.Apply(apply->decision);
          } else if (const auto* retire = std::get_if<core::RetireVersion>(&effect)) {
            storage.Retire(retire->version);
          }
        }
      }
    };
    step(core::StartLineage{.lineage = 1, .generation = 1, .run = run, .workers = {0, 1}});
    auto base = ShardStorage::MakeBuffer(layout, run);
    std::copy(weights.begin(), weights.end(), base->data());
    storage.Begin(run, 0, std::move(base));
    step(core::BaseLoaded{.lineage = 1});
    for (const int rank : {0, 1}) {
      step(core::StreamOpened{rank + 1, core::StreamKind::kData, "", 1, rank, 0});
    }
    for (int64_t s = 0; s < total_steps; ++s) {
      const training::LaneTree tree = samples.StepTree(s);
      std::vector<std::vector<float>> gradients;
      for (int32_t lane = 0; lane < lanes; ++lane) gradients.push_back(Values(random, floats));
      step(core::SealArrived{1, s, tree.root(), {samples.StepSampleCount(s), 1.0, 0}});
      for (int tries = 0; shard.version() == s; ++tries) {
        ASSERT_LT(tries, 10000);
        Node node{0, 1};
        node.lane_count <<= random() % 5;
        node.first_lane = static_cast<int32_t>(random() % 16) / node.lane_count * node.lane_count;
        if (!tree.Validate(node).ok()) continue;
        const std::vector<float> sum = *TreeSum(gradients, tree, node);
        payload = absl::string_view(reinterpret_cast<const char*>(sum.data()), floats * 4);
        core::FrameArrived frame;
        frame.stream = 1 + static_cast<int64_t>(random() % 2);
        frame.step = s > 0 && random() % 4 == 0 ? s - 1 : s;  // some are late
        if (!samples.StepTree(frame.step).Validate(node).ok()) continue;
        frame.node = node;
        frame.chunk_count = run.chunk_count;
        frame.payload_bytes = payload.size();
        for (int32_t i = 0; i < run.chunk_count; ++i) frame.intact.push_back(random() % 3 != 0);
        step(frame);
      }
      const std::vector<float> root = *TreeSum(gradients, tree, tree.root());
      optimizer.Apply(weights.data(), weights.data(), root.data(), momentum.data(), floats, 0.25);
      ASSERT_EQ(std::memcmp(storage.current().floats->data(), weights.data(), floats * 4), 0)
          << "step " << s;
      ASSERT_EQ(storage.current().version, s + 1);
    }
    EXPECT_EQ(shard.drops().invalid + shard.drops().ahead, 0);
    EXPECT_LE(storage.weight_buffers(), 2);  // a version and the one before it
  }
}

class StorageTest : public testing::Test {
 protected:
  StorageTest() {
    auto base = ShardStorage::MakeBuffer(layout_, {0, 2});
    std::fill(base->data(), base->data() + 6000, 1.0f);
    storage_.Begin({0, 2}, 0, std::move(base));
  }
  void Root(float value) {
    const std::vector<float> values(layout_.total_floats(), value);
    const absl::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * 4);
    storage_.Fold({.node = {0, 1},
                   .first_chunk = 0,
                   .outcomes = {core::FrameOutcome::kStored, core::FrameOutcome::kStored}},
                  absl::MakeConstSpan(&bytes, 1));
  }
  const training::FlatLayout layout_ = Layout();
  const training::SamplePlan samples_ = Samples(1);
  const training::Sgd optimizer_ = *training::Sgd::Create({});
  ShardStorage storage_{layout_, samples_, optimizer_};
};

TEST_F(StorageTest, AVersionNeverChangesWhileItIsHeld) {
  const VersionWeights held = storage_.current();
  for (int64_t step = 0; step < 3; ++step) {
    Root(2.0f);
    storage_.Apply({.step = step, .apply = true, .learning_rate = 0.25});
    storage_.Retire(step);
  }
  EXPECT_EQ(held.floats->data()[0], 1.0f);
  EXPECT_EQ(storage_.current().floats->data()[0], -0.5f);  // 1 - 3 * 0.25 * 2
  EXPECT_EQ((*storage_.current().crcs)[1],
            training::Crc32c(storage_.current().floats->data() + 4096,
                             (layout_.total_floats() - 4096) * 4));
}

TEST_F(StorageTest, ASkippedStepKeepsTheWeights) {
  Root(std::numeric_limits<float>::infinity());
  EXPECT_FALSE(storage_.RootsFinite());
  storage_.Apply({.step = 0, .apply = false});
  EXPECT_EQ(storage_.current().version, 1);
  EXPECT_EQ(storage_.current().floats->data()[0], 1.0f);
  Root(2.0f);  // the sums are empty again
  EXPECT_TRUE(storage_.RootsFinite());
}

TEST_F(StorageTest, DamageIsFoundInItsChunk) {
  std::vector<float> values(layout_.total_floats(), 3.0f);
  const char* const bytes = reinterpret_cast<const char*>(values.data());
  const uint32_t crcs[] = {training::Crc32c(bytes, 4096 * 4),
                           training::Crc32c(bytes + 4096 * 4, (values.size() - 4096) * 4)};
  const absl::string_view piece(bytes, values.size() * 4);
  EXPECT_THAT(storage_.Verify(0, crcs, {&piece, 1}), testing::ElementsAre(true, true));
  values[5000] = 4.0f;
  EXPECT_THAT(storage_.Verify(0, crcs, {&piece, 1}), testing::ElementsAre(true, false));
}

class BaseWeightsTest : public testing::Test {
 protected:
  BaseWeightsTest() : folder_(*services::MakePrivateDir("capstan-base")) {}
  ~BaseWeightsTest() override { EXPECT_TRUE(services::RemoveTree("/tmp", folder_).ok()); }

  std::string Write(const std::string& name, std::vector<int64_t> shape, size_t floats) {
    training::SafetensorsTensor tensor;
    tensor.name = name;
    tensor.shape = std::move(shape);
    std::string bytes = *training::EncodeSafetensorsHeader({&tensor, 1});
    for (size_t i = 0; i < floats; ++i) {
      const float value = static_cast<float>(i);
      bytes.append(reinterpret_cast<const char*>(&value), 4);
    }
    EXPECT_TRUE(services::WriteFileAtomically(folder_ + "/w.safetensors", bytes).ok());
    return "file://" + folder_ + "/w.safetensors";
  }
  BaseWeightsError Fill(const std::string& uri, std::vector<float>* out) {
    out->assign(1904 + 16, -1.0f);  // from the second chunk on
    out->resize(layout_.total_floats() - 4096);
    return FillBaseWeights(layout_, {.initial_weights = uri},
                           {4096, static_cast<int64_t>(out->size())}, absl::MakeSpan(*out));
  }
  const training::FlatLayout layout_ = Layout();
  const std::string folder_;
};

TEST_F(BaseWeightsTest, AFileGivesEachShardItsPart) {
  std::vector<float> out;
  const BaseWeightsError error = Fill(Write("fc.weight", {6000}, 6000), &out);
  ASSERT_TRUE(error.status.ok()) << error.status;
  EXPECT_EQ(error.reason, "");
  EXPECT_EQ(out[0], 4096.0f);
  EXPECT_EQ(out[1903], 5999.0f);
}

TEST_F(BaseWeightsTest, WhatIsWrongIsNamed) {
  std::vector<float> out;
  BaseWeightsError error = Fill(Write("fc.bias", {6000}, 6000), &out);
  EXPECT_EQ(error.reason, "InvalidSpec");
  EXPECT_THAT(std::string(error.status.message()), HasSubstr("has no tensor fc.weight"));
  error = Fill(Write("fc.weight", {60, 100}, 6000), &out);
  EXPECT_EQ(error.reason, "InvalidSpec");
  EXPECT_THAT(std::string(error.status.message()), HasSubstr("F32 [60, 100], want F32 [6000]"));
  const std::string uri = Write("fc.weight", {6000}, 6000);
  ASSERT_EQ(truncate((folder_ + "/w.safetensors").c_str(), 1000), 0);
  error = Fill(uri, &out);
  EXPECT_EQ(error.reason, "DataMissing");
  error = Fill("file:///no/such/file", &out);
  EXPECT_EQ(error.reason, "DataMissing");
  EXPECT_THAT(std::string(error.status.message()), HasSubstr("/no/such/file"));
  EXPECT_EQ(Fill("s3://bucket/w", &out).reason, "InvalidSpec");
  EXPECT_EQ(Fill("file://" + folder_, &out).reason, "DataMissing");  // a folder
}

}  // namespace
}  // namespace capstan::param_store
