#include "param_store/shard_storage.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "exchange/shard/shard_core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "param_store/checkpoint/base_weights.h"
#include "services/files/files.h"
#include "training/codec/crc32c.h"
#include "training/codec/safetensors.h"
#include "training/init/init.h"
#include "training/norm/norm_tree.h"
#include "training/onnx/onnx_builder.h"
#include "training/optim/adam.h"
#include "training/optim/ftrl.h"
#include "training/optim/lamb.h"
#include "training/optim/lars.h"
#include "training/optim/sgd.h"

namespace capstan::param_store {
namespace {

namespace core = exchange::shard;

using ::testing::HasSubstr;
using training::LaneBlock;

// Two chunks of one and a half.
training::FlatLayout Layout() {
  training::TensorSpec weight;
  weight.name = "fc.weight";
  weight.shape = {6000};
  weight.fan_in = weight.fan_out = 1;
  return *training::FlatLayout::Create({weight}, /*chunk_floats=*/4096);
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

// The only lane of a step comes.
const training::FoldCommands kTake = {{training::FoldCommand::Kind::kTake, 0}};

// The plain tree sum, by its definition: an absent child is left out.
std::optional<std::vector<float>> TreeSum(const std::vector<std::vector<float>>& lanes,
                                          const training::LaneTree& tree, LaneBlock block) {
  if (!tree.HasLanes(block)) return std::nullopt;
  if (block.lane_count == 1) return lanes[block.first_lane];
  auto left = TreeSum(lanes, tree, training::LaneTree::Left(block));
  const auto right = TreeSum(lanes, tree, training::LaneTree::Right(block));
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
    ShardStorage storage(layout, optimizer);
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
            events.push_back(core::RootsChecked{1, shard.version(), storage.CheckRoots({})});
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
      step(core::StreamOpened{rank + 1, v1::STREAM_KIND_DATA, "", 1, rank, 0});
    }
    for (int64_t s = 0; s < total_steps; ++s) {
      const training::LaneTree tree = samples.StepTree(s);
      std::vector<std::vector<float>> gradients;
      for (int32_t lane = 0; lane < lanes; ++lane) gradients.push_back(Values(random, floats));
      step(core::SealArrived{1, s, tree.root(), {samples.StepSampleCount(s), 1.0, 0}});
      for (int tries = 0; shard.version() == s; ++tries) {
        ASSERT_LT(tries, 10000);
        LaneBlock block{0, 1};
        block.lane_count <<= random() % 5;
        block.first_lane =
            static_cast<int32_t>(random() % 16) / block.lane_count * block.lane_count;
        if (!tree.Validate(block).ok()) continue;
        const std::vector<float> sum = *TreeSum(gradients, tree, block);
        payload = absl::string_view(reinterpret_cast<const char*>(sum.data()), floats * 4);
        core::FrameArrived frame;
        frame.stream = 1 + static_cast<int64_t>(random() % 2);
        frame.step = s > 0 && random() % 4 == 0 ? s - 1 : s;  // some are late
        if (!samples.StepTree(frame.step).Validate(block).ok()) continue;
        frame.block = block;
        frame.chunk_count = run.chunk_count;
        frame.payload_bytes = payload.size();
        for (int32_t i = 0; i < run.chunk_count; ++i) frame.intact.push_back(random() % 3 != 0);
        step(frame);
      }
      const std::vector<float> root = *TreeSum(gradients, tree, tree.root());
      optimizer.Apply(weights.data(), weights.data(), root.data(), momentum.data(), floats, {0.25});
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
    storage_.Fold({.first_chunk = 0, .commands = {kTake, kTake}}, absl::MakeConstSpan(&bytes, 1));
  }
  const training::FlatLayout layout_ = Layout();
  const training::SamplePlan samples_ = Samples(1);
  const training::Sgd optimizer_ = *training::Sgd::Create({});
  ShardStorage storage_{layout_, optimizer_};
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

// For readers that are slower than a step: one version, until another one is named.
TEST_F(StorageTest, AHeldVersionStaysUntilAnotherIsNamed) {
  std::vector<float> seen;
  const auto step = [&](int64_t s, int64_t held) {
    Root(2.0f);
    storage_.Apply({.step = s, .apply = true, .learning_rate = 0.25}, held);
    storage_.Retire(s);
  };
  step(0, -1);
  step(1, 1);  // version 1 is held: 1 - 0.25 * 2
  for (int64_t s = 2; s < 6; ++s) step(s, 1);
  ASSERT_NE(storage_.Find(1), nullptr);
  EXPECT_EQ(storage_.Find(1)->floats->data()[0], 0.5f);
  EXPECT_EQ((*storage_.Find(1)->crcs)[0],
            training::Crc32c(storage_.Find(1)->floats->data(), 4096 * 4));
  EXPECT_EQ(storage_.Find(6), &storage_.current());
  EXPECT_EQ(storage_.Find(5), nullptr);
  EXPECT_EQ(storage_.weight_buffers_in_use(), 2);  // the held one and that at hand
  step(6, 6);
  EXPECT_EQ(storage_.Find(1), nullptr);
  ASSERT_NE(storage_.Find(6), nullptr);
  step(7, -1);
  EXPECT_EQ(storage_.Find(6), nullptr);
  EXPECT_LE(storage_.weight_buffers(), 2);
}

// After an episode in which many buffers were needed, no more are there, nor counted.
TEST_F(StorageTest, BuffersThatNobodyHoldsAnyMoreAreGivenBack) {
  std::vector<VersionWeights> kept;
  for (int64_t s = 0; s < 6; ++s) {
    Root(2.0f);
    storage_.Apply({.step = s, .apply = true, .learning_rate = 0.25});
    storage_.Retire(s);
    kept.push_back(storage_.current());
  }
  EXPECT_EQ(storage_.weight_buffers_in_use(), 6);
  kept.clear();
  EXPECT_EQ(storage_.weight_buffers_in_use(), 1);
  EXPECT_EQ(storage_.weight_buffers(), 2);
}

TEST_F(StorageTest, AWrongChecksumIsComputedAnew) {
  const VersionWeights before = storage_.current();
  auto* const sums = const_cast<std::vector<uint32_t>*>(before.crcs.get());  // as memory may do
  (*sums)[1] ^= 4;
  EXPECT_EQ(storage_.RenewSums(0), 1);
  EXPECT_EQ((*storage_.current().crcs)[1], (*sums)[1] ^ 4);
  EXPECT_EQ(storage_.RenewSums(0), 0);
  EXPECT_EQ(storage_.RenewSums(77), 0);
}

TEST_F(StorageTest, ASkippedStepKeepsTheWeights) {
  Root(std::numeric_limits<float>::infinity());
  EXPECT_FALSE(storage_.CheckRoots({}).finite);
  storage_.Apply({.step = 0, .apply = false});
  EXPECT_EQ(storage_.current().version, 1);
  EXPECT_EQ(storage_.current().floats->data()[0], 1.0f);
  Root(2.0f);  // the sums are empty again
  EXPECT_TRUE(storage_.CheckRoots({}).finite);
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

// ---- Compressed gradients ----

// The words of all chunks, from one lane.
std::vector<float> Encoded(const training::FlatLayout& layout,
                           const training::GradientFormat& format,
                           const std::vector<float>& gradient) {
  const training::GradientLayout words(layout, format);
  std::vector<float> encoded(words.total_words());
  std::vector<float> residual(gradient.size()), after(gradient.size());
  for (int32_t chunk = 0; chunk < layout.chunk_count(); ++chunk) {
    const training::FlatRange from = layout.ChunkRange(chunk);
    const training::FlatRange to = words.ChunkRange(chunk);
    const auto floats = absl::MakeConstSpan(gradient).subspan(from.offset, from.size);
    const auto out = absl::MakeSpan(encoded).subspan(to.offset, to.size);
    if (words.FormatOf(chunk).has_feedback()) {
      training::EncodeWithFeedback(format, {}, floats,
                                   absl::MakeConstSpan(residual).subspan(from.offset, from.size),
                                   absl::MakeSpan(after).subspan(from.offset, from.size), out);
    } else {
      training::Encode(words.FormatOf(chunk), floats, out);
    }
  }
  return encoded;
}

TEST(CompressedStorageTest, AddsWhatTheWordsStandFor) {
  const training::FlatLayout layout = Layout();
  const training::Sgd optimizer = *training::Sgd::Create({});
  for (const training::GradientFormat& format :
       {training::GradientFormat{.encoding = training::GradientEncoding::kFloat16},
        training::GradientFormat{.encoding = training::GradientEncoding::kInt8},
        training::GradientFormat{.encoding = training::GradientEncoding::kTwoBit, .threshold = 4},
        training::GradientFormat{.encoding = training::GradientEncoding::kTopK, .ratio = 1}}) {
    for (const bool at_once : {false, true}) {
      ShardStorage storage(layout, optimizer, format);
      storage.Begin({0, 2}, 0, ShardStorage::MakeBuffer(layout, {0, 2}));  // zeros
      const std::vector<float> encoded =
          Encoded(layout, format, std::vector<float>(layout.total_floats(), 4.0f));
      const absl::string_view bytes(reinterpret_cast<const char*>(encoded.data()),
                                    encoded.size() * 4);
      const absl::string_view pieces[] = {bytes.substr(0, 7), bytes.substr(7)};  // not aligned
      if (at_once) {
        storage.ApplyFrame({.first_chunk = 0, .updates = {0, 0}, .learning_rate = 0.5}, pieces);
        storage.ApplyFrame({.first_chunk = 0, .updates = {1, -1}, .learning_rate = 0.5}, pieces);
      } else {
        storage.Fold({.first_chunk = 0, .commands = {kTake, kTake}}, pieces);
        storage.Fold({.first_chunk = 0, .commands = {{{training::FoldCommand::Kind::kAdd, 0}}, {}}},
                     pieces);
        EXPECT_TRUE(storage.CheckRoots({}).finite);
        storage.Apply({.step = 0, .apply = true, .learning_rate = 0.5});
      }
      const float* const weights = storage.current().floats->data();
      EXPECT_EQ(weights[0], -4.0f);  // 2 x 4 x 0.5
      EXPECT_EQ(weights[4095], -4.0f);
      EXPECT_EQ(weights[4096], -2.0f);
      EXPECT_EQ(weights[5999], -2.0f);
    }
  }
}

TEST(CompressedStorageTest, WordsThatCannotBeDecodedAreNotIntact) {
  const training::FlatLayout layout = Layout();
  const training::Sgd optimizer = *training::Sgd::Create({});
  const training::GradientFormat format{.encoding = training::GradientEncoding::kTopK,
                                        .ratio = 0.01};
  ShardStorage storage(layout, optimizer, format);
  storage.Begin({0, 2}, 0, ShardStorage::MakeBuffer(layout, {0, 2}));
  std::vector<float> encoded =
      Encoded(layout, format, std::vector<float>(layout.total_floats(), 4.0f));
  const training::GradientLayout words(layout, format);
  const auto intact = [&] {
    const absl::string_view bytes(reinterpret_cast<const char*>(encoded.data()),
                                  encoded.size() * 4);
    const int64_t first = words.ChunkRange(0).size * 4;
    const uint32_t crcs[] = {training::Crc32c(bytes.substr(0, first)),
                             training::Crc32c(bytes.substr(first))};
    return storage.Verify(0, crcs, {&bytes, 1});
  };
  EXPECT_THAT(intact(), testing::ElementsAre(true, true));
  const uint32_t beyond = 4096;
  std::memcpy(&encoded[words.ChunkRange(0).size / 2 - 1], &beyond, sizeof beyond);
  EXPECT_THAT(intact(), testing::ElementsAre(false, true)) << "the index is not in the chunk";
}

// ---- Running statistics (rule R3) ----

training::FlatLayout StatisticsLayout() {
  training::TensorSpec weight{.name = "conv.weight", .shape = {1500}, .fan_in = 1, .fan_out = 1};
  training::TensorSpec mean{.name = "bn.running_mean",
                            .shape = {700},
                            .kind = training::TensorKind::kStat,
                            .init = training::TensorInit::kZeros,
                            .momentum = 0.1};
  training::TensorSpec variance = mean;
  variance.name = "bn.running_var";
  variance.init = training::TensorInit::kOnes;
  return *training::FlatLayout::Create({weight, mean, variance}, /*chunk_floats=*/512);
}

using Lanes = std::vector<std::vector<float>>;

// What the lanes send of a step, with the loss scale in all of it; a statistic comes weighted with
// its lane's samples.
Lanes LaneValues(const training::FlatLayout& layout, const training::SamplePlan& samples,
                 int64_t step) {
  std::mt19937 random(static_cast<uint32_t>(step));
  std::normal_distribution<float> normal;
  const training::LaneTree tree = samples.StepTree(step);
  Lanes lanes(tree.lane_count());
  for (int32_t lane = 0; lane < tree.lane_count(); ++lane) {
    lanes[lane].resize(layout.total_floats());
    for (const training::TensorSlot& slot : layout.slots()) {
      for (int64_t i = slot.offset; i < slot.range().end(); ++i) lanes[lane][i] = normal(random);
    }
  }
  return lanes;
}

constexpr int64_t kSkippedStep = 2;

training::Decision DecisionOf(int64_t step) {
  return {.step = step,
          .apply = step != kSkippedStep,
          .learning_rate = 0.25 / (1 + static_cast<double>(step)),
          .gradient_scale = 1.0 / 1024,
          .applied_steps = step > kSkippedStep ? step - 1 : step};
}

// Weights and statistics after all steps, on `shards` shards; at step `restart` each of them goes on
// from its snapshot in a new storage.
std::vector<float> TrainOnShards(const training::FlatLayout& layout,
                                 const training::SamplePlan& samples,
                                 const training::Optimizer& optimizer,
                                 const std::vector<Lanes>& steps, int32_t shards, int64_t restart) {
  std::vector<float> all(layout.total_floats(), NAN);
  const training::Placement placement = *training::Placement::Create(layout.chunk_count(), shards);
  for (int32_t shard = 0; shard < shards; ++shard) {
    const training::ChunkRun run = placement.Run(shard);
    const training::FlatRange range = training::RangeOf(layout, run);
    auto storage = std::make_unique<ShardStorage>(layout, optimizer);
    auto base = ShardStorage::MakeBuffer(layout, run);
    training::InitRange(layout, {}, /*seed=*/5, range.offset, base->span());
    storage->Begin(run, 0, std::move(base));
    for (int64_t step = 0; step < static_cast<int64_t>(steps.size()); ++step) {
      if (step == restart) {
        const ShardSnapshot snapshot = storage->Snapshot();
        auto again = ShardStorage::MakeBuffer(layout, run);
        std::copy(snapshot.weights.floats->span().begin(), snapshot.weights.floats->span().end(),
                  again->data());
        storage = std::make_unique<ShardStorage>(layout, optimizer);
        storage->Begin(run, step, std::move(again), snapshot.state);
      }
      const Lanes& lanes = steps[step];
      const training::LaneTree tree = samples.StepTree(step);
      training::ChunkFold fold(tree);  // the same for all chunks
      // Each shard gets the lanes in an order of its own.
      for (int32_t i = 0; i < tree.lane_count(); ++i) {
        const int32_t lane = (i + shard) % tree.lane_count();
        if (!tree.HasLanes({lane, 1})) continue;
        const absl::string_view bytes(
            reinterpret_cast<const char*>(lanes[lane].data() + range.offset), range.size * 4);
        storage->Fold({.first_chunk = run.first_chunk,
                       .commands = {static_cast<size_t>(run.chunk_count), fold.Store({lane, 1})}},
                      absl::MakeConstSpan(&bytes, 1));
      }
      EXPECT_TRUE(storage->CheckRoots({}).finite);
      storage->Apply(DecisionOf(step));
      storage->Retire(step);
    }
    const auto got = storage->current().floats->span();
    std::copy(got.begin(), got.end(), all.begin() + range.offset);
  }
  return all;
}

// By the definition, for the whole vector at once.
void ExpectTheSameOnAnyNumberOfShards(const training::Optimizer& optimizer) {
  const training::FlatLayout layout = StatisticsLayout();
  ASSERT_EQ(layout.chunk_count(), 6);  // three of weights
  for (const int32_t lanes : {1, 3, 4}) {
    SCOPED_TRACE(lanes);
    const training::SamplePlan samples = Samples(lanes);
    std::vector<Lanes> steps;
    for (int64_t step = 0; step < 2 * samples.steps_per_epoch(); ++step) {
      steps.push_back(LaneValues(layout, samples, step));  // steps 5 and 11 have lane 0 alone
    }
    const auto last = static_cast<int64_t>(steps.size()) - 1;
    std::vector<float> want(layout.total_floats());
    std::vector<float> state(want.size() * optimizer.state_floats_per_weight());
    training::InitRange(layout, {}, /*seed=*/5, 0, absl::MakeSpan(want));
    EXPECT_EQ(want[layout.Find("bn.running_var")->offset], 1.0f);
    for (int64_t step = 0; step <= last; ++step) {
      const training::Decision decision = DecisionOf(step);
      if (!decision.apply) continue;
      const training::LaneTree tree = samples.StepTree(step);
      std::vector<float> root = *TreeSum(steps[step], tree, tree.root());
      for (float& value : root) value *= 1.0f / 1024;
      for (int64_t i = layout.statistics_begin(); i < layout.total_floats(); ++i) {
        const float way = root[i] - want[i];
        const float part = 0.1f * way;
        want[i] = want[i] + part;
      }
      optimizer.Apply(want.data(), want.data(), root.data(), state.data(),
                      layout.statistics_begin(),
                      {decision.learning_rate, decision.applied_steps + 1});
    }
    for (const int32_t shards : {1, 2, 5}) {
      for (const int64_t restart : {int64_t{-1}, int64_t{3}, last}) {
        const std::vector<float> got =
            TrainOnShards(layout, samples, optimizer, steps, shards, restart);
        EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * 4), 0)
            << shards << " shards, again from " << restart;
      }
    }
  }
}

TEST(ShardStorageTest, StatisticsAreAveragedOnAnyNumberOfShards) {
  ExpectTheSameOnAnyNumberOfShards(
      *training::Sgd::Create({.momentum = 0.9, .nesterov = true, .weight_decay = 0.01}));
}

// Two floats of state per weight, and the number of the update in each step.
TEST(ShardStorageTest, AdamIsTheSameOnAnyNumberOfShardsAndFromAnySnapshot) {
  ExpectTheSameOnAnyNumberOfShards(*training::Adam::Create({.weight_decay = 0.01}));
}

// Each shard has the square sums of its own chunks with weights, and together they have one total.
TEST(ShardStorageTest, SquareSumsHaveOneTotalOnAnyNumberOfShards) {
  const training::FlatLayout layout = StatisticsLayout();
  const training::Sgd optimizer = *training::Sgd::Create({});
  const training::NormTree norms(layout);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> sum(layout.total_floats());
  for (float& value : sum) value = normal(random);
  double square_sum = 0;
  for (int64_t i = 0; i < layout.statistics_begin(); ++i) square_sum += double{sum[i]} * sum[i];
  std::set<double> totals;
  for (const int32_t shards : {1, 2, 5}) {
    const training::Placement placement =
        *training::Placement::Create(layout.chunk_count(), shards);
    std::vector<training::BlockSquares> all;
    for (int32_t shard = 0; shard < shards; ++shard) {
      const training::ChunkRun run = placement.Run(shard);
      const training::FlatRange range = training::RangeOf(layout, run);
      ShardStorage storage(layout, optimizer);
      storage.Begin(run, 0, ShardStorage::MakeBuffer(layout, run));
      const absl::string_view bytes(reinterpret_cast<const char*>(sum.data() + range.offset),
                                    static_cast<size_t>(range.size) * sizeof(float));
      storage.Fold({.first_chunk = run.first_chunk,
                    .commands = std::vector<training::FoldCommands>(run.chunk_count, kTake)},
                   absl::MakeConstSpan(&bytes, 1));
      const training::RootReport report = storage.CheckRoots({.norms = true});
      EXPECT_TRUE(report.finite);
      all.insert(all.end(), report.squares.begin(), report.squares.end());
      EXPECT_TRUE(storage.CheckRoots({}).squares.empty());
    }
    const absl::StatusOr<double> total = norms.Total(all);
    ASSERT_TRUE(total.ok()) << total.status();
    totals.insert(*total);
  }
  ASSERT_EQ(totals.size(), 1u);
  EXPECT_NEAR(*totals.begin(), square_sum, square_sum * 1e-12);
}

// In the order of sending, a chunk twice, and at once.
TEST(ShardStorageTest, AVersionThatIsMadeInPartsIsTheSame) {
  const training::FlatLayout layout = StatisticsLayout();
  const training::Adam adam = *training::Adam::Create({});
  const training::ChunkRun run{0, layout.chunk_count()};
  const auto make = [&](const std::vector<training::ChunkRun>& parts) {
    ShardStorage storage(layout, adam);
    auto base = ShardStorage::MakeBuffer(layout, run);
    training::InitRange(layout, {}, /*seed=*/5, 0, base->span());
    storage.Begin(run, 0, std::move(base));
    for (int64_t step = 0; step < 3; ++step) {
      const std::vector<float> sum(static_cast<size_t>(layout.total_floats()),
                                   0.25f * static_cast<float>(step + 1));
      const absl::string_view bytes(reinterpret_cast<const char*>(sum.data()), sum.size() * 4);
      storage.Fold({.commands = std::vector<training::FoldCommands>(run.chunk_count, kTake)},
                   absl::MakeConstSpan(&bytes, 1));
      storage.BeginVersion({.step = step, .apply = step != 1, .learning_rate = 0.1});
      EXPECT_EQ(storage.current().version, step + 1);
      for (const training::ChunkRun& part : parts) storage.MakeChunks(part);
    }
    const ShardSnapshot snapshot = storage.Snapshot();
    const absl::Span<const float> floats = snapshot.weights.floats->span();
    return std::make_tuple(std::vector<float>(floats.begin(), floats.end()), snapshot.state,
                           *snapshot.weights.crcs);
  };
  const auto whole = make({run});
  EXPECT_EQ(make({{4, 2}, {1, 3}, {0, 1}}), whole);
  EXPECT_EQ(make({{5, 1}, {3, 3}, {0, 3}, {0, 6}}), whole);
}

// No weight is continued from its last value alone: each follows from its state.
TEST(ShardStorageTest, FtrlIsTheSameOnAnyNumberOfShardsAndFromAnySnapshot) {
  ExpectTheSameOnAnyNumberOfShards(
      *training::Ftrl::Create({.l1 = 0.001, .beta = 0.01, .weight_decay = 0.01}));
}

// Twelve steps on some shards at once, one of them skipped. Each shard measures its pieces, and gets
// the norms of whole tensors. Shards begin again from their snapshots before step 7.
std::vector<float> TrainWithNorms(const training::Optimizer& optimizer, int32_t shards) {
  const training::FlatLayout layout = StatisticsLayout();
  const training::Placement placement = *training::Placement::Create(layout.chunk_count(), shards);
  const training::TensorPieces pieces(layout);
  std::vector<std::unique_ptr<ShardStorage>> storages;
  for (int32_t shard = 0; shard < shards; ++shard) {
    const training::ChunkRun run = placement.Run(shard);
    auto base = ShardStorage::MakeBuffer(layout, run);
    training::InitRange(layout, {}, /*seed=*/5, training::RangeOf(layout, run).offset,
                        base->span());
    storages.push_back(std::make_unique<ShardStorage>(layout, optimizer));
    storages.back()->Begin(run, 0, std::move(base));
  }
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  int64_t applied = 0;
  for (int64_t step = 0; step < 12; ++step) {
    std::vector<float> sum(static_cast<size_t>(layout.total_floats()));
    for (const training::TensorSlot& slot : layout.slots()) {
      for (int64_t i = slot.offset; i < slot.range().end(); ++i) sum[i] = normal(random);
    }
    std::vector<training::PieceSquares> squares;
    for (auto& storage : storages) {
      const training::ChunkRun run = storage->run();
      const training::FlatRange range = training::RangeOf(layout, run);
      if (step == 7) {
        const ShardSnapshot snapshot = storage->Snapshot();
        auto again = ShardStorage::MakeBuffer(layout, run);
        std::copy(snapshot.weights.floats->span().begin(), snapshot.weights.floats->span().end(),
                  again->data());
        storage = std::make_unique<ShardStorage>(layout, optimizer);
        storage->Begin(run, step, std::move(again), snapshot.state);
      }
      const absl::string_view bytes(reinterpret_cast<const char*>(sum.data() + range.offset),
                                    static_cast<size_t>(range.size) * sizeof(float));
      storage->Fold({.first_chunk = run.first_chunk,
                     .commands = std::vector<training::FoldCommands>(run.chunk_count, kTake)},
                    absl::MakeConstSpan(&bytes, 1));
      const training::RootReport report =
          storage->CheckRoots({.gradient_scale = 0.25, .applied_steps = applied});
      EXPECT_TRUE(report.finite);
      squares.insert(squares.end(), report.pieces.begin(), report.pieces.end());
    }
    training::Decision decision{.step = step,
                                .apply = step != 4,
                                .learning_rate = 0.1,
                                .gradient_scale = 0.25,
                                .applied_steps = applied};
    if (decision.apply) {
      ++applied;
      decision.tensor_norms = *pieces.Norms(squares);
    }
    for (auto& storage : storages) storage->Apply(decision);
  }
  std::vector<float> all;
  for (const auto& storage : storages) {
    const auto got = storage->current().floats->span();
    all.insert(all.end(), got.begin(), got.end());
  }
  return all;
}

TEST(ShardStorageTest, LarsAndLambAreTheSameOnAnyNumberOfShards) {
  const training::Lars lars = *training::Lars::Create({.momentum = 0.9, .weight_decay = 0.01});
  const training::Lamb lamb = *training::Lamb::Create({.weight_decay = 0.01});
  for (const training::Optimizer* optimizer :
       std::initializer_list<const training::Optimizer*>{&lars, &lamb}) {
    const std::vector<float> want = TrainWithNorms(*optimizer, 1);
    for (const int32_t shards : {2, 3, 5}) {
      const std::vector<float> got = TrainWithNorms(*optimizer, shards);
      ASSERT_EQ(got.size(), want.size());
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * 4), 0) << shards;
    }
  }
}

