// Tests groups of plans on cards whose streams are threads with random delays: the sums are
// compared with the host's, buckets come in order, faults are named. The cards are those of the
// fake plug-in, and those of the CUDA plug-in on a stand-in for CUDA (tests/support/fake_cuda) if
// it could be built.
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gpu_worker/engine/device/group.h"
#include "gpu_worker/engine/device/open.h"
#include "gpu_worker/engine/plugin/plugin_device.h"
#include "gpu_worker/engine/plugin/sent_graph.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"
#include "training/optim/sgd.h"

namespace capstan::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using training::LaneBlock;
using training::LaneTree;

struct Cards {
  std::string name;
  std::string plugin;
  std::string variable;  // how its faults are requested
  std::string fault, hang, hang_reduced, lost, lost_in;
  std::string out_of_memory;
  int scratch = 0;  // additional vectors on the cards
};

std::vector<Cards> AllCards() {
  std::vector<Cards> all = {{"Fake", CAPSTAN_FAKE_PLUGIN, "CAPSTAN_FAKE_GROUP", "fault:1:2",
                             "hang:2", "hang:2", "lost", "the sum of bucket 0 ", "fake device "}};
#ifdef CAPSTAN_CUDA_ON_CPU
  // With five buckets, ten pieces of weights come first. Then each sum takes four pieces of work by
  // copies, and three by NCCL. A lost NCCL is noticed in whichever bucket is being waited for.
  all.push_back({"CudaOnCpu", CAPSTAN_CUDA_ON_CPU, "CAPSTAN_FAKE_CUDA", "devices=4 fault=3:50",
                 "devices=4 hang=1:19", "devices=4 hang=1:17", "devices=4 nccl=lost",
                 "the sum of bucket ", "GPU ", 1});
#endif
  return all;
}

class PluginGroupTest : public ::testing::TestWithParam<Cards> {
 protected:
  PluginGroupTest()
      : graph_(*training::MakeModel("lenet", 10, {1, 28, 28})),
        layout_(*training::FlatLayout::Create(training::TensorSpecs(graph_))),
        images_(16 * 784) {
    setenv("CAPSTAN_FAKE_DEVICES", "4", 1);
    setenv("CAPSTAN_FAKE_CUDA", "devices=4", 1);
    LoaderOptions options;
    options.driver_library = "";
    options.candidates = {GetParam().plugin};
    plugin_ = *LoadPlugin(options);
    for (size_t i = 0; i < images_.size(); ++i) {
      images_[i] = std::cos(static_cast<float>(i * i % 997));
    }
    // 61 thousand floats in five buckets.
    options_.buckets = {4096, 16384};
    options_.timeout = absl::Seconds(30);
  }
  ~PluginGroupTest() override {
    alone_ = nullptr;
    plans_.clear();
    unsetenv("CAPSTAN_FAKE_DEVICES");
    unsetenv("CAPSTAN_FAKE_GROUP");
    unsetenv("CAPSTAN_FAKE_CUDA");
  }
  static void Ask(const std::string& fault) {
    setenv(GetParam().variable.c_str(), fault.c_str(), 1);
  }

  // Makes the cards work again, because freeing memory of a hung card waits for it.
  void ForgetHangs() {
    Ask("devices=4");
    Compile({0});
  }

  std::vector<float> Weights(float seed) const {
    std::vector<float> weights(layout_.total_floats(), 0.0f);
    for (const training::TensorSlot& slot : layout_.slots()) {
      for (int64_t i = 0; i < slot.size; ++i) {
        weights[slot.offset + i] = 0.1f * std::sin(seed + static_cast<float>(slot.offset + i));
      }
    }
    return weights;
  }

  void Load(PlanGroup& group, float seed) {
    const std::vector<float> weights = Weights(seed);
    ASSERT_TRUE(group.LoadWeights(weights.data()).ok());
    ASSERT_TRUE(alone_->LoadWeights(weights.data()).ok());
  }

  // Lane l has samples l and l + 1, with label l.
  SampleBatch Batch(int32_t lane) {
    labels_[lane] = {lane % 10, lane % 10};
    return {images_.data() + 784 * lane, labels_[lane].data(), lane % 3 == 2 ? 1 : 2};
  }

  void Compile(const std::vector<int>& indices) {
    plans_.clear();
    devices_.clear();
    for (const int index : indices) {
      devices_.push_back(*OpenPluginDevice(plugin_, "cuda:" + std::to_string(index), index));
      PlanOptions options;
      options.max_batch = 2;
      plans_.push_back(*devices_.back()->Compile(graph_, layout_, options));
      if (plans_.size() == 1) alone_ = *devices_.back()->Compile(graph_, layout_, options);
    }
  }

