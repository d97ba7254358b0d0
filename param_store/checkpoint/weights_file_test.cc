// weights.safetensors of any checkpoint, and jobs that begin from the checkpoint of another job.
#include "param_store/checkpoint/weights_file.h"

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "param_store/checkpoint/shard_file.h"
#include "services/files/files.h"
#include "training/codec/manifest.h"
#include "training/codec/safetensors.h"
#include "training/codec/sha256.h"

namespace capstan::param_store {
namespace {

using ::testing::HasSubstr;

training::TensorSpec Tensor(const std::string& name, std::vector<int64_t> shape) {
  training::TensorSpec tensor;
  tensor.name = name;
  tensor.shape = std::move(shape);
  tensor.fan_in = tensor.fan_out = 1;
  return tensor;
}

// Two layers with weight and bias, and a running mean, in chunks of 64 floats, so that tensors
// begin and end inside of chunks.
training::FlatLayout FiveTensors(int64_t chunk_floats = 64, int64_t outputs = 7) {
  training::TensorSpec mean = Tensor("norm.running_mean", {20});
  mean.kind = training::TensorKind::kStat;
  mean.init = training::TensorInit::kZeros;
  return *training::FlatLayout::Create(
      {Tensor("fc1.weight", {20, 9}), Tensor("fc1.bias", {20}), Tensor("norm.weight", {20}), mean,
       Tensor("fc2.weight", {outputs, 20}), Tensor("fc2.bias", {outputs})},
      chunk_floats);
}

class WeightsFileTest : public testing::Test {
 protected:
  WeightsFileTest() {
    std::string root = testing::TempDir() + "capstan_weights_XXXXXX";
    root_ = mkdtemp(root.data());
    folder_ = root_ + "/2-40";
    out_ = root_ + "/out.safetensors";
    weights_.assign(layout_.total_floats(), 0.0f);
    for (const training::TensorSlot& slot : layout_.slots()) {
      for (int64_t i = 0; i < slot.size; ++i) {
        weights_[slot.offset + i] = static_cast<float>(1000 * slot.index + i) + 0.25f;
      }
    }
    Save();
  }
  ~WeightsFileTest() override { EXPECT_TRUE(services::RemoveTree(testing::TempDir(), root_).ok()); }
  // Saves it as three shards with momentum do. `layout_digest` false: as an earlier version does.
  void Save(bool with_weights = false, bool layout_digest = true) {
    training::Manifest manifest;
    const auto placement = *training::Placement::Create(layout_.chunk_count(), 3);
    for (int32_t shard = 0; shard < 3; ++shard) {
      const training::ChunkRun run = placement.Run(shard);
      const training::FlatRange range = training::RangeOf(layout_, run);
      const auto part = absl::MakeConstSpan(weights_).subspan(range.offset, range.size);
      const auto file =
          WriteShardFile({.folder = folder_,
                          .job_id = "j1",
                          .spec_digest = std::string(32, 's'),
                          .shard = shard,
                          .lineage = 2,
                          .step = 40},
                         {.layout = &layout_, .run = run, .weights = part, .state = part});
      ASSERT_TRUE(file.ok()) << file.status();
      if (layout_digest) {
        AddFile(file->name(), manifest);
        continue;
      }
      std::string bytes = Read(file->name());
      const size_t at = bytes.find("\"layout\"");
      ASSERT_NE(at, std::string::npos);
      bytes[at + 1] = 'x';
      Write(file->name(), bytes);
      AddFile(file->name(), manifest);
    }
    if (with_weights) {
      ASSERT_EQ(Export().reason, "");
      Write("weights.safetensors", *services::ReadWholeFile(out_, 1 << 20));
      AddFile("weights.safetensors", manifest);
    }
    manifest.job_id = "j1";
    manifest.lineage = 2;
    manifest.step = 40;
    manifest.spec_digest = absl::BytesToHexString(std::string(32, 's'));
    manifest.training_digest = absl::BytesToHexString(std::string(32, 't'));
    manifest.optimizer = "sgd";
    manifest.weights_sha256 = weights_sha256_;
    manifest.created_by = "test";
    const auto text = training::EncodeManifest(manifest);
    ASSERT_TRUE(text.ok()) << text.status();
    Write("manifest.json", *text);
  }
  void AddFile(const std::string& name, training::Manifest& manifest) const {
    const std::string bytes = Read(name);
    manifest.files.push_back(
        {name, static_cast<int64_t>(bytes.size()), training::Sha256Hex(bytes)});
  }
  std::string Read(const std::string& name) const {
    return *services::ReadWholeFile(folder_ + "/" + name, 1 << 20);
  }
  void Write(const std::string& name, absl::string_view bytes) const {
    ASSERT_TRUE(services::WriteFileAtomically(folder_ + "/" + name, bytes, {.sync = false}).ok());
  }
  BaseWeightsError Export() {
    ExportRequest request;
    request.folder = folder_;
    request.job_id = "j1";
    request.training_digest = std::string(32, 't');
    request.layout = &layout_;
    request.open = [this](const std::string& name) {
      return LocalFiles().OpenCheckpointFile(folder_, name);
    };
    return ExportWeights(request, out_, &exported_);
  }
  // The initial weights of all `shards` shards of a job with this layout, one after the other.
  BaseWeightsError Begin(const training::FlatLayout& layout, const std::string& uri, int32_t shards,
                         std::vector<float>* out) const {
    out->assign(static_cast<size_t>(layout.total_floats()), -7.0f);
    const auto placement = *training::Placement::Create(layout.chunk_count(), shards);
    for (int32_t shard = 0; shard < shards; ++shard) {
      const training::FlatRange range = training::RangeOf(layout, placement.Run(shard));
      BaseWeightsError error =
          FillBaseWeights(layout, {.initial_weights = uri}, range,
                          absl::MakeSpan(*out).subspan(range.offset, range.size));
      if (!error.reason.empty()) return error;
    }
    return {};
  }