// The pieces of a sum that is not finite are of no use, and other optimizers need none.
TEST(ShardStorageTest, PiecesAreMeasuredWhereTheyAreNeeded) {
  const training::FlatLayout layout = StatisticsLayout();
  const training::Sgd sgd = *training::Sgd::Create({});
  const training::Lars lars = *training::Lars::Create({});
  const training::ChunkRun run{0, layout.chunk_count()};
  const auto pieces = [&](const training::Optimizer& optimizer, float value) {
    ShardStorage storage(layout, optimizer);
    storage.Begin(run, 0, ShardStorage::MakeBuffer(layout, run));
    std::vector<float> sum(static_cast<size_t>(layout.total_floats()));
    sum[3] = value;
    const absl::string_view bytes(reinterpret_cast<const char*>(sum.data()), sum.size() * 4);
    storage.Fold({.commands = std::vector<training::FoldCommands>(run.chunk_count, kTake)},
                 absl::MakeConstSpan(&bytes, 1));
    return storage.CheckRoots({}).pieces;
  };
  EXPECT_TRUE(pieces(sgd, 2).empty());
  EXPECT_TRUE(pieces(lars, NAN).empty());
  const std::vector<training::PieceSquares> squares = pieces(lars, 2);
  ASSERT_EQ(squares.size(), training::TensorPieces(layout).Of(run).size());
  EXPECT_EQ(squares[0], (training::PieceSquares{0, 0, 0, 4}));
}

