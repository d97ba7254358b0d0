#include "param_store/checkpoint/residual_file.h"

#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "param_store/checkpoint/load_checkpoint.h"
#include "param_store/checkpoint/shard_file.h"
#include "services/files/files.h"
#include "training/codec/manifest.h"
#include "training/lanes/lane_tree.h"
#include "training/spec/lead_messages.h"

namespace capstan::param_store {
namespace {

using ::testing::HasSubstr;

// Four lanes of a model of two chunks, as three tasks saved them with version 40 of lineage 2: lanes 0
// and 2, lane 1, lane 3. A shard saved the weights.
class ResidualFileTest : public testing::Test {
 protected:
  ResidualFileTest() : layout_(Layout()) {
    std::string root = testing::TempDir() + "capstan_residuals_XXXXXX";
    root_ = mkdtemp(root.data());
    folder_ = root_ + "/2-40";
    manifest_.job_id = "j1";
    manifest_.lineage = 2;
    manifest_.step = 40;
    manifest_.spec_digest = absl::BytesToHexString(std::string(32, 's'));
    manifest_.training_digest = absl::BytesToHexString(std::string(32, 't'));
    manifest_.optimizer = "sgd";
    training::LeadSnapshot lead;
    lead.step = 40;
    lead.samples_used = 160;
    manifest_.lead_snapshot = training::spec::EncodeSnapshot(lead);
    manifest_.created_by = "test";
    const std::vector<float> weights(layout_.total_floats(), 0.5f);
    const auto shard = WriteShardFile({.folder = folder_,
                                       .job_id = "j1",
                                       .spec_digest = std::string(32, 's'),
                                       .lineage = 2,
                                       .step = 40},
                                      {.layout = &layout_, .run = {0, 2}, .weights = weights});
    Add(shard);
    Save(0, {0, 2});
    Save(1, {1});
    Save(4, {3});
    WriteManifest();
  }
  ~ResidualFileTest() override {
    EXPECT_TRUE(services::RemoveTree(testing::TempDir(), root_).ok());
  }

  static training::FlatLayout Layout() {
    training::TensorSpec weight;
    weight.name = "fc.weight";
    weight.shape = {2, 512};
    weight.fan_in = weight.fan_out = 1;
    return *training::FlatLayout::Create({weight}, /*chunk_floats=*/512);
  }
  std::vector<float> Of(int32_t lane) const {
    std::vector<float> residual(layout_.total_floats());
    for (size_t i = 0; i < residual.size(); ++i) {
      residual[i] = static_cast<float>(lane) + static_cast<float>(i) / 1024;
    }
    return residual;
  }
  void Add(const absl::StatusOr<common::v1::FileInfo>& file) {
    ASSERT_TRUE(file.ok()) << file.status();
    manifest_.files.push_back(
        {file->name(), file->size_bytes(), absl::BytesToHexString(file->sha256())});
  }
  void Save(int32_t rank, const std::vector<int32_t>& lanes) {
    std::map<int32_t, std::vector<float>> numbers;
    std::map<int32_t, absl::Span<const float>> spans;
    for (const int32_t lane : lanes) spans[lane] = numbers[lane] = Of(lane);
    Add(WriteResidualFile({.folder = folder_,
                           .job_id = "j1",
                           .spec_digest = std::string(32, 's'),
                           .rank = rank,
                           .lineage = 2,
                           .step = 40},
                          layout_, spans));
  }
  void WriteManifest() { Write("manifest.json", *training::EncodeManifest(manifest_)); }
  std::string Read(const std::string& name) const {
    return *services::ReadWholeFile(folder_ + "/" + name, 1 << 20);
  }
  void Write(const std::string& name, absl::string_view bytes) const {
    ASSERT_TRUE(services::WriteFileAtomically(folder_ + "/" + name, bytes, {.sync = false}).ok());
  }
  BaseWeightsError Load(const std::vector<int32_t>& lanes) {
    got_.assign(lanes.size(), std::vector<float>(layout_.total_floats(), -7.0f));
    std::vector<absl::Span<float>> spans;
    for (std::vector<float>& lane : got_) spans.push_back(absl::MakeSpan(lane));
    ResidualRequest request;
    request.folder = folder_;
    request.job_id = job_id_;
    request.training_digest = training_digest_;
    request.layout = &layout_;
    request.lanes = lanes;
    return LoadResiduals(request, spans, &version_);
  }
  void ExpectRefused(const std::string& part, const std::string& what,
                     const char* reason = "CheckpointCorrupt") {
    const BaseWeightsError error = Load({0, 1, 2, 3});
    EXPECT_EQ(error.reason, reason) << what;
    EXPECT_THAT(std::string(error.status.message()), HasSubstr(part)) << what;
  }

