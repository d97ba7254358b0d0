#include "param_store/checkpoint/load_checkpoint.h"

#include <cstdlib>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "param_store/checkpoint/shard_file.h"
#include "services/files/files.h"
#include "training/codec/manifest.h"
#include "training/spec/lead_messages.h"

namespace capstan::param_store {
namespace {

using ::testing::HasSubstr;

// 5 chunks of 4096 floats, saved with momentum by 3 shards as version 40 of lineage 2. MakeState
// saves it with more floats of state per weight.
class LoadCheckpointTest : public testing::Test {
 protected:
  LoadCheckpointTest() : layout_(Layout()) {
    std::string root = testing::TempDir() + "capstan_load_XXXXXX";
    root_ = mkdtemp(root.data());
    folder_ = root_ + "/2-40";
    weights_.resize(layout_.total_floats());
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] = 0.5f + static_cast<float>(i);
    MakeState(1);
  }
  void MakeState(int states) {
    states_ = states;
    momentum_.resize(layout_.total_floats() * states);
    for (size_t i = 0; i < momentum_.size(); ++i) momentum_[i] = -static_cast<float>(i);
    Save();
  }
  ~LoadCheckpointTest() override {
    EXPECT_TRUE(services::RemoveTree(testing::TempDir(), root_).ok());
  }

  static training::FlatLayout Layout() {
    training::TensorSpec weight;
    weight.name = "fc.weight";
    weight.shape = {5, 4096};
    weight.fan_in = weight.fan_out = 1;
    return *training::FlatLayout::Create({weight}, /*chunk_floats=*/4096);
  }
  void Save(int64_t lineage = 2, const std::string& job = "j1") {
    training::Manifest manifest;
    const auto placement = *training::Placement::Create(5, 3);
    for (int32_t shard = 0; shard < 3; ++shard) {
      const training::ChunkRun run = placement.Run(shard);
      const training::FlatRange range = training::RangeOf(layout_, run);
      const auto file = WriteShardFile(
          {.folder = absl::StrCat(root_, "/", lineage, "-40"),
           .job_id = job,
           .spec_digest = std::string(32, 's'),
           .shard = shard,
           .lineage = lineage,
           .step = 40},
          {.layout = &layout_,
           .run = run,
           .weights = absl::MakeConstSpan(weights_).subspan(range.offset, range.size),
           .state =
               absl::MakeConstSpan(momentum_).subspan(range.offset * states_, range.size * states_),
           .marks = absl::MakeConstSpan(marks_).subspan(run.first_chunk * marks_per_chunk_,
                                                        run.chunk_count * marks_per_chunk_)});
      ASSERT_TRUE(file.ok()) << file.status();
      manifest.files.push_back(
          {file->name(), file->size_bytes(), absl::BytesToHexString(file->sha256())});
    }
    manifest.job_id = job;
    manifest.lineage = lineage;
    manifest.step = 40;
    manifest.spec_digest = absl::BytesToHexString(std::string(32, 's'));
    manifest.training_digest = absl::BytesToHexString(std::string(32, 't'));
    manifest.optimizer = "sgd";
    training::LeadSnapshot lead;
    lead.step = 40;
    lead.samples_used = 160;
    manifest.lead_snapshot = training::spec::EncodeSnapshot(lead);
    manifest.created_by = "test";
    const auto text = training::EncodeManifest(manifest);
    ASSERT_TRUE(text.ok()) << text.status();
    ASSERT_TRUE(
        services::WriteFileAtomically(absl::StrCat(root_, "/", lineage, "-40/manifest.json"), *text)
            .ok());
  }
  std::string Read(const std::string& name) const {
    return *services::ReadWholeFile(folder_ + "/" + name, 1 << 20);
  }
  void Write(const std::string& name, absl::string_view bytes) const {
    ASSERT_TRUE(services::WriteFileAtomically(folder_ + "/" + name, bytes, {.sync = false}).ok());
  }
  BaseWeightsError Load(const training::ChunkRun& run, bool momentum = true) {
    const int64_t size = training::RangeOf(layout_, run).size;
    got_weights_.assign(size, -7);
    got_momentum_.assign(momentum ? size * states_ : 0, -7);
    CheckpointRequest request;
    request.folder = folder_;
    request.job_id = job_id_;
    request.training_digest = training_digest_;
    request.layout = &layout_;
    request.run = run;
    request.state_floats_per_weight = momentum ? states_ : 0;
    request.marks_per_chunk = marks_per_chunk_;
    return LoadCheckpoint(request, absl::MakeSpan(got_weights_), absl::MakeSpan(got_momentum_),
                          &loaded_);
  }
  // A damaged checkpoint must be refused by name, whichever shard needs it.
  void ExpectRefused(const std::string& file, const std::string& what,
                     const char* reason = "CheckpointCorrupt") {
    const BaseWeightsError error = Load({0, 5});
    EXPECT_EQ(error.reason, reason) << what;
    EXPECT_THAT(std::string(error.status.message()), HasSubstr(file)) << what;
  }