TEST(ShardStorageTest, AStatisticThatIsNotFiniteIsFound) {
  const training::FlatLayout layout = StatisticsLayout();
  const training::SamplePlan samples = Samples(1);
  const training::Sgd optimizer = *training::Sgd::Create({});
  ShardStorage storage(layout, optimizer);
  const training::ChunkRun run{3, 3};  // statistics alone
  storage.Begin(run, 0, ShardStorage::MakeBuffer(layout, run));
  const auto fold = [&](float value) {
    std::vector<float> values(training::RangeOf(layout, run).size);
    values[3] = value;
    const absl::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * 4);
    storage.Fold({.first_chunk = 3, .commands = {kTake, kTake, kTake}},
                 absl::MakeConstSpan(&bytes, 1));
  };
  fold(NAN);
  EXPECT_FALSE(storage.CheckRoots({}).finite);
  storage.Apply({.step = 0, .apply = false});
  EXPECT_EQ(storage.current().floats->data()[3], 0.0f);
  fold(1);
  EXPECT_TRUE(storage.CheckRoots({}).finite);
  storage.Apply({.step = 1, .apply = true, .learning_rate = 7});
  EXPECT_EQ(storage.current().floats->data()[3], 0.1f);
}

class BaseWeightsTest : public testing::Test {
 protected:
  BaseWeightsTest() : folder_(*services::MakePrivateDir("capstan-base")) {}
  ~BaseWeightsTest() override { EXPECT_TRUE(services::RemoveTree("/tmp", folder_).ok()); }