  absl::StatusOr<std::unique_ptr<PlanGroup>> Group() {
    std::vector<Plan*> plans;
    for (const auto& plan : plans_) plans.push_back(plan.get());
    return devices_[0]->MakeGroup(plans, options_);
  }

  std::vector<GroupLane> Deal(const std::vector<int32_t>& lanes) {
    std::vector<GroupLane> dealt;
    for (size_t i = 0; i < lanes.size(); ++i) {
      dealt.push_back({static_cast<int>(i % plans_.size()), lanes[i], Batch(lanes[i])});
    }
    return dealt;
  }

  // The lane by itself, computed on the host.
  std::vector<float> Gradient(int32_t lane, LaneResult* result) {
    std::vector<float> gradient(layout_.total_floats());
    *result = *alone_->ComputeLane(Batch(lane), 0.125, gradient.data());
    return gradient;
  }

  // A direct implementation of rule R1.
  std::vector<float> Naive(const LaneTree& tree, const LaneBlock& block) {
    LaneResult unused;
    if (block.lane_count == 1) return Gradient(block.first_lane, &unused);
    const LaneBlock left = LaneTree::Left(block), right = LaneTree::Right(block);
    if (!tree.HasLanes(left)) return Naive(tree, right);
    std::vector<float> sum = Naive(tree, left);
    if (!tree.HasLanes(right)) return sum;
    const std::vector<float> other = Naive(tree, right);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    return sum;
  }

  // Computes the lanes in a group. Checks the order and finality of the buckets.
  absl::StatusOr<std::vector<std::vector<float>>> Compute(PlanGroup& group, const LaneTree& tree,
                                                          const std::vector<int32_t>& lanes) {
    const size_t blocks = tree.LargestBlocks(lanes).size();
    std::vector<std::vector<float>> sums(blocks, std::vector<float>(layout_.total_floats(), NAN));
    std::vector<std::vector<float>> seen = sums;
    std::vector<int64_t> ready(blocks, 0);
    std::vector<float*> to;
    for (auto& sum : sums) to.push_back(sum.data());
    const absl::StatusOr<std::vector<LaneResult>> results =
        group.ComputeLanes(tree, Deal(lanes), 0.125, to, [&](size_t block, int64_t floats) {
          EXPECT_GT(floats, ready[block]);
          std::copy(sums[block].begin() + ready[block], sums[block].begin() + floats,
                    seen[block].begin() + ready[block]);
          ready[block] = floats;
          ++buckets_;
        });
    if (!results.ok()) return results.status();
    EXPECT_EQ(seen, sums);
    for (size_t i = 0; i < lanes.size(); ++i) {
      LaneResult want;
      Gradient(lanes[i], &want);
      EXPECT_EQ((*results)[i].samples, want.samples);
      EXPECT_EQ((*results)[i].loss_sum, want.loss_sum);
      EXPECT_EQ((*results)[i].correct, want.correct);
    }
    return sums;
  }

  void ExpectTreeSums(PlanGroup& group, const LaneTree& tree, const std::vector<int32_t>& lanes) {
    const auto sums = Compute(group, tree, lanes);
    ASSERT_TRUE(sums.ok()) << sums.status();
    const std::vector<LaneBlock> blocks = tree.LargestBlocks(lanes);
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_TRUE((*sums)[i] == Naive(tree, blocks[i])) << ToString(blocks[i]);
    }
  }

  const training::Graph graph_;
  const training::FlatLayout layout_;
  std::vector<float> images_;
  std::vector<int32_t> labels_[16];
  GroupOptions options_;
  LoadedPlugin plugin_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Plan>> plans_;
  std::unique_ptr<Plan> alone_;  // in no group; computes for the host
  int buckets_ = 0;
};

TEST_P(PluginGroupTest, DeterministicSumsAreThoseOfTheTree) {
  for (const std::vector<int>& indices :
       {std::vector<int>{0}, {0, 1}, {1, 0, 3}, {0, 1, 2, 3}, {0, 0}, {2, 2, 2}}) {
    Compile(indices);
    const auto group = Group();
    ASSERT_TRUE(group.ok()) << group.status();
    for (const float seed : {1.0f, 2.0f}) {
      Load(**group, seed);
      // A single lane, a root, a block and a half, empty lanes, more lanes than fit one round.
      ExpectTreeSums(**group, LaneTree(4), {2});
      ExpectTreeSums(**group, LaneTree(4), {0, 1, 2, 3});
      ExpectTreeSums(**group, LaneTree(8), {1, 2, 3, 4});
      ExpectTreeSums(**group, LaneTree(7).WithEmptyLanes({2, 5}), {0, 1, 3, 4, 6});
    }
  }
  // Five buckets, and blocks of one, one, three and one in each of two rounds of six groups.
  EXPECT_EQ(buckets_, 5 * (1 + 1 + 3 + 1) * 2 * 6);
}