  const training::FlatLayout layout_;
  std::string root_, folder_;
  training::Manifest manifest_;
  std::string job_id_ = "j1";
  std::string training_digest_ = std::string(32, 't');
  std::vector<std::vector<float>> got_;
  int64_t version_ = -1;
};

TEST_F(ResidualFileTest, AnyNumberOfTasksReadsWhatThreeWrote) {
  for (const std::vector<int32_t>& lanes :
       std::vector<std::vector<int32_t>>{{0, 1, 2, 3}, {0}, {2}, {3}, {1, 3}, {0, 1}, {2, 3}, {}}) {
    const BaseWeightsError error = Load(lanes);
    ASSERT_EQ(error.reason, "") << error.status;
    EXPECT_EQ(version_, 40);
    for (size_t i = 0; i < lanes.size(); ++i) EXPECT_EQ(got_[i], Of(lanes[i])) << lanes[i];
  }
}

TEST_F(ResidualFileTest, ACheckpointWithoutOneLaneIsRefused) {
  manifest_.files.erase(manifest_.files.begin() + 2);
  WriteManifest();
  ExpectRefused("no file of it holds residual.1", "a file less");
  EXPECT_EQ(Load({0, 2, 3}).reason, "");
  manifest_.files.resize(1);
  WriteManifest();
  ExpectRefused("no file of it holds residual.0", "no file");
}

// Shards of any version read a checkpoint with residuals, as one without them.
TEST_F(ResidualFileTest, ShardsPassTheResidualsBy) {
  Write("residuals-1.safetensors", "damaged");
  std::vector<float> weights(layout_.total_floats());
  CheckpointRequest request;
  request.folder = folder_;
  request.job_id = job_id_;
  request.training_digest = training_digest_;
  request.layout = &layout_;
  request.run = {0, 2};
  LoadedCheckpoint loaded;
  EXPECT_EQ(LoadCheckpoint(request, absl::MakeSpan(weights), {}, &loaded).reason, "");
  EXPECT_EQ(weights, std::vector<float>(layout_.total_floats(), 0.5f));
}

TEST_F(ResidualFileTest, AFlippedBitAnywhereIsRefusedByName) {
  for (const std::string& name :
       {std::string("manifest.json"), std::string("residuals-0.safetensors"),
        std::string("residuals-1.safetensors"), std::string("residuals-4.safetensors")}) {
    const std::string good = Read(name);
    for (size_t at = 0; at < good.size(); at += at < 700 || name == "manifest.json" ? 1 : 97) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      Write(name, bad);
      ExpectRefused(name, absl::StrCat(name, " byte ", at));
    }
    Write(name, good);
  }
  EXPECT_EQ(Load({0, 1, 2, 3}).reason, "");
}

TEST_F(ResidualFileTest, AFileCutShortOrGoneIsRefusedByName) {
  const std::string name = "residuals-1.safetensors";
  const std::string good = Read(name);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{8}, size_t{100}, good.size() - 2}) {
    Write(name, good.substr(0, size));
    ExpectRefused(name, absl::StrCat(name, " of ", size));
  }
  Write(name, good + "x");
  ExpectRefused(name, "longer");
  ASSERT_EQ(remove((folder_ + "/" + name).c_str()), 0);
  ExpectRefused(name, "gone", "DataMissing");
}

// A job may have so many lanes, and one task may own them all.
TEST_F(ResidualFileTest, TheMostLanesThatAJobMayHaveAreInOneFile) {
  training::TensorSpec weight;
  weight.name = "fc.weight";
  weight.shape = {1, 1};
  weight.fan_in = weight.fan_out = 1;
  const training::FlatLayout small = *training::FlatLayout::Create({weight}, /*chunk_floats=*/512);
  const std::vector<float> zeros(small.total_floats());
  std::vector<float> last(small.total_floats(), 3.0f);
  std::map<int32_t, absl::Span<const float>> spans;
  for (int32_t lane = 0; lane < training::kMaxLanes; ++lane) spans[lane] = zeros;
  spans[training::kMaxLanes - 1] = last;
  manifest_.files.clear();
  Add(WriteResidualFile({.folder = folder_,
                         .job_id = "j1",
                         .spec_digest = std::string(32, 's'),
                         .rank = 0,
                         .lineage = 2,
                         .step = 40},
                        small, spans));
  WriteManifest();
  std::vector<float> got(small.total_floats());
  ResidualRequest request;
  request.folder = folder_;
  request.job_id = job_id_;
  request.training_digest = training_digest_;
  request.layout = &small;
  request.lanes = {training::kMaxLanes - 1};
  const BaseWeightsError error = LoadResiduals(request, {absl::MakeSpan(got)}, &version_);
  ASSERT_EQ(error.reason, "") << error.status;
  EXPECT_EQ(got[0], 3.0f);
}

TEST_F(ResidualFileTest, FilesOfOthersAreRefusedByName) {
  job_id_ = "j2";
  ExpectRefused("'job_id' is j1, want j2", "another job");
  job_id_ = "j1";
  training_digest_[0] = 'x';
  ExpectRefused("'training_digest' is", "another training");
  training_digest_[0] = 't';
  Save(5, {2});
  WriteManifest();
  ExpectRefused("residual.2 is in another file too", "two files with one lane");
  manifest_.files.pop_back();
  manifest_.step = 41;
  WriteManifest();
  ExpectRefused("'lineage and step' is 2-41, want 2-40", "another version");
}

}  // namespace
}  // namespace capstan::param_store