  std::string Write(const std::string& name, std::vector<int64_t> shape, size_t floats) {
    training::SafetensorsTensor tensor;
    tensor.name = name;
    tensor.shape = std::move(shape);
    return Write({&tensor, 1}, floats);
  }
  std::string Write(absl::Span<const training::SafetensorsTensor> tensors, size_t floats) {
    std::string bytes = *training::EncodeSafetensorsHeader(tensors);
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

// A Gemm of 100 features to 60, whose weights ONNX stores as [60, 100] if transB is set.
std::string OnnxOfGemm(int64_t features, int64_t outputs) {
  training::onnx::OnnxBuilder file({features}, {outputs});
  file.Count("fc.weight", {outputs, features}, 0);
  file.Count("fc.bias", {outputs}, 0.5f);
  auto& gemm = file.Node("Gemm", {"x", "fc.weight", "fc.bias"}, "y");
  auto& attribute = *gemm.add_attribute();
  attribute.set_name("transB");
  attribute.set_type(capstan::onnx::v1::ATTRIBUTE_TYPE_INT);
  attribute.set_i(1);
  return file.Bytes();
}

TEST_F(BaseWeightsTest, AnOnnxFileGivesEachShardItsPart) {
  const std::string path = folder_ + "/net.onnx", uri = "file://" + path;
  ASSERT_TRUE(services::WriteFileAtomically(path, OnnxOfGemm(100, 60)).ok());
  training::TensorSpec weights{.name = "fc.weight", .shape = {60, 100}, .fan_in = 1, .fan_out = 1};
  training::TensorSpec biases{
      .name = "fc.bias", .shape = {60}, .init = training::TensorInit::kZeros};
  const training::FlatLayout layout = *training::FlatLayout::Create({weights, biases}, 4096);
  const int64_t bias = layout.Find("fc.bias")->offset;
  const int64_t weight = layout.Find("fc.weight")->offset;
  std::vector<float> whole(static_cast<size_t>(layout.total_floats()), -1.0f);
  ASSERT_EQ(FillBaseWeights(layout, {.initial_weights = uri}, {0, layout.total_floats()},
                            absl::MakeSpan(whole))
                .status,
            absl::OkStatus());
  EXPECT_EQ(whole[weight + 5999], 5999);
  EXPECT_EQ(whole[bias], 0.5f);
  EXPECT_EQ(whole[bias + 59], 59.5f);
  for (int32_t chunk = 0; chunk < layout.chunk_count(); ++chunk) {
    const training::FlatRange range = layout.ChunkRange(chunk);
    std::vector<float> part(static_cast<size_t>(range.size), -1.0f);
    const BaseWeightsError error =
        FillBaseWeights(layout, {.initial_weights = uri}, range, absl::MakeSpan(part));
    ASSERT_EQ(error.status, absl::OkStatus());
    EXPECT_FALSE(error.initial_statistics);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + range.offset)) << chunk;
  }

