// A history that goes on from a checkpoint, on other numbers of shards, behind real servers.
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "param_store/test_shards.h"
#include "training/codec/manifest.h"
#include "training/init/init.h"

namespace capstan::param_store {
namespace {

using ::testing::HasSubstr;

class Rollback : public Shards {
 protected:
  // The streams of one worker that computes everything.
  void Connect() {
    data_.clear();
    for (size_t i = 0; i < shards_.size(); ++i) {
      data_.push_back(&Open(static_cast<int>(i), v1::STREAM_KIND_DATA, 0));
    }
    control_ = shards_.size() == 1 ? data_[0] : &Open(0, v1::STREAM_KIND_CONTROL, 0);
  }
  void PullAll(int64_t version) {
    got_.resize(layout_->total_floats());
    for (size_t i = 0; i < data_.size(); ++i) {
      Pull(*data_[i], static_cast<int>(i), version, got_, &stop_, &evaluate_);
      if (HasFatalFailure()) return;
    }
  }
  void EvaluateAll(int64_t version) {
    for (int block = 0; block < 4; ++block) {
      v1::ExchangeRequest request;
      v1::EvaluationPart& part = *request.mutable_evaluation();
      part.set_version(version);
      part.set_block(block);
      part.set_samples(block < 2 ? 3 : 2);
      part.set_correct(1);
      part.set_loss_sum(0.1 * block);
      ASSERT_TRUE(Write(*control_, request));
    }
  }
  // Step `step` on the shards and in the plain loop: equal, bit for bit.
  void RunStep(int64_t step) {
    const int64_t floats = layout_->total_floats();
    std::vector<std::vector<float>> g;
    for (int lane = 0; lane < kLanes; ++lane) g.push_back(Gradient(step, lane, floats));
    const std::vector<float> sum = Sum(Sum(g[0], g[1]), Sum(g[2], g[3]));
    for (size_t i = 0; i < data_.size(); ++i) {
      Push(*data_[i], static_cast<int>(i), step, {0, 4}, sum);
    }
    Seal(*control_, step, {0, 4});
    if (evaluate_) EvaluateAll(step);
    Update(weights_, momentum_, sum);
    PullAll(step + 1);
    if (HasFatalFailure()) return;
    ASSERT_EQ(std::memcmp(got_.data(), weights_.data(), floats * 4), 0) << "step " << step;
  }
  // As the coordinator does; the folder.
  std::string Commit(int64_t step) {
    training::Manifest manifest;
    for (size_t i = 0; i < shards_.size(); ++i) {
      const bool there = WaitFor(static_cast<int>(i), [step](const node::v1::ShardState& s) {
        return s.files().step() == step && s.files().error().empty();
      });
      EXPECT_TRUE(there) << State(static_cast<int>(i)).ShortDebugString();
      const node::v1::WrittenFiles files = State(static_cast<int>(i)).files();
      for (const common::v1::FileInfo& file : files.files()) {
        manifest.files.push_back(
            {file.name(), file.size_bytes(), absl::BytesToHexString(file.sha256())});
      }
      if (i == 0) manifest.lead_snapshot = files.lead_snapshot();
    }
    manifest.job_id = "t-1";
    manifest.lineage = lineage_;
    manifest.step = step;
    manifest.spec_digest = absl::BytesToHexString(digest_);
    manifest.training_digest = absl::BytesToHexString(resolved_.training_digest());
    manifest.optimizer = "sgd";
    manifest.created_by = "test";
    const std::string folder = absl::StrCat(resolved_.storage_path(), "/", lineage_, "-", step);
    EXPECT_TRUE(services::WriteFileAtomically(folder + "/manifest.json",
                                              *training::EncodeManifest(manifest))
                    .ok());
    node::v1::ConnectResponse taken;
    taken.mutable_files_taken()->set_job_id("t-1");
    taken.mutable_files_taken()->set_lineage(lineage_);
    taken.mutable_files_taken()->set_step(step);
    for (Shard& shard : shards_) shard.store->OnMessage(taken);
    return folder;
  }
  void BeginPlainLoop() {
    weights_.resize(layout_->total_floats());
    momentum_.assign(weights_.size(), 0.0f);
    training::InitRange(*layout_, spec::MakeInitOptions(resolved_), 7, 0, absl::MakeSpan(weights_));
  }