  const training::FlatLayout layout_;
  std::string root_, folder_;
  std::vector<float> weights_, momentum_, got_weights_, got_momentum_;
  std::string job_id_ = "j1";
  std::string training_digest_ = std::string(32, 't');
  LoadedCheckpoint loaded_;
  int states_ = 1;
  std::vector<int64_t> marks_;  // of an asynchronous job
  int64_t marks_per_chunk_ = 0;
};

TEST_F(LoadCheckpointTest, AnyNumberOfShardsReadsWhatThreeWrote) {
  for (const int32_t shards : {1, 2, 3, 5}) {
    const auto placement = *training::Placement::Create(5, shards);
    for (int32_t shard = 0; shard < shards; ++shard) {
      const training::ChunkRun run = placement.Run(shard);
      const BaseWeightsError error = Load(run);
      ASSERT_TRUE(error.status.ok()) << error.status;
      EXPECT_EQ(error.reason, "");
      const size_t offset = training::RangeOf(layout_, run).offset * sizeof(float);
      const size_t bytes = got_weights_.size() * sizeof(float);
      EXPECT_EQ(std::memcmp(got_weights_.data(),
                            reinterpret_cast<const char*>(weights_.data()) + offset, bytes),
                0);
      EXPECT_EQ(std::memcmp(got_momentum_.data(),
                            reinterpret_cast<const char*>(momentum_.data()) + offset, bytes),
                0);
      EXPECT_EQ(loaded_.version, 40);
      EXPECT_EQ(loaded_.snapshot.samples_used, 160);
    }
  }
}

// A shard's files have the state weight by weight, and it is split by weights.
TEST_F(LoadCheckpointTest, SeveralFloatsOfStatePerWeightComeBack) {
  for (const int states : {2, 3}) {
    MakeState(states);
    for (const int32_t shards : {1, 2, 5}) {
      const auto placement = *training::Placement::Create(5, shards);
      for (int32_t shard = 0; shard < shards; ++shard) {
        const training::ChunkRun run = placement.Run(shard);
        const BaseWeightsError error = Load(run);
        ASSERT_TRUE(error.status.ok()) << error.status;
        const training::FlatRange range = training::RangeOf(layout_, run);
        ASSERT_EQ(static_cast<int64_t>(got_momentum_.size()), range.size * states);
        EXPECT_EQ(std::memcmp(got_momentum_.data(), momentum_.data() + range.offset * states,
                              got_momentum_.size() * sizeof(float)),
                  0);
        EXPECT_EQ(std::memcmp(got_weights_.data(), weights_.data() + range.offset,
                              got_weights_.size() * sizeof(float)),
                  0);
      }
    }
    EXPECT_TRUE(Load({0, 5}, /*momentum=*/false).status.ok());
  }
}

TEST_F(LoadCheckpointTest, MarksComeBackForEachChunk) {
  marks_per_chunk_ = 3;
  for (int64_t i = 0; i < 15; ++i) marks_.push_back(1000 + i);
  Save();
  for (const training::ChunkRun& run : {training::ChunkRun{0, 5}, {1, 3}, {4, 1}}) {
    const BaseWeightsError error = Load(run);
    ASSERT_EQ(error.reason, "") << error.status;
    const auto begin = marks_.begin() + run.first_chunk * 3;
    EXPECT_EQ(loaded_.marks, std::vector<int64_t>(begin, begin + run.chunk_count * 3));
  }
  // A job without marks can read such a file, too.
  marks_per_chunk_ = 0;
  EXPECT_EQ(Load({0, 5}).reason, "");
}

TEST_F(LoadCheckpointTest, MarksThatAreMissingOrTooFewAreRefused) {
  marks_per_chunk_ = 3;
  const BaseWeightsError missing = Load({0, 5});
  EXPECT_EQ(missing.reason, "CheckpointCorrupt");
  EXPECT_THAT(std::string(missing.status.message()), HasSubstr("no file of it holds marks.0"));
  marks_.assign(10, 1);
  marks_per_chunk_ = 2;
  Save();
  marks_per_chunk_ = 3;
  ExpectRefused("shard-0.safetensors", "marks of two lanes");
}

// The digest of the training already distinguishes them; the file must do so, too.
TEST_F(LoadCheckpointTest, AStateOfAnotherSizeIsRefused) {
  MakeState(2);
  states_ = 3;
  ExpectRefused("state.0 at offset", "3 floats per weight for 2");
  states_ = 1;
  ExpectRefused("no file of it holds momentum.0", "momentum for 2 floats per weight");
}

TEST_F(LoadCheckpointTest, AFlippedBitAnywhereIsRefusedByName) {
  for (const std::string& name :
       {std::string("manifest.json"), std::string("shard-0.safetensors"),
        std::string("shard-1.safetensors"), std::string("shard-2.safetensors")}) {
    const std::string good = Read(name);
    const size_t stride = name == "manifest.json" ? 1 : 997;
    for (size_t at = 0; at < good.size(); at += stride) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      Write(name, bad);
      ExpectRefused(name, absl::StrCat(name, " byte ", at));
    }
    // In the header a flipped bit could hide a tensor.
    for (size_t at = 0; name != "manifest.json" && at < 700; ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      Write(name, bad);
      ExpectRefused(name, absl::StrCat(name, " byte ", at));
    }
    Write(name, good);
  }
  EXPECT_TRUE(Load({0, 5}).status.ok());
}