  const auto refused = [&](const std::string& bytes) {
    EXPECT_TRUE(services::WriteFileAtomically(path, bytes).ok());
    const BaseWeightsError error = FillBaseWeights(
        layout, {.initial_weights = uri}, {0, layout.total_floats()}, absl::MakeSpan(whole));
    return absl::StrCat(error.reason, " ", error.status.message());
  };
  EXPECT_THAT(refused(OnnxOfGemm(60, 100)),
              HasSubstr("InvalidSpec initial_weights: " + path +
                        ": fc.weight is F32 [100, 60], want F32 [60, 100]"));
  EXPECT_THAT(refused(OnnxOfGemm(100, 60).substr(0, 1000)),
              HasSubstr("InvalidSpec initial_weights: " + path + ": "));
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_EQ(FillBaseWeights(layout, {.initial_weights = uri}, {0, layout.total_floats()},
                            absl::MakeSpan(whole))
                .reason,
            "DataMissing");
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

// A file of PyTorch's, with and without its statistics.
TEST_F(BaseWeightsTest, AFileHoldsAllStatisticsOrNone) {
  const training::FlatLayout layout = StatisticsLayout();
  const int64_t mean = layout.Find("bn.running_mean")->offset;
  const int64_t variance = layout.Find("bn.running_var")->offset;
  std::vector<float> out(layout.total_floats());
  const auto fill = [&](const std::string& uri) {
    std::fill(out.begin(), out.end(), -1.0f);
    return FillBaseWeights(layout, {.initial_weights = uri}, {0, layout.total_floats()},
                           absl::MakeSpan(out));
  };
  const auto tensor = [](const char* name, std::vector<int64_t> shape) {
    training::SafetensorsTensor made;
    made.name = name;
    made.shape = std::move(shape);
    return made;
  };
  training::SafetensorsTensor count = tensor("bn.num_batches_tracked", {});
  count.dtype = training::SafetensorsDtype::kI64;
  const auto weight = tensor("conv.weight", {1500});
  const auto running_mean = tensor("bn.running_mean", {700});
  const auto running_variance = tensor("bn.running_var", {700});

  BaseWeightsError error = fill(Write({weight, running_mean, running_variance, count}, 2902));
  ASSERT_TRUE(error.status.ok()) << error.status;
  EXPECT_FALSE(error.initial_statistics);
  EXPECT_EQ(out[1499], 1499.0f);
  EXPECT_EQ(out[mean], 1500.0f);
  EXPECT_EQ(out[variance + 699], 2899.0f);
  EXPECT_EQ(out[mean + 700], 0.0f);  // padding

  error = fill(Write({weight}, 1500));
  ASSERT_TRUE(error.status.ok()) << error.status;
  EXPECT_TRUE(error.initial_statistics);
  EXPECT_EQ(out[1499], 1499.0f);
  EXPECT_EQ(out[1500], 0.0f);
  EXPECT_EQ(out[mean], 0.0f);
  EXPECT_EQ(out[mean + 699], 0.0f);
  EXPECT_EQ(out[variance], 1.0f);
  EXPECT_EQ(out[variance + 699], 1.0f);
  // A shard that has none of them has nothing to say.
  error = FillBaseWeights(layout, {.initial_weights = Write({weight}, 1500)}, {0, 1024},
                          absl::MakeSpan(out).subspan(0, 1024));
  ASSERT_TRUE(error.status.ok()) << error.status;
  EXPECT_FALSE(error.initial_statistics);

  error = fill(Write({weight, running_mean}, 2200));
  EXPECT_EQ(error.reason, "InvalidSpec");
  EXPECT_THAT(std::string(error.status.message()),
              HasSubstr("has no tensor bn.running_var; want all running statistics, or none"));
  error = fill(Write({weight, tensor("bn2.num_batches_tracked", {})}, 1501));
  EXPECT_EQ(error.reason, "InvalidSpec");
  EXPECT_THAT(std::string(error.status.message()), HasSubstr("bn2.num_batches_tracked, which"));
}

// ---- Asynchronous jobs ----

class ApplyFrameTest : public ::testing::Test {
 protected:
  ApplyFrameTest() {
    auto weights = ShardStorage::MakeBuffer(layout_, kRun);
    std::fill_n(weights->data(), weights->size(), 1.0f);
    storage_.Begin(kRun, 0, weights);
  }
  // A gradient for the chunks from `first` on.
  void Apply(int32_t first, std::vector<int64_t> updates, float gradient, double rate = 0.5) {
    int64_t floats = 0;
    for (size_t i = 0; i < updates.size(); ++i) {
      floats += layout_.ChunkRange(first + static_cast<int32_t>(i)).size;
    }
    const std::vector<float> values(floats, gradient);
    const absl::string_view bytes(reinterpret_cast<const char*>(values.data()), 4 * floats);
    // Cut anywhere, as messages are.
    const std::vector<absl::string_view> pieces = {bytes.substr(0, 7), bytes.substr(7)};
    storage_.ApplyFrame({1, first, std::move(updates), rate}, pieces);
  }
  float At(int32_t chunk) const {
    return storage_.current().floats->data()[storage_.LocalRange(chunk).offset];
  }
  void ExpectRightSums() {
    for (int32_t chunk = 0; chunk < kRun.chunk_count; ++chunk) {
      const training::FlatRange range = storage_.LocalRange(chunk);
      EXPECT_EQ((*storage_.current().crcs)[chunk],
                training::Crc32c(storage_.current().floats->data() + range.offset, 4 * range.size));
    }
  }

