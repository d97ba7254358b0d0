// A shard's storage and a task's sender::Core with the real messages between them: the task's replica
// has the bits of the shard.
#include "param_store/weight_messages.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "exchange/sender/core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/optim/adagrad.h"
#include "training/optim/adam.h"
#include "training/optim/ftrl.h"
#include "training/optim/lamb.h"
#include "training/optim/lars.h"
#include "training/optim/rmsprop.h"
#include "training/optim/sgd.h"
#include "training/optim/trust_rule.h"

namespace capstan::param_store {
namespace {

namespace core = exchange::shard;
namespace sender = exchange::sender;

using training::Optimizer;

// Three weights and running statistics in chunks of 2 KiB; tensors end inside of chunks.
training::FlatLayout LayoutWithStatistics() {
  std::vector<training::TensorSpec> specs(4);
  const int64_t sizes[] = {700, 1900, 30, 600};
  for (int i = 0; i < 4; ++i) {
    specs[i].name = absl::StrCat("layer", i, ".t");
    specs[i].shape = {sizes[i]};
    specs[i].fan_in = specs[i].fan_out = 1;
  }
  specs[2].init = training::TensorInit::kZeros;
  specs[3].kind = training::TensorKind::kStat;
  specs[3].init = training::TensorInit::kOnes;
  specs[3].momentum = 0.25;
  return *training::FlatLayout::Create(specs, /*chunk_floats=*/512);
}

// The one task of a job with one shard.
class TestReplica {
 public:
  TestReplica(const training::FlatLayout& layout, std::shared_ptr<const Optimizer> optimizer)
      : core_(layout, Options(std::move(optimizer))) {
    Note(core_.Step(sender::RouteGiven{{1, {{"ps0", "unix:/a", 0, layout.chunk_count()}}}}, now_));
  }

  // Answers the Hello of the newest stream.
  void Greet(int64_t version) {
    v1::ExchangeResponse reply;
    reply.mutable_hello()->set_lineage(1);
    reply.mutable_hello()->set_version(version);
    reply.mutable_hello()->set_speaks(exchange::wire::kSpeaks);
    exchange::wire::SetCheck(&reply, 1);
    Deliver(reply.SerializeAsString());
  }
  void Deliver(const std::string& bytes) {
    const size_t cut = bytes.size() / 3;
    const absl::string_view pieces[] = {absl::string_view(bytes).substr(0, cut),
                                        absl::string_view(bytes).substr(cut)};
    Note(core_.Step(sender::MessageArrived{stream_, pieces}, now_));
  }
  void Deliver(const std::vector<std::string>& messages) {
    for (const std::string& message : messages) Deliver(message);
  }
  // The stream that was cancelled has ended, and the next one is opened. What its Hello has.
  int64_t Reopen() {
    EXPECT_TRUE(cancelled_);
    cancelled_ = false;
    Note(core_.Step(sender::StreamEnded{stream_, absl::CancelledError("")}, now_));
    now_ += absl::Seconds(3);
    Note(core_.Step(sender::Tick{}, now_));
    return have_;
  }

  bool cancelled() const { return cancelled_; }
  int differing() const { return differing_; }
  const std::optional<exchange::CompleteWeights>& newest() const { return newest_; }

 private:
  static sender::CoreOptions Options(std::shared_ptr<const Optimizer> optimizer) {
    sender::CoreOptions options;
    options.job_id = "j";
    options.spec_digest = std::string(32, 'd');
    options.optimizer = std::move(optimizer);
    return options;
  }
  void Note(const sender::Effects& effects) {
    for (const sender::Effect& effect : effects) {
      if (const auto* e = std::get_if<sender::OpenStream>(&effect)) stream_ = e->stream;
      if (const auto* e = std::get_if<sender::UseWeights>(&effect)) newest_ = e->weights;
      if (std::holds_alternative<sender::CancelStream>(effect)) cancelled_ = true;
      if (std::holds_alternative<sender::NoteReplicaDiffers>(effect)) ++differing_;
      if (const auto* e = std::get_if<sender::SendMessage>(&effect)) {
        const absl::string_view piece = e->bytes;
        const auto request = exchange::wire::DecodeRequest({&piece, 1});
        if (request->message.has_hello()) have_ = request->message.hello().have_version();
      }
    }
  }

  sender::Core core_;
  absl::Duration now_;
  sender::StreamId stream_ = 0;
  bool cancelled_ = false;
  int differing_ = 0;
  int64_t have_ = -2;
  std::optional<exchange::CompleteWeights> newest_;
};

class WeightMessagesTest : public testing::Test {
 protected:
  void Begin(std::shared_ptr<const Optimizer> optimizer) {
    optimizer_ = std::move(optimizer);
    storage_.emplace(layout_, *optimizer_, ShardStorage::Options{.replicas = true});
    auto weights = ShardStorage::MakeBuffer(layout_, run_);
    for (float& value : weights->span()) value = Draw();
    ClearPadding(weights->span());
    storage_->Begin(run_, 0, std::move(weights));
  }