  std::vector<Call*> data_;
  Call* control_ = nullptr;
  bool stop_ = false, evaluate_ = false;
  std::vector<float> weights_, momentum_, got_;
};

// Three shards save version 3, which is also evaluated; two go on from it, though the three were at
// version 4 by then: the same weights as without the fault, and every sample counted once.
TEST_F(Rollback, TwoShardsGoOnFromWhatThreeSaved) {
  checkpoint_every_ = 3;
  StartAll(3);
  Connect();
  BeginPlainLoop();
  PullAll(0);
  for (int64_t step = 0; step < 3; ++step) RunStep(step);
  if (HasFatalFailure()) return;
  EXPECT_TRUE(evaluate_);
  const std::string base = Commit(3);
  const std::vector<float> weights = weights_, momentum = momentum_;
  RunStep(3);  // lost with its lineage
  if (HasFatalFailure()) return;
  StopAll();
  weights_ = weights;
  momentum_ = momentum;

  StartAll(2, /*lineage=*/2, base);
  Connect();
  PullAll(3);
  if (HasFatalFailure()) return;
  EXPECT_TRUE(evaluate_);  // it is still owed
  EXPECT_FALSE(stop_);
  ASSERT_EQ(std::memcmp(got_.data(), weights.data(), weights.size() * 4), 0);
  for (int64_t step = 3; step < kSteps; ++step) RunStep(step);
  if (HasFatalFailure()) return;
  EXPECT_TRUE(stop_ && evaluate_);
  EvaluateAll(kSteps);
  ASSERT_TRUE(WaitFor(0, [](const node::v1::ShardState& s) { return s.lead().complete(); }));
  EXPECT_EQ(State(0).lead().samples_used(), 36);  // 8 + 8 + 4 + 8 + 8
  ASSERT_EQ(State(0).lead().epochs_size(), 2);
  EXPECT_DOUBLE_EQ(State(0).lead().epochs(0).train_loss(), 0.5);
  EXPECT_DOUBLE_EQ(State(0).lead().epochs(0).validation_accuracy(), 0.4);
  EXPECT_EQ(State(1).generation(), 2);
  Commit(kSteps);
  for (int shard : {0, 1}) {
    EXPECT_TRUE(WaitFor(shard, [](const node::v1::ShardState& s) { return !s.has_files(); }));
  }
}

// The shard says what is wrong, and a newer lineage with another base begins as if nothing had been.
TEST_F(Rollback, ADamagedBaseIsRefusedAndAnotherOneTaken) {
  checkpoint_every_ = 2;
  StartAll(1);
  Connect();
  BeginPlainLoop();
  PullAll(0);
  for (int64_t step = 0; step < 2; ++step) RunStep(step);
  if (HasFatalFailure()) return;
  const std::string base = Commit(2);
  StopAll();
  const std::string file = base + "/shard-0.safetensors";
  const std::string good = *services::ReadWholeFile(file, 1 << 30);
  std::string bad = good;
  bad[good.size() / 2] ^= 4;
  ASSERT_TRUE(services::WriteFileAtomically(file, bad).ok());

  StartAll(1, /*lineage=*/2, base);
  ASSERT_TRUE(WaitFor(0, [](const node::v1::ShardState& s) { return !s.reason().empty(); }));
  EXPECT_EQ(State(0).reason(), "CheckpointCorrupt");
  EXPECT_THAT(State(0).message(), HasSubstr(file + ": sha256 is "));
  EXPECT_FALSE(State(0).ready());

  ASSERT_TRUE(services::WriteFileAtomically(file, good).ok());
  lineage_ = 3;
  view_.set_lineage(3);
  view_.set_generation(3);
  Begin(0);
  ASSERT_TRUE(WaitFor(0, [](const node::v1::ShardState& s) { return s.ready(); }));
  EXPECT_EQ(State(0).version(), 2);
  EXPECT_EQ(State(0).reason(), "");
  Connect();
  PullAll(2);
  EXPECT_EQ(std::memcmp(got_.data(), weights_.data(), weights_.size() * 4), 0);
}

// A folder that cannot be made is what a full disk is to this shard; training goes on.
TEST_F(Rollback, ACheckpointThatCannotBeWrittenLeavesTheTrainingAlone) {
  checkpoint_every_ = 2;
  StartAll(1);
  Connect();
  BeginPlainLoop();
  PullAll(0);
  RunStep(0);
  ASSERT_TRUE(services::EnsureDir(resolved_.storage_path()).ok());
  const std::string in_the_way = absl::StrCat(resolved_.storage_path(), "/1-2");
  ASSERT_TRUE(services::WriteFileAtomically(in_the_way, "x").ok());
  RunStep(1);
  if (HasFatalFailure()) return;
  ASSERT_TRUE(WaitFor(0, [](const node::v1::ShardState& s) { return !s.files().error().empty(); }));
  EXPECT_THAT(State(0).files().error(), HasSubstr(in_the_way));
  EXPECT_EQ(State(0).checkpoint_failures(), 1);
  RunStep(2);
}

// Not of a history at all: a stream that never says its Hello does not stay.
TEST_F(Rollback, AStreamWithoutAHelloIsEnded) {
  hello_timeout_ = absl::Milliseconds(50);
  StartAll(1);
  Connect();
  grpc::ClientContext context;
  services::SetTimeout(context, absl::Seconds(30));
  const auto stream = shards_[0].stub->Exchange(&context);
  v1::ExchangeResponse response;
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(), "no Hello");
  BeginPlainLoop();
  PullAll(0);
  RunStep(0);  // whoever said it stays
}

}  // namespace
}  // namespace capstan::param_store