  static constexpr training::ChunkRun kRun = {0, 2};
  const training::FlatLayout layout_ = Layout();
  const training::Sgd sgd_ = *training::Sgd::Create({});
  ShardStorage storage_{layout_, sgd_};
};

TEST_F(ApplyFrameTest, ChangesTheChunksThatAreMeant) {
  Apply(0, {0, -1}, 1);
  EXPECT_EQ(At(0), 0.5f);
  EXPECT_EQ(At(1), 1.0f);
  Apply(1, {0}, 2);
  EXPECT_EQ(At(1), 0.0f);
  ExpectRightSums();
  EXPECT_EQ(storage_.current().version, 0);
}

// What is on its way to a task, or being written, does not change.
TEST_F(ApplyFrameTest, CopiesTheWeightsOnceSomebodyHasThem) {
  Apply(0, {0, 0}, 1);
  const VersionWeights sent = *storage_.Find(0);
  const uint32_t crc = (*sent.crcs)[0];
  Apply(0, {1, 1}, 1);
  EXPECT_EQ(sent.floats->data()[0], 0.5f);
  EXPECT_EQ((*sent.crcs)[0], crc);
  EXPECT_EQ(At(0), 0.0f);
  const float* const own = storage_.current().floats->data();
  Apply(0, {2, 2}, 1);
  EXPECT_EQ(storage_.current().floats->data(), own) << "nobody has this one";
  const ShardSnapshot written = storage_.Snapshot();
  Apply(0, {3, 3}, 1);
  EXPECT_EQ(written.weights.floats->data()[0], -0.5f);
  EXPECT_EQ(At(0), -1.0f);
  ExpectRightSums();
  EXPECT_EQ(storage_.weight_buffers_in_use(), 3);
}

TEST_F(ApplyFrameTest, TheClockCountsVersionsAndChangesNoWeight) {
  Apply(0, {0, 0}, 1);
  training::Decision decision;
  storage_.Apply(decision);
  storage_.Retire(0);
  EXPECT_EQ(storage_.current().version, 1);
  EXPECT_EQ(At(0), 0.5f);
  const float* const own = storage_.current().floats->data();
  Apply(0, {1, 1}, 1);
  EXPECT_EQ(storage_.current().floats->data(), own);
}

// Adam's bias correction counts the chunk's own contributions.
TEST_F(ApplyFrameTest, EachChunkHasItsOwnCount) {
  const training::Adam adam = *training::Adam::Create({});
  ShardStorage storage(layout_, adam);
  auto weights = ShardStorage::MakeBuffer(layout_, kRun);
  std::fill_n(weights->data(), weights->size(), 1.0f);
  storage.Begin(kRun, 0, weights);
  const std::vector<float> ones(layout_.total_floats(), 1.0f);
  const std::vector<absl::string_view> pieces = {
      {reinterpret_cast<const char*>(ones.data()), 4 * ones.size()}};
  storage.ApplyFrame({1, 0, {0, 9}, 0.125}, pieces);
  const float* const now = storage.current().floats->data();
  EXPECT_NEAR(now[0], 1 - 0.125, 1e-5) << "the first step of Adam is the rate";
  EXPECT_GT(now[storage.LocalRange(1).offset], now[0]) << "as if nine zeros had come before";
}

}  // namespace
}  // namespace capstan::param_store