  float Draw() { return static_cast<float>(static_cast<int32_t>(random_())) * 0x1p-31f; }
  void ClearPadding(absl::Span<float> values) const {
    std::vector<bool> used(values.size());
    for (const training::TensorSlot& slot : layout_.slots()) {
      std::fill_n(used.begin() + slot.offset, slot.size, true);
    }
    for (size_t i = 0; i < values.size(); ++i) values[i] = used[i] ? values[i] : 0;
  }

  // One step of the shard with any sum.
  void Step(bool apply = true) {
    std::vector<float> sum(layout_.total_floats());
    for (float& value : sum) value = 4 * Draw();
    ClearPadding(absl::MakeSpan(sum));
    const absl::string_view payload(reinterpret_cast<const char*>(sum.data()), 4 * sum.size());
    storage_->Fold(
        {0, 0,
         std::vector<training::FoldCommands>(
             run_.chunk_count, training::FoldCommands{{training::FoldCommand::Kind::kTake, 0}})},
        {&payload, 1});
    const int64_t step = storage_->current().version;
    const training::RootReport report =
        storage_->CheckRoots({1, step, false, /*gradient_scale=*/0.25, applied_});
    training::Decision decision{.step = step,
                                .apply = apply,
                                .learning_rate = 0.125 / static_cast<double>(1 + step),
                                .gradient_scale = 0.25,
                                .clip_factor = optimizer_->trust_rule() == nullptr ? 0.75 : 1,
                                .applied_steps = applied_};
    if (optimizer_->trust_rule() != nullptr && apply) {
      decision.tensor_norms = *training::TensorPieces(layout_).Norms(report.pieces);
    }
    storage_->Apply(decision);
    skipped_ = !apply;
    applied_ += apply ? 1 : 0;
  }

  std::vector<WeightMessage> Messages(bool update) {
    const core::SendWeights send{.stream = 1,
                                 .version = storage_->current().version,
                                 .skipped = skipped_,
                                 .loss_scale = 4,
                                 .update = update};
    return MakeWeightMessages(send, *storage_, *storage_->Find(send.version), run_, 1);
  }
  static std::vector<std::string> BytesOf(const std::vector<WeightMessage>& messages) {
    std::vector<std::string> all;
    for (const WeightMessage& message : messages) {
      std::string& bytes = all.emplace_back(message.prefix);
      for (const exchange::wire::OutgoingBytes& part : message.payload) {
        bytes.append(part.bytes.data(), part.bytes.size());
      }
    }
    return all;
  }
  std::vector<std::string> Sums() { return BytesOf(Messages(true)); }
  std::vector<std::string> Whole() { return BytesOf(Messages(false)); }

  void ExpectSame(const TestReplica& replica) {
    ASSERT_TRUE(replica.newest().has_value());
    EXPECT_EQ(replica.newest()->version, storage_->current().version);
    EXPECT_EQ(replica.newest()->loss_scale, 4);
    EXPECT_EQ(replica.newest()->skipped, skipped_);
    const absl::Span<const float> got = replica.newest()->weights->span();
    const absl::Span<const float> want = storage_->current().floats->span();
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin(), want.end()));
  }

  const training::FlatLayout layout_ = LayoutWithStatistics();
  const training::ChunkRun run_{0, layout_.chunk_count()};
  std::mt19937 random_{11};
  std::shared_ptr<const Optimizer> optimizer_;
  std::optional<ShardStorage> storage_;
  int64_t applied_ = 0;
  bool skipped_ = false;
};

std::shared_ptr<const Optimizer> Momentum() {
  training::SgdOptions options;
  options.momentum = 0.9;
  options.weight_decay = 0.01;
  return std::make_shared<const training::Sgd>(
      *training::Sgd::Create(options, {.decay_weights_only = true, .clip_value = 0.5}));
}

TEST_F(WeightMessagesTest, AReplicaHasTheBitsOfTheShardWithEveryKindOfRule) {
  training::LarsOptions lars;
  lars.momentum = 0.9;
  const std::shared_ptr<const Optimizer> optimizers[] = {
      std::make_shared<const training::Sgd>(*training::Sgd::Create({})),
      Momentum(),
      std::make_shared<const training::Adam>(*training::Adam::Create({})),
      std::make_shared<const training::Adagrad>(*training::Adagrad::Create({})),
      std::make_shared<const training::Rmsprop>(*training::Rmsprop::Create({})),
      std::make_shared<const training::Rmsprop>(*training::Rmsprop::Create({.centered = true})),
      std::make_shared<const training::Ftrl>(*training::Ftrl::Create({})),
      std::make_shared<const training::Lars>(*training::Lars::Create(lars)),
      std::make_shared<const training::Lamb>(*training::Lamb::Create({}))};
  for (const auto& optimizer : optimizers) {
    SCOPED_TRACE(optimizer->state_floats_per_weight());
    applied_ = 0;
    skipped_ = false;
    Begin(optimizer);
    TestReplica first(layout_, optimizer), joiner(layout_, optimizer);
    first.Greet(0);
    first.Deliver(Whole());
    ExpectSame(first);
    for (int step = 0; step < 12; ++step) {
      Step(/*apply=*/step != 3);
      first.Deliver(Sums());
      ExpectSame(first);
      if (step == 5) {
        joiner.Greet(6);
        joiner.Deliver(Whole());
        ExpectSame(joiner);
      } else if (step > 5) {
        joiner.Deliver(Sums());
        ExpectSame(joiner);
      }
    }
    EXPECT_FALSE(first.cancelled() || joiner.cancelled());
    EXPECT_EQ(first.differing() + joiner.differing(), 0);
  }
}