TEST_P(PluginGroupTest, WithoutThatTheyAreReducedWhereEveryPlanHasItsCard) {
  options_.deterministic = false;
  for (const bool twice : {false, true}) {
    Compile(twice ? std::vector<int>{1, 1} : std::vector<int>{0, 1});
    const auto group = Group();
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_THAT((*group)->summary(), HasSubstr(twice                       ? "copies"
                                               : GetParam().name == "Fake" ? "meeting"
                                                                           : "NCCL 2.28.9"));
    Load(**group, 1);
    const LaneTree tree(8);
    // Lanes 2, 3 and 4, 5 are rounds of one block each. Lanes 1 and 6 are not.
    const std::vector<int32_t> lanes = {2, 3, 4, 5, 1, 6};
    const auto sums = Compute(**group, tree, lanes);
    ASSERT_TRUE(sums.ok()) << sums.status();
    const std::vector<LaneBlock> blocks = tree.LargestBlocks(lanes);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::vector<float> want = Naive(tree, blocks[i]);
      for (size_t f = 0; f < want.size(); ++f) ASSERT_NEAR((*sums)[i][f], want[f], 1e-6);
    }
  }
}

// Cards handle one bucket on one card separately, in one stream.
TEST_P(PluginGroupTest, OneBucketOnOneCardGivesTheSameBits) {
  const std::vector<float> weights = Weights(1), state = Weights(2);
  std::vector<training::UpdatePart> update;
  std::vector<std::vector<float>> got;
  options_.state_floats = 1;
  for (const bool cut : {true, false}) {
    if (!cut) options_.buckets = {};
    Compile({1});
    update = training::UpdateParts(layout_, *training::Sgd::Create({0.9, true, 0.01}),
                                   {.learning_rate = 0.05});
    const auto group = Group();
    ASSERT_TRUE(group.ok()) << group.status();
    Load(**group, 1);
    buckets_ = 0;
    ExpectTreeSums(**group, LaneTree(8), {1, 2, 3, 4});
    EXPECT_EQ(buckets_, cut ? 15 : 3);
    ASSERT_TRUE((*group)->LoadState(weights.data(), state.data()).ok());
    for (int step = 0; step < 5; ++step) {
      const auto kept = (*group)->ComputeKept(LaneTree(3), Deal({0, 1, 2}), 0.125);
      ASSERT_TRUE(kept.ok()) << kept.status();
      ASSERT_TRUE((*group)->Update(update).ok());
    }
    std::vector<float> read(weights.size()), read_state(weights.size());
    ASSERT_TRUE((*group)->ReadState(read.data(), read_state.data()).ok());
    got.push_back(read);
    got.push_back(read_state);
  }
  EXPECT_TRUE(got[0] == got[2] && got[1] == got[3]);
  EXPECT_FALSE(got[0] == weights);
}

// The memory for a usual step is reserved and counted. An unusual step takes more.
TEST_P(PluginGroupTest, MemoryIsTakenBeforeTheFirstStep) {
  Compile({0, 3});
  options_.slots = 2;
  options_.state_floats = 2;
  const auto group = Group();
  const auto bytes = [&](int plan) { return (*group)->DeviceBytes(plan); };
  const std::vector<int64_t> reserved = {bytes(0), bytes(1)};
  const int64_t vectors = 4 + GetParam().scratch;
  EXPECT_EQ(reserved[0] + reserved[1], vectors * 4 * layout_.total_floats());
  EXPECT_GT(reserved[0], 4 * layout_.total_floats());
  const std::vector<float> weights = Weights(1), state(2 * weights.size(), 1.0f);
  ASSERT_TRUE((*group)->LoadState(weights.data(), state.data()).ok());
  ASSERT_TRUE((*group)->ComputeKept(LaneTree(4), Deal({0, 1, 2, 3}), 0.125).ok());
  EXPECT_EQ(bytes(0), reserved[0]);
  ASSERT_TRUE((*group)->ComputeKept(LaneTree(8), Deal({0, 1, 2, 3, 4, 5, 6, 7}), 0.125).ok());
  EXPECT_EQ(bytes(0) + bytes(1), (vectors + 1) * 4 * layout_.total_floats());

  options_.slots = 20000;  // of an eighth of a MiB each, in the one GiB of a fake card
  options_.deterministic = false;
  const absl::Status status = Group().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      ::testing::StartsWith("devices together: out of GPU memory: " + GetParam().out_of_memory));
  // All of the memory has been given back.
  options_.slots = 2;
