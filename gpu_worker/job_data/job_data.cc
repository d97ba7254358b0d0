#include "gpu_worker/job_data/job_data.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"
#include "training/graph/models.h"
#include "training/ops/gather/gather.h"
#include "training/ops/sequence_cross_entropy/sequence_cross_entropy.h"
#include "training/spec/validate.h"

namespace capstan::gpu_worker {
namespace {

constexpr int64_t kMostCharacters = 256;  // bytes that differ

// `transform` must come from a valid spec.
data::Transform MakeTransform(const job::v1::Transform& transform) {
  if (transform.has_random_crop()) {
    const job::v1::RandomCrop& crop = transform.random_crop();
    return data::RandomCrop{crop.size(), crop.padding()};
  }
  if (transform.has_random_flip()) {
    return data::RandomFlip{transform.random_flip().axis() == "vertical"};
  }
  if (transform.has_resize()) return data::Resize{transform.resize().size()};
  if (transform.has_cutout()) return data::Cutout{transform.cutout().size()};
  const job::v1::Normalize& normalize = transform.normalize();
  return data::Normalize{{normalize.mean().begin(), normalize.mean().end()},
                         {normalize.std().begin(), normalize.std().end()}};
}

// Whether the network reads whole numbers, not pixels.
bool ReadsTokens(const job::v1::Model& model) {
  if (training::ModelReadsTokens(model.name())) return true;
  return std::any_of(model.graph().nodes().begin(), model.graph().nodes().end(),
                     [](const job::v1::GraphNode& node) {
                       return node.op() == training::Gather::kName ||
                              node.op() == training::SequenceCrossEntropyLoss::kName;
                     });
}

}  // namespace

data::DatasetOptions MakeDatasetOptions(const job::v1::JobSpec& spec,
                                        std::vector<std::string> roots) {
  data::DatasetOptions options;
  const job::v1::Data& data = spec.data();
  options.format = data::FormatNamed(data.format()).value_or(data::Format::kIdx);
  options.path_or_uri = data.uri();
  options.roots = std::move(roots);
  // Without a number of classes, a text has as many as it has characters.
  options.num_classes = spec.model().has_num_classes()          ? spec.model().num_classes()
                        : options.format == data::Format::kText ? kMostCharacters
                                                                : 10;
  if (training::spec::HasNumericTargets(spec)) {
    options.target_size = std::max(1, spec.model().num_outputs());
  }
  options.seed = spec.training().seed();
  if (data.has_train_samples()) options.train_samples = data.train_samples();
  if (data.has_test_samples()) options.test_samples = data.test_samples();
  if (data.shape_size() == 3) options.shape = {data.shape(0), data.shape(1), data.shape(2)};
  options.train_file = data.train_file();
  options.test_file = data.test_file();
  if (data.has_label_column()) options.label_column = data.label_column();
  options.features = data.features();
  if (data.has_sequence_length()) options.sequence_length = data.sequence_length();
  options.tokens = ReadsTokens(spec.model());
  if (data.has_test_fraction()) options.test_fraction = data.test_fraction();
  for (const job::v1::Transform& transform : data.transforms()) {
    options.transforms.push_back(MakeTransform(transform));
  }
  return options;
}

absl::StatusOr<common::v1::DatasetInfo> ProbeJobData(const job::v1::JobSpec& spec,
                                                     std::vector<std::string> roots) {
  const absl::StatusOr<data::DatasetProbe> found =
      data::ProbeDataset(MakeDatasetOptions(spec, std::move(roots)));
  if (!found.ok()) return found.status();
  const data::DatasetInfo& train = found->train;
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  if (train.count > kLimit || found->test.count > kLimit || train.num_classes > kLimit) {
    return data::InvalidSpec(absl::StrCat("the data set has ", train.count, " and ",
                                          found->test.count, " samples, limit ", kLimit));
  }
  common::v1::DatasetInfo info;
  info.set_train_samples(train.count);
  info.set_test_samples(found->test.count);
  info.set_channels(static_cast<int32_t>(train.channels));
  info.set_height(static_cast<int32_t>(train.height));
  info.set_width(static_cast<int32_t>(train.width));
  info.set_num_classes(static_cast<int32_t>(train.num_classes));
  info.set_train_batches(train.batches);
  info.set_target_size(static_cast<int32_t>(train.target_size));
  return info;
}

}  // namespace capstan::gpu_worker