TEST_F(WeightMessagesTest, ACopyOfASumChangesNothingAndAGapBringsAWholeVersion) {
  Begin(Momentum());
  TestReplica replica(layout_, optimizer_);
  replica.Greet(0);
  replica.Deliver(Whole());
  Step();
  const std::vector<std::string> sums = Sums();
  replica.Deliver(sums);
  replica.Deliver(sums);
  ExpectSame(replica);
  Step();  // its sums are lost
  Step();
  replica.Deliver(Sums());
  EXPECT_EQ(replica.newest()->version, 1);
  EXPECT_EQ(replica.Reopen(), 1);
  EXPECT_EQ(replica.differing(), 0);
  replica.Greet(3);
  replica.Deliver(Whole());
  ExpectSame(replica);
  Step();
  replica.Deliver(Sums());
  ExpectSame(replica);
}

TEST_F(WeightMessagesTest, WhatComesDamagedOrDiffersIsAskedForWhole) {
  Begin(Momentum());
  TestReplica replica(layout_, optimizer_);
  replica.Greet(0);
  std::vector<std::string> damaged = Whole();
  damaged.back().back() ^= 1;  // of the state
  replica.Deliver(damaged);
  EXPECT_FALSE(replica.newest().has_value());
  EXPECT_EQ(replica.Reopen(), -1);
  replica.Greet(0);
  replica.Deliver(Whole());
  ExpectSame(replica);

  // The shard's state is another one than the task has.
  auto weights = ShardStorage::MakeBuffer(layout_, run_);
  const absl::Span<const float> same = storage_->current().floats->span();
  std::copy(same.begin(), same.end(), weights->data());
  std::vector<float> state(layout_.total_floats());
  state[1500] = 1;
  storage_->Begin(run_, 0, std::move(weights), std::move(state));
  Step();
  replica.Deliver(Sums());
  EXPECT_EQ(replica.differing(), 1);
  EXPECT_EQ(replica.newest()->version, 0);
  EXPECT_EQ(replica.Reopen(), -1);
  replica.Greet(1);
  replica.Deliver(Whole());
  ExpectSame(replica);
  Step();
  replica.Deliver(Sums());
  ExpectSame(replica);
}

// The state of a held version is gone. Its weights can be read, and the next version comes whole.
TEST_F(WeightMessagesTest, AHeldVersionComesWithoutState) {
  Begin(Momentum());
  TestReplica replica(layout_, optimizer_);
  replica.Greet(0);
  storage_->BeginVersion({.step = 0, .apply = false, .learning_rate = 1}, /*held_version=*/0);
  const core::SendWeights send{.stream = 1, .version = 0, .loss_scale = 4};
  replica.Deliver(BytesOf(MakeWeightMessages(send, *storage_, *storage_->Find(0), run_, 1)));
  ASSERT_TRUE(replica.newest().has_value());
  EXPECT_EQ(replica.newest()->version, 0);
  Step();
  replica.Deliver(Sums());
  EXPECT_EQ(replica.newest()->version, 0);
  EXPECT_EQ(replica.Reopen(), -1);
}

// Sums that are still being sent keep their room, and give it back.
TEST_F(WeightMessagesTest, TheRoomOfSumsUnderWayIsNotUsedAgain) {
  Begin(Momentum());
  Step();
  std::vector<WeightMessage> under_way = Messages(true);
  const std::vector<std::string> before = BytesOf(under_way);
  const int64_t bytes = storage_->ResidentBytes().weights;
  storage_->ForgetSums();
  EXPECT_EQ(storage_->ResidentBytes().weights, bytes);
  Step();
  EXPECT_EQ(BytesOf(under_way), before);
  under_way.clear();
  storage_->ForgetSums();
  // Two versions of weights at most, and one free room for sums.
  EXPECT_LE(storage_->ResidentBytes().weights, 4 * layout_.total_floats() * 4);
}

TEST_F(WeightMessagesTest, StreamsAtOneVersionShareTheCopyOfTheState) {
  Begin(Momentum());
  Step();
  const std::vector<WeightMessage> one = Messages(false), other = Messages(false);
  ASSERT_EQ(one[0].payload.size(), 2u);
  EXPECT_EQ(one[0].payload[1].bytes.data(), other[0].payload[1].bytes.data());
  Step();
  const std::vector<WeightMessage> later = Messages(false);
  EXPECT_NE(one[0].payload[1].bytes.data(), later[0].payload[1].bytes.data());
}

}  // namespace
}  // namespace capstan::param_store