#ifdef CAPSTAN_CUDA_ON_CPU
  // The first card has the memory for the sums, beside what it holds already. The state does not
  // fit, and fewer lanes would not help.
  if (GetParam().variable == "CAPSTAN_FAKE_CUDA") {
    options_.deterministic = true;
    const int64_t taken =
        plans_[0]->info().planned_bytes() + alone_->info().planned_bytes() + bytes(0);
    Ask(absl::StrCat("devices=4 bytes=", taken + 3 * reserved[0] / vectors));
    options_.slots = 1;
    options_.state_floats = 3;
    const std::string text(Group().status().message());
    EXPECT_THAT(text, AllOf(HasSubstr("out of GPU memory: GPU 0 needs another "),
                            HasSubstr(" bytes for the optimizer's state; take more GPUs")));
    Ask("devices=4");
    options_.slots = 2;
  }
#endif
  const auto smaller = Group();
  ASSERT_TRUE(smaller.ok()) << smaller.status();
  Load(**smaller, 1);
  EXPECT_TRUE(Compute(**smaller, LaneTree(4), {0, 1, 2, 3}).ok());
}

TEST_P(PluginGroupTest, AFaultOfOneDeviceEndsTheGroupWithItsName) {
  Ask(GetParam().fault);
  Compile({0, 3});
  auto group = Group();
  Load(**group, 1);
  ASSERT_TRUE(Compute(**group, LaneTree(4), {0, 1, 2, 3}).ok());
  for (int again = 0; again < 2; ++again) {
    const absl::Status status = Compute(**group, LaneTree(4), {0, 1, 2, 3}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(GetParam().name == "Fake" ? "illegal memory access" : ": "),
                      HasSubstr("GPU 3")));
  }
  *group = nullptr;
  ForgetHangs();
}