  const training::FlatLayout layout_ = FiveTensors();
  std::string root_, folder_, out_, weights_sha256_;
  std::vector<float> weights_;
  ExportedWeights exported_;
};

TEST_F(WeightsFileTest, ExportMakesWholeTensorsInForwardOrder) {
  const BaseWeightsError error = Export();
  ASSERT_EQ(error.reason, "") << error.status;
  const std::string bytes = *services::ReadWholeFile(out_, 1 << 20);
  EXPECT_EQ(exported_.size_bytes, static_cast<int64_t>(bytes.size()));
  EXPECT_EQ(exported_.step, 40);
  // The file must equal the one of a task that has all tensors in memory.
  std::string want =
      *WeightsFileHeader(layout_, {"j1", 2, 40, absl::BytesToHexString(std::string(32, 's'))});
  std::vector<absl::Span<const float>> tensors;
  for (const training::TensorSlot* slot : layout_.forward_order()) {
    tensors.push_back(absl::MakeConstSpan(weights_).subspan(slot->offset, slot->size));
    want.append(reinterpret_cast<const char*>(tensors.back().data()), slot->size * sizeof(float));
  }
  EXPECT_EQ(bytes, want);
  EXPECT_EQ(exported_.weights_sha256, training::WeightsSha256(tensors));
  const auto header =
      training::ParseSafetensorsHeader("f", bytes, static_cast<int64_t>(bytes.size()));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors.front().name, "fc1.weight");
  EXPECT_EQ(header->tensors.back().name, "norm.running_mean");
}

TEST_F(WeightsFileTest, WhatIsDamagedIsNotExported) {
  for (const std::string& name : {std::string("manifest.json"), std::string("shard-1.safetensors"),
                                  std::string("shard-2.safetensors")}) {
    const std::string good = Read(name);
    std::string bad = good;
    bad[bad.size() - 9] = static_cast<char>(bad[bad.size() - 9] ^ 1);
    Write(name, bad);
    const BaseWeightsError error = Export();
    EXPECT_EQ(error.reason, "CheckpointCorrupt") << name;
    EXPECT_THAT(std::string(error.status.message()), HasSubstr(name));
    Write(name, good);
  }
  weights_sha256_ = std::string(64, 'a');
  Save();
  EXPECT_THAT(std::string(Export().status.message()), HasSubstr("weights_sha256 is"));
  // Neither the file nor a part of it is left.
  for (const auto& entry : std::filesystem::directory_iterator(root_)) {
    EXPECT_EQ(entry.path().string(), folder_);
  }
  out_ = root_ + "/nowhere/out.safetensors";
  weights_sha256_.clear();
  Save();
  EXPECT_EQ(Export().reason, "OutputFailed");
}

TEST_F(WeightsFileTest, AJobBeginsFromTheCheckpointOfAnyJobWithItsTensors) {
  for (const std::string& uri : {folder_, "file://" + folder_, folder_ + "/manifest.json"}) {
    for (const int32_t shards : {1, 2, 5}) {
      std::vector<float> out;
      const BaseWeightsError error = Begin(layout_, uri, shards, &out);
      ASSERT_EQ(error.reason, "") << error.status;
      EXPECT_EQ(out, weights_) << uri << " " << shards;
    }
  }
  // A copy of the checkpoint may have any name.
  std::filesystem::copy(folder_, root_ + "/copy");
  std::vector<float> out;
  EXPECT_EQ(Begin(layout_, root_ + "/copy/manifest.json", 2, &out).reason, "");
  EXPECT_EQ(out, weights_);
}

TEST_F(WeightsFileTest, ACheckpointOfOtherTensorsOrWithADamageIsRefused) {
  std::vector<float> out;
  BaseWeightsError error = Begin(FiveTensors(64, 8), folder_, 1, &out);
  EXPECT_EQ(error.reason, "InvalidSpec");
  EXPECT_THAT(std::string(error.status.message()),
              HasSubstr("chunks of other tensors than this model's"));
  // The same number of floats at the same offsets, under other names.
  error = Begin(*training::FlatLayout::Create({Tensor("a.weight", {layout_.total_floats()})}, 64),
                folder_, 1, &out);
  EXPECT_EQ(error.reason, "InvalidSpec");

  std::string bad = Read("shard-1.safetensors");
  bad[bad.size() - 9] = static_cast<char>(bad[bad.size() - 9] ^ 1);
  Write("shard-1.safetensors", bad);
  error = Begin(layout_, folder_, 1, &out);
  EXPECT_EQ(error.reason, "CheckpointCorrupt");
  EXPECT_THAT(std::string(error.status.message()),
              HasSubstr("initial_weights: " + folder_ + "/shard-1.safetensors: sha256 is"));
  error = Begin(layout_, root_ + "/3-40", 1, &out);
  EXPECT_EQ(error.reason, "DataMissing");
}

TEST_F(WeightsFileTest, ACheckpointThatDoesNotNameItsTensorsNeedsItsWholeTensors) {
  Save(/*with_weights=*/false, /*layout_digest=*/false);
  std::vector<float> out;
  const BaseWeightsError error = Begin(layout_, folder_, 2, &out);
  EXPECT_EQ(error.reason, "InvalidSpec");
  EXPECT_THAT(std::string(error.status.message()), HasSubstr("capstan checkpoint export"));
  Save(/*with_weights=*/true, /*layout_digest=*/false);
  EXPECT_EQ(Begin(layout_, folder_, 2, &out).reason, "");
  EXPECT_EQ(out, weights_);
  // When tensors are read one by one, the chunk size does not matter.
  EXPECT_EQ(Begin(FiveTensors(128), folder_, 2, &out).reason, "");
}

}  // namespace
}  // namespace capstan::param_store