TEST_F(LoadCheckpointTest, AFileCutShortOrGoneIsRefusedByName) {
  for (const std::string& name :
       {std::string("manifest.json"), std::string("shard-1.safetensors")}) {
    const std::string good = Read(name);
    for (const size_t size : {size_t{0}, size_t{1}, size_t{8}, size_t{100}, good.size() - 2}) {
      Write(name, good.substr(0, size));
      ExpectRefused(name, absl::StrCat(name, " of ", size));
    }
    Write(name, good + "x");
    ExpectRefused(name, "longer");
    ASSERT_EQ(remove((folder_ + "/" + name).c_str()), 0);
    ExpectRefused(name, "gone", "DataMissing");
    Write(name, good);
  }
  EXPECT_TRUE(Load({0, 5}).status.ok());
}

TEST_F(LoadCheckpointTest, FilesOfOthersAreRefusedByName) {
  const std::string first = Read("shard-0.safetensors");
  Write("shard-0.safetensors", Read("shard-1.safetensors"));
  Write("shard-1.safetensors", first);
  ExpectRefused("shard-0.safetensors", "swapped");
  Write("shard-1.safetensors", Read("shard-0.safetensors"));
  Write("shard-0.safetensors", first);
  ASSERT_TRUE(Load({0, 5}).status.ok());

  job_id_ = "j2";
  ExpectRefused("'job_id' is j1, want j2", "another job");
  job_id_ = "j1";
  training_digest_[0] = 'x';
  ExpectRefused("'training_digest' is", "another training");
  training_digest_[0] = 't';

  Save(/*lineage=*/3);
  const std::string own = Read("manifest.json");
  Write("manifest.json", *services::ReadWholeFile(root_ + "/3-40/manifest.json", 1 << 20));
  ExpectRefused("manifest.json: 'lineage and step' is 3-40, want 2-40", "another lineage");
  Write("manifest.json", own);
  Write("shard-2.safetensors",
        *services::ReadWholeFile(root_ + "/3-40/shard-2.safetensors", 1 << 20));
  ExpectRefused("shard-2.safetensors", "a file of another lineage");
}

TEST_F(LoadCheckpointTest, AManifestThatLacksAChunkIsRefused) {
  auto manifest = *training::ParseManifest("m", Read("manifest.json"));
  manifest.files.erase(manifest.files.begin() + 1);
  Write("manifest.json", *training::EncodeManifest(manifest));
  ExpectRefused("no file of it holds chunks.1", "a file less");
  EXPECT_TRUE(Load({0, 1}).status.ok());  // shard 0 of 3 does not need that file
}

}  // namespace
}  // namespace capstan::param_store