TEST_P(PluginGroupTest, ASumThatHangsIsNamed) {
  // Long enough for the earlier buckets to finish on a busy machine.
  options_.timeout = absl::Seconds(std::getenv("CAPSTAN_SANITIZED") != nullptr ? 8 : 1);
  for (const bool deterministic : {false, true}) {
    options_.deterministic = deterministic;
    Ask(deterministic ? GetParam().hang : GetParam().hang_reduced);
    Compile({1, 2});
    auto group = Group();
    Load(**group, 1);
    buckets_ = 0;
    const absl::Status status = Compute(**group, LaneTree(2), {0, 1}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(
        std::string(status.message()),
        absl::StrCat("devices together: GPU 1, the sum of bucket 2 over 2 devices: not done after ",
                     absl::ToDoubleSeconds(options_.timeout), " s"));
    EXPECT_EQ(buckets_, 2);  // the earlier buckets have left
    *group = nullptr;
    ForgetHangs();
  }
}

TEST_P(PluginGroupTest, WhatTheCommunicatorSaysEndsTheWait) {
  Ask(GetParam().lost);
  options_.deterministic = false;
  Compile({1, 2});
  auto group = Group();
  Load(**group, 1);
  const absl::Status status = Compute(**group, LaneTree(2), {0, 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(GetParam().lost_in), HasSubstr("ncclCommGetAsyncError: 6 ")));
  *group = nullptr;
  ForgetHangs();
}

// A batch longer than two slots, with weights that change before the previous ones have arrived.
TEST_P(PluginGroupTest, APlanAloneReadsWhatItWasGiven) {
  constexpr int kSamples = 700;
  const training::Graph graph = *training::MakeModel("mlp", 10, {1, 28, 28});
  const training::FlatLayout layout = *training::FlatLayout::Create(training::TensorSpecs(graph));
  std::vector<float> images(kSamples * 784), weights(layout.total_floats(), 0.01f);
  for (size_t i = 0; i < images.size(); ++i) images[i] = std::sin(static_cast<float>(i % 7919));
  const std::vector<int32_t> labels(kSamples, 3);
  const std::unique_ptr<Device> device = *OpenPluginDevice(plugin_, "cuda:0", 0);
  PlanOptions options;
  options.max_batch = kSamples;
  const std::unique_ptr<Plan> plan = *device->Compile(graph, layout, options);
  std::vector<float> got(2 * 10 * kSamples);
  for (const int last : {0, 1}) {
    for (const int version : {1 - last, last}) {
      for (size_t i = 0; i < weights.size(); ++i) {
        weights[i] = version == 0 ? 0.0f : 0.1f * std::cos(static_cast<float>(i % 6007));
      }
      ASSERT_TRUE(plan->LoadWeights(weights.data()).ok());
    }
    const SampleBatch batch = {images.data(), labels.data(), kSamples};
    ASSERT_TRUE(plan->Predict(batch, got.data() + last * 10 * kSamples).ok());
  }
  const std::vector<float> zero(got.begin(), got.begin() + 10 * kSamples);
  EXPECT_THAT(zero, ::testing::Each(0.0f));
  // The same in batches that each fit into one slot.
  for (int first = 0; first < kSamples; first += 100) {
    std::vector<float> part(1000);
    const SampleBatch batch = {images.data() + 784 * first, labels.data() + first, 100};
    ASSERT_TRUE(plan->Predict(batch, part.data()).ok());
    for (size_t i = 0; i < part.size(); ++i) {
      ASSERT_NEAR(part[i], got[10 * (kSamples + first) + i], 1e-4) << first;
    }
  }
}

TEST_P(PluginGroupTest, PlansOfAnotherDeviceAreRefused) {
  Compile({0, 1});
  // The handle of a plan, with the number of another device.
  capstan_plan* handles[2] = {};
  const int32_t devices[2] = {0, 0};
  const SentGraph sent = *SentGraph::Of(graph_, layout_);
  for (int i = 0; i < 2; ++i) {
    capstan_compile_request compile = {};
    compile.device = i;
    sent.Describe(compile);
    compile.max_batch = 1;
    capstan_error error = {};
    ASSERT_EQ(plugin_.table->compile(&compile, &handles[i], &error), 0) << error.text;
  }
  const int64_t end = layout_.total_floats();
  capstan_group_request request = {};
  request.plans = handles;
  request.devices = devices;
  request.plan_count = 2;
  request.bucket_ends = &end;
  request.bucket_count = 1;
  capstan_group* group = nullptr;
  capstan_error error = {};
  EXPECT_EQ(plugin_.table->make_group(&request, &group, &error), 3);
  EXPECT_STREQ(error.text, "group: plan 1 was compiled for GPU 1, not for GPU 0");
  for (capstan_plan* plan : handles) plugin_.table->free_plan(plan);

  const std::unique_ptr<Device> cpu = *OpenDevice("cpu");
  const std::unique_ptr<Plan> host = *cpu->Compile(graph_, layout_, {});
  const absl::Status mixed =
      devices_[0]->MakeGroup({plans_[0].get(), host.get()}, options_).status();
  EXPECT_EQ(mixed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(mixed.message(), "group: plan 1 is of another kind of device");
  EXPECT_EQ(cpu->MakeGroup({host.get()}, options_).status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_FALSE(devices_[0]->MakeGroup({plans_[0].get(), plans_[0].get()}, options_).ok());
}

TEST_P(PluginGroupTest, WrongLanesAreRefusedAndHarmNothing) {
  Compile({0, 1});
  const auto group = Group();
  std::vector<float> sum(layout_.total_floats());
  const auto compute = [&](const std::vector<GroupLane>& lanes) {
    return (*group)->ComputeLanes(LaneTree(4), lanes, 1, {sum.data()}, nullptr).status().code();
  };
  EXPECT_EQ(compute(Deal({0, 1})), absl::StatusCode::kFailedPrecondition);
  Load(**group, 1);
  EXPECT_EQ(compute({{2, 0, Batch(0)}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(compute(Deal({0, 0})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(compute(Deal({0, 2})), absl::StatusCode::kInvalidArgument);  // two blocks, one vector
  EXPECT_EQ(compute({}), absl::StatusCode::kInvalidArgument);
  SampleBatch wrong = Batch(1);
  labels_[1][0] = 10;
  EXPECT_EQ(compute({{0, 0, Batch(0)}, {1, 1, wrong}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(compute(Deal({0, 1})), absl::StatusCode::kOk);
}

INSTANTIATE_TEST_SUITE_P(Cards, PluginGroupTest, ::testing::ValuesIn(AllCards()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace capstan::engine
