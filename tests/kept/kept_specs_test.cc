// Resolved specs made by earlier versions are accepted for ever: a journal keeps them, and the
// services of a newer version get them after an upgrade.
//
// A version adds its own before it is released: CAPSTAN_KEEP=tests/kept/VERSION/specs with this
// test. Existing files are never made again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "training/spec/job_file.h"
#include "training/spec/resolve.h"

namespace capstan::training::spec {
namespace {

namespace fs = std::filesystem;

std::string Read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

// The specs of all earlier versions, as (path, bytes).
std::vector<std::pair<std::string, std::string>> KeptSpecs() {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& entry : fs::recursive_directory_iterator(CAPSTAN_KEPT)) {
    if (entry.path().extension() == ".resolved") {
      out.emplace_back(entry.path().string(), Read(entry.path()));
    }
  }
  return out;
}

job::v1::ResolvedSpec Parsed(const std::string& bytes) {
  job::v1::ResolvedSpec spec;
  EXPECT_TRUE(spec.ParseFromString(bytes));
  return spec;
}

TEST(KeptSpecsTest, AreTakenAsTheyAre) {
  const auto kept = KeptSpecs();
  ASSERT_GE(kept.size(), 9u) << "in " << CAPSTAN_KEPT;
  for (const auto& [path, bytes] : kept) {
    const auto spec = ParseResolved(bytes, Digest(bytes));
    ASSERT_TRUE(spec.ok()) << path << ": " << spec.status();
    const auto layout = MakeLayout(*spec);
    ASSERT_TRUE(layout.ok()) << path << ": " << layout.status();
    EXPECT_EQ(layout->chunk_floats(), spec->chunk_floats()) << path;
    EXPECT_EQ(layout->chunk_count(), spec->chunk_count()) << path;
    EXPECT_EQ(layout->total_floats(), spec->flat_floats()) << path;
    EXPECT_TRUE(MakeSamplePlan(*spec).ok()) << path;
    EXPECT_TRUE(MakeEvalPlan(*spec).ok()) << path;
    EXPECT_TRUE(MakeOptimizer(*spec).ok()) << path;
    EXPECT_TRUE(MakeSchedule(*spec).ok()) << path;
  }
}

// `resume` changes these numbers in the existing spec, and the checkpoints must still fit.
TEST(KeptSpecsTest, GoOnWithOtherNumbersOfWorkersAndShards) {
  int changed = 0;
  for (const auto& [path, bytes] : KeptSpecs()) {
    job::v1::ResolvedSpec spec = Parsed(bytes);
    if (!UsesShards(spec)) continue;
    job::v1::Resources& resources = *spec.mutable_spec()->mutable_resources();
    spec.mutable_spec()->mutable_training()->set_global_batch_size(spec.global_batch());
    spec.set_num_workers(5);
    resources.set_num_workers(5);
    resources.set_min_workers(5);
    spec.set_num_shards(1);
    resources.set_num_shards(1);
    const std::string other = spec.SerializeAsString();
    const auto taken = ParseResolved(other, Digest(other));
    ASSERT_TRUE(taken.ok()) << path << ": " << taken.status();
    EXPECT_EQ(taken->training_digest(), Parsed(bytes).training_digest()) << path;
    ++changed;
  }
  EXPECT_GE(changed, 4);
}

// ---- Adding the specs of this version ----

struct Kept {
  const char* name;
  const char* text;  // of a job file, after version and name
};

// Every key that this version supports is in at least one of them, and most are left out of most.
constexpr Kept kKept[] = {
    {"defaults", R"(
model: {name: lenet}
data: {uri: file:///data/fashion-mnist, format: idx}
training: {epochs: 10, global_batch_size: 128, optimizer: {learning_rate: 0.04}}
)"},
    {"dist", R"(
resources: {num_workers: 2, num_shards: 2}
model: {name: lenet_d2l, num_classes: 10, initializer: {name: normal, scale: 0.01}}
data: {uri: file:///data/fashion-mnist, format: idx}
kvstore: {type: dist_sync}
training: {epochs: 10, global_batch_size: 256, optimizer: {name: sgd, learning_rate: 0.2}, seed: 42}
)"},
    {"shards", R"(
resources: {num_workers: 3, num_shards: 8, lanes: 12}
model: {name: lenet}
data: {uri: file:///data/fashion-mnist, format: idx}
training: {epochs: 3, global_batch_size: 240, optimizer: {learning_rate: 0.1, momentum: 0.9}}
checkpoint: {every: 50 steps, keep_latest: 2, keep_best: 1, strict: true, storage_path: file:///checkpoints}
)"},
    {"elastic", R"(
description: what a person wrote
labels: {team: vision, host: a}
resources: {num_workers: 4, min_workers: 2, lanes: 8, lane_weights: [3, 1, 1, 1, 1, 1, 1, 1]}
model: {name: mlp, initializer: he}
data: {uri: file:///data/fashion-mnist, format: idx, shuffle: false, partition: contiguous, prefetch_batches: 4}
training:
  max_steps: 1000
  batch_size_per_worker: 64
  optimizer: {learning_rate: 0.1, momentum: 0.9, nesterov: true, weight_decay: 0.0001,
              lr_schedule: {name: step, every: 2 epochs, factor: 0.5, warmup: 100 steps}}
evaluation: {every: 2 epochs, metric: accuracy}
checkpoint: {every: 30s}
limits: {active_deadline: 4h, stall_timeout: 5m, orphan_timeout: 10m}
recovery: {max_restarts: 5, backoff: {initial: 10s, max: 5m}, never_retry_on: [InvalidSpec, WorkerLost]}
)"},
    {"local", R"(
resources: {num_workers: 1, gpus_per_worker: 2}
model: {name: mlp}
data: {format: synthetic_digits, train_samples: 60000, test_samples: 10000}
kvstore: {type: local}
training:
  epochs: 2
  batch_size_per_gpu: 64
  optimizer: {name: sgd, learning_rate: 0.05, lr_schedule: {name: cosine, warmup: 50 steps, min_rate: 0.001}}
checkpoint: {every: 1 epoch}
)"},
    {"device", R"(
resources: {device: gpu, devices: [0, 2]}
model: {name: lenet, initial_weights: file:///models/start.safetensors}
data: {uri: file:///data/fashion-mnist, format: idx}
kvstore: {type: device}
training: {epochs: 1, global_batch_size: 256, precision: fp16, deterministic: true, optimizer: {learning_rate: 0.1}}
)"},
    {"cards", R"(
resources: {num_workers: 2, gpus_per_worker: 4, device: gpu, num_shards: 2}
model: {name: lenet_d2l}
data: {uri: file:///data/fashion-mnist, format: idx}
kvstore: {type: dist_sync_device}
training: {epochs: 1, global_batch_size: 512, precision: bf16, optimizer: {learning_rate: 0.1, multi_precision: true}}
)"},
    {"cpu", R"(
resources: {device: cpu}
model: {name: lenet, initializer: {name: uniform, scale: 0.05}}
data: {uri: file:///data/fashion-mnist, format: idx}
training: {epochs: 1, max_steps: 20, global_batch_size: 128, loss: softmax_cross_entropy, precision: fp32, deterministic: true,
           optimizer: {learning_rate: 0.1}}
)"},
    {"cifar", R"(
resources: {num_workers: 2}
model: {name: lenet, initializer: zeros}
data: {uri: file:///data/images, format: cifar10_bin, reader_threads: 2, prefetch_batches: 2, transforms: [
  {random_crop: {padding: 4}}, {random_flip: {}}, {cutout: {size: 8}},
  {normalize: {mean: [0.49, 0.48, 0.45], std: [0.25, 0.24, 0.26]}}, {resize: {size: 28}}]}
training: {epochs: 1, global_batch_size: 128, optimizer: {learning_rate: 0.1, lr_schedule: {name: one_cycle, pct_start: 0.25}}}
)"},
    {"accumulated", R"(
resources: {num_workers: 2}
model: {name: resnet18_v1}
data: {uri: file:///data/fashion-mnist, format: idx}
training: {epochs: 1, batch_size_per_worker: 64, accumulate_steps: 4, optimizer: {learning_rate: 0.1}}
)"},
    {"schedule", R"(
model: {name: mlp}
data: {uri: file:///data/fashion-mnist, format: idx}
training: {epochs: 5, global_batch_size: 128, optimizer: {learning_rate: 0.1,
  lr_schedule: {name: multi_step, milestones: [2 epochs, 2000 steps], factor: 0.2}}}
)"},
    {"polynomial", R"(
model: {name: mlp, dropout: 0.25}
data: {uri: file:///data/fashion-mnist, format: idx}
training: {epochs: 5, global_batch_size: 128, optimizer: {learning_rate: 0.1, lr_schedule: {name: polynomial, power: 2}}}
)"},
    {"graph", R"(
model:
  graph:
    nodes:
    - {name: conv, op: Conv, attributes: {out_channels: 8, kernel_shape: [3, 3], auto_pad: SAME_UPPER}}
    - {name: relu, op: Relu}
    - {name: add, op: Add, inputs: [conv, relu]}
    - {name: flatten, op: Flatten}
    - {name: fc, op: Gemm, attributes: {out_features: 10}}
    - {name: loss, op: SoftmaxCrossEntropyLoss, attributes: {label_smoothing: 0.1}}
data: {uri: file:///data/fashion-mnist, format: idx}
training: {epochs: 1, global_batch_size: 128, optimizer: {learning_rate: 0.1}}
)"},
};

TEST(KeptSpecsTest, ThisVersionsOwnAreWrittenWhenAsked) {
  const char* folder = std::getenv("CAPSTAN_KEEP");
  for (const Kept& kept : kKept) {
    const JobFile file = ParseJobFile(absl::StrCat("version: 1\nname: ", kept.name, kept.text));
    ASSERT_TRUE(file.errors.empty()) << FormatErrors(kept.name, file.errors);
    common::v1::DatasetInfo info;
    const bool color = absl::string_view(kept.name) == "cifar";
    info.set_train_samples(color ? 50000 : 60000);
    info.set_test_samples(10000);
    info.set_channels(color ? 3 : 1);
    info.set_height(color ? 32 : 28);
    info.set_width(color ? 32 : 28);
    info.set_num_classes(10);
    const auto spec = Resolve(
        file.spec, info, {.job_id = absl::StrCat(kept.name, "-x3n9k4"), .storage_path = "/out"});
    ASSERT_TRUE(spec.ok()) << kept.name << ": " << spec.status();
    const std::string bytes = spec->SerializeAsString();
    EXPECT_EQ(ParseResolved(bytes, Digest(bytes)).status(), absl::OkStatus()) << kept.name;
    if (folder == nullptr) continue;
    fs::create_directories(folder);
    const fs::path path = fs::path(folder) / absl::StrCat(kept.name, ".resolved");
    ASSERT_FALSE(fs::exists(path)) << path << " is there: what was kept is never made anew";
    std::ofstream(path, std::ios::binary) << bytes;
  }
}

}  // namespace
}  // namespace capstan::training::spec
